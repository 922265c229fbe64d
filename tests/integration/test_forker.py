"""The process that forks shims: it may be killed, and exits with its daemon."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from rlsched_node.processes import forker, shim
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import Exited
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
