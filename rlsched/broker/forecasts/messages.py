"""Messages between a broker and its forecaster process: MessagePack frames, each preceded by its length."""

from __future__ import annotations

import struct
from typing import IO, Final

import msgspec

from rlsched.decisions.schema import ForecastSeen
from rlsched.wire.messages import DryRow, DryRun, ForecastReport, JobForecast

_LENGTH: Final = struct.Struct("<I")


class ForecasterSetup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """First message to a forecaster.

    Attributes:
        journal: Path of the journal to follow.
        store: Path of the store of decisions, from which the forecaster reads its past forecasts and
            outcomes.
        forecaster: Name of the forecaster's entry point.
        policy: The policy that decides, as TOML.
        policy_name: Name of that policy.
        seed: Seed of the policy.
        prediction: Predictor of run times, `running-mean` or `hedge`; None: `hedge`.
        half_life_s: Half-life of a user's usage for fair share, seconds; infinite: fair share is off.
        least_s: Minimum time between two refreshes of the forecasts, seconds.
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
    """A user's dry run. The `Answer` has the same `number`."""

    number: int
    asked: DryRun
    user: str = ""
    """User whose earlier jobs show how run times change with the number of GPUs."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """Result of a dry run (`rows`), or the reason why it failed, in one line (`refusal`)."""

    number: int
    said_s: float
    rows: list[DryRow] = []
    refusal: str = ""


class Refreshed(msgspec.Struct, frozen=True, kw_only=True, tag="said"):
    """New forecasts.

    Attributes:
        jobs: Forecasts of live jobs, by job number.
        seen: Earlier forecasts whose outcome is now known, with the outcome.
        report: State and accuracy of the forecaster.
    """

    jobs: dict[int, JobForecast]
    seen: list[ForecastSeen]
    report: ForecastReport


Told = ForecasterSetup | Question
Tells = Answer | Refreshed


def framed(message: Told | Tells) -> bytes:
    """Encode a message as one frame."""
    packed = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(packed)) + packed


def put(pipe: IO[bytes], message: Told | Tells) -> None:
    """Write a message as one frame."""
    pipe.write(framed(message))
    pipe.flush()


def get_told(pipe: IO[bytes]) -> Told | None:
    """Read the next message to a forecaster; None at the end of the stream."""
    packed = _frame(pipe)
    return None if packed is None else msgspec.msgpack.decode(packed, type=Told)


def get_tells(pipe: IO[bytes]) -> Tells | None:
    """Read the next message from a forecaster; None at the end of the stream.

    Raises:
        msgspec.MsgspecError: the frame is not valid.
    """
    packed = _frame(pipe)
    return None if packed is None else msgspec.msgpack.decode(packed, type=Tells)


def _frame(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    packed = pipe.read(_LENGTH.unpack(head)[0])
    return packed if len(packed) == _LENGTH.unpack(head)[0] else None
