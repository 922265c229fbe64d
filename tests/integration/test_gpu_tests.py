"""The tests of `tests/gpu` without a GPU: skipped with a reason; the tests of jobs on fake libraries.

The fake libraries list processes with a context, but their memory and work are constants. The remaining
tests need a real GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ON_FAKES = "nvidia_smi or two_jobs_share or out_of_gpu_memory or next_daemon_adopts"
SMI = """#!/bin/sh
# Stands for nvidia-smi: the constants of the fake NVML.
case "$1" in
  --query-gpu=uuid,name,memory.total) printf 'GPU-fake-0, Fake H200, 1000\nGPU-fake-1, Fake H200, 1000\n' ;;
  --query-gpu=power.draw,memory.used,memory.reserved,utilization.gpu,clocks.sm,temperature.gpu)
    printf '301.50, 200, 50, 42, 1980, 61\n%.0s' 1 2 ;;
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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake libraries")
def test_readings_and_jobs_on_fake_libraries(tmp_path: Path) -> None:
    for library, source in (("libnvidia-ml.so.1", "fake_nvml.c"), ("libcuda.so.1", "fake_cuda.c")):
        words = ("gcc", "-shared", "-fPIC", "-o", str(tmp_path / library), str(TESTS / "support" / source))
        subprocess.run(words, check=True)
    processes = tmp_path / "processes"
    processes.touch()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    env = {
        "LD_LIBRARY_PATH": str(tmp_path),
        "FAKE_NVML_PROCESSES": str(processes),
        "PATH": f"{smi.parent}:{os.environ['PATH']}",
    }
    output = run("-k", ON_FAKES, env=env)
    assert re.search(r"(?m)^=* ?5 passed", output), output
