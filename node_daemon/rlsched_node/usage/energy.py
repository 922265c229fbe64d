"""Energy of a GPU between two readings, and each rank's part. The parts add up to the energy of the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlsched.models.at_clock import part_w
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind

MOST_W = 5_000.0
"""Maximum plausible power of a board, W. A counter that implies more is not used."""


class Board:
    """The energy of one GPU.

    Attributes:
        at_s: Time of the last reading, monotonic seconds; None: never read.
        counter_j: Energy counter at the last reading, J; None if the GPU has no counter.
        power_w: Power at the last reading, W; None if the GPU does not report it.
        claimed_j: Estimated energy that is attributed to ended ranks, and not yet deducted from a reading, J.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None
        self.counter_j: float | None = None
        self.power_w: float | None = None
        self.claimed_j = 0.0

    def drawn_j(self, now_s: float, counter_j: float | None, power_w: float | None) -> float | None:
        """Return the GPU's energy since the previous reading, J; None at the first reading, or if unknown.

        The energy is the increase of the energy counter. If the increase is missing or implausible, it is the
        mean power of both readings, multiplied by the time between them.
        """
        before_s, before_j, before_w = self.at_s, self.counter_j, self.power_w
        self.at_s, self.counter_j, self.power_w = now_s, counter_j, power_w
        if before_s is None:
            return None
        lasted_s = now_s - before_s
        if counter_j is not None and before_j is not None:
            drawn_j = counter_j - before_j
            if 0.0 <= drawn_j <= MOST_W * max(lasted_s, 1.0):
                return drawn_j
        known_w = [watts for watts in (before_w, power_w) if watts is not None]
        return sum(known_w) / len(known_w) * lasted_s if known_w else None

    def unclaimed_j(self, drawn_j: float) -> float:
        """Return the part of `drawn_j` that was not already attributed to ended ranks, J; at least 0.

        If the ended ranks got more than `drawn_j`, the excess is deducted at the next reading.
        """
        left_j = drawn_j - self.claimed_j
        self.claimed_j = max(-left_j, 0.0)
        return max(left_j, 0.0)


def parts_frac(watts: float, weights: Sequence[float | None], gpu_type: str) -> list[float]:
    """Return each rank's fraction of a GPU's power, by the simulator's formula. The fractions add up to 1.

    Static power is divided evenly. The remaining power is divided in proportion to `weights`.

    Args:
        watts: Power of the board, W.
        weights: For each rank, the fraction of time in which the GPU worked for it; None: unknown. If any
            weight is unknown, all ranks get equal fractions.
        gpu_type: Name of the GPU's type, in any spelling that `canonical_kind` accepts.
    """
    count = len(weights)
    known = [weight for weight in weights if weight is not None]
    total = sum(known)
    if len(known) < count or total <= 0.0:
        known, total = [1.0] * count, float(count)
    figures = _figures(gpu_type)
    static_w, idle_w, tdp_w = figures["static_w"], figures["idle_w"], figures["tdp_w"]
    dynamic_w = max(watts - static_w, 0.0)
    parts_w = [
        part_w(static_w, idle_w, tdp_w, count, dynamic_w, dynamic_w * weight / total) for weight in known
    ]
    whole_w = sum(parts_w)  # equals the board's power, unless that is outside the range of its type
    return [part / whole_w for part in parts_w]


def _figures(gpu_type: str) -> Mapping[str, float]:
    kind = canonical_kind(gpu_type)
    if kind not in _KNOWN:
        _KNOWN[kind] = {name: figure.value for name, figure in GPU_FIGURES[kind].items()}
    return _KNOWN[kind]


_KNOWN: dict[str, dict[str, float]] = {}
