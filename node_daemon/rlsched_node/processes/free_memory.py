"""The memory that jobs can get on a GPU if other processes, such as a display, use the GPU too.

The broker places jobs by this memory and journals each change, so small changes are not reported.
"""

from __future__ import annotations

STEP_MIB, STEP_FRAC = 256, 1 / 64
"""Smallest change of free memory that is reported: in MiB, and as a fraction of the GPU's memory. The larger
value applies. A smaller change is reported if a job that was refused would fit now."""
LOOKS = 3
"""A change is reported only after this number of consecutive checks have found it. When a process ends, the
driver frees its memory some seconds later."""


class FreeMemory:
    """Memory that jobs can get on each GPU, as last reported to the broker. Not thread-safe."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}
        self._asked: dict[int, int] = {}  # by GPU, least request above `_told` that was refused, MiB
        self._looks: dict[int, int] = {}  # by GPU, consecutive checks that found a change

    @property
    def usable_mib(self) -> dict[int, int]:
        """By GPU: memory that jobs can get, MiB. GPUs that are not included have no limit."""
        return dict(sorted(self._told.items()))

    def is_refused(self, gpu: int, free_mib: int, asked_mib: int) -> None:
        """Record that a job was refused, because it requests more than the free memory of a GPU."""
        before_mib = self._asked.get(gpu, asked_mib)
        self._asked[gpu] = min(asked_mib, before_mib) if before_mib > free_mib else asked_mib
        self._told[gpu], self._looks[gpu] = free_mib, 0

    def is_read(self, gpu: int, free_mib: int, total_mib: int, *, is_busy: bool = False) -> None:
        """Record a reading of a GPU.

        Args:
            gpu: Index of the GPU.
            free_mib: Memory that processes outside the ranks do not use, MiB.
            total_mib: Memory of the GPU, MiB.
            is_busy: Whether ranks use the GPU. `free_mib` is then a lower bound, because the driver may not
                list the processes of a container.
        """
        if is_busy and free_mib <= self._told.get(gpu, total_mib):
            self._looks[gpu] = 0
            return
        step_mib = max(STEP_MIB, total_mib * STEP_FRAC)
        is_enough = free_mib >= self._asked.get(gpu, total_mib + 1)
        has_changed = abs(free_mib - self._told.get(gpu, total_mib)) >= step_mib or is_enough
        self._looks[gpu] = self._looks.get(gpu, 0) + 1 if has_changed else 0
        if self._looks[gpu] < LOOKS:
            return
        self._looks[gpu], self._told[gpu] = 0, free_mib
        if is_enough:
            del self._asked[gpu]
        if total_mib - free_mib < step_mib and gpu not in self._asked:
            del self._told[gpu]
