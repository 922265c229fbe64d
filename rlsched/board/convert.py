"""Converts a store of decisions to curves for TensorBoard."""

from __future__ import annotations

from pathlib import Path

from rlsched.board.writer import DecisionWriter
from rlsched.decisions.reading import read_records


def draw_run(store: str | Path, folder: str | Path) -> int:
    """Write the decisions of a store as the TensorBoard run `folder`; remove older event files there.

    Returns:
        The number of decisions.

    Raises:
        InputError: there is no store, it is damaged, or the folder cannot be written.
    """
    records = read_records(store)
    for old in Path(folder).glob("events.out.tfevents.*"):
        old.unlink()
    with DecisionWriter(folder) as writer:
        for record in records:
            writer.add(record)
    return len(records)
