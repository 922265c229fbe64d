"""`rlsched node` as a process: jobs that it runs, reports, kills and refuses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.wire.messages import (
    Heartbeat,
    Hello,
    Kill,
    Launched,
    LaunchRefused,
    LimitTime,
    LogData,
    Refused,
    SayHello,
    Welcome,
    encode,
)
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, gated, until


def test_node_registers_sends_heartbeats_and_reports_exit_codes(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    before_s = time.time()
    start_node("--gpus", "4", "--simulated", "--gpu-type", "h200", "--vc", "research")
    hello = broker.greet()
    assert (hello.name, hello.gpus, hello.gpu_type, hello.vc) == ("n0", 4, "h200", "research")
    assert hello.gpu_uuids == [f"SIMULATED-n0-{gpu}" for gpu in range(4)]
    assert hello.attempts == []
    assert hello.cpus >= 1
    assert hello.memory_mib > 100
    assert broker.receive(Heartbeat).wall_s is None, "a broker that did not request it would refuse it"
    broker.send(Welcome(epoch=1, cluster="c1", heartbeat_s=0.05, hears_clock=True))
    told_s = broker.receive(Heartbeat, lambda beat: beat.wall_s is not None).wall_s
    assert told_s is not None
    assert before_s <= told_s <= time.time()
    broker.launch("sh", "-c", "echo GPUs $CUDA_VISIBLE_DEVICES", job=1, gpus=[1, 2])
    broker.launch("sh", "-c", "exit 3", job=2, gpus=[0])
    broker.launch("sh", "-c", "kill -SEGV $$", job=3, gpus=[3])
    assert {broker.receive(Launched).job for _ in range(3)} == {1, 2, 3}
    assert [broker.end_of(job).exit_code for job in (1, 2, 3)] == [0, 3, 139]
    assert broker.log(1).data == b"GPUs 1,2\n"
    broker.launch("sleep", "300", job=4, limit_s=0.1)
    assert (broker.end_of(4).exit_code, broker.log(4).eof) == (124, True)


@pytest.mark.parametrize("limited", [False, True])
def test_memory_of_torch_is_limited_if_the_operator_wants_that(
    broker: FakeBroker, start_node: Callable[..., Node], limited: bool
) -> None:
    """A simulated A100 has 40,537 MiB."""
    options = ("--gpus", "2", "--simulated", "--gpu-type", "A100-SXM4-40GB")
    start_node(*options, *(["--torch-memory-limit"] if limited else []))
    assert broker.greet().capabilities.limits_torch == limited
    broker.launch("sh", "-c", "echo limit $PYTORCH_ALLOC_CONF", shares=True, gpu_need_mib=10_240)
    broker.end_of(1)
    said = broker.log(1).data.decode().split()
    assert said == (["limit", "per_process_memory_fraction:0.2526"] if limited else ["limit"])


def test_output_is_followed_while_the_job_runs(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="echo down"))
    broker.receive(Launched)
    until(lambda: broker.log(1).data)
    assert broker.log(1) == LogData(data=b"up\n", offset=0, eof=False)
    assert broker.log(1, offset=3) == LogData(data=b"", offset=3, eof=False)
    (tmp_path / "gate").write_text("go\n")
    broker.end_of(1)
    assert broker.log(1, offset=3) == LogData(data=b"down\n", offset=3, eof=True)
    assert broker.log(99) == LogData(data=b"", offset=0, eof=True)


def test_repeated_launch_and_a_gpu_in_use_start_nothing(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    order = broker.launch(*gated(tmp_path), gpus=[0, 1])
    pid = broker.receive(Launched).pid
    broker.send(order)
    assert broker.receive(Launched).pid == pid
    broker.launch("true", job=2, gpus=[1])
    assert "GPUs [1] are held by attempt 1.1.0" in broker.receive(LaunchRefused).message
    broker.launch("true", job=3, gpus=[7])
    assert "from 0 to 3" in broker.receive(LaunchRefused).message
    (tmp_path / "gate").write_text("go\n")
    broker.end_of(1)
    broker.send(order)
    assert broker.end_of(1).exit_code == 0
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_kill_ends_a_job_and_answers_for_unknown_ones(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    start_node()
    broker.greet()
    broker.launch("sh", "-c", "trap '' TERM; echo up; while :; do sleep 300; done")
    until(lambda: broker.log(1).data)
    broker.send(Kill(epoch=1, job=1, attempt=1, rank=0, grace_s=0.1))
    end = broker.end_of(1)
    assert (end.exit_code, end.reason) == (137, "killed")
    broker.send(Kill(epoch=1, job=2, attempt=1, rank=0))
    assert (broker.end_of(2).exit_code, broker.log(2).eof) == (143, True)
    broker.launch("true", job=2)
    assert broker.end_of(2).reason == "killed"


def test_malformed_frames_are_dropped(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node()
    broker.greet()
    broker.receive(Heartbeat)
    for frame in (b"", b"garbage", b"\xff" * 100, encode(Heartbeat(name="n0"))):
        broker.send_raw(frame)
    until(lambda: node.log.count("dropped a frame") == 4)
    broker.launch("true")
    assert broker.end_of(1).exit_code == 0


def test_invalid_options_of_a_node_are_one_line_and_exit_code_2(
    broker: FakeBroker, start_node: Callable[..., Node]
) -> None:
    start_node()
    broker.greet()
    second = start_node()
    assert second.process.wait(DEADLINE_S) == 2
    assert "in use by another rlsched node" in second.log
    for options, line in (
        (("--simulated",), "--simulated --gpus 4"),
        (("--gpus", "0", "--simulated"), "1 to 64"),
        (("--gpus", "2", "--simulated", "--broker", "localhost"), "expected tcp://HOST:PORT"),
    ):
        node = start_node(*options)
        assert node.process.wait(DEADLINE_S) == 2
        assert line in node.log
    broker.send(SayHello())
    broker.receive(Hello)
    broker.send(Refused(message="this key belongs to node 'n7'"))
    until(lambda: "refuses this node: this key belongs to node 'n7'" in second.log)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
def test_real_gpus_have_uuids_and_are_refused_while_a_foreign_process_uses_them(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    start_node("--gpu-type", "h200", libraries=tmp_path)
    assert broker.greet().gpu_uuids == ["GPU-fake-0", "GPU-fake-1"]
    broker.launch("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", job=1, gpus=[0])
    assert broker.end_of(1).exit_code == 0
    assert broker.log(1).data == b"GPU-fake-0\n"
    broker.launch("true", job=2, gpus=[1])
    assert "GPU 1 is in use by process 4711" in broker.receive(LaunchRefused).message


@pytest.mark.parametrize(("module", "heavy"), [("rlsched_node.cli", []), ("rlsched_node.daemon", ["zmq"])])
def test_node_loads_neither_numba_nor_torch(module: str, heavy: list[str]) -> None:
    code = (
        f"import sys, {module}; "
        "print(*sorted({'zmq', 'pynvml', 'numba', 'torch', 'numpy', 'gymnasium'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == heavy


@pytest.mark.parametrize("how", ["order", "time limit"])
def test_grace_is_kept_after_a_crash_of_the_daemon(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path, how: str
) -> None:
    """One job saves during its whole grace; another job ignores SIGTERM and is killed."""
    os.mkfifo(tmp_path / "gate")
    node = start_node()
    broker.greet()
    saves = f"trap 'echo told; read line < {tmp_path}/gate; echo saved; exit 143' TERM; echo up"
    stays = "trap '' TERM; echo up"
    limit_s = 3600.0 if how == "time limit" else None
    for job, script, grace_s in ((1, saves, 60.0), (2, stays, 1.0)):
        command = ("sh", "-c", f"{script}; while :; do sleep 0.02; done")
        broker.launch(*command, job=job, gpus=[job], grace_s=grace_s, limit_s=limit_s)
        until(lambda job=job: broker.log(job).data)  # type: ignore[misc]
    for job, grace_s in ((2, 1.0), (1, 60.0)):  # in this order: once job 1 has its SIGTERM, job 2 has its own
        if how == "order":
            broker.send(Kill(epoch=1, job=job, attempt=1, rank=0, grace_s=grace_s))
        else:
            broker.send(LimitTime(epoch=1, job=job, attempt=1, rank=0, limit_s=0.01))
    until(lambda: "told" in node.output_of(1))
    node.signal(signal.SIGKILL)
    until((node.directory / "records" / "c1" / "2.1.0" / "exit").exists)
    (tmp_path / "gate").write_text("go on\n")
    until(lambda: "saved" in node.output_of(1))
    start_node()
    ends = {report.job: (report.exit_code, report.reason) for report in broker.greet().attempts}
    reason = "killed" if how == "order" else "time_limit"
    codes = (143, 137) if how == "order" else (124, 124)
    assert ends == {1: (codes[0], reason), 2: (codes[1], reason)}
