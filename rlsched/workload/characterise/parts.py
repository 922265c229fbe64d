"""Helpers for all statistics: reports, sections without data, texts as codes, quantiles and quotients."""

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
    """Return a section of a report without statistics, for a trace that lacks the data of the section.

    Args:
        say: Sentence that names the missing data.
        *columns: Headers of the missing columns; empty if the data are not in a column.
    """
    return {"missing": list(columns), "say": say}


def is_missing(section: Report) -> bool:
    """Return whether a section is the result of `missing`."""
    return "missing" in section


class Keys(NamedTuple):
    """A text column as codes: each cell is replaced by the index of its text.

    Attributes:
        code: (J,) index in `names` of each cell's text; -1 if the cell is blank.
        names: The distinct texts, in order of first appearance.
    """

    code: Ints
    names: list[str]

    @property
    def is_known(self) -> Mask:
        """(J,) whether the cell is not blank."""
        return self.code >= 0


def keyed(cells: NDArray[np.str_]) -> Keys:
    """Convert a text column to codes."""
    numbers: dict[str, int] = {"": -1}
    code = [numbers.setdefault(text, len(numbers) - 1) for text in cells.tolist()]
    return Keys(np.array(code, dtype=np.int64), list(numbers)[1:])


def quantiles(seconds: Floats) -> Report:
    """Return the mean, the quantiles in `QUANTILES`, and the maximum of durations (at least one), seconds."""
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
    """For each code from 0 to `kinds` - 1, return the sum of the weights of the entries with this code."""
    total: Floats = np.bincount(code, weights=weights, minlength=kinds).astype(np.float64)
    return total


def gpu_seconds(duration_s: Floats, num_gpus: Floats) -> Floats:
    """Return the (J,) GPU-time of each job: duration x GPUs, GPU-seconds."""
    return duration_s * num_gpus
