"""Distinct rows of columns, as `np.unique` finds them, and whether texts surely differ."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.workload import distinct
from rlsched.workload.distinct import distinct_rows, fingerprints, surely_differ

JOBS = 3000
RNG = np.random.default_rng(0)
COLUMNS = {
    "sizes": RNG.integers(0, 9, JOBS).astype(np.float64),
    "with blanks": RNG.choice([0, 1, 2, np.nan, 65535, 65536], JOBS),
    "too large": RNG.choice([1, 7e4, np.inf], JOBS),
    "fractions": RNG.choice([0.25, 0.5, np.nan], JOBS),
    "below zero": RNG.choice([-1.0, 2.0], JOBS),
    "whole numbers": RNG.integers(0, 2000, JOBS),
    "of its own": np.arange(JOBS),
    "texts": RNG.choice(["", "b", "a", "aa", "é", "王"], JOBS),
    "all blank": np.full(JOBS, np.nan),
    "one text": np.full(JOBS, "x"),
}


def expected(columns: list[NDArray[np.generic]]) -> tuple[list[int], list[int]]:
    """First rows and numbers of the combinations of the columns' ranks."""
    ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in columns], axis=1)
    _, first, number = np.unique(ranks, axis=0, return_index=True, return_inverse=True)
    return first.tolist(), number.ravel().tolist()


@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in COLUMNS),
        ["sizes", "with blanks", "texts"],
        ["texts", "sizes"],
        ["of its own", "whole numbers", "sizes"],
        ["all blank", "one text", "below zero", "too large"],
    ],
    ids=", ".join,
)
@pytest.mark.parametrize("jobs", [JOBS, 1, 0])
def test_combinations_are_numbered_in_ascending_order(names: list[str], jobs: int) -> None:
    columns = [COLUMNS[name][:jobs] for name in names]
    first, number = distinct_rows(columns)
    assert (first.tolist(), number.tolist()) == (expected(columns) if jobs else ([], []))


def test_texts_with_the_same_fingerprint_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct, "fingerprints", lambda column: np.zeros(len(column), np.uint64))
    texts = COLUMNS["texts"]
    first, number = distinct_rows([texts])
    assert (first.tolist(), number.tolist()) == expected([texts])
    assert not surely_differ(np.array(["a", "b"]))


def test_fingerprints_are_of_the_text_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct, "_ROWS", 2)
    found = fingerprints(np.array(["ab", "ba", "a", "b", "ab", "", "a"])).tolist()
    assert found[0] == found[4]
    assert found[2] == found[6]
    assert len(set(found)) == 5
    assert fingerprints(np.array(["ab", "a"])[::-1])[0] == found[2]


def test_ids_that_differ_surely_and_ids_that_do_not() -> None:
    ids = np.array([f"job-{k}" for k in range(JOBS)])
    assert surely_differ(ids)
    assert surely_differ(ids[:0])
    ids[-1] = ids[5]
    assert not surely_differ(ids)
