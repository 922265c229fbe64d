"""The node's files: attempts, the lock, state across restarts; and the environment of a rank."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched.wire.messages import DEFAULT_GRACE_S, AttemptKey, Launch
from rlsched_node import records
from rlsched_node.adopt import has_running_attempts
from rlsched_node.gpu.device import Tenant
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.home import NodeHome
from rlsched_node.isolation.cgroup import Cgroup
from rlsched_node.processes import shim
from rlsched_node.processes.attempt import SIMULATED_VARIABLE
from rlsched_node.processes.launch import (
    MASTER_PORT_FIRST,
    MASTER_PORTS,
    LaunchError,
    Terms,
    master_port,
    rank_environment,
    refuse_on_full_gpus,
    start_rank,
)
from rlsched_node.processes.output import CUT, tells_of_gpu_memory
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.store import AttemptStore, LaunchRecord, ProcessId
from rlsched_node.records import claim

KEY = AttemptKey(1, 1, 0, "c1")
RECORD = LaunchRecord(gpus=[0, 2], command=["true"], env={"A": "1"}, cwd="/")


def launch(**changes: object) -> Launch:
    fields: dict[str, object] = {
        "epoch": 1,
        "job": 12,
        "attempt": 2,
        "rank": 1,
        "num_ranks": 2,
        "nodes": ["n0", "n1"],
        "gpus": [0, 3],
        "command": ["true"],
        "env": {},
        "cwd": "/",
    }
    return Launch(**(fields | changes))  # type: ignore[arg-type]


def test_attempt_is_created_once(tmp_path: Path) -> None:
    directory = AttemptStore(tmp_path).directories_of(KEY)
    directory.create(RECORD)
    assert directory.launch() == RECORD
    with pytest.raises(FileExistsError):
        directory.create(RECORD)
    with pytest.raises(FileExistsError):
        directory.create_ended(143, "killed")


def test_attempt_is_claimed_by_one_side_only(tmp_path: Path) -> None:
    directory = AttemptStore(tmp_path).directories_of(KEY)
    directory.create(RECORD)
    assert directory.abandon()
    assert not claim(str(directory.path), {"pid": 1, "start_ticks": 1, "boot_id": "b"})
    process = directory.process()
    assert process is not None
    assert not process.is_alive()
    names = sorted(path.name for path in directory.path.iterdir())
    assert names == ["exit.tmp", "launch.json", "output.log", "pid"]


def test_exit_record_needs_no_new_disk_space_and_is_written_whole(tmp_path: Path) -> None:
    directory = AttemptStore(tmp_path).directories_of(KEY)
    directory.create(RECORD)
    reserved = (directory.path / "exit.tmp").stat()
    directory.record_exit(3, "")
    written = (directory.path / "exit").stat()
    assert (written.st_ino, written.st_size) == (reserved.st_ino, reserved.st_size)
    record = directory.exit()
    assert record is not None
    assert (record.exit_code, record.reason) == (3, "")


def test_acknowledged_attempts_keep_output_and_exit_code_and_lose_the_environment(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    directory = store.directories_of(KEY)
    directory.create(RECORD)
    (directory.path / "output.log").write_bytes(b"hello")
    directory.record_exit(0, "")
    directory.acknowledge()
    assert sorted(path.name for path in directory.path.iterdir()) == ["acknowledged", "exit", "output.log"]
    assert directory.read_output(1, 3) == (b"ell", 1, False)
    assert directory.read_output(4, 99) == (b"o", 4, True)
    assert directory.read_output(5, 99) == (b"", 5, True)
    assert directory.read_output(99, 99) == (CUT, 5 - len(CUT), True), "the job has truncated it"
    now_s = (directory.path / "acknowledged").stat().st_mtime
    assert store.clean(now_s + 60.0, keep_s=120.0) == (0, True)
    assert list(store.scan()) == [KEY]
    assert store.clean(now_s + 180.0, keep_s=120.0) == (1, True)
    assert list(store.scan()) == []


def test_attempts_run_while_their_shim_does(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    ended, acknowledged, vanished, unclaimed, running = (
        store.directories_of(AttemptKey(job, 1, 0, "c1")) for job in range(5)
    )
    for directory in (ended, acknowledged, vanished, unclaimed):
        directory.create(RECORD)
    me = {"pid": os.getpid(), "start_ticks": shim.start_ticks(os.getpid()), "boot_id": shim.boot_id()}
    for directory in (ended, acknowledged):
        claim(str(directory.path), me)
        directory.record_exit(0, "")
    acknowledged.acknowledge()
    claim(str(vanished.path), me | {"boot_id": "earlier"})
    assert not has_running_attempts(store)
    assert not unclaimed.path.exists(), "its shim finds no attempt, and the broker sends its order again"
    running.create(RECORD)
    claim(str(running.path), me)
    assert has_running_attempts(store)


def test_scan_ignores_other_names(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    store.directories_of(AttemptKey(10, 1, 0, "c1")).create(RECORD)
    store.directories_of(AttemptKey(9, 1, 0, "c1")).create(RECORD)
    store.directories_of(AttemptKey(9, 1, 0, "c2")).create(RECORD)
    for name in ("notes.txt", "1.x.0", "1.2"):
        (tmp_path / "records" / "c1" / name).mkdir()
    assert list(store.scan()) == [(9, 1, 0, "c1"), (9, 1, 0, "c2"), (10, 1, 0, "c1")]


def test_process_differs_from_a_later_one_with_the_same_pid() -> None:
    ticks = shim.start_ticks(os.getpid())
    assert ticks is not None
    assert ProcessId(os.getpid(), ticks, shim.boot_id()).is_alive()
    assert not ProcessId(os.getpid(), ticks - 1, shim.boot_id()).is_alive(), "the PID was reused"
    assert not ProcessId(os.getpid(), ticks, "another boot").is_alive()


def test_one_daemon_per_directory(tmp_path: Path) -> None:
    home = NodeHome(tmp_path / "n0", "n0")
    with pytest.raises(InputError, match=rf"in use by another rlsched node \(process {os.getpid()}\)"):
        NodeHome(tmp_path / "n0", "n0")
    home.persist("c1", 7)
    home.close()
    again = NodeHome(tmp_path / "n0", "n0")
    assert (again.state.cluster, again.state.epoch) == ("c1", 7)
    again.close()


def test_directory_belongs_to_one_node_name(tmp_path: Path) -> None:
    NodeHome(tmp_path, "n0").close()
    with pytest.raises(InputError, match="belongs to node 'n0', not 'n1'; give another --dir"):
        NodeHome(tmp_path, "n1")
    NodeHome(tmp_path, "n0").close()


@pytest.mark.parametrize("text", ["", "{}", '{"name": "n0", "colour": 1}', '{"name": "n0", "epoch": "x"}'])
def test_damaged_state_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(InputError, match=r"state\.json: .*give another --dir"):
        NodeHome(tmp_path, "n0")


def test_directory_that_cannot_be_created_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot use this directory"):
        NodeHome(tmp_path / "file" / "n0", "n0")


def test_environment_of_a_rank() -> None:
    inherited = {
        "PATH": "/bin",
        "RLSCHED_HOME": "/x",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SITE": "here",
        "CUDA_HOME": "/cuda",
        "LC_ALL": "C",
        "BAD": "\udcff",
        "CUDA_VISIBLE_DEVICES": "7",
        "RANK": "9",
    }
    order = launch(env={"MINE": "ü"})
    env = rank_environment(
        order, gpus=SimulatedGpus(4), directory="/d", is_local=True, inherited=inherited, passed=["SITE"]
    )
    assert env == {
        "PATH": "/bin",
        "SITE": "here",
        "CUDA_HOME": "/cuda",
        "LC_ALL": "C",
        "MINE": "ü",
        "CUDA_VISIBLE_DEVICES": "0,3",
        "RLSCHED_JOB": "12",
        "RLSCHED_ATTEMPT": "2",
        "PYTHONUNBUFFERED": "1",
        "RLSCHED_RANK": "1",
        "RLSCHED_NUM_RANKS": "2",
        "RLSCHED_NODE_RANK": "1",
        "RLSCHED_NUM_NODES": "2",
        "RLSCHED_GPUS_ON_NODE": "2",
        "RLSCHED_NODES": "n0,n1",
        "RLSCHED_GRACE_S": "30",
        "RLSCHED_ATTEMPT_DIR": "/d",
        "RLSCHED_MASTER_ADDR": "127.0.0.1",
        "RLSCHED_MASTER_PORT": str(master_port(12, 2)),
    }
    far = rank_environment(order, gpus=SimulatedGpus(4), directory="/d", is_local=False, inherited={})
    assert far["RLSCHED_MASTER_ADDR"] == "n0"  # from a broker that does not send n0's address


@pytest.mark.parametrize(("grace_s", "expected_s"), [(None, 30.0), (0.0, 0.0), (90.5, 90.5)])
def test_rank_and_shim_have_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace_s: float | None, expected_s: float
) -> None:
    monkeypatch.setattr(Shims, "start", lambda *_: None)
    order, store = launch(grace_s=grace_s, rank=0), AttemptStore(tmp_path)
    env = rank_environment(order, gpus=SimulatedGpus(4), directory="/d", is_local=True, inherited={})
    assert env["RLSCHED_GRACE_S"] == f"{expected_s:g}"
    start_rank(order, store.directories_of(KEY), env, Terms(), Cgroup(""), Shims())
    record = store.directories_of(KEY).launch()
    assert record is not None
    assert record.grace_s == expected_s


@pytest.mark.parametrize(("workload", "expected"), [("", "first"), ("vit-tiny", "vit-tiny")])
def test_simulated_workload_without_a_named_one_is_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, expected: str
) -> None:
    monkeypatch.setattr(Shims, "start", lambda *_: None)
    order = launch(rank=0, workload=workload, env={SIMULATED_VARIABLE: "first"})
    store = AttemptStore(tmp_path)
    start_rank(order, store.directories_of(KEY), {}, Terms(), Cgroup(""), Shims())
    record = store.directories_of(KEY).launch()
    assert record is not None
    assert record.workload == expected, "as an adopting daemon reads it"


def test_grace_of_the_shim_is_the_default() -> None:
    assert shim.DEFAULT_GRACE_S == DEFAULT_GRACE_S


def test_full_disk_refuses_the_launch_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room", path)

    store = AttemptStore(tmp_path)
    monkeypatch.setattr(records, "reserve", full)
    with pytest.raises(LaunchError, match="no space left"):
        start_rank(launch(), store.directories_of(KEY), {}, Terms(), Cgroup(""), Shims())
    assert not store.directories_of(KEY).path.exists()


def test_master_ports_differ_between_neighbours_and_stay_below_the_ephemeral_ones() -> None:
    ports = {master_port(job, 1) for job in range(MASTER_PORTS)}
    assert len(ports) == MASTER_PORTS
    assert min(ports) >= MASTER_PORT_FIRST
    assert max(ports) < 32_768
    assert master_port(5, 1) != master_port(5, 2)


def test_rank_that_cannot_be_written_or_was_started_before_is_refused(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path / "a")
    store.directories_of(KEY).create(RECORD)
    with pytest.raises(LaunchError, match="was started before"):
        start_rank(launch(), store.directories_of(KEY), {}, Terms(), Cgroup(""), Shims())
    (tmp_path / "a" / "records" / "c2").touch()
    with pytest.raises(LaunchError, match=r"cannot write .*Not a directory"):
        start_rank(
            launch(), store.directories_of(AttemptKey(1, 1, 0, "c2/c3")), {}, Terms(), Cgroup(""), Shims()
        )


def test_full_gpu_is_not_charged_to_the_job() -> None:
    gpus = SimulatedGpus(2, gpu_type="H100")
    refuse_on_full_gpus(gpus, [0, 1], 81_559)
    gpus.follow({1: [Tenant(7)]})
    free_mib = 81_559 - gpus.memory_used_mib(1)
    assert 0 < free_mib < 81_559
    refuse_on_full_gpus(gpus, [0, 1], 0)
    refuse_on_full_gpus(gpus, [0], 81_559)
    refuse_on_full_gpus(gpus, [0, 1], free_mib)
    with pytest.raises(
        LaunchError, match=f"GPU 1 has {free_mib} of 81559 MiB free, and the job asks for {free_mib + 1}"
    ) as why:
        refuse_on_full_gpus(gpus, [0, 1], free_mib + 1)
    assert why.value.is_for_now


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", True),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", True),
        ("out of memory", False),
        ("CUDA out of memory" + "x" * (1 << 16), False),
        ("", False),
    ],
)
def test_end_of_the_output_shows_out_of_gpu_memory(tmp_path: Path, text: str, is_told: bool) -> None:
    (tmp_path / "output.log").write_text(text)
    assert tells_of_gpu_memory(str(tmp_path / "output.log")) is is_told
    assert not tells_of_gpu_memory(str(tmp_path / "none"))
