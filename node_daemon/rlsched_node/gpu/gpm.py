"""GPU performance monitoring (GPM): counters of Hopper and newer that NVML reads without a daemon or root.

A metric is the difference of two samples. Beside a DCGM exporter that reads the same counters, both perturb
each other: `rlsched node --no-gpm`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml

LEAST_S = 0.1
"""Two samples that are closer give no metrics, by NVML's documentation."""


class GpmReading(NamedTuple):
    """Between two samples; None where this GPU does not count that."""

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
    """Whether a GPU has the counters.

    Raises:
        pynvml.NVMLError: the driver knows no such question, or the GPU is lost.
    """
    return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)


class Gpm:
    """The counters of one GPU: two samples, filled in turn."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._samples: list[Any] = []
        self._at_s = -LEAST_S
        self._asked = pynvml.c_nvmlGpmMetricsGet_t()

    def read(self, now_s: float) -> GpmReading:
        """What was counted since the call before; nothing at the first call, and where that was just now.

        Raises:
            pynvml.NVMLError: the GPU is lost, or somebody else has the counters.
        """
        if now_s - self._at_s < LEAST_S and self._samples:
            return GpmReading()
        is_first = not self._samples
        while len(self._samples) < 2:
            self._samples.append(pynvml.nvmlGpmSampleAlloc())
        before, after = self._samples
        pynvml.nvmlGpmSampleGet(self._handle, after)
        self._samples, self._at_s = [after, before], now_s
        if is_first:
            return GpmReading()
        asked = self._asked
        asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        asked.sample1, asked.sample2 = before, after
        for at, metric in enumerate(_METRICS):
            asked.metrics[at].metricId = metric
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
        """Give the samples back."""
        while self._samples:
            pynvml.nvmlGpmSampleFree(self._samples.pop())


def _share(percent: float | None) -> float | None:
    return None if percent is None or percent != percent else min(max(percent / 100.0, 0.0), 1.0)
