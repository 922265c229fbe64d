"""Outcomes of earlier forecasts, and the corrections, scores and baselines that are computed from them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decisions.schema import ForecastSeen as Seen
from rlsched.forecast.world import HORIZON_S, QUANTILES

Floats = NDArray[np.float64]
What = Literal["start", "end", "end-running"]

WEEK_S: Final = 7 * 86_400.0
SIZES: Final = (1, 2, 4, 8)
"""Lower bounds of the size classes in GPUs: 1, 2 to 3, 4 to 7, 8 and more."""
RULES: Final = ("last", "week", "list")
"""Simple forecast rules for comparison: the last outcome of the size class (`last`); the 10, 50 and 90 %
quantiles of the outcomes in the last week (`week`); list scheduling (`list`).
"""
RECENT: Final = 300
"""Number of latest forecasts of a size class from which its correction is computed."""
OF_ONE: Final = 8
"""Maximum number of forecasts per refresh and size class that are used for corrections.

Forecasts of one refresh (one run of the forecaster) share errors.
"""
FEWEST: Final = 30
"""Minimum number of forecasts for a correction. If a size class has fewer, forecasts of other classes are
used too.
"""
BLENDS: Final = np.linspace(0.0, 1.0, 5)
"""Candidate weights of the simulated futures in a forecast; list scheduling has the remaining weight."""
BLEND_TRUST: Final = 10.0
"""In the mean of the candidates `BLENDS`, each one counts exp(-BLEND_TRUST x (loss / least loss - 1))."""
_END_S: Final = HORIZON_S * (1.0 - 1e-9)
_UNIT_S: Final = 60.0
"""Unit u, seconds: the logarithm of a time is ln(1 + time / u)."""


def size_class(num_gpus: float) -> int:
    """Return the position in `SIZES` of a job's size class."""
    return max(sum(num_gpus >= least for least in SIZES) - 1, 0)


def size_classes(gpus: Floats) -> NDArray[np.int64]:
    """Return the (N,) positions in `SIZES` of the jobs' size classes."""
    return np.maximum(np.searchsorted(SIZES, gpus, side="right") - 1, 0)


def size_words(position: int) -> str:
    """Return a size class as text."""
    least = SIZES[position]
    if position + 1 == len(SIZES):
        return f"{least}+"
    most = SIZES[position + 1] - 1
    return f"{least}" if most == least else f"{least}-{most}"


@dataclass
class OpenForecast:
    """A forecast whose outcome is not known yet. The fields are as in `Seen`, a forecast with its outcome.

    `teaches`: whether corrections are computed from this forecast.
    """

    job: str
    num_gpus: float
    what: What
    said_s: float
    raw: tuple[float, ...]
    corrected: tuple[float, ...]
    last_s: float
    week: list[float]
    list_s: float
    teaches: bool = True


def ln_of(time_s: Any) -> Any:
    return np.log1p(np.minimum(np.maximum(time_s, 0.0), HORIZON_S) / _UNIT_S)


def _unln(value: float) -> float:
    return math.expm1(max(value, 0.0)) * _UNIT_S


def teaching(count: int) -> NDArray[np.int64]:
    """Choose the forecasts of one refresh and size class that corrections use, at most `OF_ONE`.

    Return their positions, evenly spread from 0 to `count` - 1.
    """
    return np.unique(np.linspace(0.0, count - 1.0, min(count, OF_ONE)).round().astype(np.int64))


def _levels(said_s: Floats, weights: Floats) -> Floats:
    """Return, for each of the `QUANTILES`, the level of the quantile of past errors that corrects it, (3,).

    The level for 90 % is 90 % x (G + 1) / G, and the level for 10 % is as far from 50 % (conformal prediction
    for two-layer models, Dunn, Wasserman, Ramdas, JASA 2023). G is the effective number of refreshes (runs of
    the forecaster).

    Args:
        said_s: (N,) time of each forecast.
        weights: (N,) weight of each forecast.
    """
    refresh = np.unique(said_s, return_inverse=True)[1]
    of_one = np.bincount(refresh, weights)
    groups = of_one.sum() ** 2 / np.dot(of_one, of_one)
    at = np.array(QUANTILES)
    sides = np.sign(at - 0.5) * np.maximum(at, 1.0 - at)
    return np.asarray(np.clip(at + sides / groups, 0.0, 1.0))


def _quantiles(values: Floats, weights: Floats, levels: Sequence[float] = QUANTILES) -> Floats:
    """Return the (3,) weighted quantiles of the columns of (N, 3) values, with (N, 3) weights."""
    found = np.empty(len(QUANTILES))
    for k, at in enumerate(levels):
        order = np.argsort(values[:, k])
        below = np.cumsum(weights[order, k])
        last = len(order) - 1
        found[k] = values[order[min(np.searchsorted(below, at * below[-1] - 1e-9), last)], k]
    return found


class Correction(NamedTuple):
    """Correction of the forecasts of a size class.

    Attributes:
        share: Weight of the simulated futures, 0 to 1; list scheduling has the remaining weight.
        shifts: (3,) additions to the logarithms of the quantiles.
    """

    share: float
    shifts: Floats


UNCORRECTED: Final = Correction(1.0, np.zeros(len(QUANTILES)))


@dataclass
class _OfClass:
    """Forecasts and outcomes of a size class, newest last."""

    known: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """One row per forecast: five logarithms, then the time of the forecast. The logarithms are of the three
    quantiles of the futures, of the time by list scheduling, and of the outcome.
    """
    came: deque[tuple[float, float]] = field(default_factory=deque)  # (time of the outcome, outcome)
    last_s: float = math.nan


class Record:
    """The outcomes of a forecaster's earlier forecasts, and the corrections computed from them.

    A forecast is a weighted mean of two logarithms: of the quantile of the simulated futures, and of the time
    by list scheduling. The weight of the futures is a mean of the candidates in `BLENDS`. Each candidate is
    weighted by its pinball loss for recent forecasts of the size class (exponential weights, Vovk 1990). Each
    quantile has its own conformal correction. For example, the 10 % quantile is shifted by the 10 % quantile
    of the differences ln(outcome) - ln(forecast).
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], _OfClass] = {}
        self._shares: dict[tuple[str, int], float] = {}
        self.seen: deque[Seen] = deque()

    def recall(self, seen: Iterable[Seen]) -> None:
        """Add the outcomes of an earlier record, in their original order."""
        some = list(seen)
        groups: dict[tuple[str, int, float], list[int]] = {}
        for at, one in enumerate(some):
            groups.setdefault((one.what, size_class(one.num_gpus), one.said_s), []).append(at)
        teach = {group[pick] for group in groups.values() for pick in teaching(len(group)).tolist()}
        for at, one in enumerate(some):
            self.add(one, at in teach)

    def add(self, seen: Seen, teaches: bool = True) -> None:
        """Add the outcome of a forecast.

        The scores and the simple `RULES` use every outcome; corrections only if `teaches` is True.
        """
        mine = self._class(seen.what, seen.num_gpus)
        if teaches:
            list_s = seen.raw[1] if math.isnan(seen.list_s) else seen.list_s
            logs = (float(ln_of(time_s)) for time_s in (*seen.raw, list_s, seen.seen_s))
            mine.known.append((*logs, seen.said_s))
            self._shares.pop((seen.what, size_class(seen.num_gpus)), None)
        mine.last_s = seen.seen_s
        mine.came.append((seen.time_s, seen.seen_s))
        self.seen.append(seen)
        while self.seen and self.seen[0].time_s < seen.time_s - WEEK_S:
            self.seen.popleft()

    def _class(self, what: str, num_gpus: float) -> _OfClass:
        return self._of.setdefault((what, size_class(num_gpus)), _OfClass())

    def correction(self, what: What, num_gpus: float, late: Floats | None = None) -> Correction:
        """Return the correction of the forecasts of a size class.

        Args:
            what: Kind of the forecast.
            num_gpus: Size of the job.
            late: (W, 6) open forecasts: starts or ends that have not happened yet. The columns are as in
                `_OfClass.known`, with the forecast's age instead of the outcome. For the quantiles that its
                age exceeds, a forecast counts as if the start or end happened now; for others, not at all.
        """
        own = self._class(what, num_gpus).known
        known, weights = np.array(own, np.float64).reshape(-1, _LOGS + 1), np.ones(len(own))
        if len(own) < FEWEST:
            others = [
                one
                for (of, _), some in self._of.items()
                if of == what and some.known is not own
                for one in some.known
            ]
            if len(own) + len(others) < FEWEST:
                return UNCORRECTED
            known = np.concatenate([known, np.array(others, np.float64).reshape(-1, _LOGS + 1)])
            some_weight = (FEWEST - len(own)) / max(len(others), 1)
            weights = np.concatenate([weights, np.full(len(others), some_weight)])
        logs, said_s = known[:, :_LOGS], known[:, _LOGS]
        key = what, size_class(num_gpus)
        share = self._shares.get(key)
        if share is None:
            share = _share_of(logs, weights)
            if len(own) >= FEWEST:
                self._shares[key] = share
        off = logs[:, -1:] - _blended(logs, share)
        counts = np.tile(weights[:, None], len(QUANTILES))
        if late is not None:
            over = late[:, _LOGS - 1 : _LOGS] - _blended(late[:, :_LOGS], share)
            off, counts = np.concatenate([off, over]), np.concatenate([counts, over > 0.0])
            said_s = np.concatenate([said_s, late[:, _LOGS]])
            weights = np.concatenate([weights, np.ones(len(late))])
        return Correction(share, _quantiles(off, counts, _levels(said_s, weights).tolist()))

    @staticmethod
    def corrected(
        raw: Sequence[float], list_s: float, by: Correction, least_s: float = 0.0
    ) -> tuple[float, ...]:
        """Return the corrected quantiles of a forecast: seconds from now, ascending, each at least `least_s`.

        Each is a weighted mean of a quantile in `raw` (simulated futures) and of `list_s` (list scheduling),
        plus a shift. Mean and shift apply to the logarithms. Inputs are limited to the horizon. A result at
        the horizon becomes infinite.
        """
        made, floor = [], least_s
        listed = (1.0 - by.share) * float(ln_of(list_s)) if by.share < 1.0 else 0.0
        for value, shift in zip(raw, by.shifts.tolist(), strict=True):
            floor = max(floor, _unln(by.share * float(ln_of(value)) + listed + shift))
            made.append(floor if floor < _END_S else math.inf)
        return tuple(made)

    def rules(self, what: What, num_gpus: float, now_s: float) -> tuple[float, list[float]]:
        """Return the forecasts `last` and `week` of the `RULES` for a size class, seconds; nan: unknown."""
        mine = self._class(what, num_gpus)
        while mine.came and mine.came[0][0] < now_s - WEEK_S:
            mine.came.popleft()
        if not mine.came:
            return mine.last_s, [mine.last_s] * len(QUANTILES)
        times = np.quantile([time for _, time in mine.came], QUANTILES)
        return mine.last_s, times.tolist()


_LOGS: Final = len(QUANTILES) + 2


def _blended(logs: Floats, share: float | Floats) -> Floats:
    """Return the logarithms of N forecasts before the correction, (N, 3): one per quantile.

    Each is the weighted mean of ln(quantile of the futures) and ln(time by list scheduling).

    Args:
        logs: (N, 5) the five logarithms of each forecast, as in `_OfClass.known`.
        share: Weight of the futures.
    """
    return np.asarray(share * logs[:, : len(QUANTILES)] + (1.0 - share) * logs[:, len(QUANTILES) : -1])


def _share_of(known: Floats, weights: Floats) -> float:
    """Return the weight of the simulated futures in a forecast.

    The result is the mean of the candidates `BLENDS`; a candidate with lower loss on the forecasts `known`
    counts more (`BLEND_TRUST`).
    """
    truth_s = np.expm1(known[:, -1]) * _UNIT_S
    losses, counts = np.empty(len(BLENDS)), np.tile(weights[:, None], len(QUANTILES))
    for place, share in enumerate(BLENDS.tolist()):
        said = _blended(known, share)
        said = said + _quantiles(known[:, -1:] - said, counts)
        said_s = np.minimum(np.expm1(np.maximum(said, 0.0)) * _UNIT_S, HORIZON_S)
        losses[place] = np.dot(weights, _pinball_s(said_s, truth_s))
    least = float(losses.min())
    if least <= 0.0:
        return float(BLENDS[losses == least].mean())
    trust = np.exp(-BLEND_TRUST * (losses / least - 1.0))
    return float(np.dot(trust, BLENDS) / trust.sum())


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of forecasts.

    Attributes:
        jobs: Number of jobs.
        covered_frac: Fraction of the outcomes between the 10 % and the 90 % quantile.
        loss_s: Mean pinball loss of the three quantiles, seconds.
        rules: Mean pinball loss of each of the simple `RULES` for the same jobs; None: it made no forecasts.
    """

    jobs: int
    covered_frac: float
    loss_s: float
    rules: dict[str, float | None]


def _pinball_s(said: Floats, truth: Floats) -> Floats:
    """Return the (N,) pinball losses of (N, 3) quantiles, seconds; infinite times count as the horizon."""
    off = np.minimum(truth, HORIZON_S)[:, None] - np.minimum(said, HORIZON_S)
    at = np.array(QUANTILES)[None, :]
    return np.asarray(np.maximum(at * off, (at - 1.0) * off).mean(axis=1))


def pinball_s(said: Floats, truth: Floats) -> float:
    """Return the mean pinball loss of (N, 3) quantiles, seconds; infinite times count as the horizon."""
    return float(_pinball_s(said, truth).mean())


def score(seen: Sequence[Seen]) -> Score | None:
    """Return the quality of forecasts, given with their outcomes; None if there are no forecasts."""
    if not seen:
        return None
    truth = np.array([one.seen_s for one in seen])
    said = np.array([(one.low_s, one.median_s, one.high_s) for one in seen])
    inside = (truth >= said[:, 0]) & (truth <= said[:, 2])
    by_rule = {
        "last": np.array([[one.last_s] * 3 for one in seen]),
        "week": np.array([one.week or [math.nan] * 3 for one in seen]),
        "list": np.array([[one.list_s] * 3 for one in seen]),
    }
    rules: dict[str, float | None] = {}
    for name, values in by_rule.items():
        known = np.isfinite(values).all(axis=1) | (name == "list")
        values = np.where(np.isnan(values), HORIZON_S, values)
        rules[name] = pinball_s(values[known], truth[known]) if known.any() else None
    return Score(
        jobs=len(seen), covered_frac=float(inside.mean()), loss_s=pinball_s(said, truth), rules=rules
    )
