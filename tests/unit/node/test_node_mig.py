"""MIG instances as GPUs of a node: real pynvml on a fake library with four GPUs, two of them in MIG mode."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched.transport.keys import KeyHome
from rlsched_node.clocks import ClockLocks
from rlsched_node.config import NodeConfig
from rlsched_node.daemon import NodeDaemon
from rlsched_node.gpu import open_gpus, type_of
from rlsched_node.gpu.device import GpuLostError, GpuUnfitError
from rlsched_node.gpu.instances import BoardParts, Unit, profile_of, select
from rlsched_node.processes.bounds import capabilities_of, least_memory_mib, minors_of
from rlsched_node.processes.launch import LaunchError
from rlsched_node.processes.outages import BACK_AFTER_LOOKS, Outages
from rlsched_node.usage.meter import Meter

pynvml = pytest.importorskip("pynvml")
from rlsched_node.gpu.nvml import NvmlGpus  # noqa: E402  (needs pynvml)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

MIG = "1:0-1 2:"
"""GPU 1 has two instances, GPU 2 has none; 0 and 3 are whole."""
PROFILE = "1g.18gb"
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 4, 6, 15, 999
FOR_EVER = -1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-DGPUS=4", "-o", path, source]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(autouse=True)
def nvml(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setenv("FAKE_NVML_MIG", MIG)
    monkeypatch.setenv("FAKE_NVML_PROCESSES", "/dev/null")
    library.fake_reset()
    yield library
    library.fake_reset()


def uuids(gpus: NvmlGpus) -> list[str]:
    return [gpus.uuid(gpu) for gpu in range(gpus.count)]


def test_node_offers_the_instances_of_its_profile_as_gpus() -> None:
    gpus = NvmlGpus(profile=PROFILE)
    assert uuids(gpus) == ["MIG-fake-1-0", "MIG-fake-1-1", "GPU-fake-2"], "by the ID of the GPU instance"
    assert gpus.note == "not offered, because a node has one GPU type (--gpu-type): 2 x whole GPU"
    assert {gpus.name(gpu) for gpu in range(3)} == {"Fake H200/1g.18gb"}
    assert [gpus.visible_as(gpu) for gpu in (0, 1)] == ["MIG-fake-1-0", "MIG-fake-1-1"]
    assert [gpus.memory_total_mib(gpu) for gpu in (0, 1)] == [300, 300]
    assert least_memory_mib(gpus) == 300
    assert minors_of(gpus) == [7, 7, 14], "the file of the whole GPU"
    assert [gpus.instance_ids(gpu) for gpu in range(3)] == [(7, 0), (8, 0), None]


def list_capabilities(directory: Path, minors: dict[str, int]) -> None:
    """List capabilities, such as `gpu7/mig/gi8`, as the driver does."""
    for name, minor in minors.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        (directory / name / "access").write_text(text)


def test_instances_have_the_capabilities_that_the_driver_lists(nvml: ctypes.CDLL, tmp_path: Path) -> None:
    gpus = NvmlGpus(profile=PROFILE)
    assert capabilities_of(gpus, tmp_path) == [None, None, []], "the driver lists none"
    list_capabilities(tmp_path, {"gpu7/mig/gi7": 66, "gpu7/mig/gi7/ci0": 67, "gpu7/mig/gi8": 75})
    assert capabilities_of(gpus, tmp_path) == [[66, 67], None, []]
    list_capabilities(tmp_path, {"gpu7/mig/gi8/ci0": 76})
    assert capabilities_of(gpus, tmp_path) == [[66, 67], [75, 76], []]
    nvml.fake_fail(b"nvmlDeviceGetComputeInstanceId", -1, UNKNOWN, FOR_EVER)
    assert capabilities_of(gpus, tmp_path) == [None, None, []]
    assert capabilities_of(NvmlGpus(), tmp_path) == [[], [], []], "whole GPUs"


def test_counters_are_those_of_the_instance(nvml: ctypes.CDLL) -> None:
    gpus = NvmlGpus(profile=PROFILE)
    assert gpus.capabilities(0).gpm
    nvml.fake_pass_time(1)
    assert [gpus.read(gpu).sm_active_frac for gpu in (0, 1)] == pytest.approx([0.07, 0.08]), "their IDs"
    gpus.close()
    assert nvml.fake_open_samples() == 0
    nvml.fake_fail(b"nvmlGpmMigSampleGet", -1, NO_PERMISSION, FOR_EVER)
    assert not NvmlGpus(profile=PROFILE).capabilities(0).gpm
    assert not NvmlGpus(profile=PROFILE, gpm=False).capabilities(0).gpm


def test_default_is_whole_gpus_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = NvmlGpus()
    assert uuids(gpus) == ["GPU-fake-0", "GPU-fake-2", "GPU-fake-3"]
    assert gpus.note.endswith("2 x MIG 1g.18gb")
    assert (type_of(gpus), type_of(gpus, "h200")) == ("Fake H200", "h200")
    monkeypatch.setenv("FAKE_NVML_MIG", "0:0-0 1:0-1 2:0-0 3:")
    gpus = open_gpus(None, is_simulated=False, node="n0", gpu_type="h200")
    assert gpus.count == 5
    assert gpus.note == ""
    assert (type_of(gpus), type_of(gpus, "h200")) == ("Fake H200/1g.18gb", "h200/1g.18gb")
    assert open_gpus(2, is_simulated=False, node="n0").uuid(1) == "MIG-fake-1-0"
    with pytest.raises(
        InputError, match=r"--gpus 6: expected 1 to 5, the 1g\.18gb instances of this machine"
    ):
        NvmlGpus(6)


def test_type_with_a_profile_selects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_PROFILES", "1g.18gb 3g.71gb")
    gpus = open_gpus(None, is_simulated=False, node="n0", gpu_type="H200-141GB/3g.71gb")
    assert gpus.uuid(0) == "MIG-fake-1-1"
    assert type_of(gpus, "H200-141GB/3g.71gb") == "H200-141GB/3g.71gb"
    assert gpus.note.endswith("1 x MIG 1g.18gb, 2 x whole GPU")
    with pytest.raises(InputError, match=r"profile 2g\.35gb; profiles of its instances: 1g\.18gb, 3g\.71gb;"):
        open_gpus(None, is_simulated=False, node="n0", gpu_type="H200-141GB/2g.35gb")


def test_instance_has_no_utilisation_and_its_part_of_the_board() -> None:
    gpus = NvmlGpus(profile=PROFILE)
    seen = gpus.read(0)
    blank = {name for name in seen._fields if getattr(seen, name) is None}
    assert blank == {
        *("utilisation_frac", "pcie_mib_s"),
        *("sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac"),
    }
    assert (seen.memory_used_mib, seen.sm_clock_mhz, seen.temperature_c) == (250, 1980, 61)
    assert gpus.why_clocks_are_fixed(0) == "a MIG instance shares the clock of its GPU"


def test_parts_of_the_energy_add_up_to_the_boards_counter(
    nvml: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = tmp_path / "processes"
    processes.write_text(f"200 {os.getpid()}\n")
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(processes))
    gpus = NvmlGpus(profile=PROFILE)
    for gpu in (0, 1):
        assert gpus.read(gpu).energy_j == 0.0
    nvml.fake_set_energy_mj(1234500 + 301500)
    first, second = gpus.read(0), gpus.read(1)
    assert first.energy_j + second.energy_j == pytest.approx(301.5)
    static_w = 15.0  # of `generic`
    assert second.energy_j == pytest.approx(static_w / 2), "without a process it draws static power only"
    assert second.power_w == pytest.approx(static_w / 2)
    assert gpus.power_w(0) == pytest.approx(301.5 - static_w / 2)
    assert gpus.energy_j(1) == pytest.approx(static_w / 2)


def test_parts_follow_the_sizes_of_the_instances() -> None:
    parts = BoardParts([Unit(0, "a", "3g.40gb"), Unit(0, "b", "1g.10gb")], "NVIDIA A100-SXM4-80GB")
    assert parts.power_w("a", 51.0) == pytest.approx(51.0 * 0.8), "static power by memory"
    assert parts.power_w("a", 251.0) == pytest.approx(51.0 * 0.8 + 200.0 * 0.75)
    parts.note_processes("a", False)
    assert parts.power_w("a", 251.0) == pytest.approx(51.0 * 0.8)
    parts.note_processes("b", False)
    assert parts.power_w("a", 251.0) == pytest.approx(251.0 * 0.8)
    assert parts.energy_j("a", 100.0, 251.0) == 0.0
    assert parts.energy_j("b", 200.0, 251.0) == pytest.approx(20.0)
    assert parts.energy_j("a", 10.0, 251.0) == pytest.approx(80.0), "the driver was reloaded"


def test_processes_are_those_of_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "processes").write_text("1 4711\n200 4712\n")
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(tmp_path / "processes"))
    gpus = NvmlGpus(profile=PROFILE)
    assert [one.pid for one in gpus.foreign_processes(0, lambda _: False) or []] == [4712]
    assert gpus.foreign_processes(1, lambda _: False) == []


def test_free_memory_is_that_of_the_instance() -> None:
    """250 of its 300 MiB are in use."""
    gpus = NvmlGpus(profile=PROFILE)
    outages = Meter(gpus, "H200").outages
    with pytest.raises(LaunchError, match="GPU 1 has 50 of 300 MiB free, and the job asks for 51"):
        outages.refuse_short(gpus, [1], 51, are_shared=False, is_told=True)
    assert outages.usable_mib == {1: 50}
    outages.refuse_short(gpus, [0, 1], 50, are_shared=False, is_told=True)


def test_gpu_in_mig_mode_without_instances_is_out_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = NvmlGpus()
    meter = Meter(gpus, "H200")
    meter.look_first()
    (out,) = meter.outages.holdings
    assert out.gpus == [1]
    assert out.by.startswith("in MIG mode, and had no usable instance when this daemon started; create")
    assert len(out.by) <= 200
    assert meter.all_lost == []
    with pytest.raises(LaunchError, match="GPU 1 is in MIG mode"):
        meter.outages.refuse(gpus, [1])
    monkeypatch.setenv("FAKE_NVML_MIG", "1:0-1")
    for _ in range(BACK_AFTER_LOOKS):
        meter.read_all()
    assert meter.outages.holdings == [], "MIG was turned off"
    monkeypatch.setenv("FAKE_NVML_MIG", "0:0-6 1:0-1")
    with pytest.raises(LaunchError, match="GPU 0 is in MIG mode"):
        meter.outages.refuse(gpus, [0])
    outages = Outages(1, lambda _: True)
    outages.is_lost(0, GpuUnfitError("in MIG mode"))
    assert outages.all_lost == ["GPU 0 is in MIG mode"]


def test_whole_gpu_among_instances_is_out_of_service(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = NvmlGpus(profile=PROFILE)
    monkeypatch.setenv("FAKE_NVML_MIG", "1:0-1")
    with pytest.raises(GpuUnfitError, match=r"^whole, and this node offers MIG instances 1g\.18gb"):
        gpus.read(2)


def test_removed_instance_is_out_of_service_until_it_is_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = NvmlGpus(profile=PROFILE)
    gpus.read(1)
    monkeypatch.setenv("FAKE_NVML_MIG", "1:0-0 2:")
    for look in (gpus.read, lambda gpu: gpus.foreign_processes(gpu, lambda _: False)):
        with pytest.raises(GpuUnfitError, match="missing: its MIG instance MIG-fake-1-1 was removed"):
            look(1)
    assert gpus.read(0).memory_used_mib == 250
    monkeypatch.setenv("FAKE_NVML_MIG", MIG)
    assert gpus.read(1).memory_used_mib == 250


def test_handle_of_another_instance_is_not_used() -> None:
    """NVML may give the handle of a removed instance to a new one."""
    gpus = NvmlGpus(profile=PROFILE)
    gpus.read(0)
    gpus.read(1)
    gpus._instances["MIG-fake-1-0"] = gpus._instances["MIG-fake-1-1"]
    gpus.read(0)
    assert pynvml.nvmlDeviceGetUUID(gpus._handle(0)) == "MIG-fake-1-0"


MIG_CALLS = (
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNKNOWN])
@pytest.mark.parametrize("function", MIG_CALLS)
def test_failed_call_at_the_start_loses_at_most_its_board(
    nvml: ctypes.CDLL, function: str, code: int
) -> None:
    nvml.fake_fail(function.encode(), 1, code, FOR_EVER)
    gpus = NvmlGpus()
    type_of(gpus)
    meter = Meter(gpus, "H200")
    meter.look_first()
    assert [gpus.uuid(gpu) for gpu in range(gpus.count) if _answers(gpus, gpu)] in (
        ["GPU-fake-0", "GPU-fake-3"],
        ["GPU-fake-0", "GPU-fake-1", "GPU-fake-3"],
    )
    assert meter.all_lost == []


def _answers(gpus: NvmlGpus, gpu: int) -> bool:
    try:
        gpus.read(gpu)
        gpus.uuid(gpu)
    except GpuLostError:
        return False
    return True


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNKNOWN])
@pytest.mark.parametrize("function", MIG_CALLS)
def test_failed_call_while_instances_serve_loses_a_reading_or_the_instances(
    nvml: ctypes.CDLL, function: str, code: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_MIG", "0:0-0 1:0-1 2: 3:")
    gpus = NvmlGpus(3)
    meter = Meter(gpus, "H200")
    meter.look_first()
    assert meter.outages.holdings == []
    nvml.fake_fail(function.encode(), 1, code, times)
    meter.read_all()
    assert {gpu for one in meter.outages.holdings for gpu in one.gpus} <= {1, 2}
    assert gpus.read(0).energy_j is not None
    if times == 1:
        for _ in range(BACK_AFTER_LOOKS):
            meter.read_all()
        assert meter.outages.holdings == []
        assert gpus.read(1).energy_j is not None


def test_registration_names_the_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "start", lambda _: None)
    gpus, home = NvmlGpus(profile=PROFILE), KeyHome(tmp_path)
    config = NodeConfig(
        name="n0",
        broker="tcp://127.0.0.1:1",
        directory=tmp_path / "n0",
        gpu_type=type_of(gpus, "h200"),
        min_free_mib=0,
        allow_root=True,
        host="n0",
    )
    daemon = NodeDaemon(config, gpus, home.node("n0"), home.broker().public)
    try:
        hello = daemon._hello()
    finally:
        daemon._close()
    assert (hello.gpus, hello.gpu_type) == (3, "h200/1g.18gb")
    assert hello.gpu_uuids == ["MIG-fake-1-0", "MIG-fake-1-1", "GPU-fake-2"]
    assert (hello.capabilities.shares, hello.capabilities.gpu_memory_mib) == (False, 300)
    assert hello.notes[-1] == gpus.note
    assert hello.sm_clocks_mhz == []
    assert "shares the clock of its GPU" in ClockLocks(tmp_path, gpus).supported().note


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"),
    ],
)
def test_profile_is_in_the_name_of_an_instance(name: str, profile: str) -> None:
    assert profile_of(name) == profile


def test_most_frequent_profile_is_the_default_without_whole_gpus() -> None:
    found = [
        Unit(0, "a", "3g.40gb", has_mig=True),
        Unit(0, "b", "1g.10gb", has_mig=True),
        Unit(0, "c", "1g.10gb", has_mig=True),
    ]
    assert select(found, "").profile == "1g.10gb"
    assert select(found[:2], "").profile == "1g.10gb", "the first name, if two are as frequent"
    silent = Unit(1)
    chosen = select([*found, silent], "3g.40gb")
    assert chosen.units == [found[0], silent], "a silent GPU is shown, with the reason"
    assert select([Unit(0, "a", "1c.3g.40gb", has_mig=True)], "") == (
        [], "", "not offered, because a node has one GPU type (--gpu-type): 1 x MIG 1c.3g.40gb"
    )  # fmt: skip
