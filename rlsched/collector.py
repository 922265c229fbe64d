"""Pauses Python's cyclic garbage collector while code makes many objects that all stay in use.

The command `rlsched` imports this module first, so the module imports almost nothing itself.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class no_garbage:  # noqa: N801 - used as a function, as the context managers of `contextlib` are
    """Context manager that pauses the garbage collector: its scans can take most of the run time."""

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()


def imported(module: str) -> ModuleType:
    """Import a module with the garbage collector paused, and exclude all present objects from later scans.

    Modules live as long as the process, so scans of their objects are useless. Without the pause, the
    collector takes a sixth of the CPU time of `rlsched submit`.

    Args:
        module: Full name of the module.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    found = sys.modules.get(module)
    if found is not None:
        return found
    with no_garbage():
        found = import_module(module)
        gc.freeze()
    return found
