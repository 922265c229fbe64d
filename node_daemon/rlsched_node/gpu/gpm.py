"""GPU performance monitoring (GPM): counters that NVML reads without a daemon or root (Hopper or newer GPUs).

A metric is the difference of two samples. With a DCGM exporter that reads the same counters, use `rlsched
node --no-gpm`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pynvml

from rlsched_node.gpu.device import GpuError

_NEVER = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
LEAST_S = 0.1
"""Minimum time between two samples, seconds (NVML's documentation)."""


class GpmReading(NamedTuple):
    """Means of metrics over the time between two samples. A metric that this GPU does not count is None."""

    sm_active_frac: float | None = None
    sm_occupancy_frac: float | None = None
    tensor_frac: float | None = None
    dram_frac: float | None = None
    pcie_mib_s: float | None = None


_METRICS = (
    pynvml.NVML_GPM_METRIC_SM_UTIL,
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
)


def is_supported(handle: Any) -> bool:
    """Return whether a GPU has the counters.

    Raises:
        pynvml.NVMLError: the driver does not have the call, or the GPU is lost.
    """
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


class Gpm:
    """The counters of one GPU or MIG instance, read alternately into two samples.

    Args:
        handle: Function that returns NVML's handle of the GPU; for an instance, the handle of the GPU that
            contains it.
        gpu_instance_id: Function that returns the ID of the instance on its GPU; None: the whole GPU.
    """

    def __init__(self, handle: Callable[[], Any], gpu_instance_id: Callable[[], int] | None = None) -> None:
        self._handle, self._gpu_instance_id = handle, gpu_instance_id
        self._samples: list[Any] = []
        self._at_s: float | None = None
        self._asked = pynvml.c_nvmlGpmMetricsGet_t()

    def read(self, now_s: float) -> GpmReading:
        """Return the metrics since the previous call.

        All metrics are None at the first call, and if the previous call was less than `LEAST_S` ago.

        Raises:
            pynvml.NVMLError: the GPU is lost, or another program uses the counters.
            GpuError: an NVML call failed that concerns no single GPU, or the instance was removed.
        """
        is_first = self._at_s is None
        if self._at_s is not None and now_s - self._at_s < LEAST_S:
            return GpmReading()
        with _of_no_gpu():
            while len(self._samples) < 2:
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
        before, after = self._samples
        if self._gpu_instance_id is None:
            pynvml.nvmlGpmSampleGet(self._handle(), after)
        else:
            pynvml.nvmlGpmMigSampleGet(self._handle(), self._gpu_instance_id(), after)
        self._samples, self._at_s = [after, before], now_s
        if is_first:
            return GpmReading()
        asked = self._asked
        asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        asked.sample1, asked.sample2 = before, after
        for at, metric in enumerate(_METRICS):
            asked.metrics[at].metricId = metric
        with _of_no_gpu():
            pynvml.nvmlGpmMetricsGet(asked)
        sm, occupancy, tensor, dram, sent, received = (
            None if asked.metrics[at].nvmlReturn else float(asked.metrics[at].value)
            for at in range(len(_METRICS))
        )
        return GpmReading(
            _share(sm),
            _share(occupancy),
            _share(tensor),
            _share(dram),
            None if sent is None or received is None else sent + received,
        )

    def close(self) -> None:
        """Free the samples."""
        while self._samples:
            pynvml.nvmlGpmSampleFree(self._samples.pop())


@contextlib.contextmanager
def _of_no_gpu() -> Iterator[None]:
    """Turn an NVML error in the `with` block into a GpuError. For NVML calls that concern no single GPU.

    An error of such a call does not show that a GPU is lost. Errors in `_NEVER` are raised unchanged: they
    show that the counters cannot be used at all.
    """
    try:
        yield
    except pynvml.NVMLError as error:
        if error.value in _NEVER:
            raise
        raise GpuError(f"NVML, GPM counters: {error}") from error


def _share(percent: float | None) -> float | None:
    return None if percent is None or percent != percent else min(max(percent / 100.0, 0.0), 1.0)
