"""The broker's state machine: a job from its submission to its end."""

from __future__ import annotations

import pytest

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.journal.journal import Journal
from rlsched.wire.messages import (
    Cancel,
    EndedAck,
    Kill,
    Launch,
    Ok,
    Refused,
    SetQuota,
    Submit,
    Submitted,
    Welcome,
)
from tests.support.broker.hand import LIMITS, ended, hello, launched, make, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker

# ---- a job's life ---------------------------------------------------------------------------------------


def test_job_is_queued_launching_running_completed(broker: HandBroker) -> None:
    assert broker.ask(submit()) == Submitted(job=1)
    assert state(broker, 1) == "queued"
    welcome, launch = broker.says("n0", hello("n0"))
    assert isinstance(welcome, Welcome)
    assert (welcome.epoch, welcome.cluster, welcome.forget) == (1, "c1", [])
    assert launch == Launch(
        epoch=1,
        job=1,
        attempt=1,
        rank=0,
        num_ranks=1,
        nodes=["n0"],
        gpus=[0],
        command=["true"],
        env={},
        cwd="",
        grace_s=30.0,
        lost_after_s=LIMITS.lost_after_s,
        gpus_of_ranks=[1],
    )
    assert state(broker, 1) == "launching"
    assert broker.says("n0", launched(1)) == []
    assert state(broker, 1) == "running"
    assert broker.says("n0", ended(1)) == [EndedAck(job=1, attempt=1, rank=0)]
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code) == ("completed", 0)
    assert broker.state.cluster.running() == []


def test_failed_job_has_its_own_exit_code(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1), ended(1, exit_code=7))
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code, job.reason) == ("failed", 7, "ended with exit code 7")


def test_gang_runs_once_all_ranks_have_acknowledged_and_ends_once_all_have_ended(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    launches = of_kind([message for _, message in broker.sent.orders], Launch)
    assert [(m.rank, m.num_ranks, m.nodes, m.gpus) for m in launches] == [
        (0, 2, ["n0", "n1"], [0, 1, 2, 3]),
        (1, 2, ["n0", "n1"], [0, 1, 2, 3]),
    ]
    broker.says("n0", launched(1, rank=0))
    assert state(broker, 1) == "launching"
    broker.says("n1", launched(1, rank=1))
    assert state(broker, 1) == "running"
    broker.says("n0", ended(1, rank=0))
    assert state(broker, 1) == "running"
    assert len(broker.state.cluster.running()) == 1
    broker.says("n1", ended(1, rank=1))
    assert state(broker, 1) == "completed"


def test_failed_rank_ends_the_others_and_sets_the_exit_code(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit(8))
    broker.says("n0", launched(1, rank=0))
    broker.says("n1", launched(1, rank=1))
    out = broker.says("n1", ended(1, rank=1, exit_code=9))
    assert out == [Kill(epoch=1, job=1, attempt=1, rank=0), EndedAck(job=1, attempt=1, rank=1)]
    assert state(broker, 1) == "running"
    broker.says("n0", ended(1, rank=0, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("failed", 9)
    assert "rank 1 on n1 ended with exit code 9" in broker.state.jobs[1].reason


def test_time_limit_is_reported_as_the_reason(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(time_limit_s=5.0))
    assert broker.sent.orders[-1][1].time_limit_s == 5.0  # type: ignore[union-attr]
    broker.says("n0", launched(1), ended(1, exit_code=124, reason="time_limit"))
    assert broker.state.jobs[1].reason == "reached its time limit of 5 s"


def test_repeated_end_is_acknowledged_again_and_changes_nothing(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1), ended(1))
    before = len(list(journal.rows()))
    assert broker.says("n0", ended(1)) == [EndedAck(job=1, attempt=1, rank=0)]
    assert broker.says("n0", ended(77)) == [EndedAck(job=77, attempt=1, rank=0)]
    assert len(list(journal.rows())) == before


def test_kill_is_repeated_until_the_rank_has_ended(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", launched(1))
    assert broker.ask(Cancel(job=1)) == Ok()
    kill = Kill(epoch=1, job=1, attempt=1, rank=0)
    assert broker.sent.orders[-1] == ("n0", kill)
    assert broker.wait(1.0, "n0") == []
    assert broker.wait(10.0, "n0") == [kill]
    assert broker.wait(10.0, "n0") == [kill]
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert (state(broker, 1), broker.state.jobs[1].exit_code) == ("cancelled", None)
    assert broker.wait(10.0, "n0") == []


# ---- submissions ---------------------------------------------------------------------------------------


def test_same_token_gets_the_same_job(broker: HandBroker) -> None:
    assert broker.ask(submit(token="x")) == Submitted(job=1)
    assert broker.ask(submit(token="x")) == Submitted(job=1)
    assert len(broker.state.jobs) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Submit(token="", command=["a"], num_gpus=1), "token"),
        (Submit(token="t", command=[], num_gpus=1), "command"),
        (Submit(token="t", command=["a"], num_gpus=0), "num_gpus"),
        (Submit(token="t", command=["a"], num_gpus=1, time_limit_s=0.0), "time_limit_s"),
        (Submit(token="t", command=["a"], num_gpus=1, time_limit_s=float("nan")), "time_limit_s"),
        (Submit(token="t", command=["a"], num_gpus=1, env={"A=B": "c"}), "environment"),
    ],
)
def test_invalid_submission_is_refused_in_one_line_and_not_journalled(
    broker: HandBroker, wrong: Submit, said: str
) -> None:
    reply = broker.ask(wrong)
    assert isinstance(reply, Refused)
    assert said in reply.message
    assert "\n" not in reply.message
    assert broker.state.jobs == {}


def test_gang_that_can_never_run_is_rejected_and_journalled(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    reply = broker.ask(submit(9))
    assert isinstance(reply, Refused)
    assert "9 GPUs can never be given together" in reply.message
    assert state(broker, 1) == "rejected"
    last = list(journal.rows())[-1].entry
    assert isinstance(last, JobSubmitted)
    assert last.rejected
    assert broker.ask(submit(8)) == Submitted(job=2)


def test_large_gang_is_queued_while_there_are_no_nodes(broker: HandBroker) -> None:
    assert broker.ask(submit(64)) == Submitted(job=1)
    assert state(broker, 1) == "queued"


def test_vc_without_node_and_quota_is_refused(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    assert isinstance(broker.ask(submit(1, vc="label")), Submitted), "if no node has a VC, it is a label"
    broker.says("m0", hello("m0", vc="physics"))
    assert isinstance(broker.ask(submit(1, vc="physics")), Submitted)
    assert broker.ask(submit(1, vc="physiks")) == Refused(
        message="job 3 is rejected: no VC 'physiks'; did you mean physics? expected one of physics, or none"
    )
    assert isinstance(broker.ask(submit(1)), Submitted)
    broker.ask(SetQuota(kind="vc", name="biology", gpus=1))
    assert isinstance(broker.ask(submit(1, vc="biology")), Submitted)
    assert broker.state.jobs[1].state != "rejected", "earlier jobs stay"


def test_predictions_are_made_at_submission_and_learn_from_ends(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    first = broker.state.jobs[1].spec.predicted_s
    broker.says("n0", launched(1))
    broker.says("n0", ended(1), after_s=10.0)
    broker.ask(submit())
    assert broker.state.jobs[2].spec.predicted_s < first
    broker.ask(submit(time_limit_s=3.0))
    assert broker.state.jobs[3].spec.predicted_s == 3.0


def test_predictor_ignores_cancelled_jobs(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    first = broker.state.jobs[1].spec.predicted_s
    broker.says("n0", launched(1))
    broker.ask(Cancel(job=1))
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    broker.ask(submit())
    assert broker.state.jobs[2].spec.predicted_s == first


def test_cancel_removes_a_waiting_job(broker: HandBroker) -> None:
    broker.ask(submit())
    assert broker.ask(Cancel(job=1)) == Ok()
    assert state(broker, 1) == "cancelled"
    assert broker.ask(Cancel(job=1)) == Ok(), "a repeated request is harmless"
    assert isinstance(broker.ask(Cancel(job=5)), Refused)


def test_ended_job_drops_data_that_only_a_start_needs(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit(1, env={"A": "b" * 1_000}, cwd="/tmp", name="train"))
    broker.ask(submit(99, env={"A": "b" * 1_000}))
    broker.ask(submit(1, env={"A": "b" * 1_000}))
    broker.ask(Cancel(job=3))
    launches = of_kind([message for _, message in broker.sent.orders], Launch)
    assert [(launch.job, launch.cwd) for launch in launches] == [(1, "/tmp"), (3, "")]
    broker.says("n0", launched(1), ended(1))
    broker.says("n0", ended(3, exit_code=143, reason="killed"))
    assert [broker.state.jobs[job].state for job in (1, 2, 3)] == ["completed", "rejected", "cancelled"]
    for job in broker.state.jobs.values():
        assert (job.spec.command, job.spec.env, job.spec.cwd) == ([], {}, "")
    assert broker.state.jobs[1].spec.name == "train"
    again = make(journal)
    assert [job.spec for job in again.state.jobs.values()] == [job.spec for job in broker.state.jobs.values()]
