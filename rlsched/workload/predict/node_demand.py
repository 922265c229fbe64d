"""Forecasts of the highest number of nodes that jobs will need in the next time slots of ten minutes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError

Floats = NDArray[np.float64]

SLOT_S: Final = 600.0
"""Length of a time slot, s, as in the CES service of Helios (Hu et al., SC'21)."""


class DemandForecast(ABC):
    """A forecast of the highest demand for nodes, from the demand in past slots of `SLOT_S` seconds."""

    @property
    @abstractmethod
    def needs_slots(self) -> int:
        """Number of past slots that `peak` uses, at least 1."""

    @abstractmethod
    def peak(self, demand: Floats) -> float:
        """Return the highest demand expected in the next slots, number of nodes.

        `demand`: (N,) demand in each past slot, number of nodes, oldest first; N >= 1.
        """


@dataclass(frozen=True)
class Persistence(DemandForecast):
    """Forecast that the demand stays as in the last slot."""

    @property
    def needs_slots(self) -> int:
        return 1

    def peak(self, demand: Floats) -> float:
        return float(demand[-1])


@dataclass(frozen=True)
class TrailingMaximum(DemandForecast):
    """Forecast that equals the highest demand in the last `window` time slots."""

    window: int = 18

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"the trailing maximum needs a window of at least one slot, got {self.window}")

    @property
    def needs_slots(self) -> int:
        return self.window

    def peak(self, demand: Floats) -> float:
        return float(demand[-self.window :].max())
