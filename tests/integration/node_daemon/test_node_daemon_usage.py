"""`rlsched node` as a process: a job's usage is reported with its end and survives the daemon."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rlsched.wire.messages import AttemptKey, Launched, Metered
from rlsched_node.processes.store import AttemptStore
from rlsched_node.usage.books import Kept
from tests.support.online.processes import FakeBroker, Node, gated, until

BURN = "import os, time\nwhile time.process_time() < 0.2 or not os.path.exists({gate!r}): time.sleep(0.001)"
FOR_2_S = "import time\nbegan_s = time.time()\nwhile time.time() - began_s < 2.5: sum(range(1000))"
"""Long enough for a measurement, which happens once a second."""


def kept(home: Path) -> Kept | None:
    """State of job 1 that the stopped daemon left."""
    data = AttemptStore(home / "nodes" / "n0").directories_of(AttemptKey(1, 1, 0, "c1")).usage()
    return None if data is None else msgspec.json.decode(data, type=Kept)


def test_end_of_a_job_has_its_usage(broker: FakeBroker, start_node: Callable[..., Node]) -> None:
    start_node()
    broker.greet(hears_usage=True)
    broker.launch(sys.executable, "-c", FOR_2_S)
    told, usage = broker.receive(Metered), broker.end_of(1).usage
    assert told.day
    assert usage is not None
    assert (usage.energy_mj or 0) > 0
    assert (usage.gpu_milli or 0) > 0
    assert (usage.cpu_milli or 0) > 0
    assert (usage.memory_mib or 0) > 0


@pytest.mark.slow
def test_usage_continues_across_a_restart_of_the_daemon(
    broker: FakeBroker, home: Path, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    node = start_node()
    broker.greet(hears_usage=True)
    broker.launch(sys.executable, "-c", BURN.format(gate=str(gate)))
    broker.receive(Launched)
    until(lambda: broker.receive(Metered).ranks)  # it has measured more than once
    node.signal(signal.SIGTERM)
    before = kept(home)
    assert before is not None
    start_node()
    assert [one.state for one in broker.greet(hears_usage=True).attempts] == ["running"]
    told = broker.receive(Metered)
    assert told.day
    gate.touch()
    end = broker.end_of(1)
    assert end.exit_code == 0
    assert end.usage is not None
    assert (end.usage.energy_mj or 0) >= int(1e3 * (before.sums.energy_j or 0.0)) > 0, "in whole mJ"
    assert (end.usage.cpu_milli or 0) > 0
    assert (end.usage.memory_mib or 0) > 0
    until(lambda: kept(home) is None)


def test_older_broker_receives_no_usage(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    start_node()
    broker.greet()
    broker.launch(*gated(tmp_path))
    broker.receive(Launched)
    assert broker.nothing_comes(Metered)
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).usage is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
def test_real_gpus_are_recorded_and_replayed(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library, recording = tmp_path / "libnvidia-ml.so.1", tmp_path / "gpus.jsonl"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    node = start_node("--record-gpus", str(recording), "--no-gpm", libraries=tmp_path)
    assert broker.greet(hears_usage=True).gpu_uuids == ["GPU-fake-0", "GPU-fake-1"]
    until(lambda: recording.exists() and len(recording.read_text().splitlines()) >= 3)
    until(lambda: broker.receive(Metered).power_w == 603.0)
    node.signal(signal.SIGTERM)
    start_node("--replay-gpus", str(recording), libraries=tmp_path)
    hello = broker.greet(hears_usage=True)
    assert (hello.gpus, hello.gpu_uuids) == (2, ["GPU-fake-0", "GPU-fake-1"])
    assert hello.clocks_note
    until(lambda: broker.receive(Metered).power_w == 603.0)
