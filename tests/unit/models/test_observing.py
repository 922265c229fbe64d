"""Learning in compiled runs equals `PairKnowledge`, on the arrays of the models."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.speed import fill_beside
from rlsched.models.arrays import TRAIT, ModelArrays, no_models
from rlsched.models.catalogue import load_catalogue
from rlsched.models.learning import Observed, PairKnowledge
from rlsched.models.observing import forget_all, observe

W = 6


def product_models(seed: int) -> ModelArrays:
    """Five workloads with latent factors on two GPU types; no pair was measured."""
    rng = np.random.default_rng(seed)
    trait = np.zeros((W, 2), TRAIT).view(np.recarray)
    trait.sensitivity[:], trait.pressure[:] = np.exp(rng.normal(-0.5, 0.6, (2, W, 2)))
    trait.util_frac[:] = 0.5
    models = no_models()._replace(trait=trait, pair=np.full((2, W, W), math.nan))
    fill_beside(models)
    return models


def test_runs_learn_as_pair_knowledge_does() -> None:
    """Including pairs of one workload. Means of pairs are kept in single precision."""
    rng, models, known = np.random.default_rng(2), product_models(1), PairKnowledge()
    for a in range(1, W):
        for kind in range(2):
            one = models.trait[a, kind]
            known.introduce(str(a), str(kind), float(one.sensitivity), float(one.pressure))
    for _ in range(60):
        a, b = (int(k) for k in rng.integers(1, W, 2))
        kind, speed = int(rng.integers(2)), float(rng.uniform(0.2, 1.1))
        observe(models, kind, a, b, speed)
        known.observe(Observed(str(a), str(b), str(kind), speed))
        told = [[known.predicted_speed(str(x), str(y), str(kind)) for y in range(1, W)] for x in range(1, W)]
        np.testing.assert_allclose(models.trait.beside[1:, kind, 1:W], told, rtol=1e-6)


def test_other_gpu_types_and_unknown_workloads_are_unchanged() -> None:
    models = product_models(3)
    before = models.trait.copy()
    observe(models, 1, 2, 3, 0.4)
    assert models.trait[:, 0].tobytes() == before[:, 0].tobytes()
    assert (models.trait.beside[0] == before.beside[0]).all()
    assert (models.trait.beside[:, 1, 0] == before.beside[:, 1, 0]).all()
    assert abs(models.trait.beside[2, 1, 3] / 0.4 - 1) < 0.05


def test_forgotten_pairs_leave_no_trace() -> None:
    models = product_models(4)
    before = models.trait.copy()
    for a, b in ((1, 2), (2, 1), (3, 3), (1, 2)):
        observe(models, 0, a, b, 0.3)
    assert (models.trait.beside != before.beside).any()
    forget_all(models)
    assert models.trait.tobytes() == before.tobytes()


def test_pairs_of_the_table_stay_and_strangers_start_from_the_formula() -> None:
    models = load_catalogue().arrays(["V100"])
    fill_beside(models)
    before, measured = models.trait.beside.copy(), ~np.isnan(models.pair[0])
    a, b = (int(k) for k in np.argwhere(~measured[1:, 1:])[0] + 1)
    observe(models, 0, a, b, 0.5 * before[a, 0, b])
    size = models.trait.shape[0]
    now = models.trait.beside[:, 0, :size]
    assert (now[measured] == before[:, 0, :size][measured]).all()
    assert now[a, b] == pytest.approx(0.5 * before[a, 0, b], rel=0.1)
    others = ~measured[a] & (np.arange(size) != b)
    others[0] = False
    assert (now[a, others] < before[a, 0, :size][others]).all(), "it slows down more than by the formula"
    untouched = ~measured
    untouched[a] = untouched[:, b] = False
    np.testing.assert_allclose(now[untouched], before[:, 0, :size][untouched], rtol=1e-15)
