"""Gradient boosting of hazards: the probability that a job ends in a bin of run times if it reaches the bin.

One classifier predicts the hazard of every bin. Its training data have a row (job, bin) for every bin that a
job has reached. Running jobs contribute the bins that they have outlived. This is the discrete-time survival
model of Cox, 1972, and Singer and Willett, 1993, with trees instead of the linear form of the logit.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.compiling import COMPILING
from rlsched.errors import InputError
from rlsched.installing import install_command
from rlsched.workload.predict.distribution import BINS, EDGES_S, Floats
from rlsched.workload.predict.trees import hazards_to_end, trees_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import ThreadpoolController

LATEST_JOBS: Final = 14000
OLDER_JOBS: Final = 6000
"""Maximum number of older jobs in a fit, chosen at even intervals. A fit also uses all of the latest
`LATEST_JOBS` jobs.
"""
MIN_ENDED: Final = 200
"""Minimum number of ended jobs for a fit. With fewer, boosting is no better than the running mean."""


def require_sklearn() -> type[HistGradientBoostingClassifier]:
    """Return the classifier class of scikit-learn.

    Raises:
        InputError: scikit-learn is not installed.
    """
    try:
        with COMPILING.during("loading scikit-learn"):
            from sklearn.ensemble import HistGradientBoostingClassifier
    except ModuleNotFoundError as error:
        raise InputError(
            f"gradient boosting needs scikit-learn, which is not installed: {install_command('predict')}, "
            "or take --model running-mean, nearest or survival"
        ) from error
    found: type[HistGradientBoostingClassifier] = HistGradientBoostingClassifier
    return found


def telling_columns(features: Floats) -> NDArray[np.intp]:
    """Return the indices of the columns of (N, F) `features` that have at least two different known values.

    The other columns contain no information, and scikit-learn rejects columns of nan.
    """
    known = ~np.isnan(features)
    highest = np.where(known, features, -np.inf).max(axis=0)
    lowest = np.where(known, features, np.inf).min(axis=0)
    return np.flatnonzero(known.any(axis=0) & (highest > lowest))


def one_thread() -> AbstractContextManager[object]:
    """Return a context manager that limits scikit-learn to one thread.

    Several threads wait for the slowest one in busy loops. If another process uses one of the cores, a call
    can take minutes.
    """
    limit: AbstractContextManager[object] = _pools().limit(limits=1, user_api="openmp")
    return limit


def sklearn_installed() -> bool:
    """Return whether scikit-learn is installed, without importing it (importing takes 1.5 s of CPU time)."""
    if "sklearn.ensemble" in sys.modules:
        return sys.modules["sklearn.ensemble"] is not None
    return find_spec("sklearn") is not None


@lru_cache(maxsize=1)
def _pools() -> ThreadpoolController:
    """Return the thread pools of scikit-learn. The caller must have imported scikit-learn."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def chosen_rows(jobs: int) -> NDArray[np.intp]:
    """Return the indices of the jobs that a fit uses, out of `jobs` jobs in the order of submission."""
    latest = np.arange(max(jobs - LATEST_JOBS, 0), jobs)
    older = max(jobs - LATEST_JOBS, 0)
    if older <= OLDER_JOBS:
        return np.arange(jobs)
    return np.concatenate([np.linspace(0, older - 1, OLDER_JOBS).astype(np.intp), latest])


class HazardModel:
    """A fitted model of the hazard in each bin.

    Args:
        features: (N, FEATURES) features of the jobs, in order of submission.
        lasted_s: (N,) run time of each job until its end, or until now if it still runs, seconds.
        ended: (N,) whether the job has ended.
        seed: Seed of the fit.
    """

    def __init__(self, features: Floats, lasted_s: Floats, ended: NDArray[np.bool_], seed: int = 0) -> None:
        model_class = require_sklearn()
        reached = np.clip(np.searchsorted(EDGES_S, lasted_s, side="right") - 1, 0, BINS - 1)
        rows = np.where(ended, reached + 1, reached)
        job = np.repeat(np.arange(len(rows)), rows)
        bins = np.arange(len(job)) - np.repeat(np.cumsum(rows) - rows, rows)
        target = (ended[job] & (bins == reached[job])).astype(np.int8)
        self._columns = telling_columns(features)
        keep = bins < BINS - 1
        x = np.column_stack([features[:, self._columns][job[keep]], bins[keep]])
        model = model_class(
            max_iter=100,
            learning_rate=0.08,
            max_leaf_nodes=24,
            min_samples_leaf=60,
            l2_regularization=5.0,
            max_features=0.5,
            early_stopping=False,
            random_state=seed,
        )
        with one_thread():
            model.fit(x, target[keep])
        self._trees = trees_of(model)

    def probabilities(self, features: Floats) -> Floats:
        """Return the (N, BINS) distributions of the run time for N jobs with (N, FEATURES) `features`."""
        out = np.empty((len(features), BINS))
        hazards_to_end(features.astype(np.float32), self._columns, *self._trees, out)
        return out
