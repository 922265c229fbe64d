"""Dry runs at the broker: checked before the forecaster receives them, and always answered."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from rlsched.broker.events import ClientAsked, Reply
from rlsched.broker.forecasts.forecasting import MAX_ASKERS, MAX_OF_ONE, MAX_QUESTIONS, Forecasting
from rlsched.broker.forecasts.messages import ForecasterSetup
from rlsched.transport.roles import Peer
from rlsched.wire.messages import DryRun, DryRunAnswer, Refused

SETUP = ForecasterSetup(
    journal="", store="", forecaster="futures", policy="", policy_name="", seed=0, prediction=None,
    half_life_s=1.0, least_s=1.0,
)  # fmt: skip
ANSWERS = """
import sys
from rlsched.broker.forecasts.messages import Answer, get_told, put
get_told(sys.stdin.buffer)
while (question := get_told(sys.stdin.buffer)) is not None:
    put(sys.stdout.buffer, Answer(number=question.number, said_s=1.0))
"""
SILENT = "import sys; sys.stdin.buffer.read()"
PEERS = iter(range(1, 1000))


def asked_by(question: DryRun, person: str = "ada") -> ClientAsked:
    return ClientAsked(f"peer{next(PEERS)}".encode(), 1, question, Peer("user", person, person))


def ask(forecasting: Forecasting, question: DryRun, person: str = "ada") -> str:
    return forecasting.ask(asked_by(question, person), question)


def replies(forecasting: Forecasting, most: int = 1) -> list[Reply]:
    found: list[Reply] = []
    until_s = time.monotonic() + 60.0
    while len(found) < most:
        assert time.monotonic() < until_s
        found += forecasting.step()[1]
    return found


@pytest.fixture
def made() -> Iterator[list[Forecasting]]:
    found: list[Forecasting] = []
    yield found
    for one in found:
        one.close()


def forecasting(made: list[Forecasting], program: str) -> Forecasting:
    def command() -> Sequence[str]:
        return [sys.executable, "-c", program]

    made.append(Forecasting(SETUP, print, after_s=math.inf, command=command))
    return made[-1]


def test_invalid_job_is_refused_and_the_next_dry_run_answered(
    made: list[Forecasting],
) -> None:
    mine = forecasting(made, ANSWERS)
    for facts, why in (
        ({"num_gpus": -1}, "num_gpus must be 1 to 65,536, got -1"),
        ({"num_gpus": 0}, "num_gpus must be 1 to 65,536, got 0"),
        ({"time_limit_s": -5.0}, "time_limit_s must be above 0, got -5"),
        ({"time_limit_s": math.nan}, "time_limit_s must be above 0, got nan"),
        ({"tonight_s": math.inf}, "tonight_s must be a time in Unix seconds, got inf"),
        ({"vc": "x" * 300_000}, "vc must be at most 64 characters, got 300,000"),
        ({"workload": "nope"}, "expected a workload of the catalogue, got 'nope'"),
    ):
        assert ask(mine, DryRun(**{"num_gpus": 1} | facts)).startswith(why)
    assert mine.process is None
    assert ask(mine, DryRun(num_gpus=1)) == ""
    [reply] = replies(mine)
    assert isinstance(reply.message, DryRunAnswer)


def test_one_user_does_not_block_dry_runs_of_others(made: list[Forecasting]) -> None:
    mine = forecasting(made, SILENT)
    for number in range(MAX_OF_ONE):
        assert ask(mine, DryRun(num_gpus=2 + number)) == ""
    assert ask(mine, DryRun(num_gpus=1)).startswith(f"{MAX_OF_ONE} of your dry runs already wait")
    for number in range(MAX_QUESTIONS - MAX_OF_ONE):
        assert ask(mine, DryRun(num_gpus=1), f"other{number}") == ""
    assert ask(mine, DryRun(num_gpus=1), "bob").startswith(f"{MAX_QUESTIONS} dry runs already wait")


def test_question_that_is_repeated_over_new_connections_is_one_question(made: list[Forecasting]) -> None:
    mine = forecasting(made, ANSWERS)
    asked = [asked_by(DryRun(num_gpus=1)) for _ in range(MAX_ASKERS + 2)]
    for one in (*asked, asked[-1]):
        assert mine.ask(one, DryRun(num_gpus=1)) == ""
    found = replies(mine, MAX_ASKERS)
    assert [reply.peer for reply in found] == [one.peer for one in asked[2:]]
    assert all(isinstance(reply.message, DryRunAnswer) for reply in found)


def test_dry_runs_of_an_exited_forecaster_are_refused_at_once(made: list[Forecasting]) -> None:
    mine = forecasting(made, SILENT)
    assert ask(mine, DryRun(num_gpus=1)) == ""
    assert ask(mine, DryRun(num_gpus=2)) == ""
    mine.use(SETUP)  # the policy changes here
    for reply in replies(mine, 2):
        assert reply.message == Refused(message="the forecaster ended meanwhile; ask again")
