"""Imports with the garbage collector paused."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rlsched.collector import imported, no_garbage


def test_collector_is_restored_afterwards() -> None:
    assert gc.isenabled()
    with no_garbage():
        assert not gc.isenabled()
        with no_garbage():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def module(folder: Path, name: str, text: str) -> str:
    """Write a module that records whether the collector is on."""
    (folder / f"{name}.py").write_text(f"import gc\ncollects = gc.isenabled()\n{text}\n")
    return name


def test_module_is_imported_with_the_collector_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = imported(module(tmp_path, "one_of_the_test", ""))
        assert not found.collects
        assert imported("one_of_the_test") is found
        with pytest.raises(ModuleNotFoundError):
            imported("none_of_the_test")
        assert gc.isenabled()
    finally:
        gc.unfreeze()
