"""What a GPU drew between two readings, and each rank's part of it. The parts add up to the board's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlsched.models.at_clock import part_w
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind

MOST_W = 5_000.0
"""No board draws as much: a counter that says so has jumped."""


class Board:
    """The energy of one GPU.

    Attributes:
        at_s: When it was read last, monotonic seconds; None: never.
        counter_j: Its counter then; None where it has none.
        power_w: What it drew then.
        claimed_j: What ranks that ended since have been given of what comes next.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None
        self.counter_j: float | None = None
        self.power_w: float | None = None
        self.claimed_j = 0.0

    def drawn_j(self, now_s: float, counter_j: float | None, power_w: float | None) -> float | None:
        """Joules since the reading before; None at the first one, and where nothing tells.

        By the counter. Where there is none, or it has gone back (the driver was loaded anew) or jumped, by
        the mean of the powers at both ends.
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
        """What of it is left for those who are there; what was given too much is taken from the next."""
        left_j = drawn_j - self.claimed_j
        self.claimed_j = max(-left_j, 0.0)
        return max(left_j, 0.0)


def parts_frac(watts: float, weights: Sequence[float | None], gpu_type: str) -> list[float]:
    """Each rank's part of a GPU's power, by the simulator's formula; together they are 1.

    Static power is split evenly; what is above it goes by how much the GPU worked for each.

    Args:
        watts: What the board draws.
        weights: Of each rank, the share of the time in which the GPU worked for it; None: nobody knows, and
            where that is so of one, all count alike.
        gpu_type: Any name of the GPU's type.
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
    whole_w = sum(parts_w)  # the board's, but for where it is outside what its type's figures allow
    return [part / whole_w for part in parts_w]


def _figures(gpu_type: str) -> Mapping[str, float]:
    kind = canonical_kind(gpu_type)
    if kind not in _KNOWN:
        _KNOWN[kind] = {name: figure.value for name, figure in GPU_FIGURES[kind].items()}
    return _KNOWN[kind]


_KNOWN: dict[str, dict[str, float]] = {}
