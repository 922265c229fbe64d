"""Writes decision records as TensorBoard curves and histograms. Needs tensorboard, but not torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rlsched.board.curves import Curves
from rlsched.board.summarise import summarise
from rlsched.board.tags import DESCRIPTIONS, LAYOUT
from rlsched.decide.record import DecisionRecord

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_DECISIONS = 256


class DecisionWriter:
    """Writes curves of decisions to an event file: every `window` decisions become one point of each curve.

    The step of a point is the number of its last decision, counted from 1. A restarted broker continues this
    count, because TensorBoard discards earlier points with the same or a higher step.

    Event files contain only summaries, because they are written at only about 2 MB/s. The decisions are in a
    store in the same folder (`rlsched.decisions`).

    Args:
        logdir: Folder of the event file (a run in TensorBoard); created if missing.
        window: Number of decisions per point.
        wall_time: Function that returns the timestamp of a point, seconds since 1970.

    Raises:
        InputError: tensorboard is not installed, or `logdir` cannot be written.
    """

    def __init__(
        self,
        logdir: str | Path,
        *,
        window: int = WINDOW_DECISIONS,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        if window < 1:
            raise ValueError(f"window: expected 1 decision or more, got {window}")
        self.logdir = Path(logdir)
        self._window = window
        self._waiting: list[DecisionRecord] = []
        self._curves: Curves | None = Curves(self.logdir, DESCRIPTIONS, LAYOUT, wall_time)

    def add(self, record: DecisionRecord) -> None:
        """Add one decision. After every `window` decisions, write one point of each curve."""
        self._waiting.append(record)
        if len(self._waiting) >= self._window:
            self._write_point()

    def add_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """Add a point to each curve in `scalars` at once, without waiting for `window` decisions.

        `step`: number of decisions so far.
        """
        self._open.add(step, scalars)

    def flush(self) -> None:
        """Make a point of the decisions since the last point, and write all points in memory to the file.

        Raises:
            InputError: a write failed, for example because the disk is full. These points are lost; later
                points can be added.
        """
        self._write_point()
        self._open.flush()

    def close(self) -> None:
        """Write all points, and close the file. A second call has no effect."""
        if self._curves is not None:
            try:
                self._write_point()
            finally:
                curves, self._curves = self._curves, None
                curves.close()

    def __enter__(self) -> DecisionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_point(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        summary = summarise(waiting)
        self._open.add(waiting[-1].number + 1, summary.scalars, summary.histograms)

    @property
    def _open(self) -> Curves:
        if self._curves is None:
            raise ValueError("this DecisionWriter is closed; create another one")
        return self._curves
