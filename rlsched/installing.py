"""Returns the shell command that installs an optional dependency group (extra) on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The root of the checkout, if rlsched runs from a checkout."""


def install_command(extra: str, root: Path = ROOT) -> str:
    """Return the shell command that installs an extra in this installation.

    Args:
        extra: One extra, or several separated by commas.
        root: Folder that contains the package `rlsched`: a checkout, or `site-packages`.

    Returns:
        In a checkout, the command of an editable installation with pinned versions, as in `make install`.
        Elsewhere, the command that installs the extra by the distribution's name.
    """
    pins = root / "constraints.txt"
    if not (root / "pyproject.toml").is_file() or not pins.is_file():
        return f"{_pip()} install 'rlsched[{extra}]'"
    if Path.cwd() == root:
        return f"{_pip()} install -c constraints.txt -e '.[{extra}]'"
    return f"{_pip()} install -c {pins} -e '{root}[{extra}]'"


def _pip() -> str:
    """Return `pip`, or the path of this Python's pip if a shell would run another Python's `pip`."""
    mine = Path(sys.executable).with_name("pip")
    found = shutil.which("pip")
    if not mine.exists() or (found and Path(found).parent.resolve() == mine.parent.resolve()):
        return "pip"
    here = Path.cwd()
    return str(mine.relative_to(here)) if mine.is_relative_to(here) else str(mine)
