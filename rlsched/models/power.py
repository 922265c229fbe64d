"""Models of GPU types as arrays, and `NodePower`: the power of a node except its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from rlsched.models.arrays import GPU_MODEL, Records
from rlsched.models.at_clock import board_w, dynamic_w, relative_voltage
from rlsched.models.gpu_types import (
    GPU_FIGURES,
    NAME_TOLERANCE,
    canonical_kind,
    levels_frac,
    named_memory_mib,
)
from rlsched.models.mig import slice_of


def gpu_models(kinds: Sequence[str]) -> Records:
    """Return the models of GPU types, one row per name, in the order of the names.

    A MIG slice (`A100-40GB/3g.20gb`) gets a part of the GPU's idle and static power, in proportion to its
    memory slices. The range from static power to the limit is divided in proportion to compute slices. A
    slice has only the full clock, because the GPU has one clock for all its slices.

    Args:
        kinds: Names of GPU types as in a cluster description or a trace (see `canonical_kind`). A memory size
            in a name is used if it differs from the table's.

    Returns:
        (K,) GPU_MODEL.
    """
    out = np.zeros(len(kinds), GPU_MODEL)
    for row, name in zip(out, kinds, strict=True):
        kind = canonical_kind(name)
        for field, figure in GPU_FIGURES[kind].items():
            row[field] = figure.value
        row["levels_frac"] = levels_frac(kind)
        row["cap_w"], row["usual_speed"] = row["tdp_w"], 1.0  # until a catalogue provides speeds on this type
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


def power_at_clock(gpu_type: str, dynamic_full_w: float, time: float, x: float) -> float:
    """Return the power of a GPU with one job at a lower clock, W.

    Args:
        gpu_type: Any name of the GPU's type.
        dynamic_full_w: Power that the job adds to the static power at full clock, W.
        time: T(x), run time relative to full clock.
        x: SM clock, fraction of the maximum.
    """
    known = {name: figure.value for name, figure in GPU_FIGURES[canonical_kind(gpu_type)].items()}
    voltage = relative_voltage(known["knee_frac"], known["voltage_slope"], x)
    added_w = dynamic_w(dynamic_full_w, known["theta"], time, voltage, x, 1.0)
    return board_w(known["static_w"], known["idle_w"], known["tdp_w"], 1, added_w)


class NodePower(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Power of a node except its GPUs, and the cost of powering the node down.

    By these values, an idle node with eight V100 and 40 cores draws 8 x 41 + 300 + 40 x 2 = 708 W; a DGX-1 of
    Helios draws 800 W (SC'21; unverified). Cooling and the loss of power supplies are not counted.

    Attributes:
        base_w: Power of board, memory, disks, fans and network while the node is on (assumed).
        cpu_idle_w_per_core: Power of an idle core (assumed).
        cpu_active_w_per_core: Power of a busy core, idle power included (data sheet: Xeon
            E5-2698 v4 of the DGX-1, 135 W for 20 cores).
        unknown_cpus_per_gpu: Cores per GPU if a cluster description has none (DGX-1: 40 for 8).
        asleep_w: Power of a node that is powered down: its management controller (assumed).
        boot_s: Time from the decision until jobs can start (assumed: between 5 and 10 minutes).
        boot_w: Power during boot; None: the power of the idle node (assumed).
        shutdown_s: Time from the decision until the node is off, at the power of the idle node (assumed).
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
        """Return the number of cores that draw power: `cpus`, or, if 0, the usual number for these GPUs."""
        return cpus or self.unknown_cpus_per_gpu * gpus

    @property
    def busy_core_w(self) -> float:
        """Additional power of the node for each core that a job keeps busy, W."""
        return self.cpu_active_w_per_core - self.cpu_idle_w_per_core

    def idle_w(self, cpus: int, gpus: int, gpu_idle_w: float) -> float:
        """Return the power of a node that is on and idle, W, including its GPUs.

        Args:
            cpus: Cores of the node, 0 if unknown.
            gpus: GPUs of the node.
            gpu_idle_w: Power of one idle GPU, W.
        """
        cores = self.cores(cpus, gpus)
        return self.base_w + cores * self.cpu_idle_w_per_core + gpus * gpu_idle_w

    def booting_w(self, cpus: int, gpus: int, gpu_idle_w: float) -> float:
        """Return the power of the node during boot, W, including its GPUs."""
        return self.idle_w(cpus, gpus, gpu_idle_w) if self.boot_w is None else self.boot_w
