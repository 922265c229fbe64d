"""`rlsched node` as a process on the fake NVML: the clock of a running rank is changed, then reset."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.wire.messages import ClockHeld, HoldClock, Launched
from tests.support.online.processes import FakeBroker, Node, gated, until


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
def test_clock_of_a_running_rank_is_changed_and_reset_at_its_end(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library, clocks = tmp_path / "libnvidia-ml.so.1", tmp_path / "clocks"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=1", "-o", library, source], check=True)
    monkeypatch.setenv("FAKE_NVML_CLOCKS", str(clocks))
    start_node("--gpus", "1", libraries=tmp_path)
    hello = broker.greet()
    assert (len(hello.sm_clocks_mhz), hello.sm_clocks_mhz[0], hello.clocks_note) == (110, 1980, "")
    broker.launch(*gated(tmp_path), gpus=[0])
    assert broker.receive(Launched).sm_clock_mhz == 0
    assert not clocks.exists()

    def hold(mhz: int) -> ClockHeld:
        broker.send(HoldClock(epoch=1, job=1, attempt=1, rank=0, sm_clock_mhz=mhz))
        return broker.receive(ClockHeld)

    assert hold(1200) == ClockHeld(job=1, attempt=1, rank=0, sm_clock_mhz=1200)
    assert hold(0).sm_clock_mhz == 0
    refused = hold(1201)
    assert refused.sm_clock_mhz == 0
    assert "Invalid Argument" in refused.clock_note
    assert hold(1560).sm_clock_mhz == 1560
    broker.send(HoldClock(epoch=1, job=9, attempt=1, rank=0, sm_clock_mhz=900))  # unknown job
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 0
    lines = ["lock 0 345 1200", "reset 0 0 0", "reset 0 0 0", "lock 0 345 1560", "reset 0 0 0"]
    until(lambda: clocks.read_text().splitlines() == lines)
