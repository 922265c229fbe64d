"""A job that consumes all resources, with and without control groups: its node and other jobs keep running.

The job limits itself too, so that a failure here does not bring down the machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched_node.isolation.cgroup import Cgroup, Cgroups
from rlsched_node.isolation.limits import RankLimits
from rlsched_node.processes import shim
from rlsched_node.processes.bounds import RankBounds
from rlsched_node.processes.cores import Cores
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import Event, Exited, Started
from rlsched_node.processes.store import AttemptDir, AttemptStore
from tests.support.online.ranks import (
    KEY,
    collect,
    has_output,
    order_of,
    output,
    own_children,
    start,
    until,
    unused_user,
)

pytestmark = pytest.mark.slow

NEIGHBOUR = KEY._replace(job=99)
MIB = 1 << 20
LIMITS = RankLimits(memory_bytes=96 * MIB, asked_memory=True, processes=60)
PYTHON = (sys.executable, "-I", "-S", "-c")
HUNGRY = """
held = []
for _ in range(40):
    held.append(b"x" * (32 << 20))  # 1.25 GiB in all
    print(len(held), flush=True)
"""
FAMILY = f"""
import os
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        exec({HUNGRY!r})
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
raise SystemExit(any(codes))
"""
BOMB = """
import os, sys, time
made = 0
try:
    while made < 400:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
finally:
    print("made", made, flush=True)
"""
AFFINITY = """
import os, sys, time
if sys.argv[1] == "leave":
    os.sched_setaffinity(0, range(1024))
os.fork()
before = None
while True:
    now = sorted(os.sched_getaffinity(0))
    if now != before:
        print(now, flush=True)
    before = now
    time.sleep(0.02)
"""
SPIN = "print('up', flush=True)\nwhile True: pass"


class Node:
    """The ranks of a node, and a second job that counts while others misbehave."""

    def __init__(self, ranks: LiveRanks, store: AttemptStore, cgroups: Cgroups | None, stop: Path) -> None:
        self.ranks, self.store, self._stop = ranks, store, stop
        self.cgroups = cgroups
        self.controllers = frozenset() if cgroups is None else cgroups.controllers
        self._neighbour = start(
            ranks,
            store,
            "sh",
            "-c",
            f"until [ -e {stop} ]; do echo tick; sleep 0.05; done; exit 7",
            key=NEIGHBOUR,
            limits=RankLimits(processes=1000),
        )
        until(has_output(self._neighbour, "tick"))

    def ended(self, directory: AttemptDir) -> Exited:
        """How the rank ended; its group is empty, and no process of it is left."""
        event = collect(self.ranks, Exited)[-1]
        assert isinstance(event, Exited)
        assert event.key == KEY
        record = directory.launch()
        assert record is not None
        assert not Cgroup(record.cgroup).is_populated()
        return event

    def is_unharmed(self) -> None:
        """The second job still counts and exits as usual; another job starts and ends."""
        before = output(self._neighbour).count("tick")
        until(lambda: output(self._neighbour).count("tick") > before + 2)
        again = KEY._replace(job=2)
        start(self.ranks, self.store, "true", key=again)
        assert collect(self.ranks, Exited)[-1] == Exited(again, 0)
        self._stop.touch()
        assert collect(self.ranks, Exited)[-1] == Exited(NEIGHBOUR, 7)

    def need(self, controller: str) -> None:
        """Skip a test with groups that cannot enforce this limit."""
        if self.cgroups is not None and controller not in self.controllers:
            pytest.skip(f"the groups here have no controller {controller}")


def a_node(store: AttemptStore, folder: Path, cgroups: Cgroups | None) -> Iterator[Node]:
    if cgroups is not None and cgroups.note:
        pytest.skip(f"no control groups: {cgroups.note}")
    is_subreaper = shim.become_subreaper()
    shims, spared = Shims(forks=is_subreaper), own_children()
    ranks = LiveRanks(store, cgroups=cgroups, is_subreaper=is_subreaper, shims=shims, spared=spared)
    yield Node(ranks, store, cgroups, folder / "stop")
    for key in list(store.scan()):
        ranks.hard_kill(key)
    ranks.close()
    shim.prctl(36, 0)  # PR_SET_CHILD_SUBREAPER: off for the other tests


@pytest.fixture(params=["groups", "processes"])
def node(store: AttemptStore, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    yield from a_node(store, tmp_path, Cgroups(str(tmp_path)) if request.param == "groups" else None)


@pytest.fixture
def grouped(store: AttemptStore, tmp_path: Path) -> Iterator[Node]:
    yield from a_node(store, tmp_path, Cgroups(str(tmp_path)))


def test_fork_bomb_is_limited_in_processes(node: Node) -> None:
    node.need("pids")
    bomb = (sys.executable, "-I", "-S", "-c", BOMB)
    user = None if "pids" in node.controllers else unused_user()
    if user is not None:
        bomb = ("/bin/sh", "-c", "n=0; while [ $n -lt 400 ]; do sleep 30 & n=$((n+1)); echo made $n; done")
    directory = start(node.ranks, node.store, *bomb, limits=LIMITS, user=user)
    event = node.ended(directory)
    assert event.exit_code != 0, output(directory)
    numbers = [int(line.split()[1]) for line in output(directory).splitlines() if line.startswith("made")]
    assert max(numbers, default=0) < LIMITS.processes
    node.is_unharmed()


def test_job_gets_no_more_memory_than_requested(node: Node) -> None:
    node.need("memory")
    directory = start(node.ranks, node.store, *PYTHON, HUNGRY, limits=LIMITS)
    event = node.ended(directory)
    got_mib = 32 * max([int(line) for line in output(directory).splitlines() if line.isdecimal()], default=0)
    assert got_mib <= LIMITS.memory_bytes >> 20
    if "memory" in node.controllers:
        assert (event.exit_code, event.reason) == (137, "out_of_memory")
        assert "because memory was short" in output(directory)
    else:
        assert (event.exit_code, event.reason) == (1, "")
        assert "MemoryError" in output(directory)
    node.is_unharmed()


def test_processes_of_a_group_share_its_memory(node: Node) -> None:
    """Four processes of 32 MiB each: each is below the limit, together they are above it."""
    if "memory" not in node.controllers:
        pytest.skip("no group here has the controller memory: each process has its own limit")
    directory = start(node.ranks, node.store, *PYTHON, FAMILY, limits=LIMITS)
    event = node.ended(directory)
    assert (event.exit_code, event.reason) == (137, "out_of_memory"), "the whole rank, not a part of it"
    node.is_unharmed()


def test_ten_gigabytes_of_output_are_truncated_to_the_limit(node: Node) -> None:
    directory = start(
        node.ranks,
        node.store,
        *("dd", "if=/dev/zero", "bs=1M", "count=10240", "status=none"),
        max_output_mib=64,
    )
    most, path = 0, directory.path / "output.log"
    events: list[Event] = []

    def has_ended() -> bool:
        nonlocal most
        most = max(most, path.stat().st_blocks * 512)
        events.extend(node.ranks.collect())
        return any(isinstance(event, Exited) for event in events)

    until(has_ended, 300.0)
    assert most < 1024 * MIB, "between two checks of the shim"
    assert path.stat().st_blocks * 512 <= 65 * MIB
    assert path.stat().st_size >= 10_240 * MIB
    node.is_unharmed()


def test_job_that_ignores_sigterm_is_killed_after_its_grace(node: Node) -> None:
    directory = start(node.ranks, node.store, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    until(has_output(directory, "up"))
    node.ranks.end(KEY, 0.2, "killed")
    event = node.ended(directory)
    assert (event.exit_code, event.reason) == (137, "killed")
    node.is_unharmed()


@pytest.mark.parametrize("kills_shim", [False, True])
def test_children_in_their_own_sessions_are_killed_too(node: Node, kills_shim: bool) -> None:
    away = "setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1; done' & "
    directory = start(node.ranks, node.store, "sh", "-c", away * 5 + "wait")
    collect(node.ranks, Started)
    until(lambda: output(directory).count("\n") == 5)
    children = [int(line) for line in output(directory).split()]
    if kills_shim:
        node.ranks.hard_kill(KEY)
    else:
        node.ranks.end(KEY, 0.2, "killed")
    node.ended(directory)
    assert all(shim.start_ticks(pid) is None for pid in children)
    node.is_unharmed()


def two_cores() -> list[int]:
    """Two processors of this machine."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("this machine has one processor")
    return found[:2]


def lines(directory: AttemptDir) -> list[str]:
    return output(directory).splitlines()


def test_job_cannot_leave_its_cores(grouped: Node) -> None:
    grouped.need("cpuset")
    (own, _) = two_cores()
    limits = RankLimits(cpus=[own], owns_cpus=True)
    directory = start(grouped.ranks, grouped.store, *PYTHON, AFFINITY, "leave", limits=limits)
    until(lambda: len(lines(directory)) == 2)
    assert lines(directory) == [f"[{own}]"] * 2, "the program asked for all processors"
    grouped.ranks.hard_kill(KEY)
    grouped.ended(directory)
    grouped.is_unharmed()


def test_lent_core_is_taken_from_all_processes_of_a_running_job(grouped: Node) -> None:
    grouped.need("cpuset")
    both = two_cores()
    assert grouped.cgroups is not None
    bounds = RankBounds(Cores(both, [set(both)]), grouped.cgroups, 2, memory_mib=1000, max_processes=100)

    limits = bounds.allocate_limits(KEY, order_of(KEY, "true", gpus=[0], cores=1, lent_cores=1))
    (own,) = set(limits.cpus) - set(limits.lent_cpus)
    directory = start(grouped.ranks, grouped.store, *PYTHON, AFFINITY, "stay", limits=limits)
    until(lambda: lines(directory) == [str(both)] * 2)
    other = KEY._replace(job=2)
    needed = bounds.allocate_limits(other, order_of(other, "true", cores=1))
    assert needed.cpus == limits.lent_cpus
    until(lambda: lines(directory)[2:] == [f"[{own}]"] * 2)
    grouped.ranks.hard_kill(KEY)
    grouped.ended(directory)
    grouped.is_unharmed()


def test_processor_time_follows_the_weights(grouped: Node) -> None:
    """The weights are 100 and 300, as of jobs with one GPU and with three."""
    grouped.need("cpu")
    core = min(os.sched_getaffinity(0))
    other = KEY._replace(job=3)
    found = [
        start(
            grouped.ranks,
            grouped.store,
            *PYTHON,
            SPIN,
            key=key,
            limits=RankLimits(cpus=[core], weight=weight),
        )
        for key, weight in ((KEY, 100), (other, 300))
    ]
    for directory in found:
        until(has_output(directory, "up"))
    groups = [Cgroup(record.cgroup) for directory in found if (record := directory.launch()) is not None]

    def used_us() -> list[int]:
        return [int(group.read("cpu.stat").split()[1]) for group in groups]

    before, began_s = used_us(), time.monotonic()
    until(lambda: time.monotonic() - began_s > 5.0)
    one, three = (after - first for after, first in zip(used_us(), before, strict=True))
    assert 2.4 < three / one < 3.6
    grouped.ranks.hard_kill(other)
    grouped.ranks.hard_kill(KEY)
    until(lambda: not any(group.is_populated() for group in groups))
