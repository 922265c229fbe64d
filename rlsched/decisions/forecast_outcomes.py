"""Forecasts with known outcomes, from a store of decisions."""

from __future__ import annotations

import math
from array import array
from typing import Any, Final

import numpy as np

NUMBERS: Final = ("time_s", "said_s", "low_s", "median_s", "high_s", "seen_s")
TEXTS: Final = ("job", "what")


class KnownForecasts:
    """Forecasts with known outcomes, in the order in which the broker wrote them."""

    def __init__(self) -> None:
        self._numbers = {name: array("d") for name in NUMBERS}
        self._texts: dict[str, list[str]] = {name: [] for name in TEXTS}

    def add(self, batch: Any) -> None:
        """Add the rows of a batch of the table `forecasts`."""
        for name in NUMBERS:
            self._numbers[name].extend(batch.column(name).to_pylist())
        for name in TEXTS:
            self._texts[name] += batch.column(name).to_pylist()

    def __len__(self) -> int:
        return len(self._texts["job"])

    def outcomes_between(self, from_s: float, to_s: float, most: int) -> dict[str, Any]:
        """Return the forecasts whose outcomes became known between two times, as a dict of columns.

        If there are more than about `most` forecasts, the columns contain an evenly spaced sample. `within`:
        whether the outcome is between the 10 % and the 90 % quantile. `count`: number of all forecasts
        between the two times. `held`: number of them with `within`.
        """
        numbers = {name: np.array(column) for name, column in self._numbers.items()}
        time_s, seen_s = numbers["time_s"], numbers["seen_s"]
        held = (seen_s >= numbers["low_s"]) & (seen_s <= numbers["high_s"])
        inside = np.flatnonzero((time_s >= from_s) & (time_s <= to_s))
        inside = inside[np.argsort(time_s[inside], kind="stable")]
        shown = inside[:: max(1, math.ceil(len(inside) / most))]
        found: dict[str, Any] = {name: column[shown].tolist() for name, column in numbers.items()}
        found |= {name: [self._texts[name][row] for row in shown.tolist()] for name in TEXTS}
        return found | {
            "within": held[shown].tolist(),
            "count": len(inside),
            "held": int(held[inside].sum()),
        }
