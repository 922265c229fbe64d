"""Single tasks of an array are cancelled, held, released and changed, before and after they become jobs."""

from __future__ import annotations

from rlsched.broker.journal.journal import Journal
from rlsched.broker.state.base import BaseArray
from rlsched.broker.state.base_state import _with_coming
from rlsched.broker.state.tasks import common, count, minus, numbers
from rlsched.client.array_text import tasks_of
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Cancel,
    Hold,
    JobOrder,
    Launch,
    ListJobs,
    Ok,
    Refused,
    Release,
    Requeue,
    Tasks,
    Update,
)
from tests.support.broker.gated import ADMIN, ask, finish, new, on, refused
from tests.support.broker.hand import make, state
from tests.support.broker.job_arrays import array, info, job_of, settle


def tasks(text: str) -> list[Tasks]:
    return tasks_of(text)[0]


def test_ranges_minus_ranges() -> None:
    for mine, others in (
        ("0-99", "5-9,7-12,50"),
        ("0-20:5,40", "5,40"),
        ("3-9:2", "0-4"),
        ("0-10", "0-10:2"),
        ("7,1,30-20000:3", "1,33-3000:7"),
        ("5", "6"),
        (",".join(map(str, range(0, 40_000, 2))), "3-9000:3"),  # number by number, quickly
        (",".join(map(str, range(0, 40_000, 2))), ",".join(map(str, range(0, 40_000, 4)))),
    ):
        left, both = minus(tasks(mine), tasks(others)), common(tasks(mine), tasks(others))
        gone = set(numbers(tasks(others)))
        assert list(numbers(left)) == [one for one in numbers(tasks(mine)) if one not in gone]
        assert list(numbers(both)) == [one for one in numbers(tasks(mine)) if one in gone]
        assert count(left) + count(both) == count(tasks(mine))


def test_invalid_tasks_are_refused_in_one_line(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-9%1")
    settle(broker)
    for odd in ([Tasks(0, 5, 0)], [Tasks(5, 0)], [Tasks(-1, 2)], [Tasks(0, 2**62)], [Tasks(0, 9)] * 200_000):
        said = refused(broker, Cancel(job=many, tasks=odd))
        assert said.startswith("tasks: expected"), said
    assert ask(broker, Cancel(job=many, tasks=[Tasks(4, 5), Tasks(5, 6)])) == Ok()
    assert info(broker, many).tasks == "1-3,7-9%1"


def test_single_job_has_no_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    job = new(broker)
    said = f"job {job} is not an array: it has no tasks"
    assert refused(broker, Cancel(job=job, tasks=tasks("2"))) == said
    assert broker.ask(ListJobs(job=job, task=2)) == Refused(message=said)


def test_future_tasks_are_cancelled_and_the_rest_runs(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-9%1")
    after = new(broker, depends_on=on("afterany", many))
    settle(broker)
    assert ask(broker, Cancel(job=many, tasks=tasks("5-9"))) == Ok()
    assert ask(broker, Cancel(job=many, tasks=tasks("7"))) == Ok()  # repeated
    assert ask(broker, Cancel(job=many, tasks=tasks("2"))) == Ok()
    shown = info(broker, many)
    assert (shown.tasks, shown.reason) == ("1,3-4%1", "3 tasks wait, 1 run, 6 cancelled")
    for task in (0, 1, 3, 4):
        finish(broker, job_of(broker, many, task))
        settle(broker)
    assert (info(broker, many).state, info(broker, many).reason) == ("failed", "6 cancelled, 4 completed")
    assert state(broker, after) == "launching"
    assert len([o for _, o in broker.sent.orders if isinstance(o, Launch) and o.job != after]) == 4


def test_cancel_of_the_last_future_task_ends_the_array(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-3", hold=True)
    settle(broker)
    assert ask(broker, Cancel(job=many, tasks=tasks("0-2"))) == Ok()
    assert info(broker, many).state == "queued"
    assert ask(broker, Cancel(job=many, tasks=tasks("3"))) == Ok()
    assert info(broker, many).state == "cancelled"


def test_held_task_is_skipped_until_it_is_released(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-5%1")
    settle(broker)
    assert ask(broker, Hold(job=many, tasks=tasks("1-3"))) == Ok()
    assert ask(broker, Hold(job=many, tasks=tasks("2")), ADMIN) == Ok()
    assert "3 of them held" in info(broker, many).reason
    finish(broker, job_of(broker, many, 0))
    settle(broker)
    assert state(broker, job_of(broker, many, 4)) == "launching"
    assert "job 1_2 is held by an admin" in refused(broker, Release(job=many, tasks=tasks("1-3")))
    assert ask(broker, Release(job=many, tasks=tasks("3"))) == Ok()
    finish(broker, job_of(broker, many, 4))
    settle(broker)
    assert state(broker, job_of(broker, many, 3)) == "launching"
    for task in (3, 5):
        finish(broker, job_of(broker, many, task))
        settle(broker)
    assert info(broker, many).state == "queued", "held tasks are still in the future"
    assert ask(broker, Release(job=many), ADMIN) == Ok()
    settle(broker)
    for task in (1, 2):
        finish(broker, job_of(broker, many, task))
        settle(broker)
    assert info(broker, many).state == "completed"


def test_task_is_changed_before_and_after_it_becomes_a_job(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-5%1", name="sweep", num_gpus=4)
    settle(broker)
    assert ask(broker, Update(job=many, tasks=tasks("1,3"), name="odd", time_limit_s=9.0)) == Ok()
    said = refused(broker, Update(job=many, tasks=tasks("3"), begin_s=5e9))
    assert said.startswith(f"job {many}_3 is not in the queue yet: --begin cannot change per task")
    finish(broker, job_of(broker, many, 0))
    settle(broker)
    spec = broker.state.jobs[job_of(broker, many, 1)].spec
    assert (spec.name, spec.time_limit_s) == ("odd", 9.0)
    assert ask(broker, Update(job=many, name="all")) == Ok()
    for task in (1, 2):
        finish(broker, job_of(broker, many, task))
        settle(broker)
    spec = broker.state.jobs[job_of(broker, many, 3)].spec
    assert (spec.name, spec.time_limit_s) == ("all", 9.0), "the last change counts, for each field"


def test_tasks_that_are_jobs_are_changed_and_ended_ones_named(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-9:2%2")
    settle(broker)
    assert ask(broker, Cancel(job=many, tasks=tasks("0,4"))) == Ok()
    assert info(broker, job_of(broker, many, 0)).reason.startswith("being ended")
    finish(broker, job_of(broker, many, 0))
    assert ask(broker, Cancel(job=many, tasks=tasks("0"))) == Ok()  # already held
    orders: list[JobOrder] = [
        Hold(job=many, tasks=tasks("0")),
        Update(job=many, tasks=tasks("4"), name="x"),
        Requeue(job=many, tasks=tasks("4")),
    ]
    for order in orders:
        assert "has ended already" in refused(broker, order)
    assert "tasks 0,4 of array 1 have ended already" in refused(broker, Requeue(job=many, tasks=tasks("0,4")))
    assert "array 1 has no task 3: it has 0-8:2" in refused(broker, Cancel(job=many, tasks=tasks("3")))
    bob = Peer("user", "bob", "bob")
    assert "is alice's" in refused(broker, Cancel(job=many, tasks=tasks("8")), bob)


def test_older_base_is_read(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-20:2", hold=True)
    spec = broker.state.arrays.known[many].spec
    kept = BaseArray(submitted=spec, array={"submit_s": 1.0, "come": 3, "live": {4: 9}})
    assert _with_coming(kept) == {"submit_s": 1.0, "live": {4: 9}, "coming": [Tasks(6, 20, 2)]}


def test_waiting_tasks_are_cancelled_and_running_ones_continue(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-99", num_gpus=2)
    settle(broker)
    assert ask(broker, Hold(job=many, tasks=tasks("98"))) == Ok()
    assert info(broker, many).reason == "98 tasks wait, 1 of them held, 2 run"
    assert ask(broker, Cancel(job=many, waiting=True)) == Ok()
    assert info(broker, many).reason == "0 tasks wait, 2 run, 98 cancelled"
    assert ask(broker, Cancel(job=many, waiting=True)) == Ok()  # repeated
    runs = job_of(broker, many, 0)
    assert "no longer waits: it is launching, and continues" in refused(
        broker, Cancel(job=runs, waiting=True)
    )
    for task in (0, 1):
        finish(broker, job_of(broker, many, task))
    assert (info(broker, many).state, info(broker, many).end_s is None) == ("failed", False)
    other = array(broker, "0-9", hold=True)
    assert ask(broker, Cancel(job=other, waiting=True)) == Ok()
    assert info(broker, other).state == "cancelled"


def test_range_skips_running_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    many = array(broker, "0-9", num_gpus=2)
    settle(broker)
    assert ask(broker, Cancel(job=many, tasks=tasks("1-3"), waiting=True)) == Ok()
    assert info(broker, many).reason == "6 tasks wait, 2 run, 2 cancelled"
    assert f"job {many}_1 no longer waits" in refused(
        broker, Cancel(job=many, tasks=tasks("1"), waiting=True)
    )
