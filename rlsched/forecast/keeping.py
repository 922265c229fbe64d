"""Open forecasts, stored until their outcomes are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from rlsched.decisions.schema import ForecastSeen as Seen
from rlsched.forecast.record import (
    Correction,
    Floats,
    OpenForecast,
    Record,
    What,
    ln_of,
    size_class,
    teaching,
)
from rlsched.forecast.world import QUANTILES, Ahead

_WAITING: Final[tuple[What, ...]] = ("start", "end")
_RUNNING: Final[tuple[What, ...]] = ("end-running",)


class LiveJob(NamedTuple):
    """A live job: displayed ID, and number of GPUs."""

    job: str
    num_gpus: float


class When(NamedTuple):
    """Quantiles (10, 50 and 90 %) of a job's start and end: points in time, seconds, not times from now on.

    A quantile beyond the horizon is infinite.

    Attributes:
        start_s: Quantiles of the start; None: the job has started.
        end_s: Quantiles of the end.
    """

    start_s: tuple[float, ...] | None
    end_s: tuple[float, ...]


class Keeping:
    """Open forecasts (with unknown outcomes), and the record of the outcomes of earlier forecasts.

    Only a job's first forecasts are scored: of its start and its end, or of its end if the job already runs.
    """

    def __init__(self) -> None:
        self.record = Record()
        self._open: dict[str, list[OpenForecast]] = {}
        self._met: set[str] = set()
        self._came: dict[str, tuple[float, float]] = {}

    def has_new(self, live: Mapping[int, LiveJob]) -> bool:
        """Return whether any live job has no forecast yet."""
        return any(one.job not in self._met for one in live.values())

    def open_jobs(self) -> list[str]:
        """Return the jobs that have open forecasts."""
        return list(self._open)

    def correct(
        self, ahead: Ahead, listed: Ahead, live: Mapping[int, LiveJob], now_s: float
    ) -> dict[str, When]:
        """Correct the simulated times of live jobs, store new forecasts, and return all forecasts by job.

        `ahead` has the times of the jobs in simulated futures. `listed` has their times by list scheduling.
        """
        by_list = dict(
            zip(
                listed.seqs.tolist(),
                np.column_stack([listed.start_s[:, 0], listed.end_s[:, 0]]).tolist(),
                strict=True,
            )
        )
        starts, ends = _quantiles(ahead.start_s - now_s), _quantiles(ahead.end_s - now_s)
        late = self._late(now_s)
        by: dict[tuple[What, int], Correction] = {}
        rules: dict[tuple[What, int], tuple[float, list[float]]] = {}
        found: dict[str, When] = {}
        new: dict[tuple[What, int], list[OpenForecast]] = {}
        for row, seq in enumerate(ahead.seqs.tolist()):
            mine = live.get(seq)
            if mine is None:
                continue
            runs = bool(ahead.running[row])
            fresh = mine.job not in self._met
            corrected: dict[What, tuple[float, ...]] = {}
            for what in _RUNNING if runs else _WAITING:
                raw = starts[row] if what == "start" else ends[row]
                floor_s = corrected["start"][0] if what == "end" else 0.0
                list_s = max(by_list[seq][what != "start"] - now_s, 0.0)
                key = what, size_class(mine.num_gpus)
                if key not in by:
                    by[key] = self.record.correction(what, mine.num_gpus, late.get(key))
                corrected[what] = self.record.corrected(raw, list_s, by[key], floor_s)
                if fresh:
                    if key not in rules:
                        rules[key] = self.record.rules(what, mine.num_gpus, now_s)
                    said = OpenForecast(
                        mine.job, mine.num_gpus, what, now_s, raw, corrected[what], *rules[key], list_s
                    )
                    self._open.setdefault(mine.job, []).append(said)
                    new.setdefault(key, []).append(said)
            self._met.add(mine.job)
            start = None if runs else tuple(now_s + time for time in corrected["start"])
            end = corrected["end-running" if runs else "end"]
            found[mine.job] = When(start, tuple(now_s + time for time in end))
        for some in new.values():
            weights = teaching(len(some))
            for place, said in enumerate(some):
                said.weight = weights.get(place, 0.0)
        return found

    def corrected(
        self, what: What, num_gpus: float, times: Floats, list_s: float, now_s: float
    ) -> tuple[float, ...]:
        """Return the corrected quantiles of a job's start or end, and store no forecast.

        Args:
            what: Kind of the forecast.
            num_gpus: Size of the job.
            times: (1, S) start or end of the job in each simulated future, seconds.
            list_s: Start or end of the job by list scheduling, seconds.
            now_s: Present time; the times above are on the same scale.
        """
        late = self._late(now_s).get((what, size_class(num_gpus)))
        by = self.record.correction(what, num_gpus, late)
        said = self.record.corrected(_quantiles(times - now_s)[0], max(list_s - now_s, 0.0), by)
        return tuple(now_s + time for time in said)

    def _late(self, now_s: float) -> dict[tuple[What, int], Floats]:
        """Return the open forecasts by kind and size class, as input of `Record.correction`."""
        found: dict[tuple[What, int], list[tuple[float, ...]]] = {}
        for some in self._open.values():
            for said in some:
                if said.weight:
                    logs = ln_of(np.array([*said.raw, said.list_s, now_s - said.said_s]))
                    row = (*logs.tolist(), said.weight)
                    found.setdefault((said.what, size_class(said.num_gpus)), []).append(row)
        return {key: np.array(rows) for key, rows in found.items()}

    # ---- outcomes ---------------------------------------------------------------------------------

    def saw(self, job: str, start_s: float, end_s: float) -> None:
        """Record the true start and end of a job, for its open forecasts; nan: has not happened.

        Pass nan for the end of a cancelled job, so that its forecast is not scored.
        """
        if job in self._open:
            self._came[job] = (start_s, end_s)

    def drop_job(self, job: str) -> None:
        """Remove an ended job and its open forecasts."""
        self._open.pop(job, None)
        self._met.discard(job)

    def take_outcomes(self) -> list[Seen]:
        """Return the forecasts whose outcomes were recorded since the previous call, earliest outcome first.

        They are no longer open, and are added to `record`.
        """
        found: list[tuple[Seen, float]] = []
        for job, (start_s, end_s) in self._came.items():
            left = []
            for said in self._open.get(job, ()):
                came_s = start_s if said.what == "start" else end_s
                if math.isnan(came_s):
                    left.append(said)
                else:
                    found.append((_seen(said, came_s), said.weight))
            if left:
                self._open[job] = left
            else:
                self._open.pop(job, None)
        self._came.clear()
        found.sort(key=lambda one: one[0].time_s)
        for seen, weight in found:
            self.record.add(seen, weight)
        return [seen for seen, _ in found]


def _seen(said: OpenForecast, came_s: float) -> Seen:
    low_s, median_s, high_s = said.corrected
    return Seen(
        time_s=came_s,
        job=said.job,
        num_gpus=said.num_gpus,
        what=said.what,
        said_s=said.said_s,
        low_s=low_s,
        median_s=median_s,
        high_s=high_s,
        seen_s=max(came_s - said.said_s, 0.0),
        raw=list(said.raw),
        last_s=said.last_s,
        week=said.week,
        list_s=said.list_s,
    )


def _quantiles(times: Floats) -> list[tuple[float, ...]]:
    """Return the 10, 50 and 90 % quantiles of each row of (L, S) times, at least 0; they can be infinite."""
    ordered = np.sort(np.maximum(times, 0.0), axis=1)
    count = times.shape[1]
    picks = [min(int(at * count), count - 1) for at in QUANTILES]
    return [tuple(row) for row in ordered[:, picks].tolist()]
