"""Ends of jobs under MPS, with real shims and a fake control program: GPU work ends before SIGKILL."""

from __future__ import annotations

import os
import pwd
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.isolation.user import JobUser
from rlsched_node.mps.control import PIPES
from rlsched_node.mps.sharing import MpsSharing
from rlsched_node.processes import shim
from rlsched_node.processes.mps_commands import TERMINATE_S
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import AttemptDir, AttemptStore
from tests.support import fake_mps
from tests.support.online.ranks import KEY, collect, has_output, output, own_children, start, until

NEIGHBOUR = AttemptKey(2, 1, 0, "c1")
other_account = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(fake_mps.PUBLIC_PYTHON).exists(),
    reason=f"needs root, and {fake_mps.PUBLIC_PYTHON} for another account",
)
IGNORES_SIGTERM = "trap '' TERM; echo up; while :; do sleep 1; done"


class Node:
    """Ranks with shims, and the control daemon that they share."""

    def __init__(self, path: Path, interpreter: str) -> None:
        self.mode = fake_mps.install(path / "bin", interpreter)
        self.programs = path / "bin"
        self.store = AttemptStore(path / "node")
        self.spared = own_children()
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.mps = MpsSharing(path / "node", enabled=True, environment=environment, spared=self.spared)
        is_subreaper = shim.become_subreaper()
        self.ranks = LiveRanks(
            self.store, is_subreaper=is_subreaper, shims=Shims(forks=is_subreaper), spared=self.spared
        )
        self.pipes = Path()

    def begin(self, key: AttemptKey, script: str, user: JobUser | None = None) -> AttemptDir:
        """A rank under MPS, whose output has begun."""
        order = Launch(
            epoch=1,
            job=key.job,
            attempt=1,
            rank=0,
            num_ranks=1,
            nodes=["n0"],
            gpus=[1],
            command=[],
            env={},
            cwd="/",
            shares=True,
        )
        path = str(self.store.directories_of(key).job_path)
        env = self.mps.environment(key, order, user, path, ["GPU-a"], {})
        self.pipes = Path(env[PIPES])
        directory = start(
            self.ranks,
            self.store,
            *(str(self.programs / fake_mps.CLIENT), "sh", "-c", f"echo pid $$; {script}"),
            key=key,
            env=env,
            user=user,
            mps=self.mps.terms_of(key),
        )
        until(has_output(directory, "up"))
        return directory

    def terminated(self) -> list[list[str]]:
        """Server, process and its state of each `terminate_client`."""
        path = self.pipes / "terminated"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def close(self) -> None:
        self.mode.write_text("")
        for key in list(self.store.scan()):
            self.ranks.hard_kill(key)
            self.mps.release(key)
        self.mps.close()
        self.ranks.close()
        shim.prctl(36, 0)  # PR_SET_CHILD_SUBREAPER: off for the other tests


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """In a directory with a short path: paths of sockets are limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)  # accounts of jobs may enter it
        made = Node(Path(directory), getattr(request, "param", sys.executable))
        yield made
        made.close()


def pid_of(directory: AttemptDir) -> str:
    return output(directory).split()[1]


def ended(node: Node) -> Exited:
    event = collect(node.ranks, Exited)[-1]
    assert isinstance(event, Exited)
    return event


@pytest.mark.parametrize(
    ("node", "account"),
    [(sys.executable, ""), pytest.param(fake_mps.PUBLIC_PYTHON, "nobody", marks=other_account)],
    indirect=["node"],
)
def test_gpu_work_of_a_client_ends_before_sigkill(node: Node, account: str) -> None:
    found = pwd.getpwnam(account) if account else None
    user = None if found is None else JobUser(account, found.pw_uid, found.pw_gid, "/", "/bin/sh")
    node.begin(NEIGHBOUR, IGNORES_SIGTERM, user)
    directory = node.begin(KEY, IGNORES_SIGTERM, user)
    node.ranks.end(KEY, 0.1, "killed")
    event = ended(node)
    assert (event.exit_code, event.reason) == (137, "killed")
    ((_, pid, state),) = node.terminated()
    assert pid == pid_of(directory), "its neighbour is left as it is"
    assert state in "SR", "it lived still"
    owner = os.geteuid() if found is None else found.pw_uid
    assert (node.pipes / "terminated").stat().st_uid == owner, "its account's control daemon"


def test_shim_ends_gpu_work_without_a_node_daemon(node: Node) -> None:
    directory = node.begin(KEY, IGNORES_SIGTERM)
    pid = pid_of(directory)
    node.ranks.close()
    directory.order_kill(0.1, "killed")
    found = directory.process()
    assert found is not None
    os.kill(found.pid, signal.SIGTERM)
    until(lambda: directory.exit() is not None)
    assert [line[1] for line in node.terminated()] == [pid]


def test_client_that_ends_at_sigterm_needs_no_command(node: Node) -> None:
    node.begin(KEY, "echo up; exec sleep 300")
    node.ranks.end(KEY, 30.0, "killed")
    assert ended(node).exit_code == 143
    assert not node.terminated()


@pytest.mark.slow
def test_hanging_control_program_delays_sigkill_by_a_bounded_time(node: Node) -> None:
    directory = node.begin(KEY, IGNORES_SIGTERM)
    node.mode.write_text("hang")
    began_s = time.monotonic()
    node.ranks.end(KEY, 0.1, "killed")
    assert ended(node).exit_code == 137
    assert time.monotonic() - began_s >= TERMINATE_S
    assert "no answer to 'get_server_list'" in output(directory)
    assert not node.terminated()
