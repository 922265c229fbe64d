"""Stores and loads the machine code of shared kernels, once for all functions that call them.

A shared kernel (`jit.shared`) is compiled to an object file of its own. Its symbol is named after a digest of
its code. Functions that call the kernel only declare this symbol; before their machine code is loaded, the
object files of their shared kernels are loaded, each once per process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm
import msgspec

MARK: Final = "shared"
"""Prefix of the digest of a shared kernel's code in the kernel's symbol."""
SUFFIX: Final = ".o"


class _File(msgspec.Struct, array_like=True):
    """Contents of the file of a shared kernel.

    Attributes:
        needs: Symbols of other shared kernels that the machine code calls.
        code: Object file.
    """

    needs: list[str]
    code: bytes


def needed_by(module: Any) -> list[str]:
    """Return the symbols of shared kernels that an LLVM module declares."""
    return [one.name for one in module.functions if one.is_declaration and is_shared(one.name)]


def is_shared(symbol: str) -> bool:
    """Return whether a symbol names a shared kernel."""
    return f"v{MARK}" in symbol


class SharedCode:
    """The shared kernels that this process has loaded."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def add(self, engine: Any, folder: Path, symbol: str, needs: list[str], code: bytes) -> None:
        """Load a shared kernel that this process has just compiled, and store it for other processes."""
        path = _path(folder, symbol)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.msgpack.encode(_File(needs, code)))
        partial.replace(path)
        self._load(engine, symbol, code)

    def load(self, engine: Any, folder: Path, symbols: Iterable[str]) -> None:
        """Load shared kernels, and the shared kernels that they call.

        Raises:
            OSError: a file is missing, or cannot be read.
            msgspec.DecodeError: a file is damaged.
        """
        for symbol in symbols:
            if symbol in self._loaded:
                continue
            path = _path(folder, symbol)
            found = msgspec.msgpack.decode(path.read_bytes(), type=_File)
            path.touch()
            self.load(engine, folder, found.needs)
            self._load(engine, symbol, found.code)

    def _load(self, engine: Any, symbol: str, code: bytes) -> None:
        if symbol not in self._loaded:
            engine._ee.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._loaded.add(symbol)


def _path(folder: Path, symbol: str) -> Path:
    return folder / f"{hashlib.sha256(symbol.encode()).hexdigest()[:32]}{SUFFIX}"


SHARED_CODE: Final = SharedCode()
