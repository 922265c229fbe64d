"""The two curves of sharing that `fit_sharing.py` fits: the formula for strangers, and speeds of MIG
slices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rlsched.models import mig, sharing

BANDS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
BAND_THROUGHPUT = (2.00, 2.00, 1.93, 1.83, 1.69, 1.48)
"""Mean combined throughput of the 1,091 measured pairs of Lucid's data (RTX 3090) by u1 + u2."""
Floats = NDArray[np.float64]


def _softplus(y: Floats, sharpness: float) -> Floats:
    return np.logaddexp(0.0, sharpness * y) / sharpness


def formula(x: Floats, u: Floats, v: Floats) -> Floats:
    """`sharing.stranger_speed` with free constants."""
    full = _softplus(u + v - x[1], x[2]) - _softplus(u - x[1], x[2])
    return 1.0 / (1.0 + x[0] * full + x[3] * v)


SHIPPED = np.array(
    [sharing.SATURATION, sharing.THRESHOLD, sharing.SHARPNESS, sharing.LIGHT_SLOWDOWN], dtype=float
)
"""The constants of `formula` in `rlsched.models.sharing`."""


def band_throughput(x: Floats) -> Floats:
    """Mean combined throughput by band of u1 + u2, over evenly spread pairs."""
    centre = (np.arange(200) + 0.5) / 200
    a, b = np.meshgrid(centre, centre, indexing="ij")
    both = formula(x, a, b) + formula(x, b, a)
    return np.array([both[(low < a + b) & (a + b <= high)].mean() for low, high in pairwise(BANDS)])


def fit_formula() -> dict[str, Any]:
    """Fit to the solo-normalised formula of Lucid's pairs and to the bands of its measured pairs, with equal
    weight.

    The formula on a grid of 20 x 20 utilisations from .05 to 1; a band's mean over evenly spread pairs.
    """
    u, v = np.meshgrid(np.linspace(0.05, 1, 20), np.linspace(0.05, 1, 20), indexing="ij")
    target = 1.0 / (1.0 + 0.83 * _softplus(u + v - 1.37, 4.4) + 0.11 * v)

    def misses(x: Floats) -> Floats:
        off = (formula(x, u, v) - target).ravel() / np.sqrt(target.size)
        return np.concatenate(
            [off, (band_throughput(x) - BAND_THROUGHPUT) / 2 / np.sqrt(len(BAND_THROUGHPUT))]
        )

    x = least_squares(misses, [0.83, 1.37, 4.4, 0.11], bounds=([0, 0.5, 1, 0], [3, 2, 20, 1])).x
    off = formula(x, u, v) - target
    factors = np.array([sharing.factors_of_util(float(w)) for w in np.linspace(0.05, 1, 20)])
    as_product = 1.0 / (1.0 + np.outer(factors[:, 0], factors[:, 1]))
    return {
        "fitted": dict(zip(("saturation", "threshold", "sharpness", "light"), x.tolist(), strict=True)),
        "shipped_differs_at_most": float(abs(formula(SHIPPED, u, v) - formula(x, u, v)).max()),
        "to_formula_rms": float(np.sqrt((off**2).mean())),
        "to_formula_max": float(abs(off).max()),
        "bands": band_throughput(x).round(3).tolist(),
        "bands_measured": list(BAND_THROUGHPUT),
        "product_of_factors_rms": float(np.sqrt(((as_product - formula(SHIPPED, u, v)) ** 2).mean())),
        "jobs_combined": {
            f"{n} x u={load}": float(n * formula(SHIPPED, np.array(load), np.array((n - 1) * load)))
            for n, load in ((4, 0.2), (4, 0.3), (4, 0.5), (2, 0.8), (4, 0.8))
        },
    }


def mig_speeds(x: Floats, demand: Floats) -> Floats:
    """(N, 4) speeds on 1g to 4g by bend, four sizes, and (N,) demands."""
    return (1.0 + demand[:, None] ** x[0] * (x[1:5] ** -x[0] - 1.0)) ** (-1.0 / x[0])


def fit_slices(speeds: Floats) -> Floats:
    """Bend and sizes of the slices, with one demand per row fitted together with them.

    Demands and sizes are determined up to a common scale: 1g is fixed at its seventh of the
    multiprocessors."""
    known = ~np.isnan(speeds)
    rows = len(speeds)

    def full(x: Floats) -> Floats:
        return np.insert(x, 1, 1 / 7)

    result = least_squares(
        lambda x: (mig_speeds(full(x), full(x)[5:]) - speeds)[known],
        np.concatenate([[3.0, 2 / 7, 3 / 7, 4 / 7], np.full(rows, 0.5)]),
        bounds=([1.0] + [0.01] * (rows + 3), [10.0] + [0.99] * 3 + [1.0] * rows),
    )
    return full(result.x)


SLICE_CASES = [case for case in mig.MEASURED_A100 if case[0] != "deepspeech2"]
SLICE_SPEEDS = np.array([mig.MEASURED_A100[case] for case in SLICE_CASES])
"""(N, 4) measured speeds on 1g to 4g of an A100; nan if it did not fit."""


def held_out_slices() -> dict[str, list[tuple[float, float]]]:
    """(predicted, measured) speeds of each model in turn, by predictor; the others give the constants."""
    speeds, models = SLICE_SPEEDS, np.array([model for model, _ in SLICE_CASES])
    names = ("from 1g", "from 3g", "slice mean", "proportional")
    held: dict[str, list[tuple[float, float]]] = {name: [] for name in names}

    def keep(name: str, told: Floats, row: Floats) -> None:
        known = ~np.isnan(told) & ~np.isnan(row)
        held[name].extend(zip(told[known].tolist(), row[known].tolist(), strict=True))

    for model in sorted(set(models)):
        mine = models == model
        fitted = fit_slices(speeds[~mine])
        for row in speeds[mine]:
            for name, given in (("from 1g", 0), ("from 3g", 2)):
                if np.isnan(row[given]):
                    continue
                ratio = max(row[given] ** -fitted[0] - 1.0, 0.0) / (fitted[1 + given] ** -fitted[0] - 1.0)
                demand = np.array([min(ratio ** (1.0 / fitted[0]), 1.0)])
                keep(name, np.delete(mig_speeds(fitted, demand)[0], given), np.delete(row, given))
            keep("slice mean", np.nanmean(speeds[~mine], axis=0), row)
            keep("proportional", np.array([1, 2, 3, 4]) / 7, row)
    return held


def slices() -> dict[str, Any]:
    """MIG: the fit, and each model in turn predicted from one measured slice with constants of the others."""
    x = fit_slices(SLICE_SPEEDS)
    inside = (mig_speeds(x, x[5:]) - SLICE_SPEEDS)[~np.isnan(SLICE_SPEEDS)]
    off = {name: np.abs(np.subtract(*np.array(pairs).T)) for name, pairs in held_out_slices().items()}
    return {
        "bend": float(x[0]),
        "sizes": x[1:5].tolist(),
        "in_sample": {"mae": float(abs(inside).mean()), "max": float(abs(inside).max()), "n": len(inside)},
        "unseen_model": {
            name: {"mae": float(one.mean()), "max": float(one.max()), "n": len(one)}
            for name, one in off.items()
        },
    }
