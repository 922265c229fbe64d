"""Policies that decided in a broker's store of decisions, with their times and settings, to decide again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.policies.files import with_whole_paths
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError

DECIDERS_FILE: Final = "policies.jsonl"


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that started to decide.

    Attributes:
        since_s: Start, Unix seconds.
        policy: Its name.
        toml: Its settings, paths absolute.
    """

    since_s: float
    policy: str
    toml: str


def note_decider(folder: Path, policy: Policy, since_s: float) -> None:
    """Record that a policy decides from now on.

    Raises:
        OSError: it cannot be written.
    """
    line = msgspec.json.encode(
        Decider(since_s=since_s, policy=policy.name, toml=with_whole_paths(policy).toml)
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DECIDERS_FILE).open("ab") as file:
        file.write(line + b"\n")


def decider_at(folder: Path, at_s: float) -> Policy:
    """The policy that decided at a time.

    Raises:
        InputError: the store does not contain it.
    """
    try:
        lines = (folder / DECIDERS_FILE).read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"{folder}: it is not known which policy decided ({DECIDERS_FILE}: {error.strerror}); "
            "a broker writes it when it starts"
        ) from error
    found: Decider | None = None
    for line in lines:
        try:
            one = msgspec.json.decode(line, type=Decider)
        except msgspec.MsgspecError:  # cut short by a full disk
            continue
        if one.since_s <= at_s:
            found = one
    if found is None:
        raise InputError(f"{folder}: it is not known which policy decided then; {DECIDERS_FILE} begins later")
    return Policy.parse(found.toml, name=found.policy, where=str(folder / DECIDERS_FILE))
