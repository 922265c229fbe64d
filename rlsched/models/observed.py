"""`LearntPairs`: learnt values of pairs of workloads, by the names of GPU types and workloads.

A broker replaces its models when a node of another GPU type registers. `LearntPairs` keeps the learnt values,
and applies them to the new models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rlsched.compile.jit import kernel
from rlsched.models.arrays import ModelArrays
from rlsched.models.learning import Observed
from rlsched.models.observing import _predict, observe
from rlsched.models.sharing import known_pair


class LearntFactor(msgspec.Struct, array_like=True):
    """A learnt factor of a workload's sensitivity or pressure (`TRAIT`: `more_sensitive`, `more_pressing`).

    Attributes:
        kind: GPU type.
        workload: Name of the workload in the catalogue.
        suffers: True: the factor applies to the workload's own sensitivity. False: to its pressure on
            co-tenants.
        factor: The factor; 1: as modelled.
        sd: Standard deviation of the factor's logarithm.
    """

    kind: str
    workload: str
    suffers: bool
    factor: float
    sd: float


class LearntPair(msgspec.Struct, array_like=True):
    """Observations of a workload next to another workload: number of observations, and mean ln(speed)."""

    kind: str
    workload: str
    partner: str
    count: float
    mean: float


@kernel
def predict_row(m: ModelArrays, kind: int, a: int) -> None:
    """Update the predicted speeds of workload `a` next to every workload, after its sensitivity changed."""
    for other in range(1, m.trait.shape[0]):
        _predict(m, kind, a, other)


@kernel
def predict_column(m: ModelArrays, kind: int, b: int) -> None:
    """Update the predicted speeds of every workload next to workload `b`, after its pressure changed."""
    for other in range(1, m.trait.shape[0]):
        _predict(m, kind, other, b)


def learn_pair(m: ModelArrays, kind: int, a: int, b: int, speed: float) -> bool:
    """Learn from the observed speed of workload `a` next to workload `b` on a GPU type.

    `a`, `b`: numbers of workloads in the catalogue. Return False if nothing was learnt: a workload is unknown
    (0), or the pair is in the table of measured pairs.
    """
    if a <= 0 or b <= 0:
        return False
    measured = float(known_pair(m, kind, a, b))
    if measured == measured:
        return False
    observe(m, kind, a, b, speed)
    return True


class LearntPairs:
    """All factors and pairs learnt from observations.

    In the methods, `number` is a function that returns the number of a workload in the catalogue, or 0 if
    this version does not have the workload.
    """

    def __init__(self) -> None:
        self._factors: dict[tuple[str, str, bool], LearntFactor] = {}
        self._pairs: dict[tuple[str, str, str], LearntPair] = {}

    def observe(
        self, m: ModelArrays, kinds: Sequence[str], seen: Observed, number: Callable[[str], int]
    ) -> bool:
        """Learn from an observation: update the models `m`, and store what was learnt.

        Return False if nothing was learnt. `kinds`: GPU types of the models, by index.
        """
        if seen.kind not in kinds:
            return False
        kind, a, b = kinds.index(seen.kind), number(seen.workload), number(seen.partner)
        if not learn_pair(m, kind, a, b, seen.speed):
            return False
        mine, theirs = m.trait[a, kind], m.trait[b, kind]
        for name, suffers, factor, sd in (
            (seen.workload, True, mine.more_sensitive, mine.sensitivity_sd),
            (seen.partner, False, theirs.more_pressing, theirs.pressure_sd),
        ):
            key = (seen.kind, name, suffers)
            self._factors[key] = LearntFactor(*key, float(factor), float(sd))
        pair = (seen.kind, seen.workload, seen.partner)
        self._pairs[pair] = LearntPair(*pair, float(mine.times_seen[b]), float(mine.seen_log[b]))
        return True

    def count(self, kind: str, workload: str, partner: str) -> int:
        """Return the number of observations of `workload` next to `partner` on a GPU type."""
        known = self._pairs.get((kind, workload, partner))
        return 0 if known is None else int(known.count)

    def factor(self, kind: str, workload: str, *, suffers: bool) -> tuple[LearntFactor | None, int]:
        """Return the learnt factor of a workload's sensitivity (`suffers`) or pressure; None: not learnt.

        Also return the number of observations from which it was learnt.
        """
        seen = (
            one.count
            for one in self._pairs.values()
            if one.kind == kind and workload == (one.workload if suffers else one.partner)
        )
        return self._factors.get((kind, workload, suffers)), int(sum(seen))

    def put_into(self, m: ModelArrays, kinds: Sequence[str], number: Callable[[str], int]) -> None:
        """Copy all learnt factors and pairs into the models `m`, which have learnt nothing yet."""
        changed: list[tuple[Any, int, int]] = []
        for one in self._factors.values():
            row = number(one.workload)
            if one.kind not in kinds or row <= 0:
                continue
            kind = kinds.index(one.kind)
            if one.suffers:
                m.trait.more_sensitive[row, kind], m.trait.sensitivity_sd[row, kind] = one.factor, one.sd
            else:
                m.trait.more_pressing[row, kind], m.trait.pressure_sd[row, kind] = one.factor, one.sd
            changed.append((predict_row if one.suffers else predict_column, kind, row))
        for pair in self._pairs.values():
            a, b = number(pair.workload), number(pair.partner)
            if pair.kind in kinds and a > 0 and b > 0:
                kind = kinds.index(pair.kind)
                m.trait.times_seen[a, kind, b], m.trait.seen_log[a, kind, b] = pair.count, pair.mean
        for update, kind, row in changed:
            update(m, kind, row)

    def kept(self) -> tuple[list[LearntFactor], list[LearntPair]]:
        """Return all learnt factors and pairs, for `take_up`."""
        return list(self._factors.values()), list(self._pairs.values())

    def take_up(self, factors: Sequence[LearntFactor], pairs: Sequence[LearntPair]) -> None:
        """Restore the factors and pairs that `kept` returned."""
        self._factors = {(one.kind, one.workload, one.suffers): one for one in factors}
        self._pairs = {(one.kind, one.workload, one.partner): one for one in pairs}
