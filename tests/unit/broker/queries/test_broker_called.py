"""Tasks of arrays have names such as `17_3` in every output, also long after their end."""

from __future__ import annotations

import msgspec

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import reading
from rlsched.cli.shared.job_tables import node_lines
from rlsched.cli.users.history_tables import history_lines
from rlsched.decide.registry import load_scheduler
from rlsched.notify.notices import JobWatch
from rlsched.wire.messages import History, Hold, ListHistory, ListNodes, Nodes, Release, Why
from tests.support.broker.gated import ask, finish, new, on, refused
from tests.support.broker.hand import LIMITS, hello, launched, make
from tests.support.broker.hand_broker import HandBroker
from tests.support.broker.job_arrays import array, info, job_of, settle
from tests.support.broker.preempting import make_preempting


def test_history_has_running_ended_and_forgotten_tasks(journal: Journal) -> None:
    limits = msgspec.structs.replace(LIMITS, ended_s=1e9, ended_jobs=0)
    broker = HandBroker(load_scheduler("fifo-backfill"), journal, limits=limits)
    broker.says("n0", hello("n0"))
    one, number = new(broker), array(broker, "3-5")
    settle(broker)
    finish(broker, one)
    first = job_of(broker, number, 3)
    finish(broker, first)
    broker.wait(1.0, "n0")
    assert not {one, first} & set(broker.state.jobs)
    found = broker.ask(ListHistory())
    assert isinstance(found, History)
    jobs = found.jobs[::-1]
    assert [(job.array, job.task) for job in jobs] == [(0, 0), (number, 3), (number, 4), (number, 5)]
    names = [line.plain.split()[0] for line in history_lines(jobs, None)[1:]]
    assert names == [str(one), f"{number}_3", f"{number}_4", f"{number}_5"]


def test_node_lists_the_tasks_on_its_gpus(journal: Journal) -> None:
    broker = make(journal, 1)
    one, number = new(broker), array(broker, "8,9")
    settle(broker)
    nodes = broker.ask(ListNodes())
    assert isinstance(nodes, Nodes)
    node = nodes.nodes[0]
    assert node.jobs == [one, job_of(broker, number, 8), job_of(broker, number, 9)]
    assert node.called == [str(one), f"{number}_8", f"{number}_9"]
    assert f"{one} {number}_8 {number}_9" in node_lines([node], None)[1].plain
    older = msgspec.structs.replace(node, called=[])
    assert f"{one} {node.jobs[1]} {node.jobs[2]}" in node_lines([older], None)[1].plain


def test_explanations_reasons_and_refusals_name_the_task(journal: Journal) -> None:
    broker = make(journal, 1)
    number = array(broker, "8,9", num_gpus=4, user="alice")
    settle(broker)
    runs, waits = job_of(broker, number, 8), job_of(broker, number, 9)
    broker.says("n0", launched(runs))
    assert str(broker.ask(Why(job=runs))).startswith(f"job {number}_8: running on n0[0,1,2,3]")
    assert f"job {number}_8 is running: only waiting jobs" in refused(broker, Hold(job=runs))
    ask(broker, Hold(job=waits))
    assert f"`rlsched release {number}_9`" in info(broker, waits).reason
    ask(broker, Release(job=waits))
    last = new(broker, depends_on=on("afterok", waits), user="alice")
    assert f"waits for afterok:{number}_9" in info(broker, last).reason


def test_a_notice_names_the_task(journal: Journal) -> None:
    broker = make(journal, 1)
    one, number = new(broker, notify="end"), array(broker, "8,9", notify="end")
    settle(broker)
    for job in (one, job_of(broker, number, 9)):
        finish(broker, job)
    watch = JobWatch()
    with reading(journal.path) as found:
        rows = list(found.rows_after(0, found.last or 0))
    told = [notice for row in rows if (notice := watch.apply(row))]
    assert [notice.called for notice in told] == [str(one), f"{number}_9"]
    assert b'"called": "' in told[1].body


def test_preempted_and_waiting_tasks_are_named(journal: Journal) -> None:
    broker = make_preempting(journal, 1)
    first = array(broker, "5", num_gpus=4, preemptible=True)
    settle(broker)
    leaves = job_of(broker, first, 5)
    broker.says("n0", launched(leaves))
    broker.wait(12.0, "n0")
    second = array(broker, "7", num_gpus=4)
    settle(broker)
    assert f"for job {second}_7" in info(broker, leaves).reason
    assert f"waits until job {first}_5, preempted" in info(broker, job_of(broker, second, 7)).reason
