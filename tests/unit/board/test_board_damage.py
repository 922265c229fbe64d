"""A broker's event file: read back as written, and after every kind of disk damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rlsched.board.reader import read_runs
from rlsched.board.tags import DESCRIPTIONS
from rlsched.broker.journal.records import RecordLog
from rlsched.cli.traces.board import board
from rlsched.errors import InputError
from tests.support.decided import record
from tests.support.event_files import event_values

DECISIONS = 600
COUNT = "decisions/source_policy_count"


@pytest.fixture
def event_file(tmp_path: Path) -> Path:
    """An event file of a deciding broker."""
    log = RecordLog(tmp_path / "decisions", tmp_path / "tb")
    log.add([record(number) for number in range(DECISIONS)])
    log.flush()
    log.close()
    (found,) = (tmp_path / "tb").glob("events*")
    return found


def summary(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(board, ["--summary", str(folder), *more])


def test_event_file_of_a_broker_is_read_back(event_file: Path) -> None:
    run = read_runs(event_file.parent)["."]
    assert run.damaged == []
    points = run.scalars[COUNT]
    assert points[-1][0] == DECISIONS
    assert sum(value for _, value in points) == DECISIONS
    assert event_values(event_file.parent)[COUNT].description == DESCRIPTIONS[COUNT]
    done = summary(event_file.parent)
    assert (done.exit_code, done.stderr) == (0, "")
    assert COUNT in done.stdout


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage", "zeros"])
def test_damaged_file_gives_one_line_and_its_first_part(event_file: Path, how: str) -> None:
    whole = event_file.read_bytes()
    points = len(read_runs(event_file.parent)["."].scalars[COUNT])
    at = len(whole) // 2
    event_file.write_bytes(
        {
            "cut": whole[:at],
            "flipped": whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :],
            "garbage": b"nonsense" * 50,
            "zeros": whole[:at] + bytes(len(whole) - at),
        }[how]
    )
    done = summary(event_file.parent, "--json")
    assert done.exit_code == 0, done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{event_file}: damaged or cut off after ")
    kept = json.loads(done.stdout)["."]
    step = max((curve["last_step"] for curve in kept.values()), default=0)
    assert line.endswith(f": read up to step {step:,}; later records are not shown")
    if how == "garbage":
        assert kept == {}
        assert "after 0 records" in line
    else:
        assert 0 < kept[COUNT]["points"] < points


def test_damaged_file_does_not_hide_the_others(event_file: Path) -> None:
    """Two files of one run, the first damaged: the line names it, and the second is read completely."""
    whole = event_file.read_bytes()
    event_file.with_name(event_file.name + ".later").write_bytes(whole)
    event_file.write_bytes(whole[: len(whole) // 2])
    run = read_runs(event_file.parent)["."]
    (line,) = run.damaged
    assert line.startswith(f"{event_file}: ")
    assert run.scalars[COUNT][-1][0] == DECISIONS


def test_unreadable_event_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.here").symlink_to(tmp_path / "gone")
    with pytest.raises(
        InputError, match=r"tfevents\.1\.here: cannot read this event file: No such file"
    ) as found:
        read_runs(tmp_path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "-1"], "-1 is not in the range"),
        (["--port", "65536"], "65536 is not in the range"),
        (["--host", "no such host"], "--host 'no such host': expected an address of this machine"),
    ],
)
def test_address_that_cannot_be_served_is_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    result = CliRunner().invoke(board, [str(tmp_path), *options])
    assert result.exit_code != 0
    assert said in result.output + str(result.exception)
