"""Nodes that go down, drain and come up, solved by hand; and the file of these events."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.node_events import NodeEvent, read_node_events
from tests.support.sim.play import Scripted, attempts, run, trace_of


def rules(*events: tuple[float, int, int]) -> RunRules:
    return RunRules(node_events=tuple(NodeEvent(*event) for event in events))


class TestDown:
    @pytest.mark.parametrize("compiled", [True, False])
    def test_ends_attempts_on_the_node_and_they_restart_elsewhere(self, compiled: bool) -> None:
        trace = trace_of([(0, 10, 1), (0, 8, 1)], checkpoint_s=[3.0, 3.0])
        table = run(trace, "fifo", nodes=2, compiled=compiled, rules=rules((5, 0, NODE_DOWN)))
        assert attempts(table) == [
            ("a", 1, 0, 5, "node_failure", 3),
            ("b", 1, 0, 8, "ended", 8),
            ("a", 2, 8, 8 + 40 + 7, "ended", 7),
        ]
        assert table.gpus == [(1,), (1,)]

    def test_loses_unsaved_work(self) -> None:
        table = run(trace_of([(0, 10, 1)], restart_s=[1.0]), "fifo", nodes=2, rules=rules((5, 0, NODE_DOWN)))
        assert attempts(table) == [("a", 1, 0, 5, "node_failure", 0), ("a", 2, 5, 16, "ended", 10)]

    def test_keeps_work_saved_by_a_preemption(self) -> None:
        trace = trace_of([(0, 10, 1), (1, 2, 1)], restart_s=[1.0, 1.0])
        events = rules((8, 0, NODE_DOWN), (9, 0, NODE_UP))
        assert attempts(run(trace, Scripted({4.0: [0]}, {4.0: [1]}), rules=events)) == [
            ("a", 1, 0, 4, "preempted", 4),
            ("b", 1, 4, 6, "ended", 2),
            ("a", 2, 6, 8, "node_failure", 0),
            ("a", 3, 9, 16, "ended", 6),
        ]

    def test_ends_a_gang_once_on_all_its_nodes(self) -> None:
        trace = trace_of([(0, 10, 4), (1, 4, 2)], restart_s=[0.0, 0.0])
        events = rules((5, 1, NODE_DOWN), (6, 1, NODE_UP))
        table = run(trace, "fifo-backfill", nodes=2, gpus=2, rules=events)
        assert attempts(table) == [
            ("a", 1, 0, 5, "node_failure", 0),
            ("b", 1, 5, 9, "ended", 4),
            ("a", 2, 9, 19, "ended", 10),
        ]

    def test_without_an_end_leaves_jobs_unfinished(self) -> None:
        table = run(trace_of([(0, 10, 1), (1, 10, 1)]), "fifo", rules=rules((5, 0, NODE_DOWN)))
        assert attempts(table) == [("a", 1, 0, 5, "node_failure", 0)]
        assert str(table.end_s.tolist()) == "[nan, nan]"
        assert table.ended_by is not None
        assert table.ended_by.tolist() == [0, 0]

    def test_without_an_end_stops_a_run_whose_scheduler_waits_forever(self) -> None:
        scheduler = Scripted({float(at): [] for at in range(1, 1000)})
        table = run(trace_of([(0, 10, 1), (1, 10, 1)]), scheduler, rules=rules((5, 0, NODE_DOWN)))
        assert scheduler.asked_at[-1] == 5
        assert str(table.end_s.tolist()) == "[nan, nan]"


class TestOrder:
    def test_end_precedes_a_node_going_down(self) -> None:
        table = run(trace_of([(0, 5, 1)]), "fifo", rules=rules((5, 0, NODE_DOWN)))
        assert attempts(table) == [("a", 1, 0, 5, "ended", 5)]

    def test_node_comes_up_before_arrivals_at_the_same_time(self) -> None:
        events = rules((0, 0, NODE_DOWN), (3, 0, NODE_UP))
        assert run(trace_of([(3, 5, 1)]), "fifo", rules=events).start_s.tolist() == [3]

    def test_events_at_the_same_time_are_in_file_order(self) -> None:
        events = rules((2, 0, NODE_DOWN), (2, 0, NODE_UP))
        table = run(trace_of([(0, 5, 1)], restart_s=[0.0]), "fifo", rules=events)
        assert [one[2:4] for one in attempts(table)] == [(0, 2), (2, 7)]

    def test_node_events_do_not_prolong_a_run(self) -> None:
        scheduler = Scripted({})
        table = run(trace_of([(0, 5, 1)]), scheduler, rules=rules((100, 0, NODE_DOWN)))
        assert table.end_s.tolist() == [5]


class TestDrain:
    def test_keeps_running_jobs_and_accepts_no_new_ones(self) -> None:
        events = rules((1, 0, NODE_DRAINED), (30, 0, NODE_UP))
        table = run(trace_of([(0, 10, 1), (2, 5, 1)]), "fifo", gpus=2, rules=events)
        assert attempts(table) == [("a", 1, 0, 10, "ended", 10), ("b", 1, 30, 35, "ended", 5)]


SPEC = ClusterSpec.uniform(3, 2)


def test_file_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text("node,time,event\nn2, 7.5,up\n\nn0,3,down\nn1,3,drain\n")
    assert read_node_events(path, SPEC) == (
        NodeEvent(3.0, 0, NODE_DOWN),
        NodeEvent(3.0, 1, NODE_DRAINED),
        NodeEvent(7.5, 2, NODE_UP),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,node\n", "expected the columns time, node, event, got time, node"),
        ("", "expected the columns time, node, event, got $"),
        ("time,node,event\n1,n0,up\n-2,n0,up\n", "row 3, column 'time': expected seconds, .* got '-2'"),
        ("time,node,event\nsoon,n0,up\n", "row 2, column 'time': expected seconds, .* got 'soon'"),
        ("time,node,event\n1,n3,up\n", "row 2, column 'node': expected a node .* n0 to n2, got 'n3'"),
        ("time,node,event\n1,n0,reboot\n", "row 2, column 'event': expected down, drain, up, got 'reboot'"),
        ("time,node,event\n1,n0\n", "row 2: expected 3 values as in the header, got 2"),
        ('time,node,event\n1,"n0,up\n', "row 2: not valid CSV"),
    ],
)
def test_bad_file_is_refused_by_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"events\.csv: {message}"):
        read_node_events(path, SPEC)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read these node events: No such file"):
        read_node_events(tmp_path / "none.csv", SPEC)
