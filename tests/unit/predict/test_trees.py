"""Boosted trees as arrays: the kernel equals scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.workload.predict.distribution import BINS
from rlsched.workload.predict.trees import hazards_to_end, trees_of

ensemble = pytest.importorskip("sklearn.ensemble")
JOBS, COLUMNS = 400, np.array([0, 2, 3])


def test_kernel_equals_the_library() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(JOBS, 4)).astype(np.float32)
    features[rng.random(features.shape) < 0.2] = np.nan
    bins = np.arange(BINS - 1, dtype=np.float64)
    rows = np.column_stack([np.repeat(features[:, COLUMNS], BINS - 1, axis=0), np.tile(bins, JOBS)])
    risk = np.nan_to_num(rows[:, 0]) + 0.3 * rows[:, -1] - 2.0 * np.isnan(rows[:, 1])
    ends = rng.random(len(rows)) < 1.0 / (1.0 + np.exp(2.0 - risk))
    fitted = ensemble.HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=24, early_stopping=False)
    fitted.fit(rows, ends)

    got = np.empty((JOBS, BINS))
    hazards_to_end(features, COLUMNS, *trees_of(fitted), got)

    hazards = fitted.predict_proba(rows)[:, 1].reshape(JOBS, BINS - 1)
    left = np.cumprod(1.0 - hazards, axis=1)
    expected = np.column_stack([hazards, np.ones(JOBS)])
    expected[:, 1:] *= left
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert np.ptp(expected[:, 0]) > 0.1, "the trees distinguish jobs"
