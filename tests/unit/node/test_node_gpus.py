"""GPUs of a node: simulated ones, and the NVML code on a fake C library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rlsched.errors import InputError
from rlsched.models import at_clock, clocks
from rlsched.models.catalogue.catalogue import load_catalogue
from rlsched.models.gpu_types import GPU_FIGURES
from rlsched.models.power import gpu_models
from rlsched_node.gpu import open_gpus, type_of
from rlsched_node.gpu.device import (
    GpuError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuProcess,
    GpuReading,
    GpuUnavailableError,
    Tenant,
)
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.gpu.truth import SimulatedTruth
from rlsched_node.processes.bounds import minors_of
from rlsched_node.usage.energy import Board

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")


def test_simulated_gpus_follow_the_ranks_and_integrate_energy() -> None:
    now_s = [100.0]
    gpus = SimulatedGpus(2, "n0", clock=lambda: now_s[0], gpu_type="V100")
    idle_w = GPU_FIGURES["V100"]["idle_w"].value
    assert gpus.power_w(1) == idle_w
    now_s[0] = 110.0
    gpus.follow({1: [Tenant(17)]})
    busy_w = gpus.power_w(1)
    assert busy_w > idle_w
    now_s[0] = 115.0
    assert gpus.energy_j(0) == pytest.approx(15 * idle_w)
    assert gpus.energy_j(1) == pytest.approx(10 * idle_w + 5 * busy_w)
    assert (gpus.utilisation_frac(0), gpus.memory_used_mib(0)) == (0.0, 0)
    assert 0.0 < gpus.utilisation_frac(1) <= 1.0
    assert 0 < gpus.memory_used_mib(1) <= gpus.memory_total_mib(1)
    assert gpus.sm_clock_mhz(1) > gpus.sm_clock_mhz(0)
    gpus.lock_sm_clock(1, 1560)
    assert gpus.sm_clock_mhz(1) == 1560
    assert gpus.power_w(1) < busy_w
    gpus.reset_sm_clock(1)
    assert gpus.sm_clock_mhz(1) == gpus.sm_clocks_mhz(1)[0]
    assert gpus.power_w(1) == busy_w
    gpus.follow({})
    assert gpus.power_w(1) == idle_w


def test_the_first_job_does_not_wait_for_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimulatedGpus(1, "n0", gpu_type="V100")
    monkeypatch.delattr("rlsched.models.catalogue.catalogue.load_catalogue")
    gpus.follow({0: [Tenant(17)]})
    assert gpus.utilisation_frac(0) > 0.0


def test_simulated_gpus_follow_the_simulators_models() -> None:
    kind, figures = ["A100"], GPU_FIGURES["A100"]
    catalogue = load_catalogue()
    trait, models = catalogue.traits(kind), gpu_models(kind)
    for workload in (catalogue.names[3], catalogue.names[40]):
        row = trait[catalogue.number(workload), 0]
        gpus = SimulatedGpus(1, gpu_type="NVIDIA A100-SXM4-40GB")
        gpus.follow({0: [Tenant(5, workload)]})
        for x in (1.0, 1500 / 1980):
            if x < 1.0:
                gpus.lock_sm_clock(0, 1500)
            seen = gpus.read(0)
            assert seen.power_w == pytest.approx(
                clocks.power_at(models, 0, row["clock_bound"], row["dynamic_w"], x)
            )
            time = at_clock.relative_time(row["clock_bound"], x)
            busy = at_clock.busy_at(row["util_frac"], time)
            assert seen.utilisation_frac == pytest.approx(busy)
            assert seen.processes == (GpuProcess(5, int(row["memory_mib"]), pytest.approx(busy)),)
            assert seen.memory_used_mib == min(int(row["memory_mib"]), int(figures["memory_mib"].value))
    assert (seen.sm_active_frac, seen.tensor_frac, seen.temperature_c) == (None, None, None)


def test_simulated_jobs_that_share_a_gpu_share_its_time() -> None:
    gpus = SimulatedGpus(1)
    gpus.follow({0: [Tenant(5)]})
    alone = gpus.read(0)
    gpus.follow({0: [Tenant(5), Tenant(6)]})
    both = gpus.read(0)
    used = alone.utilisation_frac
    assert used is not None
    assert both.utilisation_frac == pytest.approx(1.0 - (1.0 - used) ** 2)
    assert both.processes is not None
    assert sum(one.utilisation_frac or 0.0 for one in both.processes) == pytest.approx(both.utilisation_frac)
    assert (both.power_w or 0.0) > (alone.power_w or 0.0)


def test_simulated_gpus_name_their_type() -> None:
    gpus = SimulatedGpus(2, "n0")
    assert "simulated" in gpus.name(0)
    assert [gpus.uuid(gpu) for gpu in range(2)] == ["SIMULATED-n0-0", "SIMULATED-n0-1"]
    assert [gpus.visible_as(gpu) for gpu in range(2)] == ["0", "1"]
    with pytest.raises(GpuError, match="GPU 2: expected 0 to 1"):
        gpus.power_w(2)
    with pytest.raises(GpuError, match="GPU 1: 1561 MHz is not one of its SM clocks"):
        gpus.lock_sm_clock(1, 1561)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_simulated_gpus_need_a_valid_number(count: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 64"):
        SimulatedGpus(count)


def test_without_a_number_simulated_gpus_are_refused() -> None:
    with pytest.raises(InputError, match="--simulated --gpus 4"):
        open_gpus(None, is_simulated=True, node="n0")


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def fake_nvml(fake_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """Replaces pynvml's library by the fake; `fake_set_error(call, code)` makes a call fail."""
    pynvml: ModuleType = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlLib", fake_library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    # pynvml loads the driver's library even if nvmlLib is set, unless this function does not find it
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    fake_library.fake_reset()
    yield fake_library
    fake_library.fake_reset()


POWER, ENERGY, UUID, INIT, UTILISATION, MEMORY, CLOCKS, LOCK, PERSISTENCE = range(9)
REASONS, TEMPERATURE, PCIE, PROCESS_UTILISATION, GPM, GPM_SAMPLE, GPM_METRICS, PROCESSES = range(9, 17)
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN = 3, 4, 6, 9, 15, 999


@needs_gcc
def test_nvml_readings_have_the_units_of_their_names(fake_nvml: ctypes.CDLL) -> None:
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
def test_gpus_report_near_processors_and_their_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    gpus = NvmlGpus()
    assert [sorted(gpus.near_cpus(gpu)) for gpu in (0, 1)] == [[0, 1, 2, 3], [64, 65]]
    assert minors_of(gpus) == [0, 7]
    assert minors_of(SimulatedGpus(2)) == []


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_foreign_processes_are_processes_not_started_here() -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    assert gpus.foreign_processes(0, lambda _: False) == []
    assert gpus.foreign_processes(1, lambda _: False) == [GpuProcess(4711, 18432), GpuProcess(4712, None)]
    assert gpus.foreign_processes(1, lambda pid: pid == 4711) == [GpuProcess(4712, None)]


@needs_gcc
def test_clients_of_mps_are_processes_of_the_gpu(
    fake_nvml: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    clients = tmp_path / "clients"
    clients.write_text("0 17\n1 4711\n1 18\n")
    monkeypatch.setenv("FAKE_NVML_MPS_PROCESSES", str(clients))
    gpus = NvmlGpus()
    assert gpus.read(0).processes == (GpuProcess(17, 100, 0.0),)
    assert [one.pid for one in gpus.read(1).processes or ()] == [4711, 4712, 18], "each of them once"
    fake_nvml.fake_fail(b"nvmlDeviceGetMPSComputeRunningProcesses_v3", -1, NOT_SUPPORTED, 1)
    assert gpus.read(0).processes == ()


@needs_gcc
def test_memory_of_graphics_processes_is_no_unlisted_memory(
    fake_nvml: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    desktop = tmp_path / "desktop"
    desktop.write_text("0 17\n0 18\n")
    monkeypatch.setenv("FAKE_NVML_GRAPHICS_PROCESSES", str(desktop))
    gpus = NvmlGpus()
    assert (gpus.graphics_memory_mib(0), gpus.graphics_memory_mib(1)) == (200, 0)
    assert gpus.read(0).processes == (), "they do not compute"
    fake_nvml.fake_fail(b"nvmlDeviceGetGraphicsRunningProcesses_v3", -1, NOT_SUPPORTED, 1)
    assert gpus.graphics_memory_mib(0) == 0


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_missing_call_disables_a_capability(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    fake_nvml.fake_set_error(ENERGY, NOT_SUPPORTED)
    fake_nvml.fake_set_error(UTILISATION, NO_PERMISSION)
    gpus = NvmlGpus()
    capabilities = gpus.capabilities(0)
    assert (capabilities.power, capabilities.energy, capabilities.utilisation) == (True, False, False)
    assert (gpus.energy_j(0), gpus.utilisation_frac(0)) == (None, None)


@needs_gcc
def test_reading_has_all_values_of_the_gpu(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    assert all(gpus.capabilities(1))
    fake_nvml.fake_pass_time(1)
    seen = gpus.read(1)
    assert (seen.utilisation_frac, seen.memory_used_mib, seen.power_w) == (0.42, 250, 301.5)
    assert (seen.energy_j, seen.sm_clock_mhz, seen.temperature_c) == (1234.5, 1980, 61)
    assert (seen.power_limited, seen.heat_limited) == (True, False)
    assert seen.processes == (GpuProcess(4711, 18432, 0.3), GpuProcess(4712, None, 0.0))
    gpm = (seen.sm_active_frac, seen.sm_occupancy_frac, seen.tensor_frac, seen.dram_frac, seen.pcie_mib_s)
    assert gpm == pytest.approx((0.80, 0.40, 0.25, 0.55, 350.0))
    assert gpus.read(1).sm_active_frac is None, "samples that are too close are ignored"
    gpus.close()
    assert fake_nvml.fake_open_samples() == 0


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_without_gpm_the_counters_are_not_read(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus(gpm=False)
    assert not gpus.capabilities(0).gpm
    seen = gpus.read(0)
    assert (seen.sm_active_frac, seen.tensor_frac) == (None, None)
    assert seen.pcie_mib_s == 30.0, "by the driver's own query"
    assert fake_nvml.fake_open_samples() == 0


MIG_LACKS = (UTILISATION, PROCESS_UTILISATION, GPM_SAMPLE, PCIE)


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_mig_board_reports_only_board_values(fake_nvml: ctypes.CDLL) -> None:
    """NVML's header: with MIG, utilisation is not supported, also per process; energy is."""
    from rlsched_node.gpu.nvml import NvmlGpus

    for call in MIG_LACKS:
        fake_nvml.fake_set_error(call, NOT_SUPPORTED)
    gpus = NvmlGpus()
    seen = gpus.read(1)
    assert (seen.utilisation_frac, seen.sm_active_frac, seen.pcie_mib_s) == (None, None, None)
    assert (seen.energy_j, seen.power_w, seen.memory_used_mib) == (1234.5, 301.5, 250)
    assert seen.processes == (GpuProcess(4711, 18432), GpuProcess(4712, None))


@needs_gcc
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        (POWER, {"power_w"}),
        (ENERGY, {"energy_j"}),
        (UTILISATION, {"utilisation_frac"}),
        (MEMORY, {"memory_used_mib"}),
        (REASONS, {"power_limited", "heat_limited"}),
        (TEMPERATURE, {"temperature_c"}),
        (PROCESSES, {"processes"}),
        (GPM_SAMPLE, {"sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac"}),
        (GPM_METRICS, {"sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac"}),
    ],
)
def test_failed_call_loses_only_its_own_values(
    fake_nvml: ctypes.CDLL, call: int, fields: set[str], code: int
) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    fake_nvml.fake_set_error(call, code)
    fake_nvml.fake_pass_time(1)
    seen = gpus.read(1)
    assert {name for name in GpuReading._fields if getattr(seen, name) is None} == fields


@needs_gcc
@pytest.mark.parametrize("call", [MEMORY, ENERGY, GPM_SAMPLE, PROCESSES])
def test_lost_gpu_has_no_reading(fake_nvml: ctypes.CDLL, call: int) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    fake_nvml.fake_set_error(call, GPU_IS_LOST)
    fake_nvml.fake_pass_time(1)
    with pytest.raises(GpuLostError):
        gpus.read(1)


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_idle_gpu_has_no_utilisation_by_process(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    fake_nvml.fake_set_error(PROCESS_UTILISATION, NOT_FOUND)
    assert gpus.read(1).processes == (GpuProcess(4711, 18432, 0.0), GpuProcess(4712, None, 0.0))


@needs_gcc
def test_energy_counter_that_goes_back_is_replaced_by_the_power(fake_nvml: ctypes.CDLL) -> None:
    """The driver was reloaded: its counter begins again."""
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus, board = NvmlGpus(), Board()

    def drawn_j(at_s: float, counter_mj: int) -> float | None:
        fake_nvml.fake_set_energy_mj(counter_mj)
        seen = gpus.read(0)
        return board.drawn_j(at_s, seen.energy_j, seen.power_w)

    assert drawn_j(0.0, 5_000_000) is None
    assert drawn_j(1.0, 5_250_000) == 250.0
    assert drawn_j(3.0, 40_000) == pytest.approx(2.0 * 301.5)
    assert drawn_j(4.0, 300_000) == 260.0


@needs_gcc
def test_older_driver_has_no_gpm(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    for call in (GPM, GPM_SAMPLE):
        fake_nvml.fake_reset()
        fake_nvml.fake_set_error(call, 13)  # function not found
        assert not NvmlGpus().capabilities(0).gpm
    fake_nvml.fake_reset()
    fake_nvml.fake_old_gpu(1)
    assert not NvmlGpus().capabilities(0).gpm


@needs_gcc
def test_missing_symbol_is_not_supported(fake_nvml: ctypes.CDLL) -> None:
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
    for call, read in ((POWER, gpus.power_w), (ENERGY, gpus.energy_j), (MEMORY, gpus.memory_used_mib)):
        fake_nvml.fake_set_error(call, code)
        with pytest.raises(GpuError) as caught:
            read(0)
        assert type(caught.value) is kind


@needs_gcc
def test_gpu_lost_at_start_is_named_and_serves_once_it_responds(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    fake_nvml.fake_set_error(POWER, GPU_IS_LOST)
    gpus = NvmlGpus()
    with pytest.raises(GpuLostError, match=r"power_mw\(0,\): GPU is lost"):
        gpus.read(0)
    assert not any(gpus.capabilities(0))
    fake_nvml.fake_set_error(POWER, 0)
    assert gpus.read(0).power_w == 301.5
    assert all(gpus.capabilities(0))


@needs_gcc
@pytest.mark.usefixtures("fake_nvml")
def test_more_gpus_than_installed_is_an_error_and_fewer_is_not() -> None:
    assert open_gpus(1, is_simulated=False, node="n0").count == 1
    with pytest.raises(InputError, match="--gpus 3: expected 1 to 2, the GPUs of this machine"):
        open_gpus(3, is_simulated=False, node="n0")


@needs_gcc
def test_default_type_is_the_drivers_name(fake_nvml: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake_nvml
    gpus = open_gpus(None, is_simulated=False, node="n0")
    assert type_of(gpus) == "Fake H200"
    assert type_of(SimulatedGpus(2, gpu_type="A100")) == "generic"

    def named(gpu: int) -> str:
        if gpu:
            raise GpuLostError("GPU 1 is lost")
        return "NVIDIA A40"

    monkeypatch.setattr(gpus, "name", named)
    assert type_of(gpus) == "NVIDIA A40", "a lost GPU has no name"
    monkeypatch.setattr(gpus, "name", ("Tesla T4", "NVIDIA A40").__getitem__)
    assert type_of(gpus) == "NVIDIA A40+Tesla T4"


@needs_gcc
def test_clocks_are_locked_from_the_lowest_and_reset(fake_nvml: ctypes.CDLL) -> None:
    from rlsched_node.gpu.nvml import NvmlGpus

    gpus = NvmlGpus()
    clocks = gpus.sm_clocks_mhz(1)
    assert (len(clocks), clocks[0], clocks[-1]) == (110, 1980, 345)
    assert gpus.why_clocks_are_fixed(1) == ""
    assert [fake_nvml.fake_locked_mhz(gpu) for gpu in range(2)] == [0, 0], "the query sets nothing"
    gpus.lock_sm_clock(1, 1560)
    assert [fake_nvml.fake_locked_mhz(gpu) for gpu in range(2)] == [0, 1560]
    gpus.reset_sm_clock(1)
    assert fake_nvml.fake_locked_mhz(1) == 0


@needs_gcc
def test_missing_permission_for_clocks_is_explained(fake_nvml: ctypes.CDLL) -> None:
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
def test_message_without_a_driver_offers_simulated_gpus(fake_nvml: ctypes.CDLL) -> None:
    fake_nvml.fake_set_error(INIT, DRIVER_NOT_LOADED)
    with pytest.raises(InputError, match=r"no NVIDIA GPU here .*--simulated --gpus 4"):
        open_gpus(None, is_simulated=False, node="n0")


def test_simulated_gpus_may_differ_from_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "truth.toml"
    path.write_text(
        '[workload.a2c-b64]\nutil_frac = 0.5\nmemory_mib = 3000\n[[pair]]\nworkload = "a2c-b64"\n'
        'partner = "vit-tiny"\nspeed = 0.4\n'
    )
    gpus = SimulatedGpus(1, gpu_type="H100", truth=SimulatedTruth.read(path))
    gpus.follow({0: [Tenant(1, "a2c-b64")]})
    reading = gpus.read(0)
    assert reading.processes is not None
    assert (reading.utilisation_frac, reading.processes[0].used_mib) == (0.5, 3000)
    gpus.follow({0: [Tenant(1, "a2c-b64"), Tenant(2, "vit-tiny")]})
    reading = gpus.read(0)
    assert reading.processes is not None
    assert reading.processes[0].utilisation_frac == pytest.approx(0.2)
    assert reading.utilisation_frac == pytest.approx(
        sum(one.utilisation_frac or 0.0 for one in reading.processes)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[workload.a2c-b64]\nutil_frac = 2\n",
            "workload.a2c-b64.util_frac: expected a number above 0, up to",
        ),
        ('[[pair]]\nworkload = "a"\npartner = "b"\nspeed = 0.0\n', "pair.speed: expected a number above 0"),
        ("[workload.a]\nutil = 0.5\n", "util"),
    ],
)
def test_wrong_truth_of_simulated_gpus_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "truth.toml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        SimulatedTruth.read(path)
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
