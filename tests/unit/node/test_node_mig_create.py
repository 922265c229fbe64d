"""MIG instances that a node creates and destroys: real pynvml on a fake library with two GPUs in MIG mode."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rlsched.errors import InputError
from rlsched_node import mig
from rlsched_node.cli import node
from rlsched_node.gpu import open_gpus
from rlsched_node.home import NodeHome
from rlsched_node.mig import MIG_FILE, MigInstances, created_instances, parse_layout
from rlsched_node.processes import shim

pynvml = pytest.importorskip("pynvml")
from rlsched_node.gpu.mig import MigGpu, Place, find_places  # noqa: E402  (needs pynvml)

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

NO_PERMISSION, GPU_IS_LOST, INSUFFICIENT_RESOURCES, UNKNOWN = 4, 15, 23, 999
OTHERS = "0 6 0 6 0 99"
"""An instance 1g.18gb of GPU 0 that rlsched did not create: GPU instance 13, in the memory slice 6."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).parents[2] / "support" / "fake_nvml.c"
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-DGPUS=3", "-o", path, source]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture(autouse=True)
def nvml(library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setenv("FAKE_NVML_MIG", "0: 1:")
    monkeypatch.setenv("FAKE_NVML_PROCESSES", "/dev/null")
    monkeypatch.setenv("FAKE_NVML_MIG_STATE", str(tmp_path / "driver"))
    (tmp_path / "driver").write_text(OTHERS + "\n")
    (tmp_path / "n0").mkdir()
    library.fake_reset()
    yield library
    assert library.fake_open_count() == 0
    library.fake_reset()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "n0"


def existing(tmp_path: Path) -> list[str]:
    """GPU, profile's number and memory slice of each instance, and whether it has a compute instance."""
    lines = [line.split() for line in (tmp_path / "driver").read_text().splitlines() if line]
    return sorted(f"{gpu} {profile} {start} {compute == '0'}" for gpu, _, profile, start, compute, _ in lines)


def arrange(directory: Path, *texts: str, has_jobs: bool = False) -> MigInstances:
    instances = MigInstances(directory)
    instances.arrange(parse_layout(texts), has_jobs=has_jobs)
    return instances


def on_disk(directory: Path) -> list[dict[str, object]]:
    found = msgspec.json.decode((directory / MIG_FILE).read_bytes())
    assert found["boot_id"] == shim.boot_id()
    return list(found["instances"])


def test_instances_are_created_offered_and_destroyed(tmp_path: Path, directory: Path) -> None:
    layout = parse_layout(["0:1g.18gb, 3G.71GB", "1:7g.141gb"])
    assert layout == {0: ("1g.18gb", "3g.71gb"), 1: ("7g.141gb",)}
    with created_instances(directory, "n0", layout) as home:
        assert home is not None
        assert existing(tmp_path) == ["0 0 4 True", "0 0 6 True", "0 2 0 True", "1 4 0 True"]
        assert (directory / MIG_FILE).stat().st_mode & 0o777 == 0o600
        gpus = open_gpus(None, is_simulated=False, node="n0", gpu_type="h200/3g.71gb")
        assert [gpus.uuid(gpu) for gpu in range(gpus.count)] == [on_disk(directory)[1]["uuid"]]
        gpus.close()
        with pytest.raises(InputError, match="in use by another rlsched node"):
            NodeHome(directory, "n0")
    assert existing(tmp_path) == ["0 0 6 True"], "the operator's"
    assert not (directory / MIG_FILE).exists()
    NodeHome(directory, "n0").close()
    with created_instances(directory, "n0", {}) as home:
        assert home is None, "the daemon locks its directory as before"


def test_order_of_profiles_does_not_matter(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "driver").write_text("")
    arrange(directory, "0:1g.18gb,2g.35gb,4g.71gb", "1:1g.18gb+me")
    assert existing(tmp_path) == ["0 0 6 True", "0 1 4 True", "0 3 0 True", "1 7 0 True"]


def test_next_daemon_keeps_what_it_wants_and_destroys_the_rest(tmp_path: Path, directory: Path) -> None:
    first = arrange(directory, "0:1g.18gb,2g.35gb", "1:1g.18gb")
    kept = {one.uuid for one in first.created if one.gpu == "GPU-fake-0" and one.profile == "1g.18gb"}
    second = arrange(directory, "0:1g.18gb,1g.18gb")
    assert existing(tmp_path) == ["0 0 0 True", "0 0 1 True", "0 0 6 True"]
    assert kept < {one.uuid for one in second.created}
    assert {one.gpu for one in second.created} == {"GPU-fake-0"}
    arrange(directory)
    assert existing(tmp_path) == ["0 0 6 True"]
    assert not (directory / MIG_FILE).exists()


def test_nothing_is_changed_while_jobs_run(
    tmp_path: Path, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrange(directory, "0:1g.18gb")
    before = existing(tmp_path)
    with caplog.at_level(logging.WARNING):
        arrange(directory, "0:1g.18gb,1g.18gb", has_jobs=True)
    assert "not created while jobs run here, restart the node later: 1g.18gb" in caplog.text
    with pytest.raises(InputError, match=r"does not name MIG instance .*-0-0-100\) of GPU 0, which"):
        arrange(directory, "1:1g.18gb", has_jobs=True)
    assert existing(tmp_path) == before


def test_instances_of_running_jobs_stay_at_the_end(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_jobs = [False, True]
    monkeypatch.setattr(mig, "has_running_attempts", lambda _: has_jobs.pop(0))
    with created_instances(directory, "n0", parse_layout(["1:1g.18gb"])):
        pass
    assert existing(tmp_path) == ["0 0 6 True", "1 0 0 True"]
    assert len(on_disk(directory)) == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["2:1g.18gb"],
            r"GPU 2 is not in MIG mode, which rlsched does not change: run nvidia-smi -i 2",
        ),
        (["all:1g.18gb"], r"GPU 2 is not in MIG mode"),
        (["3:1g.18gb"], r"GPU 3: this machine has GPUs 0 to 2"),
        (
            ["1:1g.5gb"],
            r"GPU 1 has no MIG profile 1g\.5gb; it has 1g\.18gb, 1g\.18gb\+me, 1g\.35gb,",
        ),
        (
            ["0:7g.141gb"],
            r"GPU 0 has no room for 7g\.141gb; existing instances: 1g\.18gb \(GPU inst",
        ),
        (["1:1g.18gb", "0:3g.71gb,3g.71gb"], r"GPU 0 has no room for 3g\.71gb, 3g\.71gb; existing"),
        (["1:1g.18gb+me,1g.18gb+me"], r"GPU 1: cannot create 1g\.18gb\+me: no room; nvidia-smi mig"),
        (["1g.18gb"], r"'1g\.18gb': expected GPU:PROFILE,\.\.\."),
        (["0:1g.18gb,"], r"'0:1g\.18gb,': expected GPU:PROFILE"),
        (["0:1g.18gb", "0:1g.18gb"], r"'0:1g\.18gb': names a GPU twice"),
        (["0:1g.18gb", "all:1g.18gb"], r"'all:1g\.18gb': names a GPU twice"),
    ],
)
def test_impossible_layout_is_one_line_and_leaves_nothing(
    texts: list[str], message: str, tmp_path: Path, directory: Path
) -> None:
    with pytest.raises(InputError, match=f"^--mig-create:? {message}") as caught:  # noqa: SIM117
        with created_instances(directory, "n0", parse_layout(texts)):
            raise AssertionError
    assert "\n" not in str(caught.value)
    assert existing(tmp_path) == ["0 0 6 True"]
    assert not (directory / MIG_FILE).exists()


def test_creation_needs_root(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_NO_ROOT", "1")
    with pytest.raises(InputError, match="GPU 1: cannot create MIG instances: needs root"):
        arrange(directory, "1:1g.18gb")
    assert existing(tmp_path) == ["0 0 6 True"]
    assert not (directory / MIG_FILE).exists()


CALLS = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetMigDeviceHandleByIndex",
)


@pytest.mark.parametrize("code", [NO_PERMISSION, INSUFFICIENT_RESOURCES, UNKNOWN])
@pytest.mark.parametrize("function", CALLS)
def test_failed_call_destroys_what_was_created_before(
    nvml: ctypes.CDLL, function: str, code: int, tmp_path: Path, directory: Path
) -> None:
    nvml.fake_fail(function.encode(), 1, code, 1)
    with pytest.raises(InputError, match=r"^--mig-create: GPU 1: cannot "):  # noqa: SIM117
        with created_instances(directory, "n0", parse_layout(["0:2g.35gb", "1:1g.18gb"])):
            raise AssertionError
    assert existing(tmp_path) == ["0 0 6 True"]
    assert not (directory / MIG_FILE).exists()


@pytest.mark.parametrize(
    ("function", "code"), [(b"*", GPU_IS_LOST), (b"nvmlDeviceGetHandleByIndex_v2", UNKNOWN)]
)
def test_lost_gpu_does_not_prevent_the_start(
    function: bytes,
    code: int,
    nvml: ctypes.CDLL,
    tmp_path: Path,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    arrange(directory, "0:1g.18gb", "1:1g.18gb")
    nvml.fake_fail(function, 1, code, -1)
    with caplog.at_level(logging.WARNING):
        arrange(directory, "0:1g.18gb", "1:1g.18gb")
        arrange(directory).destroy_all()
    assert "GPU 1: no MIG instance is created" in caplog.text
    assert "stays until the next start of this node" in caplog.text
    nvml.fake_reset()
    assert existing(tmp_path) == ["0 0 6 True", "1 0 0 True"]
    arrange(directory)
    assert existing(tmp_path) == ["0 0 6 True"]


def test_instance_in_use_is_one_line_and_stays_recorded(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arrange(directory, "0:1g.18gb")
    (tmp_path / "processes").write_text(f"100 {os.getpid()}\n")
    monkeypatch.setenv("FAKE_NVML_PROCESSES", str(tmp_path / "processes"))
    with pytest.raises(InputError, match=r"GPU 0: cannot destroy MIG instance .*: processes use it; end"):
        arrange(directory)
    with caplog.at_level(logging.WARNING):
        MigInstances(directory).destroy_all()
    assert "stays until the next start of this node" in caplog.text
    assert existing(tmp_path) == ["0 0 0 True", "0 0 6 True"]
    (tmp_path / "processes").write_text("")
    arrange(directory)
    assert existing(tmp_path) == ["0 0 6 True"]


def test_instances_of_others_are_never_destroyed(tmp_path: Path, directory: Path) -> None:
    """The operator destroys the node's instance, and creates another with the same ID at the same place."""
    arrange(directory, "1:1g.18gb")
    (tmp_path / "driver").write_text(f"{OTHERS}\n1 0 0 0 0 101\n")
    arrange(directory)
    assert existing(tmp_path) == ["0 0 6 True", "1 0 0 True"]
    assert not (directory / MIG_FILE).exists()


def record(directory: Path, *instances: mig.Instance, boot_id: str = "") -> None:
    content = {"boot_id": boot_id or shim.boot_id(), "instances": instances}
    (directory / MIG_FILE).write_bytes(msgspec.json.encode(content))


@pytest.mark.parametrize(
    ("driver", "left"),
    [
        ("1 0 0 2 -1 5", []),
        ("1 0 0 2 0 5", ["1 0 2 True"]),
        ("1 0 0 3 -1 5", ["1 0 3 False"]),
        ("1 0 7 2 -1 5", ["1 7 2 False"]),
        ("", []),
    ],
)
def test_intent_means_the_bare_instance_at_its_place(
    driver: str, left: list[str], tmp_path: Path, directory: Path
) -> None:
    """Others cannot have created it: the place was free when the intent was written."""
    (tmp_path / "driver").write_text(f"{driver}\n")
    record(directory, mig.Instance("GPU-fake-1", "1g.18gb", 2, 1))
    arrange(directory)
    assert existing(tmp_path) == left
    assert not (directory / MIG_FILE).exists()


def test_record_of_an_earlier_boot_means_nothing(tmp_path: Path, directory: Path) -> None:
    record(
        directory, mig.Instance("GPU-fake-0", "1g.18gb", 6, 1, 13, 0, "MIG-fake-0-6-99"), boot_id="earlier"
    )
    arrange(directory)
    assert existing(tmp_path) == ["0 0 6 True"]
    assert not (directory / MIG_FILE).exists()


def test_damaged_record_is_one_line(directory: Path) -> None:
    (directory / MIG_FILE).write_text("{")
    with pytest.raises(InputError, match=r"mig\.json: not a record of MIG instances: .*; destroy"):
        MigInstances(directory)


def test_places_are_found_around_existing_instances() -> None:
    small, large = [Place(start, 1) for start in range(7)], [Place(0, 4), Place(4, 4)]
    assert find_places([small, large], [Place(6, 1)]) == [Place(4, 1), Place(0, 4)]
    assert find_places([large, large, small], []) is None
    assert find_places([], [Place(0, 8)]) == []


def test_option_needs_nvidia_gpus() -> None:
    for options in (["--simulated", "--gpus", "1"], ["--replay-gpus", "file"]):
        done = CliRunner().invoke(node, ["--name", "n0", "--mig-create", "0:1g.18gb", *options])
        assert isinstance(done.exception, InputError)
        assert "--mig-create needs NVIDIA GPUs: omit --simulated and --replay-gpus" in str(done.exception)


def test_number_of_gpus_is_refused_with_a_recording() -> None:
    done = CliRunner().invoke(node, ["--name", "n0", "--gpus", "2", "--replay-gpus", "file"])
    assert isinstance(done.exception, InputError)
    assert "--gpus has no effect with --replay-gpus" in str(done.exception)


def test_profiles_are_those_of_the_gpu() -> None:
    from rlsched_node.gpu.mig import mig_gpus

    with mig_gpus() as gpus:
        assert [gpu.is_in_mig_mode for gpu in gpus] == [True, True, False]
        gpu: MigGpu = gpus[0]
        assert gpu.profiles["2g.35gb"][1:] == (14, 2, 3)
        assert gpu.places(gpu.profiles["1g.35gb"]) == [Place(start, 2) for start in (0, 2, 4, 6)]
        (one,) = gpu.instances()
        assert (one, gpu.device_uuids(one.id)) == ((13, "1g.18gb", (6, 1)), ["MIG-fake-0-6-99"])
