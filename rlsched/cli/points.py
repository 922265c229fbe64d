"""Reads the entry points `rlsched.commands`, which define the verbs of `rlsched`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rlsched.collector import imported

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "rlsched.commands"


def points() -> dict[str, EntryPoint]:
    """Return a dict: verb -> its entry point, for the verbs of all installed packages."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def own_point(verb: str) -> str:
    """Return the entry point of a verb of rlsched, as `MODULE:NAME`; "" if rlsched has no such verb.

    `importlib.metadata` would take a third of the time of `rlsched submit`, so this function
    reads `entry_points.txt` itself.
    """
    for folder in sys.path:
        for name in _names(folder):
            if name.startswith("rlsched-") and name.endswith(".dist-info"):
                return _of_group(os.path.join(folder, name, "entry_points.txt")).get(verb, "")
    return ""


def loaded(point: str) -> Any:
    """Return the object that an entry point names.

    Raises:
        ModuleNotFoundError, AttributeError: the object does not exist.
    """
    module, _, name = point.partition(":")
    return getattr(imported(module), name)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _of_group(path: str) -> dict[str, str]:
    """Return the entry points `rlsched.commands` in an `entry_points.txt`: verb -> `MODULE:NAME`."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found, is_ours = dict[str, str](), False
    for line in lines:
        if line.startswith("["):
            is_ours = line.strip() == f"[{GROUP}]"
        elif is_ours and "=" in line:
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip()
    return found
