"""When a process that has ended is started again: with back-off, and a limited number of times in a row."""

from __future__ import annotations

import math
from typing import Final

MOST: Final = 5
"""Starts in a row before a process stays down."""
FIRST_S: Final = 1.0
"""Back-off before the first start; it doubles with each."""
CALM_S: Final = 60.0
"""A process that has run for so long counts from the beginning again, seconds."""


class Restarts:
    """The starts of one process.

    Attributes:
        in_a_row: Starts since it last ran for `CALM_S`.
    """

    def __init__(self) -> None:
        self.in_a_row = 0

    def after(self, ran_s: float) -> float:
        """The process has ended after `ran_s` seconds: seconds until it starts again, infinite for never."""
        if ran_s >= CALM_S:
            self.in_a_row = 0
        if self.in_a_row >= MOST:
            return math.inf
        self.in_a_row += 1
        return FIRST_S * 2.0 ** (self.in_a_row - 1)
