"""The tests of `tests/gpu` without a GPU: skipped with a reason; the tests of jobs on fake libraries.

The fake libraries list processes with a context and the memory that they hold. Memory in use and GPU time are
sums over these processes; power, energy and counters are constants. The tests of energy and of counters need
a real GPU. The tests of MPS use a fake control program.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlsched_node.processes.mps_commands import PROGRAM
from tests.support import fake_mps

TESTS = Path(__file__).parents[1]
ON_FAKES = "not test_mps and (nvidia_smi or keeps_the_gpu_busy or told_apart or test_jobs)"
KILLED_CLIENT = "killed_client"
"""The GPU test that runs with each effect of a killed client, among them the one without `mode`."""
TOTAL_MIB = 4000
"""Memory of a GPU of the fake libraries, enough for the loads of all tests."""
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake libraries")
SMI = """#!/bin/sh
# Stands for nvidia-smi: the constants of the fake NVML, and the memory of the listed processes.
case "$1" in
  --query-gpu=uuid,name,memory.total) printf 'GPU-fake-0, Fake H200, 4000\nGPU-fake-1, Fake H200, 4000\n' ;;
  --query-gpu=power.draw,memory.used,memory.reserved,utilization.gpu,clocks.sm,temperature.gpu)
    used=$(awk '{ mib += $3 } END { print 200 + mib }' "$FAKE_NVML_PROCESSES")
    printf "301.50, $used, 50, 100, 1980, 61\n%.0s" 1 2 ;;
  *) exit 1 ;;
esac
"""


def run(*options: str, env: dict[str, str]) -> str:
    """Output of pytest on the GPU tests."""
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-rs", *options)
    done = subprocess.run(
        [*words, str(TESTS / "gpu")],
        cwd=TESTS.parent,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_every_test_is_skipped_with_a_reason_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    output = run(env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert re.search(r"(?m)\d+ skipped in", output), output
    assert "passed" not in output, output
    assert "gpu: no NVIDIA GPU here" in output


@pytest.fixture
def fakes(tmp_path: Path) -> dict[str, str]:
    """Environment in which NVML and CUDA are the fake libraries."""
    for library, source in (("libnvidia-ml.so.1", "fake_nvml.c"), ("libcuda.so.1", "fake_cuda.c")):
        words = ("gcc", "-shared", "-fPIC", "-o", str(tmp_path / library), str(TESTS / "support" / source))
        subprocess.run(words, check=True)
    processes, clients = tmp_path / "processes", tmp_path / "clients"
    for path in (processes, clients):
        path.touch()
    (tmp_path / "bin").mkdir()
    return {
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NVML_PROCESSES": str(processes),
        "FAKE_NVML_MPS_PROCESSES": str(clients),
        "FAKE_NVML_MEMORY_MIB": str(TOTAL_MIB),
        "FAKE_NVML_SUMS": "1",
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }


@pytest.mark.slow
@needs_gcc
def test_readings_and_jobs_on_fake_libraries(fakes: dict[str, str], tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    output = run("-k", ON_FAKES, env=fakes)
    assert re.search(r"(?m)^=* ?10 passed", output), output


@pytest.mark.slow
@needs_gcc
def test_jobs_under_mps_on_fake_libraries(fakes: dict[str, str], tmp_path: Path) -> None:
    fake_mps.install(tmp_path / "bin")
    output = run("-k", f"test_mps and not {KILLED_CLIENT}", env=fakes)
    assert re.search(r"(?m)^=* ?7 passed", output), output


@pytest.mark.slow
@needs_gcc
@pytest.mark.parametrize(
    ("mode", "neighbour", "killed"),
    [
        ("", "", ""),
        pytest.param("fault", "mps_neighbour_fault", "", marks=pytest.mark.soak),
        ("crash", "mps_fault", "mps_fault"),
    ],
)
def test_killed_client_of_mps_on_fake_libraries(
    fakes: dict[str, str], tmp_path: Path, mode: str, neighbour: str, killed: str
) -> None:
    """The GPU test passes with each effect that a killed client may have."""
    fake_mps.install(tmp_path / "bin").write_text(mode)
    output = run("-k", KILLED_CLIENT, "-rP", env=fakes)
    assert re.search(r"(?m)^=* ?1 passed", output), output
    shown = [f"[('{reason}', False)]" if reason else "[]" for reason in (neighbour, killed)]
    assert f"ended by the fault: {{1: {shown[0]}, 2: {shown[1]}}}" in output, output


@pytest.mark.slow
@needs_gcc
def test_tests_of_mps_are_skipped_with_a_reason_without_its_control_program(
    fakes: dict[str, str], tmp_path: Path
) -> None:
    output = run("-k", "test_mps", env=fakes | {"PATH": str(tmp_path / "bin")})
    assert re.search(r"(?m)^=* ?8 skipped", output), output
    assert f"gpu: {PROGRAM} is not installed" in output
