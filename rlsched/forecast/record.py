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
BLENDS: Final = np.array([(k / 4, j / 4) for k in range(5) for j in range(5 - k)])
"""(15, 2) candidate weights in a forecast: of the simulated futures, and of list scheduling.

If they add up to less than 1, the forecast moves towards the outcomes of recent jobs of the size class.
"""
BLEND_TRUST: Final = 10.0
"""In the mean of the candidates `BLENDS`, each one counts exp(-BLEND_TRUST x (loss / least loss - 1))."""
LEVEL_STEP: Final = 0.001
"""Step per forecast with which the levels of the corrections follow the coverage.

Chosen on the last training part of four traces; see docs/how-to/forecasts.md.
"""
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

    `weight`: weight when corrections are computed (`teaching`); 0: not used.
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
    weight: float = 1.0


def ln_of(time_s: Any) -> Any:
    return np.log1p(np.minimum(np.maximum(time_s, 0.0), HORIZON_S) / _UNIT_S)


def _unln(value: float) -> float:
    return math.expm1(max(value, 0.0)) * _UNIT_S


def teaching(count: int) -> dict[int, float]:
    """Choose the forecasts of one refresh and size class that corrections use, at most `OF_ONE`.

    Return their positions, evenly spread from 0 to `count` - 1, with their weights: the square root of the
    number of forecasts that each one represents. As forecasts of one refresh share errors, many of them say
    more than few, but not in proportion.
    """
    chosen = np.unique(np.linspace(0.0, count - 1.0, min(count, OF_ONE)).round().astype(np.int64))
    return dict.fromkeys(chosen.tolist(), math.sqrt(count / max(len(chosen), 1)))


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
        of_futures: Weight of the simulated futures, 0 to 1.
        of_list: Weight of list scheduling, 0 to 1.
        shifts: (3,) additions to the logarithms of the quantiles.
    """

    of_futures: float
    of_list: float
    shifts: Floats


UNCORRECTED: Final = Correction(1.0, 0.0, np.zeros(len(QUANTILES)))


@dataclass
class _OfClass:
    """Forecasts and outcomes of a size class, newest last."""

    known: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """One row per forecast: five logarithms, then the weight of the forecast. The logarithms are of the three
    quantiles of the futures, of the time by list scheduling, and of the outcome.
    """
    came: deque[tuple[float, float]] = field(default_factory=deque)  # (time of the outcome, outcome)
    last_s: float = math.nan
    levels: list[float] = field(default_factory=lambda: list(QUANTILES))

    def follow(self, seen: Seen) -> None:
        """Adapt the levels of the 10 % and the 90 % quantile to the outcome of a forecast.

        Adaptive conformal inference (Gibbs, Candes, NeurIPS 2021), once for each of the two quantiles: if
        more outcomes than 10 % are beyond a quantile, its level moves away from the median, else towards it.
        """
        low, median, high = self.levels
        low += LEVEL_STEP * (QUANTILES[0] - (seen.seen_s < seen.low_s))
        high += LEVEL_STEP * (QUANTILES[2] - (seen.seen_s <= seen.high_s))
        self.levels = [min(max(low, 0.0), median), median, max(min(high, 1.0), median)]


class Record:
    """The outcomes of a forecaster's earlier forecasts, and the corrections computed from them.

    A forecast is a weighted sum of two logarithms: of the quantile of the simulated futures, and of the time
    by list scheduling. The two weights are a mean of the candidates in `BLENDS`. Each candidate is weighted
    by its pinball loss for recent forecasts of the size class (exponential weights, Vovk 1990). Each quantile
    has its own conformal correction. For example, the 10 % quantile is shifted by the 10 % quantile of the
    differences ln(outcome) - ln(forecast). The levels (10 %, 90 %) are adapted to the coverage
    (`_OfClass.follow`).
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], _OfClass] = {}
        self._weights: dict[tuple[str, int], Floats] = {}
        self.seen: deque[Seen] = deque()

    def recall(self, seen: Iterable[Seen]) -> None:
        """Add the outcomes of an earlier record, in their original order."""
        some = list(seen)
        groups: dict[tuple[str, int, float], list[int]] = {}
        for at, one in enumerate(some):
            groups.setdefault((one.what, size_class(one.num_gpus), one.said_s), []).append(at)
        weights = dict.fromkeys(range(len(some)), 0.0)
        for group in groups.values():
            weights |= {group[pick]: weight for pick, weight in teaching(len(group)).items()}
        for at, one in enumerate(some):
            self.add(one, weights[at])

    def add(self, seen: Seen, weight: float = 1.0) -> None:
        """Add the outcome of a forecast.

        The scores, the levels and the simple `RULES` use every outcome; the shifts and weights of
        corrections only if `weight` (`OpenForecast`) is above 0.
        """
        mine = self._class(seen.what, seen.num_gpus)
        if weight > 0.0:
            list_s = seen.raw[1] if math.isnan(seen.list_s) else seen.list_s
            logs = (float(ln_of(time_s)) for time_s in (*seen.raw, list_s, seen.seen_s))
            mine.known.append((*logs, weight))
            self._weights.pop((seen.what, size_class(seen.num_gpus)), None)
        mine.follow(seen)
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
        mine = self._class(what, num_gpus)
        own = mine.known
        known = np.array(own, np.float64).reshape(-1, _LOGS + 1)
        if len(own) < FEWEST:
            others = [
                one
                for (of, _), some in self._of.items()
                if of == what and some is not mine
                for one in some.known
            ]
            if len(own) + len(others) < FEWEST:
                return UNCORRECTED
            more = np.array(others, np.float64).reshape(-1, _LOGS + 1)
            known = np.concatenate([known, more])
            mean_weight = known[: len(own), _LOGS].mean() if own else 1.0
            known[len(own) :, _LOGS] *= (FEWEST - len(own)) * mean_weight / more[:, _LOGS].sum()
        key = what, size_class(num_gpus)
        weights = self._weights.get(key)
        if weights is None:
            weights = _weights_of(known)
            if len(own) >= FEWEST:
                self._weights[key] = weights
        off, counts = known[:, _LOGS - 1 : _LOGS] - _blended(known, weights), _three(known[:, _LOGS])
        if late is not None:
            over = late[:, _LOGS - 1 : _LOGS] - _blended(late, weights)
            off = np.concatenate([off, over])
            counts = np.concatenate([counts, _three(late[:, _LOGS]) * (over > 0.0)])
        shifts = _quantiles(off, counts, _widened(mine.levels, counts))
        return Correction(float(weights[0]), float(weights[1]), shifts)

    @staticmethod
    def corrected(
        raw: Sequence[float], list_s: float, by: Correction, least_s: float = 0.0
    ) -> tuple[float, ...]:
        """Return the corrected quantiles of a forecast: seconds from now, ascending, each at least `least_s`.

        Each is a weighted sum of a quantile in `raw` (simulated futures) and of `list_s` (list scheduling),
        plus a shift. Sum and shift apply to the logarithms. Inputs are limited to the horizon. A result at
        the horizon becomes infinite.
        """
        made, floor = [], least_s
        listed = by.of_list * float(ln_of(list_s)) if by.of_list > 0.0 else 0.0
        for value, shift in zip(raw, by.shifts.tolist(), strict=True):
            floor = max(floor, _unln(by.of_futures * float(ln_of(value)) + listed + shift))
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


def _blended(known: Floats, weights: Floats) -> Floats:
    """Return the logarithms of N forecasts before the correction, (N, 3): one per quantile.

    Each is the weighted sum of ln(quantile of the futures) and ln(time by list scheduling).

    Args:
        known: (N, 6) rows as in `_OfClass.known`.
        weights: (2,) weights of the futures and of list scheduling.
    """
    futures, listed = known[:, : len(QUANTILES)], known[:, len(QUANTILES) : len(QUANTILES) + 1]
    return np.asarray(weights[0] * futures + weights[1] * listed)


def _widened(levels: Sequence[float], weights: Floats) -> list[float]:
    """Return the (3,) levels at which the quantiles of N past errors hold for the next error.

    The 90 % level becomes 90 % x (n + 1) / n (split conformal prediction), and the 10 % level moves as far. n
    is the effective number of the errors, from their (N, 3) weights.
    """
    count = weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0)
    at = np.array(QUANTILES)
    sides = np.sign(at - 0.5) * np.maximum(at, 1.0 - at)
    widened: list[float] = np.clip(np.array(levels) + sides / count, 0.0, 1.0).tolist()
    return widened


def _three(values: Floats) -> Floats:
    """Return (N,) values as an (N, 3) array: the same value for each of the `QUANTILES`."""
    return np.tile(values[:, None], len(QUANTILES))


def _weights_of(known: Floats) -> Floats:
    """Return the weights of the simulated futures and of list scheduling in a forecast, (2,).

    The result is the mean of the candidates `BLENDS`; a candidate with lower loss on the forecasts `known`
    counts more (`BLEND_TRUST`).
    """
    truth = known[:, _LOGS - 1 : _LOGS]
    truth_s = np.expm1(truth[:, 0]) * _UNIT_S
    losses, counts = np.empty(len(BLENDS)), _three(known[:, _LOGS])
    for place, weights in enumerate(BLENDS):
        said = _blended(known, weights)
        said = said + _quantiles(truth - said, counts)
        said_s = np.minimum(np.expm1(np.maximum(said, 0.0)) * _UNIT_S, HORIZON_S)
        losses[place] = np.dot(known[:, _LOGS], _pinball_s(said_s, truth_s))
    least = float(losses.min())
    if least <= 0.0:
        return np.asarray(BLENDS[losses == least].mean(axis=0))
    trust = np.exp(-BLEND_TRUST * (losses / least - 1.0))
    return np.asarray(trust @ BLENDS / trust.sum())


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
