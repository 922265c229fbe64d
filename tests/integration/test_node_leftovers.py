"""Processes left by a job that kills its own shim: all are found and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rlsched_node.adopt import adopt_attempts
from rlsched_node.isolation.cgroup import Cgroups
from rlsched_node.isolation.limits import RankLimits
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import Phase
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import Exited, Started
from rlsched_node.processes.store import AttemptStore
from tests.support.exited import has_exited
from tests.support.online.ranks import (
    KEY,
    collect,
    has_output,
    output,
    own_children,
    start,
    until,
    unused_user,
)

AWAY = "setsid env -i /bin/sh -c 'trap \"\" TERM HUP; echo $$; while :; do /bin/sleep 1; done' &"
"""Another session, no environment, ignores SIGTERM: only its parents identify its job."""
WAIT_FOR_OUTPUT = "until [ -s $RLSCHED_ATTEMPT_DIR/output.log ]; do sleep 0.02; done;"
SHOOT = f"{WAIT_FOR_OUTPUT} kill -9 $PPID"
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


BOMB = """
$SIG{TERM} = $SIG{HUP} = $SIG{CHLD} = "IGNORE"; $end = time + 60;
while (time < $end) { $pid = fork; defined $pid ? $pid || setpgrp(0, 0) : select(undef, undef, undef, 1e-4) }
"""
"""Every process forks without end: a free place is taken before another process is killed."""
BOMB_PROCESSES = 40


@pytest.fixture
def without_groups(store: AttemptStore) -> Iterator[LiveRanks]:
    """A daemon's ranks without control groups."""
    is_subreaper = shim.become_subreaper()
    shims, spared = Shims(forks=is_subreaper), own_children()
    ranks = LiveRanks(store, is_subreaper=is_subreaper, shims=shims, spared=spared)
    yield ranks
    for key in list(store.scan()):
        ranks.hard_kill(key)
    ranks.close()
    shim.prctl(36, 0)  # PR_SET_CHILD_SUBREAPER: off for the other tests


def processes_of(uid: int) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{pid}").st_uid == uid and not has_exited(int(pid)):
                found.append(int(pid))
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
@pytest.mark.parametrize("kills_shim", [False, True])
def test_without_groups_a_fork_bomb_is_killed(
    without_groups: LiveRanks, store: AttemptStore, kills_shim: bool
) -> None:
    user = unused_user()
    if user is None:
        pytest.skip("needs root: the limit of processes holds for all processes of the tests' user")
    bomb = ("chrt", "--idle", "0", "perl", "-e", BOMB)  # leaves the cores to tests that run at the same time
    start(without_groups, store, *bomb, limits=RankLimits(processes=BOMB_PROCESSES), user=user)
    until(lambda: len(processes_of(user.uid)) > BOMB_PROCESSES // 2)
    without_groups.collect()
    if kills_shim:
        without_groups.hard_kill(KEY)
    else:
        without_groups.end(KEY, 0.1, "killed")
    collect(without_groups, Exited)
    assert processes_of(user.uid) == [], "before the GPU counts as free"


IMPATIENT = """
import sys
sys.path[:0] = {path!r}
from rlsched_node.processes import shim
shim.GIVE_UP_S = -60.0
sys.exit(shim.begin())
"""


@pytest.mark.parametrize("is_adopted", [False, True])
def test_daemon_kills_the_processes_that_a_shim_could_not_kill(
    store: AttemptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_adopted: bool
) -> None:
    """The shim gives up at once, and ends with its command."""
    program = tmp_path / "impatient.py"
    program.write_text(IMPATIENT.format(path=[path for path in sys.path if path]))
    monkeypatch.setattr(shim, "__file__", str(program))
    first = LiveRanks(store)
    away = "setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 1; done' &"
    directory = start(first, store, "sh", "-c", f"{away} {WAIT_FOR_OUTPUT} exit 3")
    if is_adopted:
        until(directory.exit)
        assert not has_exited(int(output(directory).split()[0]))
        second = LiveRanks(store)
        [attempt] = adopt_attempts(store, second)
        assert attempt.phase is Phase.RUNNING, "its GPUs are in use"
        assert collect(second, Exited)[-1] == Exited(KEY, 3)
        second.close()
    else:
        assert collect(first, Exited)[-1] == Exited(KEY, 3)
    assert has_exited(int(output(directory).split()[0])), "before the GPU counts as free"
    first.close()


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
