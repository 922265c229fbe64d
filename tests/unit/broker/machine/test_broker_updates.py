"""Updates of submitted jobs: fields, times and permissions; replays are bit for bit the same."""

from __future__ import annotations

import math

import pytest

from rlsched.broker.base.entries import JobUpdated
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import book_of, picture_of
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import PriorityRules
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import DependsOn, Hold, Launch, ListJobs, Ok, Release, Tasks, Update
from tests.support.broker.gated import ADMIN, POLICY, ask, finish, new, on, reason, refused
from tests.support.broker.hand import TICK, make, state
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.job_arrays import array, info, job_of, settle


def update(broker: HandBroker, job: int, by: Peer | None = None, **changes: object) -> None:
    message = Update(job=job, **changes)  # type: ignore[arg-type]
    assert ask(broker, message, *([by] if by else [])) == Ok()


def test_waiting_job_is_launched_with_its_updates(journal: Journal) -> None:
    broker = make(journal, 1)
    blocker, job = new(broker, num_gpus=4), new(broker, time_limit_s=60.0)
    update(broker, job, name="other", time_limit_s=90.0, lost_after_s=0.0, grace_s=120.0)
    spec = broker.state.jobs[job].spec
    assert ask(broker, ListJobs(job=job)).jobs[0].grace_s == 120.0  # type: ignore[union-attr]
    assert (spec.name, spec.time_limit_s, spec.lost_after_s) == ("other", 90.0, 0.0)
    finish(broker, blocker)
    launch = next(o for _, o in broker.sent.orders if isinstance(o, Launch) and o.job == job)
    assert (launch.time_limit_s, launch.grace_s) == (90.0, 120.0)
    other = new(broker, num_gpus=4, time_limit_s=60.0)
    update(broker, other, time_limit_s=math.inf)
    assert broker.state.jobs[other].spec.time_limit_s is None


def test_last_priority_counts_and_users_have_a_maximum(journal: Journal) -> None:
    broker = make(journal, 1)
    new(broker, num_gpus=4)
    first, second = new(broker, num_gpus=4), new(broker, num_gpus=4)
    assert "priority urgent is reserved for admins" in refused(broker, Update(job=second, priority="urgent"))
    update(broker, second, ADMIN, priority="urgent")
    update(broker, first, priority="low")
    finish(broker, 1)
    assert (state(broker, first), state(broker, second)) == ("queued", "launching")
    assert PriorityRules().highest == "normal"


def test_begin_times_and_dependencies_can_be_moved_and_removed(journal: Journal) -> None:
    broker = make(journal, 1)
    blocker = new(broker, num_gpus=4)
    job = new(broker, begin_s=broker.machine.now_s + 4.0, depends_on=on("afterok", blocker))
    update(broker, job, begin_s=broker.machine.now_s + 60.0)
    broker.batch([TICK], after_s=6.0)
    assert reason(broker, job).startswith("BeginTime")
    update(broker, job, begin_s=0.0)
    assert reason(broker, job) == f"Dependency: waits for afterok:{blocker}"
    update(broker, job, depends_on=on("afternotok", blocker))
    assert reason(broker, job) == f"Dependency: waits for afternotok:{blocker}"
    update(broker, job, depends_on=[])
    assert broker.state.gates.is_open(job)
    update(broker, job, begin_s=broker.machine.now_s + 5.0, depends_on=on("afterany", blocker))
    finish(broker, blocker)
    assert state(broker, job) == "queued"
    broker.batch([TICK], after_s=6.0)
    assert state(broker, job) == "launching"


def test_job_may_not_depend_on_itself(journal: Journal) -> None:
    broker = make(journal, 1)
    a = new(broker, hold=True)
    b = new(broker, depends_on=on("afterany", a))
    c = new(broker, depends_on=on("afterany", b))
    assert f"job {a} would wait for itself" in refused(broker, Update(job=a, depends_on=on("afterok", a)))
    assert "would wait for itself" in refused(broker, Update(job=a, depends_on=on("afterok", c)))
    new(broker, num_gpus=4)
    many = array(broker, "0-3", num_gpus=4)
    settle(broker)
    after = new(broker, depends_on=on("afterany", many))
    task = job_of(broker, many, 0)
    broker.batch([TICK])
    if state(broker, task) == "queued":
        assert "would wait for itself" in refused(broker, Update(job=task, depends_on=on("after", after)))
    assert "there is no job 99" in refused(broker, Update(job=a, depends_on=[DependsOn("afterok", 99)]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "expected something to change"),
        ({"name": ""}, "name: expected some characters"),
        ({"name": "a\nb"}, "control characters"),
        ({"time_limit_s": 0.0}, "time_limit_s must be above 0"),
        ({"begin_s": 1e15}, "begin_s must be a time"),
        ({"grace_s": 301.0}, "grace_s must be 0 to 300 s (the broker's --max-grace-s), got 301 s"),
        ({"grace_s": -1.0}, "grace_s must be 0 to 300 s"),
        ({"grace_s": math.nan}, "grace_s must be 0 to 300 s"),
        ({"array_limit": 3}, "is not an array: --array-limit"),
        ({"tasks": [Tasks(1, 1)]}, "is not an array: it has no tasks"),
    ],
)
def test_invalid_update_is_refused_by_name(journal: Journal, changes: dict[str, object], said: str) -> None:
    broker = make(journal, 1)
    job = new(broker, hold=True)
    before = len(list(journal.rows()))
    assert said in refused(broker, Update(job=job, **changes))  # type: ignore[arg-type]
    assert len(list(journal.rows())) == before


def test_running_job_has_few_fields_that_can_change(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker)
    update(broker, job, name="better", priority="low")
    assert broker.state.jobs[job].spec.name == "better"
    said = refused(broker, Update(job=job, begin_s=5e9))
    assert said.startswith(f"job {job} has GPUs: --begin can change only while a job waits")
    said = refused(broker, Update(job=job, grace_s=60.0))  # its processes have RLSCHED_GRACE_S
    assert said.startswith(f"job {job} has GPUs: --grace can change only while a job waits")
    assert "alice's" in refused(broker, Update(job=job, name="x"), Peer("user", "bob", "bob"))
    finish(broker, job)
    assert f"job {job} has ended already" in refused(broker, Update(job=job, name="x"))
    assert "there is no job 77" in refused(broker, Update(job=77, name="x"))


def test_update_of_an_array_changes_its_future_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-99%1", name="sweep")
    settle(broker)
    running = job_of(broker, many, 0)
    update(broker, many, array_limit=3, name="wide", time_limit_s=30.0, grace_s=5.0)
    settle(broker)
    assert info(broker, many).name == "wide"
    assert [state(broker, job_of(broker, many, task)) for task in (0, 1, 2)] == ["launching"] * 3
    assert broker.state.jobs[running].spec.name == "sweep"
    spec = broker.state.jobs[job_of(broker, many, 2)].spec
    assert (spec.name, spec.time_limit_s, spec.grace_s) == ("wide", 30.0, 5.0)


def test_updates_survive_restarts_and_snapshots_and_replay_alike(journal: Journal) -> None:
    broker = make(journal, 1, POLICY)
    blocker = new(broker, num_gpus=4)
    jobs = [new(broker, num_gpus=2, time_limit_s=60.0) for _ in range(4)]
    many = array(broker, "0-199%9", num_gpus=1)
    settle(broker)
    update(broker, jobs[0], begin_s=broker.machine.now_s + 5.0)
    update(broker, jobs[1], depends_on=on("afterok", blocker), name="later")
    update(broker, jobs[3], ADMIN, priority="high", time_limit_s=300.0)
    update(broker, many, name="renamed", array_limit=2)
    assert ask(broker, Hold(job=many, tasks=[Tasks(5, 9)])) == Ok()
    finish(broker, blocker)
    settle(broker)
    broker.batch([TICK], after_s=7.0)
    update(broker, jobs[0], ADMIN, priority="low", depends_on=[])
    assert ask(broker, Release(job=many, tasks=[Tasks(5, 6)])) == Ok()
    for _ in range(12):
        finish(broker, next(job.number for job in broker.state.jobs.values() if job.active is not None))
        settle(broker)
    assert sum(isinstance(row.entry, JobUpdated) for row in journal.rows()) >= 5
    state = BrokerState(Predictions("running-mean"), load_scheduler(POLICY).order)
    state.replay(journal.rows())
    for known in (state, book_of(picture_of(state))):
        specs, wanted = (
            {j.number: j.spec for j in some.job_of_seq.values()} for some in (known, broker.state)
        )
        assert specs == wanted
        assert known.arrays.known[many] == broker.state.arrays.known[many]
    made = redecide(journal_events(journal.path), load_scheduler(POLICY))
    assert len(made) > 10
    assert [(r.now_s, r.state_digest, r.action) for r in made] == [
        (r.now_s, r.state_digest, r.action) for kept in broker.records for r in kept.records
    ]
    assert history_of(journal.path).trace.job_id.tolist()


def test_running_array_that_can_never_continue_is_stopped_once(journal: Journal) -> None:
    broker = make(journal, 1)
    other = new(broker)
    many = array(broker, "0-9%2")
    settle(broker)
    assert ask(broker, Update(job=many, depends_on=on("afterok", other))) == Ok()
    finish(broker, other, exit_code=1)
    settle(broker)
    assert "DependencyNeverSatisfied" in info(broker, many).reason
    running = [job_of(broker, many, task) for task in (0, 1)]
    for job in running:
        finish(broker, job)
    assert info(broker, many).state == "cancelled"
