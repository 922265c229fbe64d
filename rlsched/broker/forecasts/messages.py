"""Between a broker and its forecaster's process: frames of msgpack, each with its length before it."""

from __future__ import annotations

import struct
from typing import IO, Final

import msgspec

from rlsched.decisions.schema import ForecastSeen
from rlsched.wire.messages import DryRow, DryRun, ForecastReport, JobForecast

_LENGTH: Final = struct.Struct("<I")


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """What a forecaster is told first.

    Attributes:
        journal: The journal that it follows.
        store: The store of decisions, from which it takes its record.
        forecaster: Its name among the entry points.
        policy: The policy in force, as TOML ...
        policy_name: ... and its name.
        seed: Seed of the policy.
        prediction: As `Settings.prediction`.
        half_life_s: As `Ranks.half_life_s`.
        least_s: Time between two refreshes, at least.
    """

    journal: str
    store: str
    forecaster: str
    policy: str
    policy_name: str
    seed: int
    prediction: str | None
    half_life_s: float
    least_s: float


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    """A dry run; `number` is repeated by the answer."""

    number: int
    asked: DryRun


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What comes of it, or in one line why nothing does."""

    number: int
    said_s: float
    rows: list[DryRow] = []
    refusal: str = ""


class Said(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """A refresh: of all live jobs, by their numbers; and what has become known of earlier ones."""

    jobs: dict[int, JobForecast]
    seen: list[ForecastSeen]
    report: ForecastReport


Told = Setup | Question
Tells = Answer | Said


def framed(message: Told | Tells) -> bytes:
    """One frame."""
    packed = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(packed)) + packed


def put(pipe: IO[bytes], message: Told | Tells) -> None:
    """Write one frame."""
    pipe.write(framed(message))
    pipe.flush()


def get_told(pipe: IO[bytes]) -> Told | None:
    """The next frame to a forecaster; None at the end."""
    packed = _frame(pipe)
    return None if packed is None else msgspec.msgpack.decode(packed, type=Told)


def get_tells(pipe: IO[bytes]) -> Tells | None:
    """The next frame from a forecaster; None at the end.

    Raises:
        msgspec.MsgspecError: it is none.
    """
    packed = _frame(pipe)
    return None if packed is None else msgspec.msgpack.decode(packed, type=Tells)


def _frame(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    packed = pipe.read(_LENGTH.unpack(head)[0])
    return packed if len(packed) == _LENGTH.unpack(head)[0] else None
