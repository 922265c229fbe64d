"""Job arrays: one entry, one row, and tasks that become jobs when resources are free."""

from __future__ import annotations

import random

import pytest

from rlsched.broker.base.entries import JobSubmitted, TaskSubmitted
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.journal.snapshots import book_of, picture_of
from rlsched.broker.queries.as_history import history_of
from rlsched.broker.state import arrays
from rlsched.broker.state.arrays import WINDOW
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.tasks import are_distinct, count, in_words, joined, numbers, without
from rlsched.client.array_text import tasks_of
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.wire.messages import (
    Cancel,
    Explanation,
    Hold,
    JobInfo,
    Jobs,
    Launch,
    ListJobs,
    Ok,
    ReadLog,
    Release,
    Requeue,
    Stats,
    StatsReport,
    Tasks,
    Why,
)
from tests.support.broker.gated import ALICE, POLICY, ask, finish, new, on, refused
from tests.support.broker.hand import ended, launched, make, state, submit
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.job_arrays import array, info, job_of, settle


def listed(broker: HandBroker) -> list[JobInfo]:
    jobs = broker.ask(ListJobs())
    assert isinstance(jobs, Jobs)
    return jobs.jobs


def test_tasks_in_command_line_notation() -> None:
    assert tasks_of("0-99%8") == ([Tasks(0, 99)], 8)
    assert tasks_of("1,3,7") == ([Tasks(1, 1), Tasks(3, 3), Tasks(7, 7)], 0)
    tasks, limit = tasks_of("0-20:5,40")
    assert (count(tasks), limit) == (6, 0)
    assert [in_words(tasks), in_words(tasks[1:]), in_words([])] == ["0-20:5,40", "40", ""]
    for wrong in ("", "a", "5-3", "0-9%0", "1,,2", "0-9:0", "-3", "1-2-3"):
        with pytest.raises(InputError, match="--array"):
            tasks_of(wrong)


def test_future_tasks_are_counted(journal: Journal) -> None:
    broker = make(journal, 1)
    array(broker, "0-9%2")
    settle(broker)
    stats = broker.ask(Stats())
    assert isinstance(stats, StatsReport)
    assert (stats.queued, stats.running, stats.tasks_to_come) == (0, 2, 8)


def test_array_is_one_row_and_its_tasks_get_their_numbers(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "3-9:2", name="sweep", env={"A": "1"})
    settle(broker)
    assert [(one.array, one.task) for one in listed(broker)] == [
        (0, 0),
        *((number, task) for task in (3, 5, 7, 9)),
    ]
    head = listed(broker)[0]
    assert (head.job, head.state, head.num_tasks, head.reason) == (
        number,
        "running",
        4,
        "0 tasks wait, 4 run",
    )
    launches = [order for _, order in broker.sent.orders if isinstance(order, Launch)]
    assert [order.env["RLSCHED_ARRAY_TASK"] for order in launches] == ["3", "5", "7", "9"]
    assert {order.env["SLURM_ARRAY_JOB_ID"] for order in launches} == {str(number)}
    for name, value in (("COUNT", "4"), ("MIN", "3"), ("MAX", "9"), ("STEP", "2")):
        assert {order.env[f"SLURM_ARRAY_TASK_{name}"] for order in launches} == {value}
    assert launches[0].env["A"] == "1"
    for task in (3, 5, 7, 9):
        finish(broker, job_of(broker, number, task), exit_code=int(task == 7))
    over = info(broker, number)
    assert (over.state, over.exit_code, over.reason) == ("failed", 1, "3 completed, 1 failed")
    assert listed(broker) == []
    assert broker.state.num_finished == 4  # an array is not a job


def test_task_limit_is_kept(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-5%2")
    settle(broker)
    assert [one.state for one in listed(broker)] == ["running", "launching", "launching"]
    assert info(broker, number).tasks == "2-5%2"
    finish(broker, job_of(broker, number, 0))
    settle(broker)
    assert info(broker, number).tasks == "3-5%2"
    assert state(broker, job_of(broker, number, 2)) == "launching"


def test_ten_thousand_tasks_are_one_entry_and_one_row(journal: Journal) -> None:
    broker = make(journal, 1)
    before = len(list(journal.rows()))
    number = array(broker, "0-9999", num_gpus=4)
    settle(broker)
    entries = [row.entry for row in list(journal.rows())[before:]]
    assert sum(isinstance(entry, JobSubmitted) for entry in entries) == 1
    assert sum(isinstance(entry, TaskSubmitted) for entry in entries) == WINDOW + 1  # one runs
    assert listed(broker)[0].job == number
    assert len(listed(broker)) == 2  # the array and its running task
    assert listed(broker)[0].reason == "9,999 tasks wait, 1 run"
    assert "is an array: name a task of it" in refused(broker, ReadLog(job=number))
    assert "task 9999 of array 1 is no job yet" in refused(broker, ListJobs(job=number, task=9999))
    assert refused(broker, ListJobs(job=number, task=10_000)) == "array 1 has no task 10000: it has 0-9999"
    explanation = broker.ask(Why(job=number))
    assert isinstance(explanation, Explanation)
    assert explanation.summary == "an array: 9,999 tasks wait, 1 run"


def test_row_of_an_array_has_the_numbers_of_its_waiting_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-6:2", num_gpus=2)
    settle(broker)
    assert (info(broker, number).tasks, info(broker, number).reason) == ("4,6", "2 tasks wait, 2 run")
    finish(broker, job_of(broker, number, 0))
    settle(broker)
    assert (info(broker, number).tasks, info(broker, number).reason) == (
        "6",
        "1 task waits, 2 run, 1 completed",
    )


def test_cancelled_array_ends_with_its_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-999", num_gpus=2)
    waiting = new(broker, depends_on=on("afterok", number))
    settle(broker)
    running = [job_of(broker, number, task) for task in (0, 1)]
    assert ask(broker, Cancel(job=number)) == Ok()
    assert info(broker, number).state == "running"  # its last tasks are being killed
    for job in running:
        finish(broker, job, exit_code=143)
    assert info(broker, number).state == "cancelled"
    assert state(broker, waiting) == "cancelled"
    assert ask(broker, Cancel(job=number)) == Ok()
    assert "has ended already: cancelled" in refused(broker, Requeue(job=number))
    assert "can never be" in refused(broker, submit(depends_on=on("afterok", number)))


def test_held_or_waiting_array_has_no_tasks_yet(journal: Journal) -> None:
    broker = make(journal, 1)
    first = new(broker)
    number = array(broker, "0-3", depends_on=on("afterok", first), hold=True)
    settle(broker)
    head = info(broker, number)
    assert (head.state, head.tasks) == ("queued", "0-3")
    assert head.reason.startswith(f"Held: by its user; `rlsched release {number}`")
    assert f"waits for afterok:{first}" in head.reason
    finish(broker, first)
    assert ask(broker, Release(job=number)) == Ok()
    settle(broker)
    assert info(broker, number).reason == "0 tasks wait, 4 run"


def test_hold_of_an_array_holds_waiting_and_future_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-99", num_gpus=4)
    settle(broker)
    assert ask(broker, Hold(job=number)) == Ok()
    finish(broker, job_of(broker, number, 0))
    settle(broker)
    assert state(broker, job_of(broker, number, 1)) == "queued"
    assert ask(broker, Release(job=number)) == Ok()
    settle(broker)
    assert state(broker, job_of(broker, number, 1)) == "launching"


def test_dependency_on_an_array_waits_for_all_its_tasks(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-1", num_gpus=2)
    settle(broker)
    after, every = (new(broker, depends_on=on(kind, number)) for kind in ("after", "afterok"))
    assert (state(broker, after), state(broker, every)) == ("queued", "queued")  # no GPU is free
    assert broker.state.gates.open_dependencies(after) == []
    for task in (0, 1):
        assert broker.state.gates.open_dependencies(every)
        finish(broker, job_of(broker, number, task))
    assert state(broker, every) == "launching"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"tasks": [Tasks(3, 1)]}, "ranges with first <= last"),
        ({"tasks": [Tasks(0, 4_000_001)]}, "expected numbers of 0 to"),
        ({"tasks": [Tasks(0, 2_000_000)]}, "expected at most 1,000,000"),
        ({"tasks": [Tasks(0, 5), Tasks(5, 6)]}, "each number once"),
        ({"tasks": [Tasks(0, 5)], "array_limit": -1}, "array_limit must be 0 or more"),
        ({"array_limit": 2}, "expected an array, got one job"),
        ({"tasks": [Tasks(0, 5)], "num_gpus": 9}, "can never be given together"),
    ],
)
def test_invalid_array_is_refused(journal: Journal, facts: dict[str, object], said: str) -> None:
    broker = make(journal, 1)
    assert said in refused(broker, submit(**facts))  # type: ignore[arg-type]
    assert broker.state.arrays.known == {}


def test_repeated_submission_is_one_array(journal: Journal) -> None:
    broker = make(journal, 1)
    message = submit(tasks=[Tasks(0, 9)], token="once")
    assert ask(broker, message) == ask(broker, message)
    assert len(broker.state.arrays.known) == 1


def test_array_survives_restarts_and_snapshots_and_replays_alike(journal: Journal) -> None:
    broker = make(journal, 2, POLICY)
    number = array(broker, "0-199%9")
    other = new(broker, depends_on=on("afterok", number))
    settle(broker)
    for _ in range(30):
        finish_anywhere(broker, next(job for job in broker.state.jobs.values() if job.active is not None))
        settle(broker)
    state = BrokerState(Predictions("running-mean"), load_scheduler(POLICY).order)
    state.replay(journal.rows())
    for known in (state, book_of(picture_of(state))):
        found, live = known.arrays.known[number], broker.state.arrays.known[number]
        assert (found.coming, found.live, found.fresh, found.outcomes) == (
            *(live.coming, live.live, live.fresh, live.outcomes),
        )
        assert known.gates.open_dependencies(other) == broker.state.gates.open_dependencies(other)
    made = redecide(journal_events(journal.path), load_scheduler(POLICY))
    assert len(made) > 30
    assert [(r.now_s, r.state_digest, r.action) for r in made] == [
        (r.now_s, r.state_digest, r.action) for kept in broker.records for r in kept.records
    ]
    names = {name for kept in broker.records for r in kept.records for name in r.names.jobs.values()}
    assert {f"{number}_0", f"{number}_30"} <= names
    past = history_of(journal.path)
    assert [job for job in past.trace.job_id if job.startswith(f"{number}_")][:2] == [
        f"{number}_0",
        f"{number}_1",
    ]
    assert ask(broker, Cancel(job=number), ALICE) == Ok()
    assert history_of(journal.path).trace.job_id.tolist()


def finish_anywhere(broker: HandBroker, job: Job) -> None:
    attempt = job.active
    assert attempt is not None
    node = attempt.ranks[0].node
    broker.says(node, launched(job.number, attempt.number))
    broker.says(node, ended(job.number, attempt.number))


def test_singleton_waits_for_future_tasks_of_an_array(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-3%1", name="sweep")
    alone = new(broker, name="sweep", singleton=True)
    for task in range(4):
        settle(broker)
        assert state(broker, alone) == "queued"
        finish(broker, job_of(broker, number, task))
    assert state(broker, alone) == "launching"


def test_array_has_started_once_its_first_task_has(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "0-2%1")
    settle(broker)
    first_s = info(broker, number).start_s
    assert first_s == broker.state.jobs[job_of(broker, number, 0)].first_start_s
    for task in range(3):
        settle(broker)
        finish(broker, job_of(broker, number, task))
        assert info(broker, number).start_s == first_s


def test_oldest_ended_arrays_are_forgotten_in_every_replay_alike(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MOST_OVER", 10)
    broker = make(journal, 1)
    goes_on = array(broker, "0-3", hold=True)
    found = []
    for _ in range(14):
        found.append(array(broker, "0", hold=True))
        assert ask(broker, Cancel(job=found[-1])) == Ok()
    known = found[4:]
    assert sorted(broker.state.arrays.known) == [goes_on, *known]
    assert len(broker.state.arrays.tokens) == len(known) + 1
    assert f"there is no job {found[0]}" in refused(broker, Cancel(job=found[0]))
    assert "there is no job" in refused(broker, submit(depends_on=on("afterany", found[0])))
    assert info(broker, found[-1]).state == "cancelled"
    again = BrokerState(Predictions("running-mean"), broker.state.order)
    again.replay(journal.rows())
    assert sorted(again.arrays.known) == [goes_on, *known]


def test_array_of_many_single_tasks_is_kept_as_ranges(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, ",".join(map(str, range(0, 20_000, 2))), num_gpus=4)
    spec = broker.state.arrays.known[number].spec
    assert spec.tasks == [Tasks(0, 19_998, 2)]
    settle(broker)
    assert len(broker.state.arrays.known[number].fresh) == WINDOW
    shown = info(broker, number)
    assert (shown.num_tasks, shown.tasks) == (10_000, f"{2 * WINDOW + 2}-19998:2")


def test_task_sets_have_union_difference_and_membership() -> None:
    draws = random.Random(3)
    for _ in range(200):
        some = draws.sample(range(40), draws.randint(1, 20))
        some = sorted(some) if draws.random() < 0.7 else some
        mine = [Tasks(one, one) for one in some]
        small = joined(mine)
        assert list(numbers(small)) == some, "in order"
        assert len(small) <= len(mine)
        assert are_distinct(small)
        assert not are_distinct([*small, Tasks(some[0], some[0])])
        task = draws.choice([*some, 41])
        assert list(numbers(without(small, task))) == [one for one in some if one != task]
    assert not are_distinct([Tasks(0, 10, 5), Tasks(1, 9, 4)])
    assert are_distinct([Tasks(0, 10, 5), Tasks(1, 9, 2)]) is False
    assert are_distinct([Tasks(0, 4_000_000), Tasks(4_000_000, 4_000_000)]) is False
    assert joined([Tasks(1, 1), Tasks(5, 9), Tasks(10, 10)]) == [Tasks(1, 1), Tasks(5, 9), Tasks(10, 10)]
    assert in_words([Tasks(one, one) for one in range(0, 9000, 7)], 10).startswith("0,7,14,")
    assert len(in_words([Tasks(one, one) for one in range(0, 9000, 7)], 10)) < 30
