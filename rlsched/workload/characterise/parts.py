"""Helpers for all statistics: reports, sections without data, numbered texts, quantiles and quotients."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Report = dict[str, Any]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HOUR_S = 3600.0
DAY_S = 86400.0
QUANTILES: tuple[tuple[str, float], ...] = (("p10_s", 0.1), ("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99))


def missing(say: str, *columns: str) -> Report:
    """Return the section that a report contains in place of statistics if the trace lacks their data.

    Args:
        say: Sentence that names the missing data.
        *columns: Columns of the trace that would provide the data; empty if no column would.
    """
    return {"missing": list(columns), "say": say}


def is_missing(section: Report) -> bool:
    """Return whether `missing` made this section."""
    return "missing" in section


class Keys(NamedTuple):
    """Text cells of a column, replaced by numbers.

    Attributes:
        code: (J,) number of each cell's text, in order of first appearance; -1 if the cell is blank.
        names: The texts, by number.
    """

    code: Ints
    names: list[str]

    @property
    def is_known(self) -> Mask:
        """(J,) whether the cell is not blank."""
        return self.code >= 0


def keyed(cells: NDArray[np.str_]) -> Keys:
    """Number the texts of a column."""
    numbers: dict[str, int] = {"": -1}
    code = [numbers.setdefault(text, len(numbers) - 1) for text in cells.tolist()]
    return Keys(np.array(code, dtype=np.int64), list(numbers)[1:])


def quantiles(seconds: Floats) -> Report:
    """Return the mean, the quantiles of `QUANTILES` and the maximum of one or more durations, seconds."""
    at = np.quantile(seconds, [q for _, q in QUANTILES])
    return {
        "mean_s": float(seconds.mean()),
        **{key: float(value) for (key, _), value in zip(QUANTILES, at, strict=True)},
        "max_s": float(seconds.max()),
    }


def quotient(numerator: float, denominator: float) -> float | None:
    """Return the quotient; None if the denominator is 0 or negative."""
    return numerator / denominator if denominator > 0 else None


def total_by(code: Ints, weights: Floats, kinds: int) -> Floats:
    """Return (kinds,) sums: for each code from 0 to `kinds` - 1, the sum of its weights."""
    total: Floats = np.bincount(code, weights=weights, minlength=kinds).astype(np.float64)
    return total


def gpu_seconds(duration_s: Floats, num_gpus: Floats) -> Floats:
    """Return the (J,) GPU-time of each job: duration x GPUs, GPU-seconds."""
    return duration_s * num_gpus
