"""Decision records as TensorBoard curves, histograms and a table. Needs tensorboard, never torch."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from rlsched.board.events import EventFile
from rlsched.board.summarise import decision_table, summarise
from rlsched.decide.record import DecisionRecord

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_DECISIONS = 256
TABLE_DECISIONS = 20


class DecisionWriter:
    """Writes an event file: every `window` decisions become one point of each curve.

    The step of a point is the number of its last decision, counted from 1: a broker that was started again
    goes on where it was, and TensorBoard throws away what a step that goes back leaves behind it. Event files
    are about 2 MB/s to write, so what goes in is a summary; the records themselves belong into a record file
    beside it (`rlsched.decide.record.append_records`).

    Args:
        logdir: Folder of the event file; made if missing. TensorBoard calls it a run.
        samples: Decisions that the table of the last decisions shows.
        window: Decisions a point.
        wall_time: Clock that stamps the points, seconds since 1970.

    Raises:
        InputError: tensorboard is not installed, or `logdir` cannot be written to.
    """

    def __init__(
        self,
        logdir: str | Path,
        samples: int = TABLE_DECISIONS,
        *,
        window: int = WINDOW_DECISIONS,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        if samples < 1 or window < 1:
            raise ValueError(f"samples and window must be 1 or more, got {samples} and {window}")
        self.logdir = Path(logdir)
        self._window = window
        self._wall_time = wall_time
        self._waiting: list[DecisionRecord] = []
        self._last: deque[DecisionRecord] = deque(maxlen=samples)
        self._file: EventFile | None = EventFile(self.logdir)

    def add(self, record: DecisionRecord) -> None:
        """Count one decision in; a full window is written at once."""
        self._waiting.append(record)
        self._last.append(record)
        if len(self._waiting) >= self._window:
            self._write_point()

    def add_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """A point of each of these curves at once; `step` is a number of decisions too."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        stamp = self._wall_time()
        for tag, value in scalars.items():
            self._open.add(Event(wall_time=stamp, step=step, summary=scalar_pb(tag, value)))

    def flush(self) -> None:
        """Write the decisions since the last point as a point of their own, and all of it to disk.

        Raises:
            InputError: the disk is full, say; these points are left out, and others can follow.
        """
        self._write_point()
        self._open.flush()

    def close(self) -> None:
        """Flush and close; nothing can be added afterwards. Closing twice does nothing."""
        if self._file is not None:
            try:
                self._write_point()
            finally:
                file, self._file = self._file, None
                file.close()

    def __enter__(self) -> DecisionWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_point(self) -> None:
        if not self._waiting:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        waiting, self._waiting = self._waiting, []
        summary = summarise(waiting)
        parts = [scalar_pb(tag, value) for tag, value in summary.scalars.items()]
        parts += [histogram_pb(tag, values) for tag, values in summary.histograms.items()]
        parts.append(text_pb("decisions/last", decision_table(list(self._last))))
        stamp, step = self._wall_time(), self._last[-1].number + 1
        for part in parts:
            self._open.add(Event(wall_time=stamp, step=step, summary=part))

    @property
    def _open(self) -> EventFile:
        if self._file is None:
            raise ValueError("this writer is closed")
        return self._file
