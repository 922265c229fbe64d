"""Writes curves for TensorBoard, with descriptions, charts of several curves, and the run's settings."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rlsched.board.events import EventFile
from rlsched.board.summaries import Layout, charts, compared_by, image

if TYPE_CHECKING:
    from collections.abc import Callable


def description_of(tag: str, descriptions: Mapping[str, str]) -> str:
    """Return the description of a tag; "" if the tag has no description.

    The keys of `descriptions` are regular expressions that must match the whole tag.
    """
    return next((said for expression, said in descriptions.items() if re.fullmatch(expression, tag)), "")


class Curves:
    """Writes curves to an event file. A curve is not written as long as all its values are 0.

    Args:
        logdir: Folder of the event file (a run in TensorBoard); created if missing.
        descriptions: Regular expression for tags -> description.
        layout: Charts of the tab «Custom scalars».
        wall_time: Function that returns the timestamp of a point, seconds since 1970.

    Raises:
        InputError: tensorboard is not installed, or `logdir` cannot be written.
    """

    def __init__(
        self,
        logdir: Path,
        descriptions: Mapping[str, str],
        layout: Layout,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        self._descriptions, self._wall_time = descriptions, wall_time
        self._drawn: set[str] = set()
        self._held: dict[str, list[tuple[int, float]]] = {}  # first and last (step, time) of curves at 0
        self._file = EventFile(logdir)
        self._add(0, [charts(layout)])

    def add(
        self,
        step: int,
        scalars: Mapping[str, float],
        histograms: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add a point to each curve in `scalars` and `histograms`.

        Raises:
            InputError: a write failed, for example because the disk is full. Some points are lost; later
                points can be added.
        """
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        stamp = self._wall_time()
        for tag, value in scalars.items():
            said = self._said(tag)
            if tag not in self._drawn and value == 0.0:
                self._held[tag] = [*self._held.get(tag, ())[:1], (step, stamp)]
                continue
            self._drawn.add(tag)
            for held_step, held_stamp in self._held.pop(tag, ()):
                self._add(held_step, [scalar_pb(tag, 0.0, said)], held_stamp)
            self._add(step, [scalar_pb(tag, value, said)], stamp)
        for tag, values in (histograms or {}).items():
            self._add(step, [histogram_pb(tag, values, description=self._said(tag))], stamp)

    def text(self, tag: str, markdown: str) -> None:
        """Add a text in Markdown to the run."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(0, [text_pb(tag, markdown, self._said(tag))])

    def image(self, tag: str, png: bytes, size: tuple[int, int]) -> None:
        """Add a PNG image to the run; `size` is (width, height) in pixels."""
        self._add(0, [image(tag, png, size, self._said(tag))])

    def settings(self, values: Mapping[str, object], metrics: Sequence[str]) -> None:
        """Add the settings of the run, and the tags by which the tab «HParams» compares runs."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        plain = {name: _plain(one) for name, one in values.items()}
        self._add(0, [compared_by(plain, {tag: self._said(tag) for tag in metrics}), hparams_pb(plain)])

    def flush(self) -> None:
        """Write the points in memory to the file.

        Raises:
            InputError: the points cannot be written, and are lost.
        """
        self._file.flush()

    def close(self) -> None:
        """Write the points in memory, and close the file."""
        self._file.close()

    def _said(self, tag: str) -> str:
        return description_of(tag, self._descriptions)

    def _add(self, step: int, summaries: Iterable[Any], stamp: float | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        stamp = self._wall_time() if stamp is None else stamp
        for summary in summaries:
            self._file.add(Event(wall_time=stamp, step=step, summary=summary))


def _plain(value: object) -> bool | float | str:
    """Return a setting in a type that TensorBoard accepts: bool, number or text."""
    if isinstance(value, bool):
        return value
    return float(value) if isinstance(value, int | float) else str(value)


def flat(table: Mapping[str, Any], within: str = "") -> dict[str, object]:
    """Return a nested dict as a flat dict, whose keys are the nested keys joined by dots."""
    found: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{within}{name}.")
        else:
            found[f"{within}{name}"] = value
    return found
