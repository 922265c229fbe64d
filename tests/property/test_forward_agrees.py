"""The runtime scores, masks and draws as torch does: any widths, any windows, and the default checkpoint.

In double precision the two are the same function. In the single precision that torch trains in they differ by
its rounding, which grows with the logits: at 8 and above, float32 itself goes in steps of 9.5e-7.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sb3_contrib.common.maskable.distributions import MaskableCategorical

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Wait
from rlsched.decide.draws import draw
from rlsched.decide.loop import apply
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.holds import has_startable
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rows.candidates import job_candidates
from rlsched.decide.rows.columns import IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched_agents.ppo.network import CandidateNetwork
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights, widened

SINGLE = 4e-6
"""Tolerance relative to the largest logit of a window, or to 1 if that is more: torch's float32 rounding."""
DOUBLE = 1e-9
"""Absolute, torch in float64."""
Rng = np.random.Generator
Rows = NDArray[np.float32]


class Pair:
    """The same weights in numpy, and in torch in both precisions; torch has all current columns."""

    def __init__(self, config: NetworkConfig, weights: Weights) -> None:
        self.numpy = Forward(weights, config)
        wide = msgspec.structs.replace(config, features=NUM_FEATURES)
        self.single, self.double = CandidateNetwork(wide), CandidateNetwork(wide)
        for network in (self.single, self.double):
            network.load_weights(widened(weights, config, NUM_FEATURES))
        self.double.double()

    def check(self, window: Rows) -> NDArray[np.float64]:
        """Compare logits and value on a (K, F + C) window. Returns the runtime's logits."""
        logits = self.numpy.logits(window)
        real = window[:, [IS_WAIT, IS_JOB, IS_VARIANT]].any(axis=1)
        value = self.numpy.value(window[real], window[real, NUM_FEATURES:])
        for network, allowed in ((self.double, DOUBLE), (self.single, SINGLE)):
            dtype = next(network.parameters()).dtype
            with torch.no_grad():
                scored, valued = network(torch.from_numpy(window).to(dtype).unsqueeze(0))
            scale = 1.0 if dtype == torch.float64 else max(1.0, float(np.abs(logits).max()))
            np.testing.assert_allclose(scored[0].numpy(), logits, rtol=0, atol=allowed * scale)
            assert valued.item() == pytest.approx(value, rel=allowed, abs=allowed)
        return logits


def trained_like(config: NetworkConfig, seed: int) -> Weights:
    """Weights as large as after training: no zero bias, no small last layer."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, 1, shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in config.shapes().items()
    }


def random_window(rng: Rng, rows: int, padded_frac: float = 0.0) -> Rows:
    """(rows, F + C) of one half of a decision, every column anywhere in [-1, 1], some rows padding."""
    window = rng.uniform(-1, 1, (rows, NUM_FEATURES + NUM_CRITIC)).astype(np.float32)
    window[:, [IS_WAIT, IS_JOB, IS_VARIANT, IS_REFERENCE]] = 0
    is_job = rng.random() < 0.5
    window[:, IS_JOB if is_job else IS_VARIANT] = 1
    real = rng.random(rows) >= padded_frac
    real[rng.integers(rows)] = True
    window[rng.choice(np.flatnonzero(real)), IS_REFERENCE] = 1
    if is_job:
        window[np.argmax(real), [IS_WAIT, IS_JOB]] = 1, 0
    window[~real] = 0
    return window


@pytest.fixture(scope="module")
def default() -> Pair:
    checkpoint = load_checkpoint("default")
    return Pair(checkpoint.card.network, checkpoint.weights)


def test_default_checkpoint_at_every_number_of_rows(default: Pair) -> None:
    rng = np.random.default_rng(1)
    for rows in [*range(1, 26), 31, 32, 33, 63, 64, 65, 512]:  # a served window has 24
        for padded_frac in (0.0, 0.5):
            default.check(random_window(rng, rows, padded_frac))


@settings(max_examples=40, deadline=None)
@given(
    width=st.integers(1, 128),
    critic_width=st.integers(1, 64),
    prior_job=st.floats(0, 8, width=32),
    prior_variant=st.floats(0, 8, width=32),
    prior_modelled=st.floats(0, 8, width=32),
    prior_rows=st.sampled_from([0.0, 1.0]),
    fresh=st.booleans(),
    rows=st.integers(1, 96),
    padded_frac=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_networks_of_any_width(
    width: int,
    critic_width: int,
    prior_job: float,
    prior_variant: float,
    prior_modelled: float,
    prior_rows: float,
    fresh: bool,
    rows: int,
    padded_frac: float,
    seed: int,
) -> None:
    config = NetworkConfig(
        width=width,
        critic_width=critic_width,
        prior_job=prior_job,
        prior_variant=prior_variant,
        prior_modelled=prior_modelled,
        prior_rows=prior_rows,
    )
    pair = Pair(config, initial_weights(config, seed) if fresh else trained_like(config, seed))
    rng = np.random.default_rng(seed)
    for _ in range(3):
        pair.check(random_window(rng, rows, padded_frac))


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 48),
    legal_frac=st.floats(0, 1),
    temperature=st.sampled_from([0.0, 0.25, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_sampled_from_the_masked_distribution_of_training(
    default: Pair, rows: int, legal_frac: float, temperature: float, seed: int
) -> None:
    """The mode at temperature 0, else the row in whose share of [0, 1) the draw falls."""
    rng = np.random.default_rng(seed)
    window = random_window(rng, rows, padded_frac=0.3)
    real = np.flatnonzero(window[:, [IS_WAIT, IS_JOB, IS_VARIANT]].any(axis=1))
    legal = np.zeros(rows, np.bool_)
    legal[real] = rng.random(len(real)) < legal_frac
    legal[rng.choice(real)] = True
    with torch.no_grad():
        logits = default.double.forward_actor(torch.from_numpy(window).double().unsqueeze(0))[0]
    masked = MaskableCategorical(logits=logits / (temperature or 1.0), masks=torch.from_numpy(legal))
    shares, scores = masked.probs.numpy(), default.numpy.logits(window)
    for number in range(25):
        row = choose(scores, legal, temperature=temperature, seed=seed, number=number, half=0)
        assert legal[row]
        if temperature == 0:
            assert shares[row] == pytest.approx(shares.max(), rel=SINGLE)
        else:
            drawn = draw(seed, number, 0)
            assert shares[:row].sum() - SINGLE <= drawn <= shares[: row + 1].sum() + SINGLE


def test_windows_of_a_live_cluster(default: Pair) -> None:
    """Columns as the shared kernels fill them, during decisions of the policy."""
    rng, policy, seen = np.random.default_rng(4), load_scheduler("ppo"), set()
    state = ClusterState.from_spec(ClusterSpec.uniform(12, 8), OrderedQueue(policy.order))
    for step in range(120):
        now_s = 300.0 * step
        for size in rng.choice([1, 2, 4, 8, 16], rng.integers(0, 7)).tolist():
            state.add_job(
                num_gpus=size,
                submit_s=now_s,
                predicted_s=float(rng.lognormal(8, 2)),
                spread=float(rng.uniform(0.2, 3)),
            )
        for seq in state.running():
            if rng.random() < 0.05:
                state.release(seq, now_s)
        while has_startable(state, 0, now_s):
            rows = job_candidates(state, 0, now_s).features[:, :NUM_FEATURES]
            seen.add(len(rows))
            default.check(np.hstack([rows, rng.random((len(rows), NUM_CRITIC), np.float32)]))
            decision = policy.decide(state, 0, now_s)
            apply(state, 0, decision, now_s)
            if isinstance(decision.action, Wait):
                break
    assert len(seen) >= 12, f"numbers of rows: {sorted(seen)}"
