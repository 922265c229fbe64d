"""The process that forks shims: it may be killed, and exits with its daemon."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from rlsched_node.processes import forker, shim, shims
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import Exited, Started
from rlsched_node.processes.store import AttemptDir, AttemptStore, ProcessId
from tests.support.online.ranks import KEY, collect, output, start, until


def process_of(directory: AttemptDir) -> ProcessId:
    """The shim's process, once it has claimed the attempt."""
    until(directory.process)
    process = directory.process()
    assert process is not None
    return process


def test_killed_forker_is_replaced_and_no_start_fails(store: AttemptStore) -> None:
    shims = Shims(forks=True)
    ranks = LiveRanks(store, shims=shims)
    first = shims.forker_pid
    os.kill(first, signal.SIGKILL)
    directory = start(ranks, store, "sh", "-c", "echo here")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    assert output(directory) == "here\n"
    shims._forked(Path("/no/such/directory"), 1)
    assert shims.forker_pid not in (0, first)
    ranks.close()


def test_stopped_forker_is_killed_and_starts_no_second_shim(
    store: AttemptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shims, "ANSWER_S", 0.2)
    own = Shims(forks=True)
    ranks = LiveRanks(store, shims=own)
    forker_pid = own.forker_pid
    os.kill(forker_pid, signal.SIGSTOP)
    directory = start(ranks, store, "sh", "-c", "echo here; sleep 0.5")
    assert shim.start_ticks(forker_pid) is None
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    assert output(directory) == "here\n"
    ranks.close()


class Unanswered(Shims):
    """The forker is killed after it has started a shim, and before it answers."""

    def _forked(self, path: Path, tells: int) -> int:
        assert super()._forked(path, tells)
        until((path / "pid").exists)
        return 0


@pytest.mark.parametrize("runs_s", [0.0, 1.0])
def test_attempt_with_two_shims_runs_once_under_the_shim_that_claimed_it(
    store: AttemptStore, monkeypatch: pytest.MonkeyPatch, runs_s: float
) -> None:
    shim.become_subreaper()
    monkeypatch.setattr(shims, "ANSWER_S", 60.0)
    own = Unanswered(forks=True)
    ranks = LiveRanks(store, shims=own, is_subreaper=True)
    directory = start(ranks, store, "sh", "-c", f"echo here; sleep {runs_s}; exit 3")
    if runs_s == 0.0:
        time.sleep(0.5)
    claimed = process_of(directory)
    events = collect(ranks, Started)
    assert events[0] == Started(KEY, claimed.pid)
    other = KEY._replace(job=2)
    start(ranks, store, "true", key=other)

    def ends() -> list[object]:
        events.extend(collect(ranks, Exited))
        return sorted((event for event in events if isinstance(event, Exited)), key=str)

    until(lambda: ends() == [Exited(KEY, 3), Exited(other, 0)])
    assert output(directory) == "here\n"
    ranks.close()
    shim.prctl(36, 0)  # PR_SET_CHILD_SUBREAPER: off for the other tests


def test_forker_exits_with_its_daemon_and_its_shims_do_not(store: AttemptStore) -> None:
    shims = Shims(forks=True)
    ranks = LiveRanks(store, shims=shims)
    directory = start(ranks, store, "sleep", "300")
    process = process_of(directory)
    forker = shims.forker_pid
    ranks.close()
    until(lambda: shim.start_ticks(forker) is None)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)


def test_forker_exits_without_an_error_if_its_daemon_dies_before_it_reads_an_answer() -> None:
    daemons, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.send(b"4711")
    daemons.close()
    with own:
        assert forker.serve(own) == 0


def test_forked_shim_has_its_own_session_and_inherits_nothing(
    store: AttemptStore, monkeypatch: object
) -> None:
    del monkeypatch
    os.environ["RLSCHED_TEST_SECRET"] = "x"
    try:
        shims = Shims(forks=True)
    finally:
        del os.environ["RLSCHED_TEST_SECRET"]
    ranks = LiveRanks(store, shims=shims)
    directory = start(ranks, store, "sleep", "300")
    process = process_of(directory)
    fields = shim.read_stat(process.pid)
    assert fields is not None
    assert int(fields[3]) == process.pid, "its session"
    assert b"SECRET" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    assert Path(f"/proc/{process.pid}/comm").read_text().strip() == "1.1.0"
    os.kill(process.pid, signal.SIGKILL)
    ranks.close()
