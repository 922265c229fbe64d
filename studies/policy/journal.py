"""The log of all runs on the test split."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from rlsched.errors import InputError

LOG_FILE: Final = Path("runs/policy/test_runs.jsonl")


class TestRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `test_runs.jsonl`: one call that runs something on the test split.

    Attributes:
        date: Its start, UTC.
        policies: The policies.
        cases: The cases.
        checkpoints: Name and digest of each policy under test.
        tuned: Digest of the used file of tuned values.
    """

    __test__ = False  # not a test, despite its name

    date: str
    policies: list[str]
    cases: list[str]
    checkpoints: dict[str, str]
    tuned: str


def read_log(path: Path = LOG_FILE) -> list[TestRun]:
    """All runs on the test split so far, the first first.

    Raises:
        InputError: A line is not a run.
    """
    if not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=TestRun) for line in path.read_bytes().splitlines() if line]
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: expected a run on the test split a line, got {error}") from None


def append_run(
    path: Path, *, policies: list[str], cases: list[str], checkpoints: dict[str, str], tuned: str
) -> TestRun:
    """Log a run; call it before anything is run, so that a stopped run counts too."""
    run = TestRun(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        policies=policies,
        cases=cases,
        checkpoints=checkpoints,
        tuned=tuned,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(run) + b"\n")
    return run
