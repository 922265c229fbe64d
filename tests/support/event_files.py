"""Values in TensorBoard's event files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

OWN = ("custom_scalars", "hparams")
"""Plugins whose entries describe others."""


@dataclass
class Drawn:
    """A tag of an event file."""

    plugin: str
    description: str
    values: list[Any] = field(default_factory=list)


def event_values(folder: Path) -> dict[str, Drawn]:
    """All tags of a run."""
    found: dict[str, Drawn] = {}
    for path in sorted(folder.glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value if event.HasField("summary") else ():
                about = value.metadata
                one = found.setdefault(
                    value.tag, Drawn(about.plugin_data.plugin_name, about.summary_description)
                )
                if one.plugin == "scalars":
                    one.values.append(float(tensor_util.make_ndarray(value.tensor).item()))
                elif one.plugin == "text":
                    one.values.append(tensor_util.make_ndarray(value.tensor).ravel()[0].decode())
                else:
                    one.values.append(value)
    return found


def assert_all_are_described_and_none_is_always_0(run: dict[str, Drawn]) -> None:
    told = {tag: one for tag, one in run.items() if one.plugin not in OWN}
    assert told
    assert [tag for tag, one in told.items() if not one.description] == []
    scalars = {tag: one.values for tag, one in told.items() if one.plugin == "scalars"}
    assert [tag for tag, values in scalars.items() if not any(values)] == []
