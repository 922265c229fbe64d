"""Failure of every NVML call of the node: once and permanently, at the start and later, with every error.

`called` finds the calls in the code, each with its function in the fake library. These tests include a new
call automatically; `test_fake_has_every_call` fails until the fake implements it.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import rlsched_node.gpu
from rlsched.cli.operators import doctor
from rlsched.errors import InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import Holding
from rlsched_node.clocks import ClockLocks
from rlsched_node.config import NodeConfig
from rlsched_node.daemon import NodeDaemon
from rlsched_node.gpu import open_gpus, type_of
from rlsched_node.gpu.device import GpuReading, GpuSet
from rlsched_node.processes.bounds import capabilities_of, least_memory_mib, minors_of
from rlsched_node.processes.cores import cores_of_machine
from rlsched_node.processes.launch import LaunchError, refuse_on_full_gpus
from rlsched_node.processes.outages import BACK_AFTER_LOOKS
from rlsched_node.usage.meter import Meter

pynvml = pytest.importorskip("pynvml")
import rlsched_node.gpu.nvml  # noqa: E402  (needs pynvml)
from rlsched_node.gpu import gpm  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")

SOURCE = Path(__file__).parents[2] / "support" / "fake_nvml.c"
CODES = {
    name.removeprefix("NVML_ERROR_"): value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
USUAL = (
    "UNINITIALIZED",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "DRIVER_NOT_LOADED",
    "FUNCTION_NOT_FOUND",
    "TIMEOUT",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "IN_USE",
    "UNKNOWN",
)
NEVER = {CODES[name] for name in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH")} | {
    CODES["NO_PERMISSION"]
}
"""Errors that mean the call is not supported; it is not repeated."""
FOR_EVER = -1


def called() -> set[str]:
    """Functions of the C library that the code calls, from the source of pynvml."""
    texts = [path.read_text() for path in Path(rlsched_node.gpu.__file__).parent.glob("*.py")]
    texts.append(Path(doctor.__file__).read_text())
    left = {name for text in texts for name in re.findall(r"pynvml\.(nvml\w+)\(", text)}
    seen, found = set[str](), set[str]()
    while left:
        name = left.pop()
        function = getattr(pynvml, name, None)
        if name in seen or not callable(function):
            continue
        seen.add(name)
        text = inspect.getsource(inspect.unwrap(function))
        found |= set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text))
        left |= set(re.findall(r"\b(nvml[A-Z]\w+)\(", text))
    return found - {
        "nvmlDeviceGetMemoryInfo_v2",  # only if a version is given
        "nvmlDeviceGetGpuInstanceProfileInfo",  # only if version 1 is given
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    }


FUNCTIONS = sorted(called())
OF_A_GPU = set(
    re.findall(r"^int (nvml\w+)\((?:void \*device|unsigned index)", SOURCE.read_text(), re.MULTILINE)
)


def test_fake_has_every_call() -> None:
    text = SOURCE.read_text()
    known = re.findall(r"^int (nvml\w+)\([^)]*\) \{\s*FAIL", text, re.MULTILINE)
    assert len(FUNCTIONS) > 25
    assert set(FUNCTIONS) <= set(known)
    assert len(known) == len(re.findall(r"^int nvml\w+\(", text, re.MULTILINE)), "every call can fail"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, SOURCE], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def nvml(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """Replaces pynvml's library by the fake, on GPUs without processes."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(gpm, "LEAST_S", 0.0)
    monkeypatch.setattr(rlsched_node.gpu.nvml, "PCIE_EVERY_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setenv("FAKE_NVML_PROCESSES", "/dev/null")
    library.fake_reset()
    yield library
    library.fake_reset()


class Node(NamedTuple):
    """A node's GPUs after its start."""

    gpus: GpuSet
    locks: ClockLocks
    meter: Meter
    clocks_mhz: list[int]

    @property
    def held(self) -> list[Holding]:
        return self.meter.outages.holdings


def start(nvml: ctypes.CDLL, directory: Path) -> Node:
    """All NVML calls of the daemon at its start, without a daemon."""
    gpus = open_gpus(None, is_simulated=False, node="n0")
    type_of(gpus)
    locks = ClockLocks(directory, gpus)
    locks.recover(())
    clocks_mhz = locks.supported().sm_clocks_mhz
    minors_of(gpus)
    capabilities_of(gpus, directory)
    least_memory_mib(gpus)
    cores_of_machine(gpus)
    meter = Meter(gpus, "H200")
    nvml.fake_pass_time(1)
    meter.look_first()
    return Node(gpus, locks, meter, clocks_mhz)


def use(node: Node, gpu: int) -> bool:
    """All NVML calls of the daemon to start and end a job; returns whether the GPU is allocated."""
    refusal: LaunchError | None = None
    try:
        node.meter.outages.refuse(node.gpus, [gpu])
        refuse_on_full_gpus(node.gpus, [gpu], 100)
    except LaunchError as error:
        refusal = error
    if refusal is not None:
        assert refusal.is_for_now, "not caused by the job"
        assert str(refusal).startswith(f"GPU {gpu} ")
        return False
    assert node.gpus.visible_as(gpu) == f"GPU-fake-{gpu}"
    node.locks.lock([gpu], 1980)
    node.locks.reset([gpu])
    return True


def read_times(nvml: ctypes.CDLL, node: Node, times: int) -> None:
    for _ in range(times):
        nvml.fake_pass_time(1)
        node.meter.read_all()


def missing(nvml: ctypes.CDLL, node: Node, gpu: int) -> set[str]:
    """Readings that a GPU does not provide."""
    nvml.fake_pass_time(1)
    reading = node.gpus.read(gpu)
    return {name for name in GpuReading._fields if getattr(reading, name) is None}


class Log(logging.Handler):
    """Lines of the node's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Log]:
    handler, logger = Log(), logging.getLogger("rlsched.node")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def check(
    nvml: ctypes.CDLL,
    function: str,
    code: int,
    times: int,
    *,
    at_start: bool,
    directory: Path,
    log: Log,
) -> None:
    """One call fails on the second of two GPUs; the loss is at most this GPU or this reading."""
    name = str(pynvml.NVMLError(code))
    of_a_gpu = function in OF_A_GPU
    log.lines.clear()
    nvml.fake_reset()
    if at_start:
        nvml.fake_fail(function.encode(), 1 if of_a_gpu else -1, code, times)
    node, refusal = None, ""
    try:
        node = start(nvml, directory)
    except InputError as error:
        refusal = str(error)
    if node is None:
        assert not of_a_gpu, refusal
        assert times == FOR_EVER or code in NEVER
        assert name in refusal
        return
    if not at_start:
        nvml.fake_fail(function.encode(), 1 if of_a_gpu else -1, code, times)
    read_times(nvml, node, 1)
    gives = use(node, 1)
    assert gives or (node.held and node.held[0].gpus == [1])
    assert use(node, 0), "the other GPU serves"
    read_times(nvml, node, BACK_AFTER_LOOKS)
    assert [gpu for one in node.held for gpu in one.gpus] in ([], [1])
    assert node.meter.all_lost == []
    assert node.clocks_mhz or code in NEVER
    if of_a_gpu:
        assert missing(nvml, node, 0) == set()
        assert node.locks.lock([0], 1980).note == ""
    if times != FOR_EVER:
        assert node.held == [], "it serves again"
        assert use(node, 1)
        assert not missing(nvml, node, 1) or (at_start and code in NEVER)
        assert node.meter.power_w is not None or (at_start and code in NEVER)
    elif node.held:
        assert name in node.held[0].by
        assert not use(node, 1)
    elif of_a_gpu and code not in NEVER and missing(nvml, node, 1):
        assert any("GPU 1" in line and name in line for line in log.lines)
    nvml.fake_fail(b"nvmlShutdown", -1, code if function == "nvmlShutdown" else 0, 1)
    node.gpus.close()


def check_all(codes: list[int], function: str, nvml: ctypes.CDLL, directory: Path, log: Log) -> None:
    for code in codes:
        for times in (1, FOR_EVER):
            for at_start in (True, False):
                try:
                    check(nvml, function, code, times, at_start=at_start, directory=directory, log=log)
                except BaseException as error:
                    often = "once" if times == 1 else "for ever"
                    when = "at the start" if at_start else "while it runs"
                    error.add_note(f"{function} fails with {pynvml.NVMLError(code)}, {often}, {when}")
                    raise


@pytest.mark.parametrize("function", FUNCTIONS)
def test_failed_call_loses_only_its_gpu_or_its_reading(
    function: str, nvml: ctypes.CDLL, tmp_path: Path, log: Log
) -> None:
    check_all([CODES[name] for name in USUAL], function, nvml, tmp_path, log)


@pytest.mark.soak
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_error_of_nvml_is_handled(function: str, nvml: ctypes.CDLL, tmp_path: Path, log: Log) -> None:
    check_all(sorted(set(CODES.values())), function, nvml, tmp_path, log)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_daemon_starts_with_a_failed_gpu(
    function: str, nvml: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real daemon, whose first message names the failed GPU."""
    monkeypatch.setattr(Meter, "start", lambda _: None)
    home = KeyHome(tmp_path)
    for code in (CODES["GPU_IS_LOST"], CODES["UNKNOWN"]) if function in OF_A_GPU else ():
        nvml.fake_reset()
        nvml.fake_fail(function.encode(), 1, code, FOR_EVER)
        gpus = open_gpus(None, is_simulated=False, node="n0")
        config = NodeConfig(
            name="n0",
            broker="tcp://127.0.0.1:1",
            directory=tmp_path / "n0",
            gpu_type=type_of(gpus),
            min_free_mib=0,
            allow_root=True,
            host="n0",
        )
        daemon = NodeDaemon(config, gpus, home.node("n0"), home.broker().public)
        try:
            hello, outages = daemon._hello(), daemon._usage.gpus.outages
            assert (hello.gpus, hello.gpu_uuids[0], hello.gpu_type) == (2, "GPU-fake-0", "Fake H200")
            assert (hello.capabilities.gpu_memory_mib, bool(hello.sm_clocks_mhz)) == (1000, True)
            assert [one.gpus for one in outages.holdings] in ([], [[1]])
            assert daemon._health.news() == ""
        finally:
            daemon._close()


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_doctor_names_failed_calls(function: str, times: int, nvml: ctypes.CDLL) -> None:
    for code in sorted(set(CODES.values())):
        nvml.fake_reset()
        nvml.fake_fail(function.encode(), 1 if function in OF_A_GPU else -1, code, times)
        first, *more = doctor._looked_at("GPUs", doctor._gpus)
        name = str(pynvml.NVMLError(code))
        assert first.what == "GPUs"
        assert [one.what for one in more] in ([], ["clocks"])
        if first.state != "ok":
            assert name in first.line
            assert function not in OF_A_GPU or f"GPU 1 does not answer ({name})" in first.line
        assert nvml.fake_open_count() in (0, 1 if function == "nvmlShutdown" else 0)
