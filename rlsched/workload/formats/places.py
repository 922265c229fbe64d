"""Search for publishers' files by name: the main file, and other files in the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlsched.errors import InputError

_ENDINGS = ("", ".csv", ".json", ".gz", ".csv.gz", ".json.gz")
_STRIPPED = (".gz", ".csv", ".json", ".swf", ".txt", ".log")


def title(path: Path) -> str:
    """Return the name of the trace in this file: the file's name without suffixes."""
    name = path.name
    for ending in _STRIPPED:
        if name.lower().endswith(ending) and len(name) > len(ending):
            name = name[: -len(ending)]
    return name


def named(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the folder's files with one of these names (`*`: any text), compressed or not, sorted."""
    found = {
        path for name in names for ending in _ENDINGS for path in folder.glob(name + ending) if path.is_file()
    }
    return sorted(found)


def beside(path: Path, names: Sequence[str]) -> Path:
    """Return the first file with one of these names in the folder of `path`.

    Raises:
        InputError: The folder has no such file.
    """
    for name in names:
        found = named(path.parent, (name,))
        if found:
            return found[0]
    raise InputError(f"{path.parent}: expected {' or '.join(names)} next to {path.name}, got no such file")
