"""Finds publishers' files by name: the main file in a folder, and the other files next to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlsched.errors import InputError

_ENDINGS = ("", ".csv", ".json", ".gz", ".csv.gz", ".json.gz")
_STRIPPED = (".gz", ".csv", ".json", ".swf", ".txt", ".log")


def title(path: Path) -> str:
    """Return the name of a trace: the name of its file without suffixes."""
    name = path.name
    for ending in _STRIPPED:
        if name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
    return name


def named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the files in a folder that match one of `names`, sorted.

    A name can contain `*` (any text). Files with the suffixes `.csv`, `.json` and `.gz` match too.
    """
    found = {
        path for name in names for ending in _ENDINGS for path in folder.glob(name + ending) if path.is_file()
    }
    return sorted(found)


def beside(path: Path, names: Sequence[str]) -> Path:
    """Return a file in the folder of `path` that matches one of `names`; the first name has precedence.

    Raises:
        InputError: The folder has no such file.
    """
    for name in names:
        found = named(path.parent, (name,))
        if found:
            return found[0]
    raise InputError(f"{path.parent}: expected {' or '.join(names)} next to {path.name}, got no such file")
