"""Python's cyclic garbage collector, paused where many objects are made and none of them is garbage.

This module is imported first by the command `rlsched`, so it imports next to nothing itself.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class no_garbage:  # noqa: N801 - used as a function, as the context managers of `contextlib` are
    """Pause the collector: to look for garbage among ever more objects can take most of the time."""

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()


def imported(module: str, *, without: str = "") -> ModuleType:
    """Import a module with the collector paused, and exclude its objects from later collections.

    Modules live as long as the process. Without this the collector takes a sixth of the CPU time of
    `rlsched submit`.

    Args:
        module: Its full name.
        without: A module that it imports where it is installed, and does without elsewhere. It is hidden
            during the import.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    found = sys.modules.get(module)
    if found is not None:
        return found
    with no_garbage():
        found = _import_hiding(module, without)
        gc.freeze()
    return found


def _import_hiding(module: str, hidden: str) -> ModuleType:
    if not hidden or hidden in sys.modules:
        return import_module(module)
    sys.modules[hidden] = None  # type: ignore[assignment] # Python's way to say that there is no such module
    try:
        return import_module(module)
    except ImportError:  # it does not do without
        pass
    finally:
        del sys.modules[hidden]
    return import_module(module)
