"""Processors of a rank and its limits, on invented machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.isolation import cgroup
from rlsched_node.isolation.cgroup import Cgroup, Cgroups
from rlsched_node.isolation.limits import (
    OOM_FIRST,
    RankLimits,
    hold,
    in_words,
    memory_for_jobs_mib,
    numbers,
    on_machine,
)
from rlsched_node.processes.bounds import RankBounds
from rlsched_node.processes.cores import Cores, cores_of_machine
from rlsched_node.processes.store import LaunchRecord
from tests.support.online.ranks import order_of

NEAR = [{0, 1, 2, 3}, {4, 5, 6, 7}]
THREADS = {cpu: {cpu, (cpu + 2) % 4 + cpu // 4 * 4} for cpu in range(8)}
"""Two sockets of two cores with two threads each: 0 and 2 are one core, 1 and 3, 4 and 6, 5 and 7."""
MIB = 1 << 20


def key(job: int) -> AttemptKey:
    return AttemptKey(job, 1, 0, "c1")


def launch(job: int, gpus: list[int], **asked: int) -> Launch:
    return order_of(key(job), "true", gpus=gpus, **asked)


def test_cores_are_whole_and_near_their_gpu() -> None:
    cores = Cores(range(8), NEAR, THREADS)
    assert cores.take("a", 2, [1]) == [4, 6], "one core of the second socket, not halves of two"
    assert cores.take("b", 3, [1]) == [0, 5, 7], "the rest of that socket, then the other"
    assert cores.shared_processors == [1, 2, 3]
    assert cores.take("c", 2, [0]) == [1, 3], "2 is half of a core that is in use"


def test_unrequested_cores_are_shared_and_returned() -> None:
    cores = Cores(range(4), [{0, 1}, {2, 3}])
    cores.take("a", 3, [0])
    assert cores.shared_processors == [3]
    assert cores.take("b", 2, [1]) == [3], "all of them"
    assert cores.shared_processors == [0, 1, 2, 3], "the other ranks need a processor"
    assert cores.give_back("a")
    assert not cores.give_back("a")
    assert cores.shared_processors == [0, 1, 2]


def test_without_a_topology_the_lowest_are_first() -> None:
    assert Cores({3, 5, 9}).take("a", 2, [7]) == [3, 5]


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5", [5]), ("1-2", [1, 2])]
)
def test_lists_of_processors_in_the_kernels_format(text: str, cpus: list[int]) -> None:
    assert numbers(text + "\n") == set(cpus)
    assert in_words(cpus) == text


def test_simulated_cores_map_to_real_ones() -> None:
    cores = cores_of_machine(SimulatedGpus(2))
    assert cores.count == 32
    assert cores.take("a", 3, [1]) == [16, 17, 18]
    here = os.sched_getaffinity(0)
    assert here.issuperset(on_machine([0, 16, 17, 5000]))
    assert on_machine(sorted(here)) == sorted(here)


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of eight processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))  # noqa: ARG005


@pytest.fixture
def group(tmp_path: Path) -> Cgroup:
    """A directory that looks like a control group with controllers."""
    for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpuset.cpus", "io.weight"):
        (tmp_path / name).touch()
    return Cgroup(str(tmp_path))


ASKED = RankLimits(cpus=[0, 1], owns_cpus=True, memory_bytes=MIB, asked_memory=True, processes=9, weight=200)


@pytest.mark.usefixtures("eight")
def test_with_controllers_the_group_has_the_limits(group: Cgroup, tmp_path: Path) -> None:
    assert hold(group, ASKED) == hold(group, ASKED)
    setup = hold(group, ASKED)
    assert (setup.cpus, setup.data_bytes, setup.processes, setup.oom_score_adj) == ([], 0, 0, 0)
    wrote = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert wrote == {
        "memory.max": str(MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "9",
        "cpuset.cpus": "0-1",
        "io.weight": "200",
    }, "cpu.weight does not exist and is not created"


@pytest.mark.usefixtures("eight")
def test_without_controllers_each_process_has_the_limits(tmp_path: Path) -> None:
    setup = hold(Cgroup(str(tmp_path)), ASKED)
    assert (setup.cpus, setup.data_bytes, setup.processes) == ([0, 1], MIB, 9)
    assert hold(Cgroup(""), ASKED) == setup


def test_unrequested_memory_limits_only_the_group_and_is_set_first(tmp_path: Path) -> None:
    setup = hold(Cgroup(str(tmp_path)), RankLimits(memory_bytes=MIB))
    assert (setup.data_bytes, setup.oom_score_adj) == (0, OOM_FIRST)


def test_part_of_the_nodes_memory_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(mib: int) -> None:
        sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": mib << 8}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)

    for total, kept in ((4096, 512), (100_000, 5_000), (1 << 21, 16_384), (256, 255)):
        machine(total)
        assert memory_for_jobs_mib() == total - kept


class Groups(Cgroups):
    """Control groups of a machine whose controllers are all delegated, as plain directories."""

    def __init__(self, root: Path, controllers: tuple[str, ...] = cgroup.CONTROLLERS) -> None:
        self.root, self.note, self.missing = str(root), "", ""
        self.controllers, self._memory_bytes = frozenset(controllers), 0


def bounds(groups: Cgroups) -> RankBounds:
    return RankBounds(Cores(range(8), NEAR), groups, num_gpus=2, memory_mib=1000, max_processes=50)


def test_rank_gets_its_request_or_the_share_of_its_gpus(tmp_path: Path) -> None:
    node = bounds(Groups(tmp_path))
    assert node.allocate_limits(key(1), launch(1, [1], cores=2, memory_mib=900)) == RankLimits(
        cpus=[4, 5], owns_cpus=True, memory_bytes=900 * MIB, asked_memory=True, processes=50
    )
    assert node.allocate_limits(key(2), launch(2, [0])) == RankLimits(
        cpus=[0, 1, 2, 3, 6, 7], memory_bytes=500 * MIB, processes=50
    )
    both = node.allocate_limits(key(3), launch(3, [0, 1]))
    assert (both.memory_bytes, both.weight) == (1000 * MIB, 200)


@pytest.mark.usefixtures("eight")
def test_idle_cores_are_lent_and_taken_back(tmp_path: Path) -> None:
    node = bounds(Groups(tmp_path))
    group = tmp_path / "c1.1.1.0"
    group.mkdir()
    cpus = group / "cpuset.cpus"
    cpus.touch()
    assert node.allocate_limits(key(1), launch(1, [0])).cpus == list(range(8))
    node.allocate_limits(key(2), launch(2, [1], cores=4))
    assert cpus.read_text() == "0-3"
    node.release_limits(key(2))
    assert cpus.read_text() == "0-7"
    node.release_limits(key(1))
    node.allocate_limits(key(2), launch(2, [1], cores=4))
    assert cpus.read_text() == "0-7", "an ended rank gets no update"


@pytest.mark.usefixtures("eight")
def test_lent_cores_are_withdrawn_once_another_rank_needs_them(tmp_path: Path) -> None:
    node = bounds(Groups(tmp_path))
    group = tmp_path / "c1.1.1.0"
    group.mkdir()
    cpus = group / "cpuset.cpus"
    cpus.touch()
    limits = node.allocate_limits(key(1), launch(1, [1], cores=2, lent_cores=3))
    assert (limits.cpus, limits.lent_cpus, limits.owns_cpus) == ([0, 4, 5, 6, 7], [0, 6, 7], True)
    assert node.allocate_limits(key(2), launch(2, [0])).cpus == [0, 1, 2, 3, 6, 7], "lent cores are shared"
    assert node.allocate_limits(key(3), launch(3, [0], cores=3)).cpus == [1, 2, 3], (
        "no lent core if others do"
    )
    assert cpus.read_text() == ""
    assert node.allocate_limits(key(4), launch(4, [0], cores=1)).cpus == [0]
    assert cpus.read_text() == "4-5", "the whole loan"
    node.release_limits(key(4))
    assert node.allocate_limits(key(5), launch(5, [0], cores=1, lent_cores=4)).lent_cpus == [6, 7]
    assert cpus.read_text() == "4-5"


@pytest.mark.usefixtures("eight")
def test_next_daemon_knows_loans(tmp_path: Path) -> None:
    group = tmp_path / "c1.1.1.0"
    group.mkdir()
    cpus = group / "cpuset.cpus"
    cpus.write_text("0-7")
    limits = bounds(Groups(tmp_path)).allocate_limits(key(1), launch(1, [1], cores=2, lent_cores=6))
    record = LaunchRecord(gpus=[1], command=["x"], env={}, cwd="/", limits=limits, cgroup=str(group))
    second = bounds(Groups(tmp_path))
    second.adopt(key(1), record)
    shared = second.allocate_limits(key(2), launch(2, [0], lent_cores=4)).cpus
    assert shared == [0, 1, 2, 3, 6, 7], "a rank without a request borrows nothing"
    assert second.allocate_limits(key(3), launch(3, [0], cores=2)).cpus == [0, 1]
    assert cpus.read_text() == "4-5"
    third = bounds(Groups(tmp_path))
    third.adopt(key(1), record)
    found = third.allocate_limits(key(4), launch(4, [0], cores=2, lent_cores=4))
    assert found.lent_cpus == [2, 3, 6, 7], "the loan of the first rank has ended"


def test_without_the_controller_a_borrower_keeps_its_cores(tmp_path: Path) -> None:
    node = bounds(Groups(tmp_path, ("memory",)))
    assert len(node.allocate_limits(key(1), launch(1, [1], cores=2, lent_cores=6)).cpus) == 8
    assert node.allocate_limits(key(2), launch(2, [0], cores=6)).cpus == [0, 1, 2, 3, 6, 7]
    assert not (tmp_path / "c1.1.1.0").exists()


def test_next_daemon_knows_the_cores_of_each_rank(tmp_path: Path) -> None:
    first = bounds(Groups(tmp_path))
    limits = first.allocate_limits(key(1), launch(1, [1], cores=4))
    second = bounds(Groups(tmp_path))
    second.adopt(key(1), LaunchRecord(gpus=[1], command=["x"], env={}, cwd="/", limits=limits))
    assert second.allocate_limits(key(2), launch(2, [0])).cpus == [0, 1, 2, 3]
    before_limits = LaunchRecord(gpus=[0], command=["x"], env={}, cwd="/")
    second.adopt(key(3), before_limits)
    second.release_limits(key(1))
    assert second.allocate_limits(key(4), launch(4, [1])).cpus == list(range(8))


def test_node_reports_limits_that_it_cannot_enforce(tmp_path: Path) -> None:
    assert bounds(Groups(tmp_path)).note == ""
    assert bounds(Groups(tmp_path)).holds_to == ["cores", "memory", "processes"]
    weak = bounds(Groups(tmp_path, ("cpu", "memory")))
    assert weak.holds_to == ["memory"]
    assert (
        weak.note == "control groups without controllers: weaker limits of cores, processes (rlsched doctor)"
    )
    assert weak.weaker[0].startswith("cores by affinity")
    none = Groups(tmp_path, ())
    none.note = "there is no cgroup v2"
    assert bounds(none).note.startswith("no control groups: ")
    assert bounds(none).holds_to == []


class TestOwnGroup:
    """A daemon and its own control group, as plain files that accept any text."""

    @pytest.fixture
    def own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        own = tmp_path / "unit"
        own.mkdir()
        (own / "cgroup.controllers").write_text("cpuset cpu io memory pids hugetlb\n")
        (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
        monkeypatch.delenv("INVOCATION_ID", raising=False)
        return own

    def test_only_process_of_its_group_moves_into_a_child_group(
        self, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moved: list[tuple[str, str]] = []
        monkeypatch.setattr(cgroup, "_write", lambda path, text: moved.append((path, text)))
        assert cgroup._step_aside(str(own)) == ""
        assert moved == [(f"{own}/rlsched-node/cgroup.procs", "0")]

    def test_with_other_processes_it_stays(self, own: Path) -> None:
        (own / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
        assert cgroup._step_aside(str(own)) == f"other processes are in {own}"

    def test_under_systemd_its_unit_must_delegate(self, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("INVOCATION_ID", "x")
        assert "DelegateSubgroup=rlsched-node" in cgroup._step_aside(str(own))
