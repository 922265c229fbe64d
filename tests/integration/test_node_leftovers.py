"""Processes left by a job that kills its own shim: all are found and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlsched_node.adopt import adopt_attempts
from rlsched_node.isolation.cgroup import Cgroups
from rlsched_node.processes.attempt import Phase
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Exited, Started
from rlsched_node.processes.store import AttemptStore
from tests.support.exited import has_exited
from tests.support.online.ranks import KEY, collect, has_output, output, start, until

AWAY = "setsid env -i /bin/sh -c 'trap \"\" TERM HUP; echo $$; while :; do /bin/sleep 1; done' &"
"""Another session, no environment, ignores SIGTERM: only its parents identify its job."""
SHOOT = "until [ -s $RLSCHED_ATTEMPT_DIR/output.log ]; do sleep 0.02; done; kill -9 $PPID"
VANISHED = Exited(KEY, 137, "vanished")

WITH_SUBREAPER = """
import sys
from pathlib import Path
from rlsched_node.processes import shim
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import AttemptStore
from tests.support.online.ranks import collect, output, start

store = AttemptStore(Path(sys.argv[1]))
ranks = LiveRanks(store, is_subreaper=shim.become_subreaper())
directory = start(ranks, store, "sh", "-c", sys.argv[2])
print(collect(ranks, Exited)[-1].exit_code, shim.start_ticks(int(output(directory).split()[0])))
"""


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    cgroups = Cgroups(str(tmp_path))
    if cgroups.note:
        pytest.skip(f"no control groups: {cgroups.note}")
    return cgroups


def test_control_group_holds_every_process_of_a_job(store: AttemptStore, cgroups: Cgroups) -> None:
    ranks = LiveRanks(store, cgroups=cgroups)
    directory = start(ranks, store, "sh", "-c", f"{AWAY} {SHOOT}")
    assert collect(ranks, Exited)[-1] == VANISHED
    assert has_exited(int(output(directory).split()[0])), "before the GPU counts as free"
    assert not os.path.exists(cgroups.root), "and the group was removed too"
    ranks.close()


def test_control_group_kills_a_fork_bomb(store: AttemptStore, cgroups: Cgroups) -> None:
    """It ignores SIGTERM, and no process lives long enough to be killed by its PID."""
    worm = (
        "import os, signal, time\nprint('up', flush=True)\nsignal.signal(15, signal.SIG_IGN)\n"
        "until_s = time.time() + 20\nwhile time.time() < until_s and not os.fork(): os.setsid()"
    )
    ranks = LiveRanks(store, cgroups=cgroups)
    start(ranks, store, sys.executable, "-I", "-S", "-c", worm)
    collect(ranks, Started)
    until(has_output(store.directories_of(KEY), "up"))
    ranks.end(KEY, 0.1, "killed")
    assert isinstance(collect(ranks, Exited)[-1], Exited)
    assert not os.path.exists(cgroups.root), "it is empty"
    ranks.close()


def test_next_daemon_kills_the_processes_in_the_group(store: AttemptStore, cgroups: Cgroups) -> None:
    first = LiveRanks(store, cgroups=cgroups)
    directory = start(first, store, "sh", "-c", f"{AWAY} wait")
    until(has_output(directory, "\n"))
    process = directory.process()
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: has_exited(process.pid))
    second = LiveRanks(store)
    [attempt] = adopt_attempts(store, second)
    if attempt.phase is Phase.RUNNING:
        assert collect(second, Exited)[-1] == VANISHED
    assert has_exited(int(output(directory).split()[0]))
    collect(first, Exited)
    first.close()
    second.close()


def test_without_groups_orphans_are_reparented_to_the_daemon_and_killed(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITH_SUBREAPER, str(tmp_path), f"{AWAY} {SHOOT}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout.split() == ["137", "None"]


def test_without_groups_the_next_daemon_knows_the_processes_of_the_last(store: AttemptStore) -> None:
    first = LiveRanks(store)
    directory = start(first, store, "sh", "-c", f"{AWAY} wait")
    until(has_output(directory, "\n"))
    process = directory.process()
    assert process is not None
    second = LiveRanks(store)
    assert [attempt.phase for attempt in adopt_attempts(store, second)] == [Phase.RUNNING]
    assert second.collect() == []
    os.kill(process.pid, signal.SIGKILL)
    assert collect(second, Exited)[-1] == VANISHED
    assert has_exited(int(output(directory).split()[0]))
    collect(first, Exited)
    first.close()
    second.close()


FORKS = """
import os, sys
from rlsched_node.isolation import cgroup

cgroup._CLONE3 = int(sys.argv[2])
pid = cgroup.Cgroup(sys.argv[1]).fork()
if pid == 0:
    print(open("/proc/self/cgroup").read(), flush=True)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("clone3", [435, 1 << 20], ids=["created there", "moved there"])
def test_rank_is_in_its_group_before_it_runs(cgroups: Cgroups, clone3: int) -> None:
    """Without clone3 in the kernel, or with clone3 forbidden in a container, the child is moved."""
    group = cgroups.cgroup_of("forked")
    assert group.create()
    words = [sys.executable, "-c", FORKS, group.path, str(clone3)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert os.path.basename(group.path) in said
    assert said.endswith("\n7\n")
    group.remove()
