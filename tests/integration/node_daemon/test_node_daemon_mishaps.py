"""`rlsched node` as a process: no failure of one event ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import Heartbeat, Launched, LaunchRefused, SayHello
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, gated, until

FAULTY = """
import logging, sys
from pathlib import Path
from rlsched.transport.keys import KeyHome
from rlsched_node.config import NodeConfig
from rlsched_node.daemon import NodeDaemon, run_until_signalled
from rlsched_node.gpu.simulated import SimulatedGpus

class Faulty(SimulatedGpus):
    '''A driver with an unexpected error.'''

    def foreign_processes(self, gpu, is_ours):
        raise ZeroDivisionError(gpu)

    def follow(self, busy):
        raise KeyError('busy')

home = KeyHome(Path(sys.argv[1]))
config = NodeConfig(name="n0", broker=sys.argv[2], directory=Path(sys.argv[1]) / "n0", allow_root=True)
logging.basicConfig(level=logging.INFO)
run_until_signalled(NodeDaemon(config, Faulty(4), home.node("n0"), home.broker_public()))
"""


def test_effect_that_raises_is_logged_once_and_skipped(broker: FakeBroker, home: Path) -> None:
    KeyHome(home).node("n0")
    log = home / "faulty.log"
    with log.open("wb") as out:
        node = subprocess.Popen(
            [sys.executable, "-c", FAULTY, str(home), broker.address], stdout=out, stderr=out
        )
    try:
        broker.greet()
        for job in (1, 2):
            broker.launch("true", job=job, gpus=[1])
            refused = broker.receive(LaunchRefused, lambda refused, job=job: refused.job == job)
            assert "ZeroDivisionError" in refused.message
        for _ in range(3):
            broker.receive(Heartbeat)
    finally:
        node.terminate()
        assert node.wait(DEADLINE_S) == 0
    said = log.read_text()
    assert said.count("following the GPUs failed") == 1, "not in every turn"
    assert "Traceback" in said


def test_failed_writes_are_kept_in_memory(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node()
    broker.greet()
    broker.receive(Heartbeat)
    in_the_way = node.directory / "state.json.tmp"
    in_the_way.mkdir()
    broker.epoch = 7
    broker.send(SayHello())
    broker.greet()
    until(lambda: "epoch 7 is remembered in memory only" in node.log)
    broker.launch("sh", "-c", "echo out; rm -rf $(dirname $(dirname $RLSCHED_ATTEMPT_DIR)); exit 3")
    assert broker.end_of(1).exit_code == 3
    assert broker.log(1).data == b"out\n"
    broker.launch("sh", "-c", "echo still here", job=2)
    assert broker.end_of(2).exit_code == 0
    assert broker.log(2).data == b"still here\n"
    broker.send(SayHello())
    assert broker.greet().epoch == 7


@contextlib.contextmanager
def nothing_can_be_written() -> Iterator[None]:
    """Processes started here can create files but write no data: a disk without space."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_daemon_starts_on_a_full_disk_and_reports_running_jobs(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_node()
    broker.greet()
    broker.launch(*gated(tmp_path, then="exit 5"))
    broker.receive(Launched)
    node.signal(signal.SIGKILL)
    with nothing_can_be_written():
        node = start_node()
    assert [(a.job, a.state) for a in broker.greet().attempts] == [(1, "running")]
    broker.launch("true", job=2, gpus=[0])
    assert "cannot write" in broker.receive(LaunchRefused).message
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 5
    broker.receive(Heartbeat)
    assert node.process.poll() is None


def test_no_job_starts_on_a_full_disk(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node("--gpus", "4", "--simulated", "--min-free-mib", str(1 << 40))
    broker.greet()
    broker.launch("true")
    refused = broker.receive(LaunchRefused)
    assert refused.is_for_now, "the job must wait"
    assert f"the start of a job needs {1 << 40} MiB (--min-free-mib)" in refused.message
    assert "\n" not in refused.message
    assert not (node.directory / "records" / "c1").exists()


def test_output_is_bounded_while_the_job_runs(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = start_node("--gpus", "4", "--simulated", "--max-output-mib", "1")
    broker.greet()
    command = gated(tmp_path)
    command[2] = f"seq 1000000; {command[2]}"
    broker.launch(*command)
    path = node.directory / "attempts" / "c1" / "1.1.0" / "output.log"
    until(lambda: path.exists() and path.stat().st_size > 6_000_000 and path.stat().st_blocks < 2048)
    assert broker.log(1).data.startswith(b"1\n2\n3\n")
    seen = path.stat().st_size
    assert broker.log(1, offset=300_000).offset > 6_000_000, "dropped output is skipped"
    assert (broker.log(1, offset=seen).data, broker.log(1, offset=seen).eof) == (b"", False)
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 0


def test_old_output_is_removed_daily(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    node = start_node("--gpus", "4", "--simulated", "--keep-output-days", "2")
    broker.greet()
    old, young = (node.directory / "records" / "c1" / f"{job}.1.0" for job in (1, 2))
    for job in (1, 2):
        broker.launch("echo", "out", job=job)
        broker.end_of(job)
    until(lambda: (old / "acknowledged").exists() and (young / "acknowledged").exists())
    os.utime(old / "acknowledged", (1e9, 1e9))
    os.utime(node.directory / "cleaned", (1e9, 1e9))
    until(lambda: not old.exists())
    assert broker.log(1).data == b""
    assert not (node.directory / "attempts" / "c1" / "1.1.0").exists()
    assert broker.log(2).data == b"out\n"
