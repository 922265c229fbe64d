"""The node's control daemons of MPS, with a fake `nvidia-cuda-mps-control`."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlsched.errors import InputError
from rlsched.wire.messages import MPS_FAULT, MPS_NEIGHBOUR_FAULT, AttemptKey, Launch
from rlsched_node.mps import control, sharing
from rlsched_node.mps.control import PIPES, MpsControl, MpsError, find_processes
from rlsched_node.mps.sharing import MEMORY, THREADS, MpsSharing
from rlsched_node.processes.launch import DIRECTORY_VARIABLE
from rlsched_node.processes.leftovers import attempt_directory_of
from rlsched_node.processes.steps import Exited
from rlsched_node.processes.store import LaunchRecord
from tests.support import fake_mps
from tests.support.online.cluster import until

ONE, TWO, THREE = (AttemptKey(job, 1, 0, "c") for job in (1, 2, 3))
UUIDS = ["GPU-a", "GPU-b"]


def launch(
    key: AttemptKey, *, gpus: tuple[int, ...] = (0,), shares: bool = True, need_mib: int = 0
) -> Launch:
    return Launch(
        job=key.job,
        attempt=key.attempt,
        rank=key.rank,
        epoch=1,
        num_ranks=1,
        nodes=["n0"],
        gpus=list(gpus),
        command=["true"],
        env={},
        cwd="",
        shares=shares,
        gpu_need_mib=need_mib,
    )


class Node:
    """Directories and programs of a node, and its `MpsSharing`, which may be made again."""

    def __init__(self, path: Path) -> None:
        self.path, self.mode = path, fake_mps.install(path / "bin")
        self.environment = {"PATH": f"{path / 'bin'}:{os.environ['PATH']}"}
        self.spared: set[int] = set()
        self.made: list[MpsSharing] = []

    def make(self, *, enabled: bool = True) -> MpsSharing:
        self.made.append(
            MpsSharing(self.path / "node", enabled=enabled, environment=self.environment, spared=self.spared)
        )
        return self.made[-1]

    def begin(self, mps: MpsSharing, key: AttemptKey, order: Launch | None = None) -> dict[str, str]:
        return mps.environment(key, order or launch(key), None, self.job_path(key), UUIDS, {})

    def job_path(self, key: AttemptKey) -> str:
        return str(self.path / "node" / "attempts" / str(key))

    @property
    def daemons(self) -> list[int]:
        """Control daemons that run, of any directory of this node."""
        found = (find_processes(path / "pipe").control for path in (self.path / "node" / "mps").glob("*"))
        return sorted(pid for pid in found if pid)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """In a directory with a short path: paths of sockets are limited."""
    monkeypatch.setattr(sharing, "TURN_S", 0.02)
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        made = Node(Path(directory))
        (made.path / "node").mkdir()
        yield made
        made.mode.write_text("")
        for mps in made.made:
            mps.close()
        for path in (made.path / "node" / "mps").glob("*"):
            MpsControl(path, [], None, made.environment, set()).quit()


def test_ranks_of_the_same_gpus_share_a_daemon_that_ends_with_the_last(node: Node) -> None:
    mps = node.make()
    one, two = node.begin(mps, ONE), node.begin(mps, TWO, launch(TWO, need_mib=4096))
    assert one == {PIPES: str(node.path / "node" / "mps" / "1" / "pipe"), THREADS: "100"}
    assert two == one | {MEMORY: "0=4096M"}
    assert Path(one[PIPES]).stat().st_mode & 0o777 == 0o700
    other = node.begin(mps, THREE, launch(THREE, gpus=(0, 1), need_mib=8))
    assert other[PIPES] != one[PIPES]
    assert other[MEMORY] == "0=8M,1=8M"
    (first, second) = node.daemons
    assert {first, second} <= node.spared, "leftovers of ranks are killed, and they are not"
    assert mps.is_ours(first)
    assert not mps.is_ours(os.getpid())
    mps.release(ONE)
    mps.release(THREE)
    until(lambda: len(node.daemons) == 1, "the daemon without ranks has ended")
    mps.release(TWO)
    mps.close()
    assert not node.daemons
    assert not list((node.path / "node" / "mps").iterdir())


def test_ranks_that_do_not_share_run_without_mps(node: Node) -> None:
    mps = node.make()
    assert node.begin(mps, ONE, launch(ONE, shares=False)) == {}
    assert node.begin(node.make(enabled=False), TWO) == {}
    assert not node.daemons
    assert not mps.follow({ONE: frozenset({17})})


def test_thread_percentage_of_a_job_stays(node: Node) -> None:
    env = node.make().environment(ONE, launch(ONE), None, node.job_path(ONE), UUIDS, {THREADS: "30"})
    assert env[THREADS] == "30"


def test_daemons_of_a_killed_node_daemon_are_adopted_or_ended(node: Node) -> None:
    before = node.make()
    env = node.begin(before, ONE)
    node.begin(before, TWO, launch(TWO, gpus=(1,)))
    assert len(node.daemons) == 2
    before._lock.acquire()  # its thread does nothing more, as after kill -9
    after = node.make()
    record = LaunchRecord(gpus=[0], command=[], env=env, cwd="/")
    after.adopt([(ONE, node.job_path(ONE), record)])
    until(lambda: len(node.daemons) == 1, "the daemon that no rank needs has ended")
    assert node.begin(after, THREE)[PIPES] == env[PIPES], "the adopted one serves a new rank"
    after.release(ONE)
    after.release(THREE)
    after.close()
    assert not node.daemons
    before._lock.release()


def test_daemon_that_no_rank_needs_serves_no_new_rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have got `quit` from the killed node daemon; here it does not end at once."""
    monkeypatch.setattr(control, "QUIT_S", 0.3)
    node.mode.write_text("stubborn")
    before = node.make()
    env = node.begin(before, ONE)
    before._lock.acquire()  # its thread does nothing more, as after kill -9
    after = node.make()
    after.adopt([])
    assert node.begin(after, TWO)[PIPES] != env[PIPES]
    until(lambda: len(node.daemons) == 1, "the daemon that no rank needs has ended")
    after.release(TWO)
    after.close()
    assert not node.daemons
    before._lock.release()


def test_cause_of_a_fault_right_after_adoption_is_known(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    before = node.make()
    env = node.begin(before, ONE)
    before._lock.acquire()  # its thread does nothing more, as after kill -9
    monkeypatch.setattr(sharing, "LOOK_S", 3600.0)
    directories = {key: node.job_path(key) for key in (ONE, TWO)}
    marked = os.environ | {DIRECTORY_VARIABLE: directories[TWO]}
    with subprocess.Popen(["sleep", "3600"], env=marked) as culprit:
        until(lambda: attempt_directory_of(culprit.pid) == directories[TWO], "its program runs")
        after = node.make()
        record = LaunchRecord(gpus=[0], command=[], env=env, cwd="/")
        after.adopt([(key, path, record) for key, path in directories.items()])
        culprit.kill()
    log(env, f"[Server 17] Client {{PID: {culprit.pid}, Context ID: 0}} encountered a fatal exception")
    assert after.attribute(FAILED).reason == MPS_NEIGHBOUR_FAULT
    assert after.attribute(Exited(TWO, 1)).reason == "", "it failed by itself"
    for key in directories:
        after.release(key)
    before._lock.release()


def test_rank_whose_processes_are_no_clients_is_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LOOK_S", 0.0)
    mps = node.make()
    env = node.begin(mps, ONE)
    client = os.getpid()
    with fake_mps.connect(env[PIPES], client):
        on_gpus = {ONE: frozenset({client})}
        until(lambda: client in mps._daemons[0].clients, "the client is listed")
        assert not mps.follow(on_gpus)
        until(lambda: mps._daemons[0].look_at_s, "it was looked at")
        assert not mps.follow(on_gpus)
        until(lambda: mps.follow({ONE: frozenset({client, 1})}) == {ONE}, "a process without MPS is seen")
        until(lambda: not mps.follow(on_gpus), "all are clients again")
        node.mode.write_text("forget")
        until(lambda: mps.follow(on_gpus) == {ONE}, "the daemon does not know it")


def test_dead_daemon_leaves_known_clients_and_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LOOK_S", 0.0)
    mps = node.make()
    env = node.begin(mps, ONE)
    with fake_mps.connect(env[PIPES], os.getpid()):
        on_gpus = {ONE: frozenset({os.getpid()})}
        until(lambda: os.getpid() in mps._daemons[0].clients, "the client is listed")
        os.kill(node.daemons[0], signal.SIGKILL)
        until(lambda: mps._daemons[0].error, "it does not answer")
        assert not mps.follow(on_gpus), "its clients are under MPS still"
        until(lambda: mps.follow({ONE: frozenset({os.getpid(), 1})}) == {ONE}, "a new process is not")
    assert node.begin(mps, TWO)[PIPES] != env[PIPES]
    assert len(node.daemons) == 1


@pytest.mark.parametrize("mode", ["refuse", "hang"])
def test_rank_starts_by_time_slicing_if_no_daemon_starts(
    node: Node, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.mode.write_text(mode)
    mps = node.make()
    with monkeypatch.context() as patched:
        patched.setattr(control, "START_S", 0.3)
        assert node.begin(mps, ONE) == {}
    assert mps.follow({}) == {ONE}
    node.mode.write_text("")
    assert node.begin(mps, TWO) == {}, "no second try within a minute"
    monkeypatch.setattr(sharing, "RETRY_S", 0.0)
    assert node.begin(mps, THREE)
    mps.release(ONE)
    assert mps.follow({}) == {TWO}


def test_stubborn_daemon_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "QUIT_S", 0.1)
    node.mode.write_text("stubborn")
    mps = node.make()
    node.begin(mps, ONE)
    mps.release(ONE)
    mps.close()
    assert not node.daemons


def test_daemon_that_forks_during_a_listing_of_processes_is_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-d` of a killed node daemon continues: it has forked and exited when the listed processes are read."""
    monkeypatch.setattr(control, "QUIT_S", 0.3)
    listdir, directory, listings = os.listdir, node.path / "node" / "mps" / "1", list[list[str]]()
    for path in (directory / "pipe", directory / "log"):
        path.mkdir(parents=True)
    ending = MpsControl(directory, [], None, node.environment, set())
    with subprocess.Popen(["sleep", "3600"]) as other:
        node.mode.write_text(f"kill {other.pid} start")
        with subprocess.Popen(["nvidia-cuda-mps-control", "-d"], env=ending.terms.env) as starting:
            other.wait()

            def forks_after(path: str) -> list[str]:
                listings.append(listdir(path))
                if len(listings) == 2:
                    node.mode.write_text("")
                    starting.wait()
                return listings[-1]

            monkeypatch.setattr(os, "listdir", forks_after)
            assert ending.quit()
    assert str(starting.pid) in listings[1]
    assert not node.daemons


def test_command_has_a_time_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "COMMAND_S", 0.2)
    env = node.begin(node.make(), ONE)
    node.mode.write_text("hang")
    with pytest.raises(MpsError, match=r"no answer to 'get_server_list' within 0.2 s"):
        MpsControl(Path(env[PIPES]).parent, [], None, node.environment, set()).clients()


def log(env: dict[str, str], line: str) -> None:
    with (Path(env[PIPES]).parent / "log" / "server.log").open("a") as file:
        file.write(line + "\n")


FAILED = Exited(ONE, 1)


def test_fault_ends_neighbours_without_blame(node: Node) -> None:
    mps = node.make()
    env = node.begin(mps, ONE)
    node.begin(mps, TWO)
    node.begin(mps, THREE)
    mps._daemons[0].directories[4711] = node.job_path(TWO)
    assert mps.attribute(FAILED) == FAILED, "no fault"
    log(env, "[Server 17] Client {PID: 4711, Context ID: 0} encountered a fatal exception")
    assert mps.attribute(FAILED).reason == MPS_NEIGHBOUR_FAULT
    assert mps.attribute(Exited(TWO, 1)).reason == "", "it failed by itself"
    assert mps.attribute(Exited(THREE, 0)).reason == "", "it did its work"
    assert mps.attribute(Exited(THREE, 143, "killed")).reason == "killed"


def test_fault_that_is_logged_after_the_end_of_its_cause_is_recognised(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps = node.make()
    env = node.begin(mps, ONE)
    node.begin(mps, TWO)
    mps._daemons[0].directories[4711] = node.job_path(TWO)
    assert mps.attribute(Exited(TWO, 137)).reason == ""
    mps.release(TWO)
    log(env, "[Server 17] Client {PID: 4711, Context ID: 0} encountered a fatal exception")
    assert mps.attribute(FAILED).reason == MPS_NEIGHBOUR_FAULT
    node.begin(mps, TWO)
    monkeypatch.setattr(sharing, "LEFT_S", -1.0)
    mps._daemons[0].faults.clear()
    mps.attribute(Exited(TWO, 143, "killed"))
    mps.release(TWO)
    log(env, "fatal exception")
    assert mps.attribute(FAILED).reason == "", "it has had the GPU for itself for long"


def test_server_of_a_new_rank_is_known_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing right after the start of a control daemon shows no server."""
    monkeypatch.setattr(sharing, "LOOK_S", 3600.0)
    listed, ask = list[frozenset[int]](), MpsControl.clients

    def clients(self: MpsControl) -> frozenset[int]:
        listed.append(ask(self))
        return listed[-1]

    monkeypatch.setattr(MpsControl, "clients", clients)
    mps = node.make()
    env = node.begin(mps, ONE)
    node.begin(mps, TWO)
    until(lambda: listed, "it has been listed")
    assert not listed[0]
    with fake_mps.connect(env[PIPES], os.getpid()):
        until(lambda: mps._daemons[0].servers, "the server is known")
        assert mps._daemons[0].clients == {os.getpid()}
        os.kill(next(iter(mps._daemons[0].servers)), signal.SIGKILL)
        until(lambda: mps.attribute(FAILED).reason == MPS_FAULT, "its server has ended")


def test_fault_of_unknown_cause_and_end_of_a_server(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LOOK_S", 0.0)
    mps = node.make()
    env = node.begin(mps, ONE)
    log(env, "fatal exception")
    assert mps.attribute(FAILED).reason == "", "it had the GPU for itself"
    node.begin(mps, TWO)
    log(env, "fatal exception")
    assert [mps.attribute(Exited(key, 1)).reason for key in (ONE, TWO)] == [MPS_FAULT] * 2
    mps.release(ONE)
    mps.release(TWO)
    until(lambda: not node.daemons, "it has ended")
    env = node.begin(mps, ONE)
    node.begin(mps, TWO)
    with fake_mps.connect(env[PIPES], os.getpid()):
        until(lambda: mps._daemons[0].servers, "the server is known")
        os.kill(next(iter(mps._daemons[0].servers)), signal.SIGKILL)
        until(lambda: mps.attribute(FAILED).reason == MPS_FAULT, "its server has ended")


def test_bad_settings_are_refused(node: Node, tmp_path: Path) -> None:
    spared: set[int] = set()
    with pytest.raises(InputError, match=r"--sharing mps: nvidia-cuda-mps-control is not in PATH"):
        MpsSharing(tmp_path, enabled=True, environment={"PATH": "/nowhere"}, spared=spared)
    with pytest.raises(InputError, match=r"too long for --sharing mps by \d+ bytes"):
        MpsSharing(tmp_path / ("x" * 90), enabled=True, environment=node.environment, spared=spared)


def test_orders_of_older_brokers_share_only_next_to_others(node: Node) -> None:
    mps = node.make()
    old = launch(ONE, shares=False)
    assert node.begin(mps, ONE, old) == {}
    assert node.begin(mps, TWO, msgspec.structs.replace(old, job=2, beside=[1]))
