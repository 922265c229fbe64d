"""Quotas: jobs that wait for them, refusals, and starts once the quota has room."""

from __future__ import annotations

import pytest

from rlsched.broker.base.entries import EligibilityReviewed, QuotaSet
from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    ClientReply,
    Explanation,
    Jobs,
    ListJobs,
    ListQuotas,
    Ok,
    QuotaInfo,
    Quotas,
    Refused,
    SetQuota,
    Submit,
    Submitted,
    Why,
)
from tests.quick import quick
from tests.support.broker.hand import LIMITS, ended, hello, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.preempting import make_preempting

ALICE = Peer("user", "laptop", "alice")
BOB = Peer("user", "bob", "bob")


def ask(broker: HandBroker, by: Peer, *messages: Submit) -> list[ClientReply]:
    """Submissions of one user in one batch; returns the replies."""
    before = len(broker.sent.replies)
    broker.batch([ClientAsked(b"peer", n, message, by) for n, message in enumerate(messages)])
    return [message for _, _, message in broker.sent.replies[before:]]


def limit(broker: HandBroker, kind: str, name: str, **limits: float | None) -> ClientReply:
    return broker.ask(SetQuota(kind=kind, name=name, **limits))  # type: ignore[arg-type]


def reason(broker: HandBroker, job: int) -> str:
    jobs = broker.ask(ListJobs(job=job))
    assert isinstance(jobs, Jobs)
    return jobs.jobs[0].reason


def why(broker: HandBroker, job: int) -> Explanation:
    explanation = broker.ask(Why(job=job))
    assert isinstance(explanation, Explanation)
    return explanation


def rows(broker: HandBroker) -> dict[tuple[str, str], QuotaInfo]:
    page = broker.ask(ListQuotas())
    assert isinstance(page, Quotas)
    return {(row.kind, row.name): row for row in page.quotas}


def running(broker: HandBroker) -> list[int]:
    return [job.number for job in broker.state.jobs.values() if job.active is not None]


def end(broker: HandBroker, job: int, after_s: float = 0.001) -> None:
    """End all ranks of a job."""
    attempt = broker.state.jobs[job].active
    assert attempt is not None
    for number, rank in enumerate(attempt.ranks):
        broker.says(rank.node, ended(job, attempt.number, number), after_s=after_s if number == 0 else 0.001)


def acknowledge(broker: HandBroker) -> None:
    """Acknowledge every rank that is being launched."""
    for job in running(broker):
        attempt = broker.state.jobs[job].active
        assert attempt is not None
        for number, rank in enumerate(attempt.ranks):
            if rank.state == "launching" and not attempt.leaving:
                broker.says(rank.node, launched(job, attempt.number, number))


# ---- GPUs at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), [("user", "alice"), ("vc", "red"), ("user", "default")])
def test_jobs_above_the_quota_wait_despite_free_gpus(journal: Journal, kind: str, name: str) -> None:
    broker = make(journal, nodes=2)
    assert limit(broker, kind, name, gpus=3) == Ok()
    ask(broker, ALICE, *(submit(1, vc="red") for _ in range(5)))
    assert running(broker) == [1, 2, 3], "two jobs started in one pass do not exceed it together"
    who = "VC red" if kind == "vc" else "alice"
    assert reason(broker, 4) == f"Quota: {who} has 3 of 3 GPUs at once"
    ask(broker, BOB, submit(3))
    assert state(broker, 6) == "launching", "another user's job is accepted"


def test_freed_quota_is_used_in_the_same_pass_in_order_of_submission(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    limit(broker, "user", "alice", gpus=2)
    ask(broker, ALICE, *(submit(1) for _ in range(4)))
    ask(broker, BOB, *(submit(4), submit(2), submit(1)))
    assert running(broker) == [1, 2, 5, 6], "one node is in use, and no GPU is left for job 7"
    end(broker, 1)
    assert running(broker) == [2, 3, 5, 6], "alice's third job was submitted before bob's third"
    assert reason(broker, 4) == "Quota: alice has 2 of 2 GPUs at once"
    assert reason(broker, 7) == "Resources: needs 1 GPU, 0 free"


def test_smaller_job_overtakes_a_large_one_that_waits_for_quota(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    limit(broker, "user", "alice", gpus=4)
    ask(broker, ALICE, submit(2), submit(4), submit(2))
    assert running(broker) == [1, 3]
    assert reason(broker, 2) == "Quota: alice has 4 of 4 GPUs at once"
    end(broker, 3)
    assert reason(broker, 2) == "Quota: alice has 2 of 4 GPUs at once, it needs 4"
    end(broker, 1)
    assert state(broker, 2) == "launching"


def test_job_larger_than_the_quota_is_refused(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    limit(broker, "vc", "red", gpus=4)
    assert ask(broker, ALICE, submit(5, vc="red"), submit(5), submit(4, vc="red")) == [
        Refused(message="quota: VC red may have 4 GPUs at once, this job requests 5; request fewer GPUs"),
        Submitted(job=1),
        Submitted(job=2),
    ]


def test_lowered_quota_ends_no_job_and_keeps_jobs_waiting(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    ask(broker, ALICE, submit(3), submit(3))
    limit(broker, "user", "alice", gpus=2)
    assert state(broker, 1) == "launching"
    assert reason(broker, 2) == "Quota: alice may have 2 GPUs at once, it needs 3"
    assert why(broker, 2).summary == reason(broker, 2)
    assert "rlsched quota list" in str(why(broker, 2))
    end(broker, 1)
    assert state(broker, 2) == "queued"
    limit(broker, "user", "alice", gpus=3)
    assert state(broker, 2) == "launching", "a higher limit admits it at once"


def test_preempted_job_counts_until_it_has_ended(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    limit(broker, "user", "alice", gpus=4)
    ask(broker, ALICE, submit(4, preemptible=True))
    broker.says("n0", launched(1))
    broker.wait(4000.0, "n0")
    ask(broker, BOB, submit(4))
    assert broker.state.jobs[1].active is not None
    assert broker.state.jobs[1].active.ending == "preempted"
    ask(broker, ALICE, submit(1))
    assert reason(broker, 3) == "Quota: alice has 4 of 4 GPUs at once"
    assert rows(broker)["user", "alice"].gpus_now == 4
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    assert rows(broker)["user", "alice"].gpus_now == 0
    assert not reason(broker, 3).startswith("Quota")


def test_cancelled_job_does_not_count(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    limit(broker, "user", "alice", gpus=1, jobs=2)
    ask(broker, ALICE, submit(1), submit(1))
    assert broker.ask(Cancel(job=2)) == Ok()
    assert ask(broker, ALICE, submit(1)) == [Submitted(job=3)]
    assert rows(broker)["user", "alice"].jobs_now == 2


# ---- jobs -----------------------------------------------------------------------------------------


def test_job_above_the_number_limit_is_refused_and_gets_no_number(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    limit(broker, "user", "alice", jobs=2)
    replies = ask(broker, ALICE, *(submit(4) for _ in range(3)))
    assert replies[2] == Refused(
        message="quota: alice has 2 of 2 jobs, waiting and running; submit when one has finished"
    )
    assert ask(broker, BOB, submit(4)) == [Submitted(job=3)]
    end(broker, 1)
    assert ask(broker, ALICE, submit(4)) == [Submitted(job=4)]


def test_refusals_leave_no_gap_in_job_numbers(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    limit(broker, "user", "alice", jobs=1)
    before = len(broker.sent.replies)
    broker.batch(
        [ClientAsked(b"p", n, submit(), by) for n, by in enumerate((ALICE, ALICE, BOB), start=1)],
    )
    replies = [message for _, _, message in broker.sent.replies[before:]]
    assert replies[::2] == [Submitted(job=1), Submitted(job=2)]
    assert isinstance(replies[1], Refused)
    assert sorted(broker.state.jobs) == [1, 2]


def test_refused_job_is_not_predicted_and_the_next_one_is(journal: Journal) -> None:
    """The hedge keeps every job that it has predicted until the job ends."""
    pytest.importorskip("sklearn")
    broker = HandBroker(load_scheduler("tuned"), journal, limits=LIMITS, prediction="hedge")
    limit(broker, "user", "alice", jobs=1)
    for _ in range(2):
        ask(broker, ALICE, submit())
    assert ask(broker, BOB, submit()) == [Submitted(job=2)]
    assert ask(broker, ALICE, submit()) == [
        Refused(message="quota: alice has 1 of 1 jobs, waiting and running; submit when one has finished")
    ]


def test_quota_change_earlier_in_the_batch_counts(journal: Journal) -> None:
    broker = make(journal)
    limit(broker, "user", "alice", jobs=1)
    ask(broker, ALICE, submit())
    before = len(broker.sent.replies)
    admin = Peer("admin", "root", "root")
    broker.batch(
        [
            ClientAsked(b"a", 1, submit(), ALICE),
            ClientAsked(b"a", 2, Cancel(job=1), ALICE),
            ClientAsked(b"a", 3, submit(), ALICE),
            ClientAsked(b"a", 4, submit(), ALICE),
            ClientAsked(b"r", 5, SetQuota(kind="user", name="alice", jobs=2), admin),
            ClientAsked(b"a", 6, submit(), ALICE),
        ]
    )
    replies = [message for _, _, message in broker.sent.replies[before:]]
    assert [type(reply) for reply in replies] == [Refused, Ok, Submitted, Refused, Ok, Submitted]


# ---- GPU-hours ------------------------------------------------------------------------------------

NOON = 1_769_853_600.0
"""2026-01-31 10:00 UTC, 14 hours before the next month."""


def at_noon(journal: Journal, policy: str = "fifo-backfill") -> HandBroker:
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS, now_s=NOON)
    broker.says("n0", hello("n0"))
    return broker


def test_gpu_hours_are_charged_continuously_and_block_starts_once_used_up(journal: Journal) -> None:
    broker = at_noon(journal)
    limit(broker, "user", "alice", gpu_hours=8)
    ask(broker, ALICE, submit(2), submit(1))
    acknowledge(broker)
    ask(broker, ALICE, submit(2))
    broker.wait(2 * 3600.0, "n0")
    assert rows(broker)["user", "alice"].gpu_hours_used == pytest.approx(6.0, abs=0.01)
    assert reason(broker, 3) == "Resources: needs 2 GPUs, 1 free"
    broker.wait(3600.0, "n0")
    assert reason(broker, 3).startswith(
        "Quota: alice has used 8.0 of 8 GPU-hours this month, the next begins"
    )
    assert running(broker) == [1, 2], "no running job is ended"
    end(broker, 1)
    assert state(broker, 3) == "queued"


def test_gpu_hours_are_reset_with_the_month_without_any_event(journal: Journal) -> None:
    broker = at_noon(journal)
    limit(broker, "user", "alice", gpu_hours=4)
    ask(broker, ALICE, submit(2))
    broker.says("n0", launched(1))
    ask(broker, ALICE, submit(1))
    assert state(broker, 2) == "launching"
    end(broker, 2)
    broker.wait(2.1 * 3600.0, "n0")
    ask(broker, ALICE, submit(1), submit(1))
    assert [state(broker, job) for job in (3, 4)] == ["queued", "queued"]
    broker.wait(11.8 * 3600.0, "n0")
    assert state(broker, 3) == "queued", "6 minutes to midnight"
    broker.wait(0.15 * 3600.0, "n0")
    assert [state(broker, job) for job in (3, 4)] == ["launching", "launching"]
    assert rows(broker)["user", "alice"].gpu_hours_used == pytest.approx(0.05 * 4, abs=0.01)
    entries = [row.entry for row in journal.rows()]
    assert sum(isinstance(entry, EligibilityReviewed) for entry in entries) in (1, 2)


def test_quota_of_0_gpu_hours_refuses_jobs(journal: Journal) -> None:
    broker = at_noon(journal)
    limit(broker, "vc", "red", gpu_hours=0)
    assert ask(broker, ALICE, submit(1, vc="red")) == [
        Refused(
            message="quota: VC red has a limit of 0 GPU-hours; an admin changes it with `rlsched quota set`"
        )
    ]


def test_gpu_time_is_charged_to_one_user_only(journal: Journal) -> None:
    broker = make_preempting(journal, nodes=1)
    for name in ("alice", "bob"):
        limit(broker, "user", name, gpu_hours=1000)
    ask(broker, ALICE, submit(4, preemptible=True))
    broker.says("n0", launched(1))
    begin_s = broker.now_s
    broker.wait(3600.0, "n0")
    ask(broker, BOB, submit(4))
    given_s = broker.now_s
    broker.wait(20.0, "n0")
    broker.says("n0", ended(1, exit_code=143, reason="killed"))
    broker.wait(60.0, "n0")
    alice, bob = rows(broker)["user", "alice"], rows(broker)["user", "bob"]
    assert alice.gpu_hours_used == pytest.approx(4 * (given_s - begin_s) / 3600, abs=0.001)
    assert bob.gpu_hours_used == pytest.approx(4 * (broker.now_s - given_s) / 3600, abs=0.001)


# ---- limits ---------------------------------------------------------------------------------------


def test_own_limits_override_single_defaults(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    limit(broker, "user", "default", gpus=1, jobs=3)
    limit(broker, "user", "alice", gpus=4)
    ask(broker, ALICE, submit(4))
    ask(broker, BOB, submit(1))
    found = rows(broker)
    alice = found["user", "alice"]
    assert (alice.gpus, alice.jobs, alice.by_default) == (4, 3, ["jobs"])
    assert (found["user", "bob"].gpus, found["user", "bob"].by_default) == (1, ["gpus", "jobs"])
    assert list(found) == [("user", "default"), ("user", "alice"), ("user", "bob")]
    assert (found["user", "bob"].gpus_now, found["user", "bob"].jobs_now) == (1, 1)
    limit(broker, "user", "alice", gpus=None)
    assert rows(broker)["user", "alice"].gpus == 1, "the default applies again"
    limit(broker, "user", "default", gpus=None, jobs=None)
    assert rows(broker) == {}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (SetQuota(kind="user", name=""), "user '': expected 1 to 64 characters, no control characters"),
        (SetQuota(kind="vc", name="a\nb", gpus=1), "vc 'a\\\\nb': expected 1 to 64 characters"),
        (SetQuota(kind="user", name="x" * 65, gpus=1), "expected 1 to 64 characters"),
        (SetQuota(kind="user", name="a"), "expected a limit: --gpus, --jobs or --gpu-hours"),
        (
            SetQuota(kind="user", name="a", gpus=-1),
            "limit of 0 to 1,000,000,000, or `none`, got -1",
        ),
        (SetQuota(kind="user", name="a", jobs=2_000_000_000), "--jobs: expected a limit of 0 to"),
        (SetQuota(kind="user", name="a", gpu_hours=float("nan")), "--gpu-hours: expected a limit of 0 to"),
        (SetQuota(kind="user", name="a", gpu_hours=float("inf")), "--gpu-hours: expected a limit of 0 to"),
    ],
)
def test_invalid_orders_are_refused_in_one_line(broker: HandBroker, order: SetQuota, expected: str) -> None:
    reply = broker.ask(order)
    assert isinstance(reply, Refused)
    assert expected in reply.message
    assert "\n" not in reply.message
    assert rows(broker) == {}


def test_any_name_can_have_a_quota(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    limit(broker, "user", "Zoë 李", gpus=1)
    ask(broker, Peer("user", "k", "Zoë 李"), submit(1), submit(1))
    assert reason(broker, 2) == "Quota: Zoë 李 has 1 of 1 GPUs at once"


def test_quotas_usage_and_waiting_jobs_survive_a_restart(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    limit(broker, "user", "alice", gpus=2, gpu_hours=100, jobs=9)
    limit(broker, "user", "alice", jobs=8)
    ask(broker, ALICE, *(submit(1) for _ in range(4)))
    acknowledge(broker)
    broker.wait(3600.0, "n0", "n1")
    again = HandBroker(load_scheduler("fifo-backfill"), journal, limits=LIMITS, now_s=broker.now_s)
    assert again.state.cluster.digest() == broker.state.cluster.digest()
    assert reason(again, 3) == "Quota: alice has 2 of 2 GPUs at once"
    before, after = rows(broker)["user", "alice"], rows(again)["user", "alice"]
    assert (after.gpus, after.gpu_hours, after.jobs) == (2, 100, 8)
    assert after.gpu_hours_used == pytest.approx(before.gpu_hours_used, abs=0.001)
    assert [row.entry.jobs for row in journal.rows() if isinstance(row.entry, QuotaSet)] == [9, 8]


@pytest.mark.parametrize("policy", quick(["fifo-backfill", "tuned", "gittins", "ppo"], "tuned".__eq__))
def test_journal_with_quotas_replays_alike(journal: Journal, policy: str) -> None:
    broker = make(journal, nodes=2, policy=policy)
    limit(broker, "user", "default", gpus=3, gpu_hours=2)
    limit(broker, "vc", "red", gpus=4)
    for round_ in range(12):
        by = (ALICE, BOB)[round_ % 2]
        vc = ("", "red")[round_ % 3 == 0]
        ask(broker, by, submit(1 + round_ % 3, vc=vc, preemptible=round_ % 2 == 0))
        acknowledge(broker)
        broker.wait(700.0, "n0", "n1")
        if round_ % 3 == 2 and running(broker):
            end(broker, running(broker)[0])
        if round_ == 8:
            limit(broker, "user", "alice", gpus=5, gpu_hours=50)
    live = [record for kept in broker.records for record in kept.records]
    made = redecide(journal_events(journal.path), load_scheduler(policy))
    assert len(live) > 5
    assert [(r.now_s, r.state_digest, r.action) for r in made] == [
        (r.now_s, r.state_digest, r.action) for r in live
    ]
    assert any(job.state == "queued" and reason(broker, job.number) for job in broker.state.jobs.values())
