"""User-defined policies: `FILE.py`, or `FILE.py:NAME` for one of several policies in a file.

A policy is either a rule (`rlsched.decide.rules`) or a scheduler in plain Python. A rule is a kernel
`next_move`, or a file or class with this kernel. A scheduler is a class derived from
`rlsched.decide.scheduler.Scheduler`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from rlsched.errors import InputError, nearest

_OWN: Final = re.compile(r"(?P<file>.+\.py)(:(?P<name>[^:/\\]*))?", re.DOTALL)
DEFAULT: Final = "default"
"""Value of `dials` for the strategy that ships with rlsched."""
NO_PATHS: Final = ("", DEFAULT)
"""Values of `checkpoint` and `dials` that name no file."""


INLINE_ZIP: Final = "data:application/zip;base64,"
"""Prefix of a setting `checkpoint` that contains the checkpoint itself: a URL of RFC 2397."""


def is_inline(text: str) -> bool:
    """Return whether a policy's setting `dials` or `checkpoint` is a file's content instead of a path."""
    return text.lstrip().startswith("{") or text.startswith(INLINE_ZIP)


def is_own(rule: str) -> bool:
    """Return whether the setting `rule` names a Python file (a user-defined rule), not an installed rule."""
    return _OWN.fullmatch(rule) is not None


def file_of(rule: str) -> Path:
    """Return the file of a user-defined rule."""
    return Path(_parts(rule)[0])


def name_of(rule: str) -> str:
    """Return the display name of a rule: NAME of `FILE.py:NAME`, else the file's name without suffix."""
    return _parts(rule)[1] or file_of(rule).stem


def content_of(rule: str) -> str:
    """Return a digest of the content of a user-defined rule's file.

    Raises:
        OSError: the file cannot be read.
    """
    return _digest(file_of(rule))


def rule_in_copy(rule: str, file: Path) -> str:
    """Return the value of the setting `rule` for the same rule in `file`, a copy of the rule's file."""
    name = _parts(rule)[1]
    return f"{file}:{name}" if name else str(file)


def decides_itself(rule: str) -> bool:
    """Return whether a user-defined policy is a scheduler and not a rule.

    `FILE.py` without `:NAME` is always a rule.

    Raises:
        InputError: the file does not exist, cannot be run, or does not define the name.
    """
    found = loaded(rule) if _parts(rule)[1] else None
    return isinstance(found, type) and hasattr(found, "decide")


def loaded(rule: str) -> Any:
    """Load the user-defined policy that `rule` names: the module of `FILE.py`, or the object NAME in it.

    Raises:
        InputError: the file does not exist, cannot be run, or does not define the name.
    """
    file, name = _parts(rule)
    if not Path(file).is_file():
        raise InputError(f"{file}: there is no such file; expected a Python file that defines next_move")
    module = _module(Path(file))
    if not name:
        if rule.endswith(":"):
            raise InputError(f"{rule}: expected a name after the colon, such as {file}:MyRule")
        return module
    found = getattr(module, name, None)
    if found is None:
        raise InputError(
            f"{rule}: there is no {name} in this file; {nearest(name, vars(module))}expected a class derived "
            "from Scheduler, or a rule"
        )
    return found


def _parts(rule: str) -> tuple[str, str]:
    found = _OWN.fullmatch(rule)
    assert found is not None, rule
    return found["file"], found["name"] or ""


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


class _SourceLoader(SourceFileLoader):
    """Compiles a Python file at every import: Python does not detect a second change within one second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled code of the file, without a `__pycache__` next to the file."""
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)


def _module(file: Path) -> ModuleType:
    """Run a file and return the module; a file with unchanged content runs only once."""
    name = f"rlsched_own_{_digest(file)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        del sys.modules[name]
        raise InputError(f"{file}: this rule cannot be loaded: {type(error).__name__}: {error}") from error
    return module
