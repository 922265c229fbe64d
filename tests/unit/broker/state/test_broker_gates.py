"""Holds, begin times and dependencies: jobs that wait for them, and jobs that can never run."""

from __future__ import annotations

import pytest

from rlsched.broker.events import ClientAsked
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.machine.orders import MOST_DEPENDENCIES
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    Explanation,
    Hold,
    Ok,
    Release,
    Requeue,
    SubmitMany,
    Why,
)
from tests.support.broker.gated import ADMIN, ALICE, POLICY, ask, finish, new, on, reason, refused
from tests.support.broker.hand import TICK, ended, launched, make, state, submit


def test_held_job_waits_until_it_is_released(journal: Journal) -> None:
    broker = make(journal, 1)
    held, other = new(broker, hold=True), new(broker)
    assert (state(broker, held), state(broker, other)) == ("queued", "launching")
    assert reason(broker, held) == f"Held: by its user; `rlsched release {held}` lets it into the queue"
    explanation = broker.ask(Why(job=held))
    assert isinstance(explanation, Explanation)
    assert explanation.details[0] == "it is in no queue until then"
    assert ask(broker, Release(job=held)) == Ok()
    assert state(broker, held) == "launching"
    assert ask(broker, Release(job=held)) == Ok()  # repeated
    assert "only waiting jobs are held; `rlsched requeue" in refused(broker, Hold(job=held))


def test_hold_by_an_admin_is_released_by_an_admin(journal: Journal) -> None:
    broker = make(journal, 1)
    blocker, job = new(broker, num_gpus=4), new(broker)
    assert ask(broker, Hold(job=job), ADMIN) == Ok()
    assert ask(broker, Hold(job=job)) == Ok()  # her hold too, and still the admin's
    assert refused(broker, Release(job=job)) == f"job {job} is held by an admin; only an admin can release it"
    bob = Peer("user", "bob", "bob")
    assert f"job {job} is alice's" in refused(broker, Release(job=job), bob)
    assert "job 99" in refused(broker, Hold(job=99))
    finish(broker, blocker)
    assert state(broker, job) == "queued"
    assert ask(broker, Release(job=job), ADMIN) == Ok()
    assert state(broker, job) == "launching"
    finish(broker, job)
    assert refused(broker, Hold(job=job)) == f"job {job} has ended already: completed"


def test_job_starts_at_its_begin_time_and_not_before(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker, begin_s=broker.machine.now_s + 60.0)
    assert reason(broker, job).startswith("BeginTime: not before ")
    broker.batch([TICK], after_s=59.0)
    assert state(broker, job) == "queued"
    broker.batch([TICK], after_s=1.0)
    assert state(broker, job) == "launching"
    late = new(broker, begin_s=1.0)  # this time has passed
    assert state(broker, late) == "launching"


@pytest.mark.parametrize(
    ("kind", "exit_code", "runs"),
    [
        ("afterok", 0, True),
        ("afterok", 1, False),
        ("afternotok", 0, False),
        ("afternotok", 1, True),
        ("afterany", 0, True),
        ("afterany", 1, True),
    ],
)
def test_job_waits_for_the_end_of_another(journal: Journal, kind: str, exit_code: int, *, runs: bool) -> None:
    broker = make(journal, 1)
    first = new(broker)
    second = new(broker, depends_on=on(kind, first))
    third = new(broker, depends_on=on("afterok", second))
    assert reason(broker, second) == f"Dependency: waits for {kind}:{first}"
    finish(broker, first, exit_code)
    if runs:
        assert state(broker, second) == "launching"
        assert state(broker, third) == "queued"
        return
    how = "failed" if exit_code else "completed"
    assert state(broker, second) == state(broker, third) == "cancelled"  # and its dependent jobs with it
    assert broker.state.jobs[second].reason == f"DependencyNeverSatisfied: {kind}:{first} is {how}"
    assert broker.state.jobs[third].reason == f"DependencyNeverSatisfied: afterok:{second} is cancelled"


def test_after_waits_only_for_a_start(journal: Journal) -> None:
    broker = make(journal, 1)
    blocker = new(broker, num_gpus=4)
    first = new(broker, num_gpus=2)
    second = new(broker, depends_on=on("after", first))
    finish(broker, blocker)
    assert state(broker, first) == state(broker, second) == "launching"
    assert state(broker, new(broker, depends_on=on("after", first))) == "launching"  # it already runs


def test_all_dependencies_must_be_met(journal: Journal) -> None:
    broker = make(journal, 1)
    one, two = new(broker), new(broker)
    job = new(broker, depends_on=[*on("afterok", one, two), *on("after", two)], hold=True)
    assert "Held: " in reason(broker, job)
    assert f"waits for afterok:{one}, afterok:{two}" in reason(broker, job)
    finish(broker, one)
    ask(broker, Release(job=job))
    assert state(broker, job) == "queued"
    finish(broker, two)
    assert state(broker, job) == "launching"


def test_singletons_run_one_after_the_other(journal: Journal) -> None:
    broker = make(journal, 1)
    first, second = (new(broker, name="nightly", singleton=True) for _ in range(2))
    other = new(broker, name="other", singleton=True)
    assert [state(broker, job) for job in (first, second, other)] == ["launching", "queued", "launching"]
    finish(broker, first, 1)
    assert state(broker, second) == "launching"


def test_singletons_of_one_batch_wait_for_each_other_named_or_not(journal: Journal) -> None:
    broker = make(journal, 1)
    for name in ("nightly", ""):  # without a name, the program's
        first = broker.state.last_number + 1
        asked = [submit(name=name, singleton=True) for _ in range(3)]
        broker.batch([ClientAsked(b"peer", n, message, ALICE) for n, message in enumerate(asked)])
        jobs = range(first, first + 3)
        assert [state(broker, job) for job in jobs] == ["launching", "queued", "queued"]
        finish(broker, first)
        assert [state(broker, job) for job in jobs] == ["completed", "launching", "queued"]


def test_singletons_of_one_message_wait_for_each_other_or_none_is_queued(journal: Journal) -> None:
    broker = make(journal, 1)
    for _ in range(MOST_DEPENDENCIES - 1):
        new(broker, name="nightly")
    few, many = ([submit(name="nightly", singleton=True) for _ in range(count)] for count in (2, 3))
    assert "job 3: expected at most 1,000 jobs" in refused(broker, SubmitMany(jobs=many))
    last = broker.state.last_number
    ask(broker, SubmitMany(jobs=few))
    assert len(broker.state.gates.open_dependencies(last + 1)) == MOST_DEPENDENCIES - 1
    assert len(broker.state.gates.open_dependencies(last + 2)) == MOST_DEPENDENCIES


def test_after_stays_met_once_the_job_has_started(journal: Journal) -> None:
    broker = make(journal, 1)
    first = new(broker, num_gpus=4, priority="low")
    broker.says("n0", launched(first))
    ask(broker, Requeue(job=first))
    urgent = new(broker, num_gpus=4)
    broker.says("n0", ended(first, exit_code=143, reason="killed"))
    assert (state(broker, first), state(broker, urgent)) == ("queued", "launching")
    second = new(broker, num_gpus=4, depends_on=on("after", first))
    assert broker.state.gates.is_open(second)


def test_long_dependency_lists_are_refused_before_the_look_up(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make(journal, 1)
    many = on("afterany", *range(1, 50_000))
    with monkeypatch.context() as patch:
        patch.setattr(broker.state, "job", lambda number: pytest.fail(f"job {number} is looked up"))
        assert "at most 1,000 jobs to wait for, got 49,999" in refused(broker, submit(depends_on=many))


def test_dependency_that_can_never_be_met_is_refused_at_once(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker)
    finish(broker, job, 1)
    assert refused(broker, submit(depends_on=on("afterok", job))) == (
        f"afterok:{job} can never be satisfied: job {job} is failed"
    )
    assert "there is no job 77 to wait for" in refused(broker, submit(depends_on=on("afterany", 77)))
    assert state(broker, new(broker, depends_on=on("afternotok", job))) == "launching"
    blocker = new(broker, num_gpus=4)
    most = [new(broker, name="s") for _ in range(MOST_DEPENDENCIES + 1)]
    assert "at most 1,000 jobs" in refused(broker, submit(name="s", singleton=True))
    assert len(most) > MOST_DEPENDENCIES
    assert blocker
    assert "Unix seconds" in refused(broker, submit(begin_s=float("nan")))


def test_cancelled_job_has_no_dependencies_left(journal: Journal) -> None:
    broker = make(journal, 1)
    first = new(broker)
    second = new(broker, depends_on=on("afterok", first), hold=True, begin_s=broker.machine.now_s + 5.0)
    ask(broker, Cancel(job=second))
    assert state(broker, second) == "cancelled"
    finish(broker, first, 1)
    broker.batch([TICK], after_s=10.0)
    assert state(broker, second) == "cancelled"
    assert broker.state.eligibility.counts() == {}


def test_requeue_of_a_running_job_uses_no_retry(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker)
    broker.says("n0", launched(job))
    assert ask(broker, Requeue(job=job)) == Ok()
    broker.says("n0", ended(job, exit_code=143, reason="killed"))
    assert broker.state.jobs[job].attempt is not None
    assert (state(broker, job), broker.state.jobs[job].attempt.number) == ("launching", 2)  # type: ignore[union-attr]
    assert broker.state.jobs[job].retries == 0
    assert broker.state.jobs[job].attempts == 2


def test_replay_decides_alike(journal: Journal) -> None:
    broker = make(journal, 1, POLICY)
    blocker, first = new(broker, num_gpus=4), new(broker)
    waiting = [
        new(broker, depends_on=on(kind, first)) for kind in ("after", "afterany", "afterok", "afternotok")
    ]
    held, later = new(broker, hold=True), new(broker, begin_s=broker.machine.now_s + 30.0)
    finish(broker, blocker)
    ask(broker, Hold(job=waiting[1]))
    finish(broker, first)
    broker.batch([TICK], after_s=40.0)
    ask(broker, Release(job=held))
    assert [state(broker, job) for job in waiting] == ["launching", "queued", "launching", "cancelled"]
    assert state(broker, later) == state(broker, held) == "launching"
    made = redecide(journal_events(journal.path), load_scheduler(POLICY))
    assert len(made) > 5
    assert [(r.now_s, r.state_digest, r.action) for r in made] == [
        (r.now_s, r.state_digest, r.action) for kept in broker.records for r in kept.records
    ]
