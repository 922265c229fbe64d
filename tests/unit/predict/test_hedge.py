"""The hedge: it follows the recently best predictor, and a job's survival counts before its end."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.workload.predict.distribution import Floats, bin_of, lognormal
from rlsched.workload.predict.hedge import Hedge

SHORT, LONG = lognormal(60.0, 0.5), lognormal(100_000.0, 0.5)
BOTH = np.stack([SHORT, LONG])


def play(hedge: Hedge, durations_s: Floats, said: Floats, first: int = 0) -> list[float]:
    """Run jobs one after another. Returns the mixture's loss of each."""
    losses, now_s = [], first * 1e7
    for k, duration_s in enumerate(durations_s.tolist(), start=first):
        mixed = hedge.mix(str(k), 1.0, said)
        losses.append(-float(np.log(mixed[bin_of(duration_s)])))
        hedge.start(str(k), now_s)
        now_s += duration_s
        hedge.count_outlived(now_s)
        hedge.end(str(k), duration_s)
    return losses


def test_weights_begin_even_and_sum_to_one() -> None:
    assert Hedge(4).weights(1.0) == pytest.approx([0.25] * 4)


def test_hedge_follows_the_best_predictor_and_its_changes() -> None:
    hedge = Hedge(2)
    play(hedge, np.full(60, 60.0), BOTH)
    assert hedge.weights(1.0)[0] > 0.95
    play(hedge, np.full(300, 100_000.0), BOTH, first=60)
    assert hedge.weights(1.0)[1] > 0.95


def test_sizes_have_separate_weights() -> None:
    hedge = Hedge(2)
    play(hedge, np.full(60, 60.0), BOTH)
    assert hedge.weights(8.0) == pytest.approx([0.5, 0.5])
    assert hedge.weights(4.0) == pytest.approx([0.5, 0.5])


def test_outliving_a_threshold_counts_before_the_end() -> None:
    hedge = Hedge(2)
    for k in range(5):
        hedge.mix(str(k), 1.0, BOTH)
        hedge.start(str(k), 0.0)
    hedge.count_outlived(599.0)
    assert hedge.weights(1.0) == pytest.approx([0.5, 0.5])
    hedge.count_outlived(601.0)
    assert hedge.weights(1.0)[1] > 0.9


def test_parts_of_a_loss_sum_to_the_loss() -> None:
    """A job's total loss for a predictor is -ln P(its bin), regardless of the thresholds it passed."""
    hedge = Hedge(1)
    wide = lognormal(3000.0, 1.5)
    hedge.mix("a", 1.0, wide[None, :])
    hedge.start("a", 0.0)
    hedge.count_outlived(5000.0)
    hedge.end("a", 5000.0)
    total = float(hedge._loss[0, 0])
    assert total == pytest.approx(-np.log(wide[bin_of(5000.0)]), rel=0.01)


@pytest.mark.parametrize("turns", [1, 4])
def test_drift_cannot_make_it_much_worse_than_its_predictors(turns: int) -> None:
    """One predictor that is right half of the time and else very wrong, with one that is always fair."""
    rng = np.random.default_rng(0)
    fair = lognormal(3000.0, 2.2)
    expert = lognormal(60.0, 0.3)
    medians = [60.0 if turn % 2 == 0 else 30_000.0 for turn in range(2 * turns)]
    durations = np.concatenate([rng.lognormal(np.log(one), 0.3, size=600 // turns) for one in medians])
    losses = play(Hedge(2), durations, np.stack([fair, expert]))
    own = np.maximum(np.stack([fair, expert]), 1e-4)[:, [bin_of(d) for d in durations]]
    fair_loss, expert_loss = -np.log(own / 1.0).mean(axis=1)
    assert np.mean(losses) < fair_loss
    assert np.mean(losses) < expert_loss


def test_forgotten_jobs_have_no_effect() -> None:
    hedge = Hedge(2)
    hedge.mix("a", 1.0, BOTH)
    hedge.start("a", 0.0)
    hedge.forget("a")
    hedge.count_outlived(1e6)
    hedge.end("a", 1e6)
    assert hedge.weights(1.0) == pytest.approx([0.5, 0.5])


def test_threshold_outlived_before_a_restart_is_not_counted_twice() -> None:
    one, two = Hedge(2), Hedge(2)
    for hedge in (one, two):
        hedge.mix("a", 1.0, BOTH)
        hedge.start("a", 0.0)
        hedge.count_outlived(700.0)
    one.stop("a")
    one.count_outlived(10_000.0)
    one.start("a", 10_000.0)
    one.count_outlived(10_700.0)
    np.testing.assert_array_equal(one.weights(1.0), two.weights(1.0))
    one.count_outlived(13_600.0)
    two.count_outlived(3600.0)
    np.testing.assert_array_equal(one.weights(1.0), two.weights(1.0))
