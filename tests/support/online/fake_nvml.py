"""The fake NVML (`tests/support/fake_nvml.c`) for one node, whose jobs list their processes on its GPUs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).parents[1] / "fake_nvml.c"
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fake NVML")
LIST_ITSELF: Final = (
    'for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , " "); do '
    'echo "${gpu##*-} $$ $FAKE_MIB $FAKE_PERCENT" >> "$FAKE_NVML_PROCESSES"; done'
)
"""Shell code by which a job lists its shell as a process on each of its GPUs; `of_job` sets its variables."""


class FakeNvml:
    """The compiled library, and the files by which a test determines its answers.

    Memory in use and utilisation of a GPU are the sums over its listed processes; 250 MiB are always in use.

    Args:
        directory: Folder for all files.
        gpus: Number of GPUs.
        memory_mib: Memory of each GPU, MiB.

    Attributes:
        processes: Compute processes, a line `GPU PID MIB PERCENT` each.
        graphics: Graphics processes, a line `GPU PID MIB` each.
        failing: Calls that fail, a line `FUNCTION GPU CODE` each.
        clocks: Calls that set clocks, a line `WHAT GPU LOWEST HIGHEST` each.
    """

    def __init__(self, directory: Path, *, gpus: int = 2, memory_mib: int = 1000) -> None:
        self._directory, self._memory_mib = directory, memory_mib
        library = directory / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", f"-DGPUS={gpus}", "-o", library, SOURCE], check=True)
        self.processes, self.graphics = directory / "processes", directory / "graphics"
        self.failing, self.clocks = directory / "failing", directory / "clocks"
        for path in (self.processes, self.graphics):
            path.touch()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that uses the library."""
        return {
            "LD_LIBRARY_PATH": str(self._directory),
            "FAKE_NVML_SUMS": "1",
            "FAKE_NVML_MEMORY_MIB": str(self._memory_mib),
            "FAKE_NVML_PROCESSES": str(self.processes),
            "FAKE_NVML_GRAPHICS_PROCESSES": str(self.graphics),
            "FAKE_NVML_FAIL": str(self.failing),
            "FAKE_NVML_CLOCKS": str(self.clocks),
        }

    def command(self, words: Sequence[str], **more: str) -> list[str]:
        """A command that uses the library, with further variables."""
        variables = self.environment | more
        return ["env", *(f"{name}={value}" for name, value in variables.items()), *words]

    def of_job(self, mib: int, percent: int) -> dict[str, str]:
        """Variables of a job that runs `LIST_ITSELF`.

        Args:
            mib: Memory of its process on each GPU, MiB.
            percent: Part of the GPU's time that it uses.
        """
        return {
            "FAKE_NVML_PROCESSES": str(self.processes),
            "FAKE_MIB": str(mib),
            "FAKE_PERCENT": str(percent),
        }
