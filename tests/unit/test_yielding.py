"""Processes beside the broker give way, by the kernel's own answer: niceness, session, time that is left."""

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
from tests.support.online.cluster import until

GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
HOG = "import sys; from rlsched.yielding import give_way; give_way(int(sys.argv[1]))\nwhile True: pass"
Start = Callable[[Sequence[str]], int]


def stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def groups_sessions() -> bool:
    """Whether the kernel shares the processor out between sessions."""
    return GROUPS.exists() and GROUPS.read_text().strip() == "1"


def niceness(pid: int) -> tuple[int, int | None]:
    """Of a process and of its session; None where the kernel groups none, or not this one.

    What a machine started before its first session is in none: the suite itself may be.
    """
    own = int(stat(pid)[16])
    if not groups_sessions():
        return own, None
    found = re.search(r"nice (-?\d+)", Path(f"/proc/{pid}/autogroup").read_text())
    return own, int(found[1]) if found else None


def lowered(by: int) -> tuple[int, int | None]:
    """What a process of ours has that leads a session and gives way by so much."""
    own = min(os.getpriority(os.PRIO_PROCESS, 0) + by, 19)
    return own, own if groups_sessions() else None


def cpu_s(pid: int) -> float:
    """CPU time that it has had."""
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process in a session of its own; returns its number."""
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
def test_a_process_of_the_broker_gives_way_with_its_session(start: Start, command: Sequence[str]) -> None:
    pid = start(command)
    until(lambda: niceness(pid) == lowered(BACKGROUND), f"it has {lowered(BACKGROUND)}")


def test_compaction_runs_in_the_background() -> None:
    words = [str(os.getpid()), "journal.sqlite", "1.0", "2.0", "3"]
    made = compact_command(Path("journal.sqlite"), 1.0, 2.0, 3)
    assert made == background_command("rlsched.broker.compaction.process", *words)


def test_a_process_gives_way_before_it_imports_its_module(tmp_path: Path) -> None:
    """The imports of a forecaster take seconds, and came before it gave way."""
    (tmp_path / "probe.py").write_text(
        "import os, sys\nprint(os.getpriority(os.PRIO_PROCESS, 0), __name__, *sys.argv[1:])\n"
    )
    environment = {**child_environment(), "PYTHONPATH": f"{child_environment()['PYTHONPATH']}:{tmp_path}"}
    ran = subprocess.run(
        background_command("probe", "a", "b c"), env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str(lowered(BACKGROUND)[0]), "__main__", "a", "b", "c"]


def test_a_replay_of_the_board_gives_way_with_its_session(tmp_path: Path) -> None:
    replays = ReplayRunner((sys.executable, "-c", "import time; time.sleep(600)"))
    ticket = replays.start(tmp_path, 1, 1, 1.0)["ticket"]
    try:
        assert niceness(replays._of(ticket)._process.pid) == lowered(5)
    finally:
        replays.stop(ticket)


def test_the_one_that_gives_way_gets_little_beside_one_of_another_session(start: Start) -> None:
    """Both on one core: without sessions' niceness each would get a half."""
    core = min(os.sched_getaffinity(0))
    usual, yields = (start((sys.executable, "-c", HOG, str(by))) for by in (0, 10))
    until(lambda: niceness(yields) == lowered(10), "it gives way")
    for one in (usual, yields):
        os.sched_setaffinity(one, {core})
    began_s = cpu_s(usual), cpu_s(yields)
    until(lambda: cpu_s(usual) - began_s[0] > 0.5, "the usual one has had half a second")
    assert cpu_s(yields) - began_s[1] < 0.3 * (cpu_s(usual) - began_s[0])


def test_one_in_another_s_session_changes_its_own_niceness_alone() -> None:
    ours = niceness(os.getpid())
    waits = (
        "import sys; from rlsched.yielding import give_way; give_way(7); print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen((sys.executable, "-c", waits), env=child_environment(), **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"\n"
        assert niceness(child.pid) == (lowered(7)[0], ours[1])
        child.stdin.write(b"\n")
