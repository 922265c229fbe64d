"""The fixtures of `tests/`: the shared data, and skipping by name if they are missing."""

from __future__ import annotations

from tests.conftest import pytest_collection_modifyitems, pytest_runtest_setup, shared_data

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_setup", "shared_data"]
