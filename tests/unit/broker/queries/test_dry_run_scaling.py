"""Dry runs with fewer GPUs: run times follow from earlier jobs of the same command, if there were any."""

from __future__ import annotations

import pytest

from rlsched.broker.base.profiles import Profiles
from rlsched.broker.forecasts.messages import Answer, ForecasterSetup, Question
from rlsched.broker.forecasts.process import Process, with_fewer
from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.submissions import wrong_question
from rlsched.decide.policies.policy import Policy
from rlsched.wire.messages import DryRun, Ended, RankUsage
from tests.support.broker.hand import hello, launched, make, submit

SIGNATURE = ("ann", "train")


@pytest.fixture
def learnt() -> Profiles:
    """4 GPUs are 1.6 times as fast as 2 on V100, and 1.2 times on H100, where more jobs ran."""
    known = Profiles()
    for gpu_type, count, seconds in (("V100", 2, (160.0, 100.0)), ("H100", 3, (60.0, 50.0))):
        for _ in range(count):
            for num_gpus, run_s in zip((2, 4), seconds, strict=True):
                known.observe(SIGNATURE, gpu_type, {"run_s": run_s}, num_gpus=num_gpus)
    return known


@pytest.mark.parametrize(
    ("gpu_types", "factor"),
    [((), 1.2), (("H100",), 1.2), (("V100",), 1.6), (("v100",), 1.6), (("A100",), 2.0)],
)
def test_factor_is_that_of_the_accepted_type_with_most_jobs(
    learnt: Profiles, gpu_types: tuple[str, ...], factor: float
) -> None:
    found, note = with_fewer(learnt.profiles_of(SIGNATURE), gpu_types, 4, 2)
    assert found == pytest.approx(factor)
    assert ("as earlier jobs with this command did" in note) == (factor != 2.0)


def test_unknown_numbers_of_gpus_are_in_inverse_proportion(learnt: Profiles) -> None:
    profiles = learnt.profiles_of(SIGNATURE)
    for num_gpus, fewer in ((8, 4), (2, 1), (7, 3)):
        found, note = with_fewer(profiles, (), num_gpus, fewer)
        assert found == num_gpus / fewer
        assert note == "if the run time is inversely proportional to the number of GPUs"
    assert with_fewer({}, (), 4, 2)[0] == 2.0


def test_command_of_a_dry_run_is_checked_like_that_of_a_submission() -> None:
    assert wrong_question(DryRun(num_gpus=4, command=("python", "train.py"))) == ""
    assert wrong_question(DryRun(num_gpus=4)) == ""
    assert "command" in wrong_question(DryRun(num_gpus=4, command=("",)))


@pytest.mark.parametrize(("user", "factor"), [("ann", 4.0 / 3.0), ("bob", 2.0)])
def test_forecaster_uses_the_jobs_of_the_user_who_asks(journal: Journal, user: str, factor: float) -> None:
    broker = make(journal)
    broker.says("n0", hello("n0", 4))
    usage = RankUsage(measured_s=60, gpu_milli=500)
    for number, (num_gpus, run_s) in enumerate(((4, 90.0), (4, 90.0), (2, 120.0), (2, 120.0)), 1):
        broker.ask(submit(num_gpus, command=["python", "train.py"], user="ann"))
        broker.says("n0", launched(number))
        broker.says("n0", Ended(job=number, attempt=1, rank=0, exit_code=0, usage=usage), after_s=run_s)
    policy, answers = Policy("fifo"), list[Answer]()
    setup = ForecasterSetup(
        journal=str(journal.path),
        store="",
        forecaster="futures",
        policy=policy.toml,
        policy_name=policy.name,
        seed=0,
        prediction="running-mean",
        half_life_s=1.0,
        least_s=1.0,
    )
    asked = DryRun(num_gpus=4, command=("python", "train.py"))
    Process(setup, answers.append).answer(Question(number=1, asked=asked, user=user))  # type: ignore[arg-type]
    rows = {row.what: row for row in answers[0].rows}
    assert rows["half the GPUs"].predicted_s == pytest.approx(factor * rows["as asked"].predicted_s, rel=0.01)
