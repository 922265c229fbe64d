"""Samples one GPU repeatedly in the background. It only reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rlsched_node.gpu.device import GpuSet
from studies.gpu.protocol import Sample

EVERY_S = 0.2


class Meter:
    """Samples of one GPU, from the start of a `with` block to its end.

    Args:
        gpus: The node's GPUs, real or simulated.
        gpu: Number of the GPU.
        clock: Monotonic seconds, the children's clock.

    Attributes:
        samples: All samples, in order of time.
    """

    def __init__(
        self,
        gpus: GpuSet,
        gpu: int,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.samples: list[Sample] = []
        self._gpus = gpus
        self._gpu = gpu
        self._every_s = every_s
        self._clock = clock
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: Exception | None = None

    def look(self) -> Sample:
        """Take one sample.

        Raises:
            GpuError: The driver refuses, or the GPU is lost.
        """
        processes = self._gpus.foreign_processes(self._gpu, lambda _pid: False) or []
        return Sample(
            at_s=self._clock(),
            energy_j=self._gpus.energy_j(self._gpu),
            power_w=self._gpus.power_w(self._gpu),
            utilisation_frac=self._gpus.utilisation_frac(self._gpu),
            used_mib=self._gpus.memory_used_mib(self._gpu),
            process_mib={found.pid: found.used_mib for found in processes if found.used_mib is not None},
        )

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.samples.append(self.look())
                self._is_over.wait(self._every_s)
            self.samples.append(self.look())
        except Exception as error:  # raised again at the end of the block
            self._error = error
