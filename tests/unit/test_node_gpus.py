"""GPUs of a node: simulated ones, and the real NVML path on a fake C library."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rlsched.errors import InputError
from rlsched_node.gpu import open_gpus
from rlsched_node.gpu.device import (
    GpuError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuProcess,
    GpuUnavailableError,
)
from rlsched_node.gpu.simulated import POWER_BUSY_W, POWER_IDLE_W, SimulatedGpus

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")


def test_simulated_gpus_follow_the_ranks_and_integrate_energy() -> None:
    now_s = [100.0]
    gpus = SimulatedGpus(2, "n0", clock=lambda: now_s[0])
    assert gpus.power_w(1) == POWER_IDLE_W
    now_s[0] = 110.0
    gpus.follow([1])
    now_s[0] = 115.0
    assert gpus.energy_j(0) == pytest.approx(15 * POWER_IDLE_W)
    assert gpus.energy_j(1) == pytest.approx(10 * POWER_IDLE_W + 5 * POWER_BUSY_W)
    assert (gpus.utilisation_frac(0), gpus.memory_used_mib(0)) == (0.0, 0)
    assert gpus.utilisation_frac(1) > 0.5
    assert 0 < gpus.memory_used_mib(1) <= gpus.memory_total_mib(1)
    assert gpus.sm_clock_mhz(1) > gpus.sm_clock_mhz(0)
    gpus.lock_sm_clock(1, 1560)
    assert gpus.sm_clock_mhz(1) == 1560
    gpus.reset_sm_clock(1)
    assert gpus.sm_clock_mhz(1) == gpus.sm_clocks_mhz(1)[0]
    gpus.follow([])
    assert gpus.power_w(1) == POWER_IDLE_W


def test_simulated_gpus_say_what_they_are() -> None:
    gpus = SimulatedGpus(2, "n0")
    assert "simulated" in gpus.name(0)
    assert [gpus.uuid(gpu) for gpu in range(2)] == ["SIMULATED-n0-0", "SIMULATED-n0-1"]
    assert [gpus.visible_as(gpu) for gpu in range(2)] == ["0", "1"]
    with pytest.raises(GpuError, match="GPU 2: expected 0 to 1"):
        gpus.power_w(2)
    with pytest.raises(GpuError, match="GPU 1: 1561 MHz is none of its SM clocks"):
        gpus.lock_sm_clock(1, 1561)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_simulated_gpus_need_a_sensible_number(count: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 64"):
        SimulatedGpus(count)


def test_without_a_number_simulated_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="--simulated --gpus 4"):
        open_gpus(None, is_simulated=True, node="n0")


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).with_name("fake_nvml.c")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def fake_nvml(fake_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The fake in pynvml's place; `fake_set_error(call, code)` makes it fail."""
    pynvml: ModuleType = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlLib", fake_library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    # pynvml loads the driver's library whatever nvmlLib is, where this function finds it
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    fake_library.fake_reset()
    yield fake_library
    fake_library.fake_reset()


POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CLOCKS, LOCK, PERSISTENCE = range(9)
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 3, 4, 9, 15, 999


@needs_gcc
def test_nvml_readings_come_in_the_units_of_their_names(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    assert gpus.count == 2
    assert (gpus.uuid(1), gpus.name(1), gpus.visible_as(1)) == ("GPU-fake-1", "Fake H200", "GPU-fake-1")
    assert (gpus.memory_total_mib(1), gpus.memory_used_mib(1)) == (1000, 250)
    assert gpus.utilisation_frac(1) == 0.42
    assert gpus.power_w(1) == 301.5
    assert gpus.energy_j(1) == 1234.5
    assert gpus.sm_clock_mhz(1) == 1980
    gpus.close()
    assert fake_nvml.fake_open_count() == 0


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_foreign_processes_are_those_that_nobody_here_started() -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    assert gpus.foreign_processes(0, lambda _: False) == []
    assert gpus.foreign_processes(1, lambda _: False) == [GpuProcess(4711, 18432), GpuProcess(4712, None)]
    assert gpus.foreign_processes(1, lambda pid: pid == 4711) == [GpuProcess(4712, None)]


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_a_call_that_the_library_lacks_is_a_capability_that_is_off(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    fake_nvml.fake_set_error(ENERGY, NOT_SUPPORTED)
    fake_nvml.fake_set_error(UTILISATION, NO_PERMISSION)
    gpus = NvmlGpus()
    capabilities = gpus.capabilities(0)
    assert (capabilities.power, capabilities.energy, capabilities.utilisation) == (True, False, False)
    assert (gpus.energy_j(0), gpus.utilisation_frac(0)) == (None, None)


@needs_gcc
def test_a_symbol_that_is_missing_is_not_supported(fake_nvml: ctypes.CDLL) -> None:
    import pynvml

    from rlsched_node.gpu.nvml import NvmlGpus, typed_errors

    assert not hasattr(fake_nvml, "nvmlDeviceGetFanSpeed")
    NvmlGpus()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(GpuNotSupportedError, match="Function Not Found"):
        typed_errors(pynvml.nvmlDeviceGetFanSpeed)(handle)


@needs_gcc
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (NOT_SUPPORTED, GpuNotSupportedError),
        (NO_PERMISSION, GpuPermissionError),
        (GPU_IS_LOST, GpuLostError),
        (DRIVER_NOT_LOADED, GpuUnavailableError),
        (UNKNOWN, GpuError),
    ],
)
def test_every_error_code_has_its_own_error(fake_nvml: ctypes.CDLL, code: int, kind: type[GpuError]) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    for call, read in ((POWER, gpus.power_w), (UUID, gpus.uuid), (MEMORY, gpus.memory_used_mib)):
        fake_nvml.fake_set_error(call, code)
        with pytest.raises(GpuError) as caught:
            read(0)
        assert type(caught.value) is kind


@needs_gcc
def test_a_lost_gpu_at_start_is_named(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    fake_nvml.fake_set_error(POWER, GPU_IS_LOST)
    with pytest.raises(GpuLostError, match=r"power_mw\(0,\): GPU is lost"):
        NvmlGpus()
    assert fake_nvml.fake_open_count() == 0, "the library is closed again"


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_more_gpus_than_there_are_is_an_error_and_fewer_is_not() -> None:
    assert open_gpus(1, is_simulated=False, node="n0").count == 1
    with pytest.raises(InputError, match="--gpus 3: this machine has 2 GPUs"):
        open_gpus(3, is_simulated=False, node="n0")


@needs_gcc
def test_clocks_are_held_from_the_lowest_up_and_let_go(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    clocks = gpus.sm_clocks_mhz(1)
    assert (len(clocks), clocks[0], clocks[-1]) == (110, 1980, 345)
    assert gpus.why_clocks_are_fixed(1) == ""
    assert [fake_nvml.fake_locked_mhz(gpu) for gpu in range(2)] == [0, 0], "asking sets nothing"
    gpus.lock_sm_clock(1, 1560)
    assert [fake_nvml.fake_locked_mhz(gpu) for gpu in range(2)] == [0, 1560]
    gpus.reset_sm_clock(1)
    assert fake_nvml.fake_locked_mhz(1) == 0


@needs_gcc
def test_who_may_not_set_clocks_is_told_why(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    fake_nvml.fake_set_error(PERSISTENCE, NO_PERMISSION)
    assert "Insufficient Permissions; setting clocks needs root" in gpus.why_clocks_are_fixed(0)
    fake_nvml.fake_set_error(PERSISTENCE, 0)
    fake_nvml.fake_set_error(CLOCKS, NOT_SUPPORTED)
    assert gpus.sm_clocks_mhz(0) == []
    assert "Not Supported" in gpus.why_clocks_are_fixed(0)
    fake_nvml.fake_set_error(LOCK, NO_PERMISSION)
    with pytest.raises(GpuPermissionError):
        gpus.reset_sm_clock(0)


@needs_gcc
def test_without_a_driver_the_message_offers_simulated_gpus(fake_nvml: ctypes.CDLL) -> None:
    fake_nvml.fake_set_error(INIT, DRIVER_NOT_LOADED)
    with pytest.raises(InputError, match=r"no NVIDIA GPU here .*--simulated --gpus 4"):
        open_gpus(None, is_simulated=False, node="n0")
