"""MIG instances that a node offers as GPUs: their selection, their type names, their parts of the energy.

A board is a physical GPU, which contains the instances. A node offers GPUs of one type: whole GPUs, or the
instances of one profile.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlsched.errors import InputError
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind


class Unit(NamedTuple):
    """A GPU or a MIG instance.

    Attributes:
        board: NVML index of the GPU, or of the GPU that contains the instance.
        uuid: UUID of the instance; "": the whole GPU.
        profile: NVML's profile of the instance, such as `1g.10gb`; "": the whole GPU.
        has_mig: The GPU is in MIG mode; None: unknown.
    """

    board: int
    uuid: str = ""
    profile: str = ""
    has_mig: bool | None = None


class Selection(NamedTuple):
    """The GPUs or MIG instances (units) that a node offers.

    Attributes:
        units: The units, in the order of their GPU indices on the node.
        profile: Profile of the units; "": whole GPUs.
        note: Text that lists the GPUs and instances that the node does not offer; "": the node offers all.
    """

    units: list[Unit]
    profile: str
    note: str


def profile_of(name: str) -> str:
    """Return the profile, such as `1g.5gb`, from NVML's name: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.

    Attributes of the profile (`1g.5gb+me`: media engines) are left out. The prefix of a compute instance with
    only a part of its GPU instance (`1c.2g.10gb`) stays; `slice_name` rejects it.
    """
    return name.rpartition(" MIG ")[2].partition("+")[0]


def select(found: Sequence[Unit], wanted: str) -> Selection:
    """Select the GPUs or MIG instances (units) that a node offers.

    Without a wanted profile, the node offers whole GPUs if any GPU is outside MIG mode, else the instances of
    the most frequent profile. A GPU in MIG mode without instances, or one that does not answer, is always
    selected, and shown as out of service.

    Args:
        found: All GPUs and instances of the machine.
        wanted: Profile in `--gpu-type`; "": the option names no profile.

    Raises:
        InputError: no instance has the wanted profile.
    """
    counts = Counter(unit.profile for unit in found if re.fullmatch(r"\d+g\.\d+gb", unit.profile))
    if wanted and wanted not in counts:
        there = ", ".join(sorted(counts)) or "none"
        raise InputError(
            f"--gpu-type: no MIG instance of this machine has the profile {wanted}; profiles of its "
            f"instances: {there}; create instances with nvidia-smi mig -cgi, or name a profile of the list"
        )
    is_whole = any(not unit.uuid and unit.has_mig is False for unit in found)
    usual = "" if is_whole else min(counts, key=lambda one: (-counts[one], one), default="")
    profile = wanted or usual
    units, others = [], Counter[str]()
    for unit in found:
        if unit.profile == profile or (not unit.uuid and unit.has_mig is not False):
            units.append(unit)
        else:
            others[f"MIG {unit.profile}" if unit.uuid else "whole GPU"] += 1
    left_out = ", ".join(f"{count} x {what}" for what, count in sorted(others.items()))
    note = f"not offered, because a node has one GPU type (--gpu-type): {left_out}" if left_out else ""
    return Selection(units, profile, note)


class BoardParts:
    """Divides a board's power and energy among its MIG instances. The parts add up to the whole.

    NVML measures only the whole board. As in `rlsched.models.power`, static power is divided among the
    instances by their memory, and the remaining power among the instances with processes by their compute
    slices. This division is an assumption: no data on the power of instances is public.

    Args:
        instances: All instances of the board, including instances that the node does not offer.
        gpu_type: Name of the board's GPU type, in any spelling that `canonical_kind` accepts.
    """

    def __init__(self, instances: Sequence[Unit], gpu_type: str) -> None:
        sizes = {unit.uuid: _size(unit.profile) for unit in instances}
        self._compute = {uuid: compute for uuid, (compute, _) in sizes.items()}
        self._memory_frac = _fractions({uuid: memory for uuid, (_, memory) in sizes.items()})
        self._static_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value
        self._is_busy = dict.fromkeys(sizes, True)
        self._joules = dict.fromkeys(sizes, 0.0)
        self._counter_j: float | None = None

    def note_processes(self, uuid: str, is_busy: bool) -> None:
        """Set whether an instance has processes. Before the first call, the instance counts as busy."""
        self._is_busy[uuid] = is_busy

    def power_w(self, uuid: str, board_w: float) -> float:
        """Return the power of an instance, W: its part of `board_w`, the power of its board, W."""
        return board_w * self._fractions(board_w)[uuid]

    def energy_j(self, uuid: str, counter_j: float, board_w: float | None) -> float:
        """Return an instance's energy since this daemon began to read the board, J.

        Args:
            uuid: UUID of the instance.
            counter_j: The board's energy counter, J.
            board_w: The board's power, W; None: unknown, so all power counts as static.
        """
        before_j, self._counter_j = self._counter_j, counter_j
        drawn_j = 0.0 if before_j is None else counter_j - before_j
        if drawn_j > 0.0:  # else no time has passed, or the driver was reloaded
            for one, part in self._fractions(board_w or 0.0).items():
                self._joules[one] += drawn_j * part
        return self._joules[uuid]

    def _fractions(self, board_w: float) -> Mapping[str, float]:
        busy = {uuid: self._compute[uuid] for uuid, is_busy in self._is_busy.items() if is_busy}
        dynamic = _fractions(busy)
        static = min(self._static_w / board_w, 1.0) if board_w > 0.0 and busy else 1.0
        return {
            uuid: static * memory + (1.0 - static) * dynamic.get(uuid, 0.0)
            for uuid, memory in self._memory_frac.items()
        }


def _size(profile: str) -> tuple[float, float]:
    """Return (number of compute slices, memory in GB) of a profile."""
    compute, memory = re.search(r"(\d+)g", profile), re.search(r"(\d+)gb", profile)
    return float(compute[1]) if compute else 1.0, float(memory[1]) if memory else 1.0


def _fractions(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}
