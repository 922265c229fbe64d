"""Boosted trees of scikit-learn as plain arrays, evaluated by a compiled kernel.

For a few rows, the input checks of scikit-learn take longer than the prediction. This module copies the
fitted trees once, and evaluates them with the same comparisons and sums in the same order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.workload.predict.compiled import end_from_hazards
from rlsched.workload.predict.distribution import BINS, Floats


class Trees(NamedTuple):
    """T trees with M nodes in total.

    Attributes:
        roots: (T,) index of the root node of each tree.
        column: (M,) index of the feature that the node compares with its threshold, -1 at a leaf.
        value: (M,) threshold. At a leaf: the value that the leaf adds to the sum.
        left: (M,) index of the next node if the feature is at most the threshold.
        right: (M,) index of the next node if the feature is above the threshold.
        unknown: (M,) index of the next node if the feature is nan.
        base: Constant to which the leaf values are added.
    """

    roots: NDArray[np.int64]
    column: NDArray[np.int64]
    value: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    unknown: NDArray[np.int64]
    base: float


def trees_of(fitted: Any) -> Trees:
    """Return the trees of a `HistGradientBoostingClassifier` with two classes and without categories."""
    nodes = [trees[0].nodes for trees in fitted._predictors]
    roots = np.cumsum([0, *(len(one) for one in nodes[:-1])])
    every = np.concatenate(nodes)
    root = np.repeat(roots, [len(one) for one in nodes])
    leaf = every["is_leaf"].astype(bool)
    left, right = root + every["left"], root + every["right"]
    return Trees(
        roots,
        np.where(leaf, -1, every["feature_idx"]).astype(np.int64),
        np.where(leaf, every["value"], every["num_threshold"]),
        left,
        right,
        np.where(every["missing_go_to_left"], left, right),
        float(np.ravel(fitted._baseline_prediction)[0]),
    )


@kernel
def hazards_to_end(
    features: NDArray[np.float32],
    columns: NDArray[np.int64],
    roots: NDArray[np.int64],
    column: NDArray[np.int64],
    value: Floats,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    unknown: NDArray[np.int64],
    base: float,
    out: Floats,
) -> None:
    """Evaluate the trees' hazard of each bin for N jobs, and write the distributions to `out` (N, BINS).

    `features` (N, F) are the features of the jobs. Feature k of the trees is feature `columns[k]` of the job,
    for k < C; feature C of the trees is the index of the bin. The other arguments are the fields of `Trees`.
    """
    for job in range(len(features)):
        out[job, :] = base
        for tree in range(len(roots)):
            bin_ = 0
            while bin_ < BINS - 1:  # one traversal for all bins that reach one leaf
                node, end = roots[tree], BINS - 1
                while column[node] >= 0:
                    if column[node] == len(columns):
                        if bin_ <= value[node]:
                            end = min(end, int(min(value[node], BINS)) + 1)
                            node = left[node]
                        else:
                            node = right[node]
                        continue
                    seen = float(features[job, columns[column[node]]])
                    if math.isnan(seen):
                        node = unknown[node]
                    elif seen <= value[node]:
                        node = left[node]
                    else:
                        node = right[node]
                for at in range(bin_, end):
                    out[job, at] += value[node]
                bin_ = end
        for at in range(BINS - 1):
            out[job, at] = 1.0 / (1.0 + math.exp(-out[job, at]))
        out[job, BINS - 1] = 1.0
        end_from_hazards(out[job])
