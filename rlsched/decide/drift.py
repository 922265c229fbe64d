"""Drift detection for trained policies: `DriftWatch` compares inputs with the ranges in `Familiar`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlsched.cluster.state import ClusterState

SLACK: Final = 0.1
"""The range of each column is widened on both sides by this fraction of its width."""
TOLERANCE: Final = 1e-5
"""Each range is also widened on both sides by this amount, for float32 errors and for constant columns."""
BEGIN_FRAC: Final = 0.5
"""Drift begins when a column is outside its range in more than this fraction of the recent inputs (looks)."""
END_FRAC: Final = 0.25
"""Drift ends when each column is outside its range in at most this fraction of the recent inputs (looks)."""
NO_RANGES: Final = "not monitored: the strategy has no ranges"


class Familiar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Inputs and clusters that a policy has seen in its training.

    Attributes:
        columns: Smallest and largest value of every input column.
        nodes: Smallest and largest number of nodes of a partition; (0, 0): unknown.
        gpus: Smallest and largest number of GPUs of a partition; (0, 0): unknown.
        gpu_types: GPU types in training; empty: the policy does not depend on GPU types.
    """

    columns: dict[str, tuple[float, float]] = {}
    nodes: tuple[int, int] = (0, 0)
    gpus: tuple[int, int] = (0, 0)
    gpu_types: tuple[str, ...] = ()

    def with_ranges(
        self, names: Sequence[str], low: NDArray[np.floating], high: NDArray[np.floating]
    ) -> Familiar:
        """Return a copy with the columns `names`, and their smallest and largest values `low` and `high`."""
        ranges = {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}
        return msgspec.structs.replace(self, columns=ranges)

    def union(self, other: Familiar) -> Familiar:
        """Return the smallest ranges that contain the ranges of both objects. Both have the same columns."""

        def wide(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
            return min(one[0], two[0]), max(one[1], two[1])

        return Familiar(
            columns={
                name: (min(low, other.columns[name][0]), max(high, other.columns[name][1]))
                for name, (low, high) in self.columns.items()
            },
            nodes=wide(self.nodes, other.nodes),
            gpus=wide(self.gpus, other.gpus),
            gpu_types=tuple(dict.fromkeys((*self.gpu_types, *other.gpu_types))),
        )

    def wrong(self) -> str:
        """Return a description of the first inconsistent field, "" if there is none."""
        for name, (low, high) in self.columns.items():
            if not low <= high:
                return f"{name}: expected the least value and then the largest, got {low:g} and {high:g}"
        return ""


class ColumnOutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """A column that was outside its training range in recent looks (`DriftWatch` defines a look).

    Attributes:
        column: Name of the column.
        share_frac: Fraction of the stored looks in which the column was outside its range.
        value: Median of the column in the last of these looks.
        low: Smallest value in training.
        high: Largest value in training.
        only_warns: Whether the column describes the set-up of the cluster, and therefore causes no drift.
    """

    column: str
    share_frac: float
    value: float
    low: float
    high: float
    only_warns: bool = False

    @property
    def in_words(self) -> str:
        """The column as text for a message."""
        return (
            f"{self.column} is {self.value:.3g}, trained on {self.low:.3g} to {self.high:.3g} "
            f"(outside in {self.share_frac:.0%})"
        )


class DriftWatch:
    """Detects drift: stores which columns were outside their ranges in the latest looks.

    A look is the policy's input for one decision, or for one update of its dials: K rows, for example one per
    job. A column is outside in a look if it is outside its range in more than half of the rows.

    Args:
        familiar: Ranges seen in training.
        names: The columns of a look, in order; columns without a range are not watched.
        remembered: Number of looks stored. No drift is reported until this number of looks has been stored.
        fixed: Columns that describe the set-up of the cluster. They are reported, but do not affect `active`.

    Attributes:
        active: Whether there is drift.
        looks: Number of looks so far.
    """

    def __init__(
        self, familiar: Familiar, names: Sequence[str], remembered: int, fixed: Sequence[str] = ()
    ) -> None:
        nothing = (-np.inf, np.inf)
        ranges = np.array([familiar.columns.get(name, nothing) for name in names], np.float64)
        self._names, self._low, self._high = tuple(names), ranges[:, 0], ranges[:, 1]
        bounded = np.isfinite(self._low) & np.isfinite(self._high)
        width = np.where(bounded, self._high, 0.0) - np.where(bounded, self._low, 0.0)
        slack = SLACK * width + TOLERANCE
        self._from, self._to = self._low - slack, self._high + slack
        self._outside = np.zeros((remembered, len(names)), np.bool_)
        self._counts = np.zeros(len(names), np.int64)
        self._values = np.full(len(names), np.nan)
        self._varies = np.array([name not in fixed for name in names])
        self.active = False
        self.looks = 0

    def observe_rows(self, rows: NDArray[np.floating]) -> None:
        """Record a look of (K, F) rows, K at least 1."""
        wrong = ~((rows >= self._from) & (rows <= self._to))
        outside = 2 * wrong.sum(axis=0) > len(rows)
        if outside.any():
            self._values[outside] = np.median(rows[:, outside], axis=0)
        at, remembered = self.looks % len(self._outside), len(self._outside)
        self._counts += outside.astype(np.int64) - self._outside[at]
        self._outside[at] = outside
        self.looks += 1
        if self.looks >= remembered:
            most = int(self._counts[self._varies].max(initial=0))
            self.active = most > (END_FRAC if self.active else BEGIN_FRAC) * remembered

    def outside(self, most: int = 10) -> list[ColumnOutOfRange]:
        """Return the columns that were outside their ranges in recent looks, at most `most`.

        The column that was outside most often comes first. Columns that cause no drift come last.
        """
        looks = min(max(self.looks, 1), len(self._outside))
        order = np.lexsort((-self._counts, ~self._varies))[:most]
        return [
            ColumnOutOfRange(
                column=self._names[k],
                share_frac=float(self._counts[k] / looks),
                value=float(self._values[k]),
                low=float(self._low[k]),
                high=float(self._high[k]),
                only_warns=not self._varies[k],
            )
            for k in order
            if self._counts[k] > 0
        ]

    @property
    def in_words(self) -> str:
        """Text about the column that was most often outside its range and can cause drift; "": none."""
        return next((one.in_words for one in self.outside(1) if not one.only_warns), "")


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How the latest input of a policy differs from the input in training.

    Attributes:
        note: Reason why drift cannot be detected; "" if it can be detected.
        active: Whether there is drift; the fallback then decides in place of the policy.
        looks: Number of inputs (looks) so far. The fractions in `outside` refer only to the latest ones.
        outside: Columns that were outside their training ranges in recent inputs, as in
            `DriftWatch.outside`.
        settings_refused: How often dials were set to 0 because the strategy raised an exception or returned
            values that are not numbers.
    """

    note: str = ""
    active: bool = False
    looks: int = 0
    outside: list[ColumnOutOfRange] = []
    settings_refused: int = 0


def unlike(familiar: Familiar, state: ClusterState) -> list[str]:
    """Return one line of text for each property of a cluster that differs from the clusters in training.

    Nodes that are down count as part of the cluster; removed nodes do not.
    """
    found = []
    node, present = state.arrays.node, state.arrays.node.gpus > 0
    for p, name in enumerate(state.partition_names):
        mine = present & (node.part_of == p)
        for what, number, (low, high) in (
            ("nodes", int(mine.sum()), familiar.nodes),
            ("GPUs", int(node.gpus[mine].sum()), familiar.gpus),
        ):
            if high and number and not low <= number <= high:
                found.append(f"partition {name} has {number:,} {what}, trained on {low:,} to {high:,}")
    if familiar.gpu_types:
        types = {state.kind_names[int(kind)] for kind in node.kind[present]}
        known = ", ".join(familiar.gpu_types)
        found += [f"GPU type {one}, trained on {known}" for one in sorted(types - {*familiar.gpu_types})]
    return found
