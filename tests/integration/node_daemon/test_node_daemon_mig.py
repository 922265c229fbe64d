"""`rlsched node --mig-create` as a process on the fake NVML, killed at each step."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.wire.messages import Launched
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, gated

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

OPTION = ("--mig-create", "0:1g.18gb,3g.71gb")
OTHERS = "0 1g.18gb 6"
WANTED = ["0 1g.18gb 4", OTHERS, "0 3g.71gb 0"]
CREATE, COMPUTE = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"
DESTROY, DESTROY_COMPUTE = "nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the fake driver's instances; it has an instance of the operator's."""
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library, driver = tmp_path / "libnvidia-ml.so.1", tmp_path / "driver"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DGPUS=1", "-o", library, source], check=True)
    driver.write_text("0 6 0 6 0 99\n")
    monkeypatch.setenv("FAKE_NVML_MIG", "0:")
    monkeypatch.setenv("FAKE_NVML_PROCESSES", "/dev/null")
    monkeypatch.setenv("FAKE_NVML_MIG_STATE", str(driver))
    return driver


def existing(driver: Path) -> list[str]:
    """GPU, profile and first memory slice of each instance; a bare GPU instance is marked."""
    names = {"0": "1g.18gb", "2": "3g.71gb"}
    lines = [line.split() for line in driver.read_text().splitlines()]
    return sorted(
        f"{gpu} {names[profile]} {start}{' bare' if compute == '-1' else ''}"
        for gpu, _, profile, start, compute, _ in lines
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "left"),
    [
        pytest.param(f"{CREATE} 1", [OTHERS], id="intent"),
        pytest.param(f"{CREATE}+ 1", ["0 1g.18gb 4 bare", OTHERS], id="GPU instance"),
        pytest.param(f"{COMPUTE} 1", ["0 1g.18gb 4 bare", OTHERS], id="record of the GPU instance"),
        pytest.param(f"{COMPUTE}+ 1", ["0 1g.18gb 4", OTHERS], id="compute instance"),
        pytest.param(f"{CREATE} 2", ["0 1g.18gb 4", OTHERS], id="record"),
        pytest.param(f"{COMPUTE}+ 2", WANTED, id="last compute instance"),
        pytest.param(
            f"{DESTROY_COMPUTE}+ 1", ["0 1g.18gb 4 bare", *WANTED[1:]], id="destroyed compute instance"
        ),
        pytest.param(f"{DESTROY}+ 1", WANTED[1:], id="destroyed GPU instance"),
    ],
)
def test_no_instance_is_left_behind_after_kill_9_at_any_step(
    call: str,
    left: list[str],
    broker: FakeBroker,
    start_node: Callable[..., Node],
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_NVML_KILL", call)
    killed = start_node(*OPTION, libraries=driver.parent)
    if "Destroy" in call:
        broker.greet()
        killed.process.terminate()
    assert killed.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert existing(driver) == left
    monkeypatch.delenv("FAKE_NVML_KILL")
    second = start_node(*OPTION, libraries=driver.parent)
    hello = broker.greet()
    assert (hello.gpus, hello.gpu_type) == (2, "Fake H200/1g.18gb")
    assert existing(driver) == WANTED
    assert second.signal(signal.SIGKILL) == -signal.SIGKILL
    assert existing(driver) == WANTED
    third = start_node("--gpus", "1", libraries=driver.parent)
    assert broker.greet().gpu_uuids == ["MIG-fake-0-6-99"]
    assert existing(driver) == [OTHERS]
    assert third.signal(signal.SIGTERM) == 0
    assert existing(driver) == [OTHERS]


@pytest.mark.slow
def test_instances_live_as_long_as_the_jobs_on_them(
    broker: FakeBroker, start_node: Callable[..., Node], driver: Path, tmp_path: Path
) -> None:
    first = start_node(*OPTION, libraries=driver.parent)
    uuids = broker.greet().gpu_uuids
    broker.launch(*gated(tmp_path), gpus=[0])
    broker.receive(Launched)
    assert first.signal(signal.SIGTERM) == 0
    assert existing(driver) == WANTED, "jobs outlive their daemon"
    refused = start_node("--gpus", "1", libraries=driver.parent)
    assert refused.process.wait(DEADLINE_S) == 2
    assert "--mig-create does not name MIG instance 1g.18gb" in refused.log.splitlines()[-1]
    assert existing(driver) == WANTED
    second = start_node(*OPTION, libraries=driver.parent)
    assert broker.greet().gpu_uuids == uuids
    (tmp_path / "gate").write_text("go\n")
    assert broker.end_of(1).exit_code == 0
    assert second.signal(signal.SIGTERM) == 0
    assert existing(driver) == [OTHERS]
    assert not (second.directory / "mig.json").exists()
