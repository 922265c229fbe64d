"""Forecasts of the number of nodes needed: the highest demand over the next slots of ten minutes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError

Floats = NDArray[np.float64]

SLOT_S: Final = 600.0
"""Length of a slot, s; the CES service of Helios (Hu et al., SC'21) decides every ten minutes too."""


class DemandForecast(ABC):
    """A forecast of the highest demand for nodes, from the demand in past slots of `SLOT_S` seconds."""

    @property
    @abstractmethod
    def needs_slots(self) -> int:
        """Number of past slots that `peak` needs, at least 1."""

    @abstractmethod
    def peak(self, demand: Floats) -> float:
        """Return the forecast of the highest demand in the next slots, number of nodes.

        `demand`: (N,) demand of the past slots, number of nodes, oldest first; N >= 1.
        """


@dataclass(frozen=True)
class Persistence(DemandForecast):
    """Forecast that the demand of the last slot persists; earlier peaks are not considered."""

    @property
    def needs_slots(self) -> int:
        return 1

    def peak(self, demand: Floats) -> float:
        return float(demand[-1])


@dataclass(frozen=True)
class TrailingMaximum(DemandForecast):
    """Forecast that the highest demand of the last `window` slots recurs.

    This forecast needs no training, and tolerates a log that reports a demand of 0 for half an hour.
    """

    window: int = 18

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"the trailing maximum needs a window of at least one slot, got {self.window}")

    @property
    def needs_slots(self) -> int:
        return self.window

    def peak(self, demand: Floats) -> float:
        return float(demand[-self.window :].max())
