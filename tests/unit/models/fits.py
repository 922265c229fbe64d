"""The functions of `benchmarks/fit_models.py`, for the tests of the models that it measures."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fit_models.py"


@cache
def fit_models() -> dict[str, Any]:
    """Everything that the script defines, by name."""
    return runpy.run_path(str(SCRIPT))


def by(table: list[dict[str, Any]], *names: str) -> dict[Any, dict[str, Any]]:
    """The rows of a table by one column, or by several as a tuple."""
    keys = [tuple(row[name] for name in names) for row in table]
    return {key if len(names) > 1 else key[0]: row for key, row in zip(keys, table, strict=True)}
