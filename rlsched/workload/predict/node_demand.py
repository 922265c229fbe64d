"""Forecasts of the number of nodes needed: the highest demand over the next slots of ten minutes.

A forecast predicts, from the demand of the slots that have ended, how high demand will rise within its
horizon. All share one interface: `peaks` over a whole series, `peak` after its last slot. Neither uses a slot
before it has ended.

Results on the Philly node series (420 nodes, `python -m studies.power_down.ces_replay`): for one slot, half
an hour to six hours ahead, persistence beats gradient boosting. For a quantile of the highest demand of three
hours, boosting and the rises of the last week are equal and beat the trailing maxima. As a lower bound of
nodes that stay awake they are worth about the same: the losses come from jumps that nothing predicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.workload.predict.boosting import one_thread, require_sklearn_regressor, telling_columns

Floats = NDArray[np.float64]

SLOT_S: Final = 600.0
"""Length of a slot, s; Helios' CES service (Hu et al., SC'21) decides every ten minutes too."""
DAY_SLOTS: Final = 144
_LAGS: Final = (1, 2, 3, 6, 12, 18, 36, 72, 144, 288, 1008)
_WINDOWS: Final = (6, 18, 36, 72, 144, 432, 1008)
_SKIPPED: Final = 144
"""Rows at the start of a series whose lags and windows are mostly unknown; fits exclude them."""
_MIN_ROWS: Final = 432
"""Fewest slots of a fit: with fewer, boosting repeats persistence."""


class DemandForecast(ABC):
    """A forecast of the highest demand over a horizon."""

    @property
    def needs_slots(self) -> int:
        """Number of latest slots that `peak` needs; 0: all."""
        return 0

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in tables."""

    @abstractmethod
    def peaks(self, demand: Floats) -> Floats:
        """(N,) nodes needed, a value per slot -> (N,) forecasts; entry i depends only on entries 0 to i."""

    def peak(self, demand: Floats) -> float:
        """The forecast after the last slot of `demand` (N,), N >= 1: the last entry of `peaks`."""
        return float(self.peaks(demand[-self.needs_slots :] if self.needs_slots else demand)[-1])


@dataclass(frozen=True)
class Persistence(DemandForecast):
    """The current demand persists: the baseline of every other forecast.

    On Philly its mean absolute error is smaller than that of gradient boosting from 30 minutes to six hours
    ahead; as a lower bound of nodes that stay awake it forgets every peak at once.
    """

    @property
    def needs_slots(self) -> int:
        return 1

    @property
    def name(self) -> str:
        return "persistence"

    def peaks(self, demand: Floats) -> Floats:
        return np.array(demand, dtype=np.float64)


@dataclass(frozen=True)
class TrailingMaximum(DemandForecast):
    """The highest demand of the last `window` slots returns.

    It needs no learning and no refits, and tolerates a log that reads zero for half an hour. Three hours and
    a buffer keep as many nodes asleep as the learned quantile does, for about as many wake-ups.
    """

    window: int = 18

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"the trailing maximum needs a window of at least one slot, got {self.window}")

    @property
    def name(self) -> str:
        return f"trailing maximum, {_hours(self.window)}"

    @property
    def needs_slots(self) -> int:
        return self.window

    def peaks(self, demand: Floats) -> Floats:
        padded = np.concatenate([np.full(self.window - 1, -np.inf), demand])
        return np.asarray(sliding_window_view(padded, self.window).max(axis=1), dtype=np.float64)

    def peak(self, demand: Floats) -> float:
        return float(demand[-self.window :].max())


@dataclass(frozen=True)
class RecentRises(DemandForecast):
    """Current demand plus the `quantile` of its rises within `horizon` slots, over the last `window` slots.

    The empirical counterpart of a learned quantile: it uses only the variability of the last days. On Philly
    its pinball loss equals that of gradient boosting.
    """

    horizon: int = 18
    window: int = 14 * DAY_SLOTS
    quantile: float = 0.9

    def __post_init__(self) -> None:
        _check(self.horizon, self.quantile)
        if self.window < 1:
            raise InputError(f"recent rises need a window of at least one slot, got {self.window}")

    @property
    def name(self) -> str:
        return f"rises of {_hours(self.window)}, q{self.quantile * 100:g} of {_hours(self.horizon)}"

    @property
    def needs_slots(self) -> int:
        return self.window + self.horizon

    def peaks(self, demand: Floats) -> Floats:
        rises = future_peaks(demand, self.horizon) - demand
        out = np.array(demand, dtype=np.float64)
        for now in range(self.horizon, len(demand)):
            known = rises[max(now - self.horizon - self.window + 1, 0) : now - self.horizon + 1]
            out[now] += np.quantile(known, self.quantile)
        return out


class Boosted(DemandForecast):
    """Gradient boosting (scikit-learn's histogram trees) of a quantile, refitted on an expanding past.

    Features: current demand, its change over eleven lags, mean, maximum, minimum and spread over seven
    windows, hour and weekday; target: change from now. A fit at slot s uses targets that lie wholly before s.
    Model and features are of the kind of Helios' CES (SC'21: LightGBM with lags, rolling statistics and
    calendar). On Philly it loses to persistence for one slot, up to six hours ahead; its quantiles are the
    best calibrated, and equal to `RecentRises` in pinball loss.

    Args:
        horizon: Slots ahead.
        quantile: Quantile of the target, 0.5 the median.
        target: `peak`: the highest slot of the horizon; `mean`: its mean; `end`: its last slot.
        refit: Slots between fits.
        first_slot: Slot of the week of the first entry of every series; Monday at midnight is 0.
        seed: Seed of the fits.

    Raises:
        InputError: scikit-learn is not installed, or an argument is out of its range.
    """

    def __init__(
        self,
        horizon: int = 18,
        quantile: float = 0.9,
        target: Literal["peak", "mean", "end"] = "peak",
        refit: int = 4 * DAY_SLOTS,
        first_slot: int = 0,
        seed: int = 0,
    ) -> None:
        _check(horizon, quantile)
        if refit < 1:
            raise InputError(f"slots between fits must be at least 1, got {refit}")
        self._model_class = require_sklearn_regressor()
        self.horizon, self.quantile, self.target = horizon, quantile, target
        self._refit, self._first_slot, self._seed = refit, first_slot, seed
        self._kept: tuple[tuple[int, int], Any] | None = None

    @property
    def name(self) -> str:
        return f"boosting, q{self.quantile * 100:g} of {_hours(self.horizon)}"

    def peaks(self, demand: Floats) -> Floats:
        return self._from_block(np.asarray(demand, dtype=np.float64), 0)

    def peak(self, demand: Floats) -> float:
        last = (len(demand) - 1) // self._refit * self._refit
        return float(self._from_block(np.asarray(demand, dtype=np.float64), last)[-1])

    def _from_block(self, demand: Floats, start: int) -> Floats:
        """Forecasts of all slots from `start`, where a fit is due, to the last; persistence before that."""
        features = self._features(demand)
        change = _TARGETS[self.target](demand, self.horizon) - demand
        out = np.array(demand)
        for first in range(start, len(demand), self._refit):
            rows = slice(_SKIPPED, first - self.horizon)
            if first - self.horizon - _SKIPPED >= _MIN_ROWS:
                block = slice(first, first + self._refit)
                columns = telling_columns(features[rows])
                with one_thread():
                    model = self._fitted(features[rows][:, columns], change[rows])
                    out[block] += model.predict(features[block][:, columns])
        return out

    def _fitted(self, x: Floats, y: Floats) -> Any:
        """Return the model of these rows; caches the last one, since a service asks for it at every slot."""
        key = (len(y), hash(y.tobytes()))
        if self._kept is None or self._kept[0] != key:
            model = self._model_class(
                loss="quantile",
                quantile=self.quantile,
                max_iter=60,
                learning_rate=0.08,
                max_leaf_nodes=12,
                min_samples_leaf=100,
                l2_regularization=5.0,
                early_stopping=False,
                random_state=self._seed,
            )
            # Whole nodes tie with their own quantile, and a tie has the gradient of the values above: half a
            # node of noise breaks it. On Philly 92.3 % were covered without noise, 89.8 % with it, for a
            # target of 90 %.
            spread = np.random.default_rng(self._seed).uniform(-0.5, 0.5, len(y))
            self._kept = (key, model.fit(x, y + spread))
        return self._kept[1]

    def _features(self, demand: Floats) -> Floats:
        """(N,) -> (N, F); nan before the start of the series."""
        count = len(demand)
        columns = [demand]
        for lag in _LAGS:
            column = np.full(count, np.nan)
            column[lag:] = demand[lag:] - demand[: max(count - lag, 0)]
            columns.append(column)
        for window in _WINDOWS:
            four = np.full((4, count), np.nan)
            if count >= window:
                seen = sliding_window_view(demand, window)
                now = demand[window - 1 :]
                four[:, window - 1 :] = (
                    seen.mean(axis=1) - now,
                    seen.max(axis=1) - now,
                    seen.min(axis=1) - now,
                    seen.std(axis=1),
                )
            columns += list(four)
        slot = np.arange(count) + self._first_slot
        columns += [(slot % DAY_SLOTS) * 24.0 / DAY_SLOTS, (slot // DAY_SLOTS % 7).astype(np.float64)]
        return np.column_stack(columns)


def future_peaks(demand: Floats, horizon: int) -> Floats:
    """(N,) -> (N,) the highest of the `horizon` slots after each; nan if the series ends before."""
    return _ahead(demand, horizon, lambda seen: seen.max(axis=1))


def future_means(demand: Floats, horizon: int) -> Floats:
    """(N,) -> (N,) the mean of the `horizon` slots after each; nan if the series ends before."""
    return _ahead(demand, horizon, lambda seen: seen.mean(axis=1))


def future_ends(demand: Floats, horizon: int) -> Floats:
    """(N,) -> (N,) the slot `horizon` after each; nan if the series ends before."""
    return _ahead(demand, horizon, lambda seen: seen[:, -1])


_TARGETS: Final = {"peak": future_peaks, "mean": future_means, "end": future_ends}


def _ahead(demand: Floats, horizon: int, of: Any) -> Floats:
    out = np.full(len(demand), np.nan)
    if len(demand) > horizon:
        out[:-horizon] = of(sliding_window_view(demand[1:], horizon))
    return out


def _check(horizon: int, quantile: float) -> None:
    if horizon < 1:
        raise InputError(f"a forecast looks at least one slot ahead, got a horizon of {horizon}")
    if not 0.0 < quantile < 1.0:
        raise InputError(f"a quantile lies between 0 and 1, got {quantile}")


def _hours(slots: int) -> str:
    hours = slots * SLOT_S / 3600.0
    return f"{hours / 24:g} d" if hours >= 48 else f"{hours:g} h" if hours >= 1 else f"{hours * 60:g} min"
