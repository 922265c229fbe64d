"""The models of GPU types as arrays, and what a node draws beside its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rlsched.models.arrays import GPU_MODEL, Records
from rlsched.models.gpu_types import (
    GPU_FIGURES,
    NAME_TOLERANCE,
    canonical_kind,
    levels_frac,
    named_memory_mib,
)
from rlsched.models.mig import slice_of


def gpu_models(kinds: Sequence[str]) -> Records:
    """The models of GPU types, one row a name, in the order of the names.

    Args:
        kinds: Names of GPU types as a cluster description or a trace has them (see `canonical_kind`). A size
            of memory in a name counts where it is not that of the table.

    A MIG slice (`A100-40GB/3g.20gb`) has its part of the GPU's idle and static power, by memory, and of what
    the board's limit leaves above it, by multiprocessors; together slices never exceed the GPU's limit. It
    has the full clock alone: the GPU has one clock for all its slices.

    Returns:
        (K,) GPU_MODEL.
    """
    out = np.zeros(len(kinds), GPU_MODEL)
    for row, name in zip(out, kinds, strict=True):
        kind = canonical_kind(name)
        for field, figure in GPU_FIGURES[kind].items():
            row[field] = figure.value
        row["levels_frac"] = levels_frac(kind)
        row["cap_w"], row["usual_speed"] = row["tdp_w"], 1.0  # until a catalogue says how fast jobs are on it
        named_mib = named_memory_mib(name)
        if named_mib and abs(row["memory_mib"] / named_mib - 1.0) > NAME_TOLERANCE:
            row["memory_mib"] = named_mib
        cut = slice_of(name)
        if cut is not None:
            room_w = (row["tdp_w"] - row["static_w"]) * cut.compute_frac
            for field in ("static_w", "idle_w"):
                row[field] *= cut.memory_frac
            row["tdp_w"] = row["static_w"] + room_w
            row["memory_mib"], row["levels_frac"], row["sliced"] = cut.profile.memory_mib, 1.0, 1
    return out.view(np.recarray)


class NodePower(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Power of a node beside its GPUs, and what it takes to put it to sleep.

    An idle node with eight V100 and 40 cores draws 8 x 41 + 300 + 40 x 2 = 708 W by these values: an idle
    8-GPU node draws 0.6 to 0.8 kW (Helios, SC'21: 0.8 kW for a DGX-1; recalled). Cooling and the loss of
    power supplies are not counted.

    Attributes:
        base_w: Board, memory, disks, fans and network, as long as the node is on (assumed).
        cpu_idle_w_per_core: Of an idle core (assumed).
        cpu_active_w_per_core: Of a busy core, in place of the idle one's (data sheet: Xeon E5-2698 v4 of the
            DGX-1, 135 W for 20 cores).
        unknown_cpus_per_gpu: Cores a GPU where a cluster description has none (DGX-1: 40 for 8).
        asleep_w: Of a node that sleeps: its management controller (assumed).
        boot_s: From the decision until jobs can start (assumed: between 5 and 10 minutes).
        boot_w: While it boots; None: what the idle node draws (assumed).
        shutdown_s: From the decision until it sleeps, at the power of the idle node (assumed).
    """

    base_w: float = 300.0
    cpu_idle_w_per_core: float = 2.0
    cpu_active_w_per_core: float = 6.75
    unknown_cpus_per_gpu: int = 5
    asleep_w: float = 10.0
    boot_s: float = 450.0
    boot_w: float | None = None
    shutdown_s: float = 60.0

    def cores(self, cpus: int, gpus: int) -> int:
        """Cores that count for power: those of the description, or as many as are usual for its GPUs."""
        return cpus or self.unknown_cpus_per_gpu * gpus

    @property
    def busy_core_w(self) -> float:
        """What a job adds to its node's power with each core that it keeps busy, W."""
        return self.cpu_active_w_per_core - self.cpu_idle_w_per_core

    def idle_w(self, cpus: int, gpus: int, gpu_idle_w: float) -> float:
        """A node that is on and does nothing, W, its GPUs included.

        Args:
            cpus: Cores of the node, 0 where unknown.
            gpus: GPUs of the node.
            gpu_idle_w: Of one idle GPU.
        """
        cores = self.cores(cpus, gpus)
        return self.base_w + cores * self.cpu_idle_w_per_core + gpus * gpu_idle_w

    def booting_w(self, cpus: int, gpus: int, gpu_idle_w: float) -> float:
        """The node while it boots, W."""
        return self.idle_w(cpus, gpus, gpu_idle_w) if self.boot_w is None else self.boot_w
