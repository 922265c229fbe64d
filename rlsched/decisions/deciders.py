"""The policies that a broker has used, with their start times and settings, for replays of decisions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.policies.files import with_whole_paths
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError

DECIDERS_FILE: Final = "policies.jsonl"


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that a broker has used.

    Attributes:
        since_s: Time at which the broker began to use the policy, Unix seconds.
        policy: Name of the policy.
        toml: Settings of the policy, as TOML with absolute paths.
    """

    since_s: float
    policy: str
    toml: str


def note_decider(folder: Path, policy: Policy, since_s: float) -> None:
    """Record that a broker has used a policy since `since_s`, Unix seconds.

    Do nothing if the last record has the same policy.

    Raises:
        OSError: the file cannot be written, or the existing file cannot be read.
    """
    toml, path = with_whole_paths(policy).toml, folder / DECIDERS_FILE
    folder.mkdir(parents=True, exist_ok=True)
    last = _deciders(path)[-1:] if path.exists() else []
    if any((one.policy, one.toml) == (policy.name, toml) for one in last):
        return
    line = msgspec.json.encode(Decider(since_s=since_s, policy=policy.name, toml=toml))
    with path.open("ab") as file:
        file.write(line + b"\n")


def decider_at(folder: Path, at_s: float) -> Policy:
    """Return the policy that a broker used at the time `at_s`, Unix seconds.

    Raises:
        InputError: no policy is recorded for that time.
    """
    try:
        known = _deciders(folder / DECIDERS_FILE)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot read which policy decided ({DECIDERS_FILE}: {error.strerror}); "
            "a broker writes this file at its start"
        ) from error
    found = [one for one in known if one.since_s <= at_s]
    if not found:
        raise InputError(
            f"{folder}: no policy is recorded for that time; {DECIDERS_FILE} begins later; give a later time"
        )
    return Policy.parse(found[-1].toml, name=found[-1].policy, where=str(folder / DECIDERS_FILE))


def _deciders(path: Path) -> list[Decider]:
    """Return the recorded policies of a file, in order. Skip invalid lines, which a full disk can leave.

    Raises:
        OSError: the file cannot be read.
    """
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=Decider))
    return found
