"""The numpy forward pass, initial weights and the draw of a row, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.decide.draws import draw
from rlsched.decide.rows.columns import FEASIBLE, IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT, RATE
from rlsched.decide.schema import NUM_FEATURES
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig, initial_weights, widened

CONFIG = NetworkConfig()


def job_rows(count: int, reference: int, seed: int = 0, kind: int = IS_JOB) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).random((count, NUM_FEATURES)).astype(np.float32)
    rows[:, [IS_WAIT, IS_JOB, IS_VARIANT, IS_REFERENCE]] = 0
    rows[:, kind] = 1
    if kind == IS_JOB:
        rows[0, [IS_WAIT, IS_JOB]] = 1, 0
    rows[reference, IS_REFERENCE] = 1
    return rows


@pytest.mark.parametrize("kind", [IS_JOB, IS_VARIANT])
@pytest.mark.parametrize("count", [2, 24, 100])
def test_untrained_network_takes_the_reference_row(kind: int, count: int) -> None:
    for seed in range(5):
        rows = job_rows(count, reference=count // 2, seed=seed, kind=kind)
        assert np.argmax(Forward(initial_weights(CONFIG, seed), CONFIG).logits(rows)) == count // 2


def test_columns_unknown_to_a_network_have_no_weight() -> None:
    """Neither where they are cut off when it is served, nor where it is widened for training."""
    old = NetworkConfig(features=NUM_FEATURES - 7)
    new = NetworkConfig()
    weights = initial_weights(old, 4)
    weights["actor.score.weight"] *= 100
    more = widened(weights, old, new.features)
    assert {name: array.shape for name, array in more.items()} == new.shapes()
    rows, privileged = job_rows(6, reference=2), np.ones(new.critic_features, np.float32)
    one, two = Forward(weights, old), Forward(more, new)
    np.testing.assert_allclose(one.logits(rows), two.logits(rows), rtol=1e-12)
    assert one.value(rows, privileged) == pytest.approx(two.value(rows, privileged), rel=1e-12)
    other = rows.copy()
    other[:, old.features :] += 1.0
    np.testing.assert_allclose(one.logits(other), two.logits(rows), rtol=1e-12)


def test_prior_has_a_separate_strength_in_each_half() -> None:
    config = NetworkConfig(prior_job=2.0, prior_variant=7.0)
    weights = initial_weights(config, 0)
    weights["actor.score.weight"][:] = 0
    forward = Forward(weights, config)
    assert forward.logits(job_rows(3, reference=1)).tolist() == [0, 2, 0]
    assert forward.logits(job_rows(3, reference=0, kind=IS_VARIANT)).tolist() == [7, 0, 0]


def test_models_add_only_to_the_prior_of_the_first_half() -> None:
    config = NetworkConfig(prior_job=2.0, prior_variant=7.0, prior_modelled=3.0)
    weights = initial_weights(config, 0)
    weights["actor.score.weight"][:] = 0
    forward = Forward(weights, config)
    for kind, alone, modelled in ((IS_JOB, 2, 5), (IS_VARIANT, 7, 7)):
        rows = job_rows(3, reference=1, kind=kind)
        rows[:, RATE] = 0.0
        assert forward.logits(rows).tolist() == [0, alone, 0]
        rows[:, RATE] = 0.6
        assert forward.logits(rows).tolist() == [0, modelled, 0]


def test_prior_may_grow_with_the_number_of_other_rows() -> None:
    """An untrained policy that draws follows the reference as often among many rows as among few."""
    config = NetworkConfig(prior_job=1.0, prior_rows=1.0)
    weights = initial_weights(config, 0)
    weights["actor.score.weight"][:] = 0
    forward = Forward(weights, config)
    for jobs in (2, 5, 20):
        rows = job_rows(30, reference=3)
        rows[:, FEASIBLE] = 0
        rows[3 : 3 + jobs, FEASIBLE] = 1
        logits = forward.logits(rows)[[0, *range(3, 3 + jobs)]]
        chance = np.exp(logits) / np.exp(logits).sum()
        assert chance[1] == pytest.approx(np.e / (np.e + 1))
    rows[:, FEASIBLE] = 0
    assert forward.logits(rows)[3] == 1.0, "only the reference's row"


def test_order_of_rows_and_padding_change_nothing() -> None:
    forward = Forward(trained_like(), CONFIG)
    rows = job_rows(20, reference=3)
    logits = forward.logits(rows)
    order = np.random.default_rng(1).permutation(20)
    np.testing.assert_allclose(forward.logits(rows[order]), logits[order], atol=1e-12)
    padded = np.zeros((50, NUM_FEATURES), np.float32)
    padded[5:25] = rows
    np.testing.assert_allclose(forward.logits(padded)[5:25], logits, atol=1e-12)
    assert not forward.logits(padded)[25:].any()


def test_window_of_only_padding_scores_zero() -> None:
    assert Forward(trained_like(), CONFIG).logits(np.zeros((4, NUM_FEATURES), np.float32)).tolist() == [0] * 4


def test_results_stay_valid_when_buffers_are_reused() -> None:
    forward = Forward(trained_like(), CONFIG)
    first = forward.logits(job_rows(10, 2, seed=1))
    kept = first.copy()
    forward.logits(job_rows(600, 2, seed=2))
    forward.logits(job_rows(10, 2, seed=3))
    assert (first == kept).all()


def test_same_seed_same_first_weights_and_orthogonal() -> None:
    one, two, other = (initial_weights(CONFIG, seed) for seed in (1, 1, 2))
    assert all((one[name] == two[name]).all() for name in one)
    assert (one["actor.row2.weight"] != other["actor.row2.weight"]).any()
    matrix = one["actor.row2.weight"].astype(np.float64)
    np.testing.assert_allclose(matrix @ matrix.T, 2 * np.eye(len(matrix)), atol=1e-5)


def test_arg_max_uses_only_legal_rows() -> None:
    legal = np.array([True, False, True, True])
    assert choose(np.array([1.0, 9.0, 3.0, 3.0]), legal, temperature=0, seed=0, number=0, half=0) == 2


def test_drawn_row_follows_the_keyed_draw() -> None:
    """Four equal rows: the row is the quarter that contains the decision's number, half by half."""
    logits, legal = np.zeros(4), np.ones(4, np.bool_)
    for key in [(seed, number, half) for seed in (0, 1) for number in (0, 7, 2**40) for half in (0, 1)]:
        seed, number, half = key
        row = choose(logits, legal, temperature=1.0, seed=seed, number=number, half=half)
        assert row == int(4 * draw(*key))


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    logits, legal = np.array([0.0, 1.0, 50.0]), np.array([True, True, False])
    taken = [choose(logits, legal, temperature=0.5, seed=3, number=n, half=0) for n in range(4000)]
    assert set(taken) == {0, 1}
    assert np.mean(taken) == pytest.approx(1 / (1 + np.exp(-2.0)), abs=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_output_is_refused(bad: float) -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        choose(np.array([0.0, bad]), np.array([True, False]), temperature=0, seed=0, number=7, half=0)


def test_no_legal_row_is_refused() -> None:
    with pytest.raises(ValueError, match="no candidate is legal"):
        choose(np.zeros(2), np.zeros(2, np.bool_), temperature=0, seed=0, number=7, half=0)


def trained_like() -> dict[str, NDArray[np.float32]]:
    """Weights as far from the initial ones as after training: no zero bias, no small last layer."""
    rng = np.random.default_rng(9)
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in CONFIG.shapes().items()}
