"""Reads TensorBoard event files: the curves and texts of all runs below a folder."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rlsched.errors import InputError

_HEAD_BYTES: Final = 12
"""Size of the header of a record, bytes: the length of the record, and a checksum of the length."""
_CHECK_BYTES: Final = 4
"""Size of the checksum after each record, bytes."""


@dataclass
class RunEvents:
    """Content of the event files in one folder (a run). The values of each tag are in the order of writing.

    Attributes:
        scalars: Tag -> list of (step, value).
        texts: Tag -> list of (step, text).
        histograms: Tag -> steps of its histograms.
        damaged: A message for the user for each file with an unreadable part.
    """

    scalars: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    texts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    histograms: dict[str, list[int]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def read_runs(logdir: str | Path) -> dict[str, RunEvents]:
    """Return the runs below `logdir` by relative path; the path of `logdir` itself is `.`.

    The files can be of rlsched, Stable-Baselines3 or torch. Checksums are verified in Python, at about 4
    MB/s. A damaged or truncated file is read up to the damage; `damaged` names the file and the last step
    that was read.

    Raises:
        InputError: there is no such folder, the folder has no event file, an event file cannot be opened, or
            tensorboard is not installed.
    """
    logdir = Path(logdir)
    if not logdir.is_dir():
        raise InputError(f"{logdir}: expected a folder of TensorBoard event files, found none there")
    files = sorted(logdir.rglob("events.out.tfevents.*"))
    if not files:
        raise InputError(f"{logdir}: expected event files (events.out.tfevents.*) below it, found none")
    runs: dict[str, RunEvents] = {}
    for path in files:
        _read_file(path, runs.setdefault(str(path.parent.relative_to(logdir)), RunEvents()))
    return runs


def _read_file(path: Path, run: RunEvents) -> None:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError as error:
        raise InputError(
            "reading event files needs tensorboard, which is not installed; install rlsched[board]"
        ) from error
    plugin_of: dict[str, str] = {}  # only the first value of a tag has metadata
    read, step = 0, 0
    try:
        whole, is_cut = _framed(path)
    except OSError as error:
        raise InputError(f"{path}: cannot read this event file: {error.strerror}") from error
    for event in EventFileLoader(str(path)).Load():
        read, step = read + 1, max(step, event.step)
        for value in event.summary.value if event.HasField("summary") else ():
            plugin_of.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
            plugin = plugin_of[value.tag]
            if plugin == "scalars":
                number = float(tensor_util.make_ndarray(value.tensor).item())
                run.scalars.setdefault(value.tag, []).append((event.step, number))
            elif plugin == "text":
                text = tensor_util.make_ndarray(value.tensor).ravel()[0].decode("utf-8", "replace")
                run.texts.setdefault(value.tag, []).append((event.step, text))
            elif plugin == "histograms":
                run.histograms.setdefault(value.tag, []).append(event.step)
    if read < whole or is_cut:
        run.damaged.append(
            f"{path}: damaged or cut off after {read:,} records: read up to step {step:,}; later records "
            "are not shown"
        )


def _framed(path: Path) -> tuple[int, bool]:
    """Return the number of complete records at the beginning of a file, and whether more bytes follow."""
    size, at, whole = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while at + _HEAD_BYTES <= size:
            file.seek(at)
            (length,) = struct.unpack("<Q", file.read(8))
            if at + _HEAD_BYTES + length + _CHECK_BYTES > size:
                break
            at, whole = at + _HEAD_BYTES + length + _CHECK_BYTES, whole + 1
    return whole, at < size
