"""Priority of processes next to the broker, as the kernel reports it: niceness, session, CPU share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rlsched.board.replays import ReplayRunner
from rlsched.broker.compaction.compacting import command as compact_command
from rlsched.broker.forecasts.fitting import child_environment, fit_command
from rlsched.broker.forecasts.forecasting import forecast_command
from rlsched.yielding import BACKGROUND, background_command
from tests.support.exited import has_exited
from tests.support.online.cluster import until

GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
HOG = "import sys; from rlsched.yielding import give_way; give_way(int(sys.argv[1]))\nwhile True: pass"
Start = Callable[[Sequence[str]], int]


def stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def groups_sessions() -> bool:
    """Whether the kernel divides the processor among sessions."""
    return GROUPS.exists() and GROUPS.read_text().strip() == "1"


def niceness(pid: int) -> tuple[int, int | None]:
    """Niceness of a process and of its session; None where the kernel groups no sessions, or not this one.

    Processes started before the machine's first session have none: the suite itself may be one.
    """
    own = int(stat(pid)[16])
    if not groups_sessions():
        return own, None
    found = re.search(r"nice (-?\d+)", Path(f"/proc/{pid}/autogroup").read_text())
    return own, int(found[1]) if found else None


def lowered(by: int) -> tuple[int, int | None]:
    """Expected niceness of a child process that lowers its priority by this much, and of its session."""
    own = min(os.getpriority(os.PRIO_PROCESS, 0) + by, 19)
    return own, own if groups_sessions() else None


def cpu_s(pid: int) -> float:
    """CPU time used so far."""
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process in a separate session. Returns its number."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(command: Sequence[str]) -> int:
        started.append(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,
            )
        )
        return started[-1].pid

    yield begin
    for one in started:
        with one:
            one.kill()


@pytest.mark.parametrize("command", [fit_command(60.0), forecast_command()], ids=["fit", "forecaster"])
def test_process_of_the_broker_lowers_its_session_s_priority(start: Start, command: Sequence[str]) -> None:
    pid = start(command)
    until(lambda: niceness(pid) == lowered(BACKGROUND), f"it has {lowered(BACKGROUND)}")


def test_compaction_runs_in_the_background() -> None:
    words = ["journal.sqlite", "1.0", "2.0", "3"]
    made = compact_command(Path("journal.sqlite"), 1.0, 2.0, 3)
    assert made == background_command("rlsched.broker.compaction.process", *words)


def test_process_lowers_its_priority_before_it_imports_its_module(tmp_path: Path) -> None:
    """The imports of a forecaster take seconds, and came before it lowered its priority."""
    (tmp_path / "probe.py").write_text(
        "import os, sys\nprint(os.getpriority(os.PRIO_PROCESS, 0), __name__, *sys.argv[1:])\n"
    )
    environment = {**child_environment(), "PYTHONPATH": f"{child_environment()['PYTHONPATH']}:{tmp_path}"}
    ran = subprocess.run(
        background_command("probe", "a", "b c"), env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str(lowered(BACKGROUND)[0]), "__main__", "a", "b", "c"]


def test_process_ends_with_its_parent_in_the_middle_of_an_import(tmp_path: Path) -> None:
    """On a busy machine, imports and compilations of a forecaster outlived its broker for minutes."""
    (tmp_path / "probe.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n")
    environment = {**child_environment(), "PYTHONPATH": f"{child_environment()['PYTHONPATH']}:{tmp_path}"}
    script = (
        "import subprocess\n"
        "from rlsched.yielding import background_command\n"
        "subprocess.run(background_command('probe'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: has_exited(pid), "it has ended")


def test_replay_of_the_board_lowers_its_session_s_priority(tmp_path: Path) -> None:
    replays = ReplayRunner((sys.executable, "-c", "import time; time.sleep(600)"))
    ticket = replays.start(tmp_path, 1, 1, 1.0)["ticket"]
    try:
        assert niceness(replays._of(ticket)._process.pid) == lowered(5)
    finally:
        replays.stop(ticket)


def test_lowered_process_gets_little_cpu_next_to_another_session(start: Start) -> None:
    """Both on one core: without sessions' niceness each would get a half."""
    core = min(os.sched_getaffinity(0))
    usual, yields = (start((sys.executable, "-c", HOG, str(by))) for by in (0, 10))
    until(lambda: niceness(yields) == lowered(10), "it gives way")
    for one in (usual, yields):
        os.sched_setaffinity(one, {core})
    began_s = cpu_s(usual), cpu_s(yields)
    until(lambda: cpu_s(usual) - began_s[0] > 0.5, "the usual one has had half a second")
    assert cpu_s(yields) - began_s[1] < 0.3 * (cpu_s(usual) - began_s[0])


def test_process_in_another_session_changes_only_its_own_niceness() -> None:
    ours = niceness(os.getpid())
    waits = (
        "import sys; from rlsched.yielding import give_way; give_way(7); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen((sys.executable, "-c", waits), env=child_environment(), **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"\n"
        assert niceness(child.pid) == (lowered(7)[0], ours[1])
        child.stdin.write(b"\n")
