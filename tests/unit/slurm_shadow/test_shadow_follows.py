"""A shadow of a Slurm in memory: its book equals Slurm's state; its policy decides before Slurm's starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.decisions.reading import StoreReader
from rlsched.engine.shadow.notes import Watched, read_notes
from rlsched.engine.shadow.shadow_loop import forgets_after_s
from rlsched.errors import InputError
from tests.support.broker.in_memory import BEGAN_S, Bench, SlurmInMemory


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "shadow")
    bench.look()
    yield bench
    bench.close()


def test_start_is_adopted_from_slurm_and_compared_with_the_wish_before_it(bench: Bench) -> None:
    key = bench.slurm.submit(2)
    bench.slurm.now_s += 5.0
    bench.slurm.start(key, "n2", [1, 3])
    bench.look(5.0)
    assert bench.states() == {key: "running n2[1,3]"}
    compared = bench.compared()[key]
    assert (compared.nodes, compared.gpus) == (["n2", "n2"], [1, 3])
    assert (compared.wanted_nodes, compared.wanted_gpus) == (["n1", "n1"], [0, 1])
    assert compared.wanted_since_s == BEGAN_S
    assert compared.at_s == BEGAN_S + 5.0


def test_policy_sees_the_state_of_each_instant_for_late_polls(bench: Bench) -> None:
    first = bench.slurm.submit(4)
    bench.slurm.start(first, "n1", [0, 1, 2, 3])
    blocked = bench.slurm.submit(4, "blocked")
    other = bench.slurm.submit(4, "other")
    bench.slurm.start(other, "n2", [0, 1, 2, 3])
    bench.slurm.now_s += 20.0
    bench.slurm.end(first)
    bench.slurm.now_s += 3.0
    bench.slurm.start(blocked, "n1", [0, 1, 2, 3])
    bench.look(60.0)
    assert bench.states() == {
        "1": "completed n1[0,1,2,3]",
        "blocked": "running n1[0,1,2,3]",
        "other": "running n2[0,1,2,3]",
    }
    assert bench.compared()["blocked"].wanted_since_s == BEGAN_S  # Slurm let it wait, first come would not
    assert bench.compared()["other"].wanted_nodes == []


def test_start_out_of_the_policy_s_order_was_not_wanted(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "shadow", SlurmInMemory(nodes=1), policy="fifo")
    bench.look()
    running = bench.slurm.submit(2)
    bench.slurm.start(running, "n1", [0, 1])
    bench.look(10.0)
    wide = bench.slurm.submit(4)
    bench.slurm.now_s += 1.0
    small = bench.slurm.submit(1)
    bench.slurm.start(small, "n1", [2])
    bench.look(10.0)
    assert bench.compared()[small].wanted_nodes == []
    assert bench.states()[wide] == "queued"
    bench.close()


def test_ended_job_without_gpus_in_slurm_takes_none_of_a_running_job(bench: Bench) -> None:
    known, short = bench.slurm.submit(1), bench.slurm.submit(2)
    bench.slurm.start(short, "n1", [2, 3])
    bench.slurm.now_s += 1.0
    bench.slurm.start(known, "n1", [0])
    bench.slurm.now_s += 1.0
    bench.slurm.end(short)
    bench.slurm.change(short, gpus=[])
    bench.look(5.0)
    assert bench.states() == {known: "running n1[0]", short: "completed n1[1,2]"}
    assert bench.compared()[short].gpus == []


def test_ends_requeues_and_cancels_follow_slurm(bench: Bench) -> None:
    slurm = bench.slurm
    failed, requeued, cancelled, gone = (slurm.submit(1) for _ in range(4))
    for gpu, key in enumerate((failed, requeued, gone)):
        slurm.start(key, "n1", [gpu])
    bench.look(10.0)
    slurm.end(failed, "FAILED", 3)
    slurm.change(requeued, state="PENDING", nodes=[], gpus=[], start_s=0.0, restarts=1)
    slurm.end(cancelled, "CANCELLED")
    del slurm.jobs[gone]
    bench.look(10.0)
    assert bench.states() == {
        failed: "failed n1[0]",
        requeued: "queued n1[1]",
        cancelled: "cancelled",
        gone: "failed n1[2]",
    }
    slurm.start(requeued, "n2", [0])
    bench.look(10.0)
    assert bench.states()[requeued] == "running n2[0]"


def test_job_between_two_polls_is_compared(bench: Bench) -> None:
    key = bench.slurm.submit(1)
    bench.slurm.start(key, "n1", [0])
    bench.slurm.end(key)
    bench.look(10.0)
    assert bench.states() == {key: "completed n1[0]"}
    assert bench.compared()[key].wanted_gpus == [0]


@pytest.mark.parametrize(
    "said",
    [
        {"is_held": True},
        {"is_held_by_user": True},
        {"depends": True},
        {"eligible_s": 0.0},
        {"eligible_s": BEGAN_S + 1e6},
        {"reason": "QOSMaxGRESPerUser"},
        {"bound": "features"},
        {"num_nodes": 2, "gpus_asked": 4},
        {"gpus_asked": 0},
    ],
)
def test_job_that_slurm_would_not_start_is_not_offered(bench: Bench, said: dict[str, object]) -> None:
    key = bench.slurm.submit(1)
    bench.slurm.change(key, **said)
    bench.look(10.0)
    assert bench.states() == {}


def test_job_at_a_limit_leaves_the_queue_and_returns(bench: Bench) -> None:
    key = bench.slurm.submit(1)
    bench.look(10.0)
    bench.slurm.change(key, reason="QOSMaxGRESPerUser")
    bench.look(10.0)
    assert bench.states() == {key: "cancelled"}
    bench.slurm.change(key, reason="Priority")
    bench.look(10.0)
    assert bench.states() == {key: "queued"}
    reader = StoreReader(bench.directory / "decisions")
    reader.refresh()
    assert reader.timeline.jobs[key].state == ""  # for users it has waited all the time


def test_only_runnable_tasks_of_an_array_are_offered(bench: Bench) -> None:
    for task in range(4):
        bench.slurm.submit(1, f"9_{task}", array=9, array_limit=2)
    bench.look(10.0)
    assert list(bench.states()) == ["9_0", "9_1"]


def test_gpus_of_jobs_that_only_slurm_can_place_are_not_wanted(bench: Bench) -> None:
    for node in ("n1", "n2"):
        key = bench.slurm.submit(3, bound="a node list")
        bench.slurm.start(key, node, [0, 1, 2])
    bench.look(10.0)
    wide, small = bench.slurm.submit(2), bench.slurm.submit(1)
    bench.look(10.0)
    assert set(bench.shadow.wanted_starts()) == {small}
    assert bench.states() == {wide: "queued", small: "queued"}


def test_drained_node_is_not_wanted_and_its_jobs_stay(bench: Bench) -> None:
    key = bench.slurm.submit(4)
    bench.slurm.start(key, "n1", [0, 1, 2, 3])
    bench.slurm.why["n2"] = "drain in Slurm: fan"
    bench.look(10.0)
    waiting = bench.slurm.submit(1)
    bench.look(10.0)
    assert bench.shadow.wanted_starts() == {}
    del bench.slurm.why["n2"]
    bench.look(10.0)
    assert set(bench.shadow.wanted_starts()) == {waiting}
    assert bench.states()[key] == "running n1[0,1,2,3]"


def test_job_in_its_epilog_has_left_its_gpus(bench: Bench) -> None:
    ended, follows = bench.slurm.submit(4), bench.slurm.submit(4)
    bench.slurm.start(ended, "n1", [0, 1, 2, 3])
    bench.look(10.0)
    bench.slurm.change(ended, state="COMPLETING", end_s=bench.slurm.now_s)
    bench.slurm.now_s += 1.0
    bench.slurm.start(follows, "n1", [0, 1, 2, 3])
    for _ in range(3):
        bench.look(10.0)
    assert bench.states() == {ended: "completed n1[0,1,2,3]", follows: "running n1[0,1,2,3]"}
    bench.slurm.change(ended, state="PENDING", nodes=[], gpus=[], start_s=0.0, end_s=0.0, restarts=1)
    bench.look(10.0)
    assert bench.states()[ended] == "queued"  # it was requeued


def test_start_on_used_gpus_is_dropped_at_the_second_poll(bench: Bench) -> None:
    one, two = bench.slurm.submit(1), bench.slurm.submit(1)
    bench.slurm.start(one, "n1", [0])
    bench.slurm.start(two, "n1", [0])
    bench.look(10.0)
    assert bench.states() == {one: "running n1[0]", two: "queued"}
    bench.look(10.0)
    assert bench.states()[two] == "cancelled"
    bench.look(10.0)
    assert bench.states()[one] == "running n1[0]"


def test_unreachable_slurm_loses_nothing(bench: Bench) -> None:
    key = bench.slurm.submit(2)
    bench.slurm.start(key, "n1", [0, 1])
    bench.look(10.0)
    bench.slurm.is_away = True
    for _ in range(5):
        bench.look(10.0)
    assert bench.states() == {key: "running n1[0,1]"}
    bench.slurm.is_away = False
    bench.slurm.end(key)
    bench.look(10.0)
    assert bench.states() == {key: "completed n1[0,1]"}


def test_killed_shadow_catches_up_on_ends_and_starts(tmp_path: Path) -> None:
    first = Bench(tmp_path / "shadow")
    first.look()
    slurm = first.slurm
    runs, ends, waits = slurm.submit(1), slurm.submit(1), slurm.submit(1)
    slurm.start(runs, "n1", [0])
    slurm.start(ends, "n1", [1])
    first.look(10.0)
    before = first.states()
    first.close()
    slurm.now_s += 100.0
    slurm.end(ends)
    slurm.start(waits, "n2", [2])
    again = Bench(tmp_path / "shadow", slurm)
    assert again.states() == before
    again.look(10.0)
    assert again.states() == {runs: "running n1[0]", ends: "completed n1[1]", waits: "running n2[2]"}
    assert sorted(again.compared()) == sorted([runs, ends, waits])
    again.close()
    assert (
        len(
            {
                row.entry.epoch
                for row in read_journal(again.directory / JOURNAL_FILE)
                if hasattr(row.entry, "epoch")
            }
        )
        == 2
    )


def test_slurm_that_starts_the_policy_s_choice_agrees_on_every_gpu(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "shadow", policy="tuned")
    bench.look()
    ends: list[tuple[float, str]] = []
    for number in range(40):
        bench.slurm.now_s += 1.0
        bench.slurm.submit((1, 2, 4, 1)[number % 4])
        for at_s, key in [one for one in ends if one[0] <= bench.slurm.now_s]:
            ends.remove((at_s, key))
            bench.slurm.end(key)
        bench.look(2.0)
        for key, places in bench.shadow.wanted_starts().items():
            nodes = {node for node, _ in places}
            assert len(nodes) == 1
            bench.slurm.start(key, nodes.pop(), [gpu for _, gpu in places])
            ends.append((bench.slurm.now_s + 5.0 + number % 7, key))
    bench.look(2.0)
    compared = bench.compared()
    assert len(compared) >= 25
    assert [
        one for one in compared.values() if (one.nodes, one.gpus) != (one.wanted_nodes, one.wanted_gpus)
    ] == []
    bench.close()


def test_unchanged_decisions_are_recorded_once(bench: Bench) -> None:
    bench.slurm.submit(1, "wanted")
    for _ in range(5):
        bench.slurm.submit(8, depends=True)  # an event without effect
        bench.look(10.0)
    reader = StoreReader(bench.directory / "decisions")
    reader.refresh()
    assert [reader.cells(row)["job"] for row in range(len(reader))] == ["wanted"]


def test_polls_are_recorded(bench: Bench) -> None:
    bench.slurm.submit(1)
    bench.look(10.0)
    bench.shadow.note()
    watched = [note for note in read_notes(bench.directory) if isinstance(note, Watched)]
    assert (watched[0].looks, watched[0].asked, list(watched[0].standing)) == (2, 1, ["1"])


def test_slurm_that_forgets_jobs_before_the_next_poll_is_refused() -> None:
    assert forgets_after_s({"MinJobAge": "300 sec"}, 60.0) == 300.0
    with pytest.raises(InputError, match=r"--poll-s 60: .* expected at most 15"):
        forgets_after_s({"MinJobAge": "30 sec"}, 60.0)
