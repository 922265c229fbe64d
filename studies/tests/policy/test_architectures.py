"""Networks of the comparison: independent of the order of rows and of padding; the table, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlsched.decide.rows.columns import IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched_agents.runtime.network import NetworkConfig
from studies.policy.architectures import KINDS, KindNetwork, table

ROWS = 9


def make_network(kind: str) -> KindNetwork:
    actor, width, critic_width = KINDS[kind]
    network = KindNetwork(actor, NetworkConfig(width=width, critic_width=critic_width), 0)
    with torch.no_grad():
        network.actor.score.weight *= 300
    return network.double()


def make_window(seed: int) -> torch.Tensor:
    rows = np.random.default_rng(seed).random((ROWS, NUM_FEATURES + NUM_CRITIC))
    rows[:, [IS_WAIT, IS_JOB, IS_VARIANT, IS_REFERENCE]] = 0
    rows[0, IS_WAIT], rows[1:, IS_JOB], rows[2, IS_REFERENCE] = 1, 1, 1
    return torch.from_numpy(rows)


def logits(network: KindNetwork, window: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    with torch.no_grad():
        return network.forward_actor(window.unsqueeze(0))[0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_order_padding_and_other_samples_change_no_logit(kind: str) -> None:
    network, window = make_network(kind), make_window(1)
    alone = logits(network, window)
    order = torch.from_numpy(np.random.default_rng(2).permutation(ROWS))
    np.testing.assert_allclose(logits(network, window[order]), alone[order.numpy()], atol=1e-9)
    padded = torch.cat((window, torch.zeros(5, window.shape[1])))
    np.testing.assert_allclose(logits(network, padded)[:ROWS], alone, atol=1e-9)
    with torch.no_grad():
        both = network.forward_actor(torch.stack((padded, torch.cat((make_window(3), make_window(4)[:5])))))
    np.testing.assert_allclose(both[0, :ROWS].numpy(), alone, atol=1e-9)
    assert not both[0, ROWS:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_row_network_ignores_other_rows(kind: str) -> None:
    network, window = make_network(kind), make_window(1)
    other = window.clone()
    other[5] = make_window(6)[5]
    moved = np.abs(logits(network, other) - logits(network, window)) > 1e-9
    assert moved[5]
    assert moved[[0, 1, 2, 3, 4, 6, 7, 8]].any() == (kind != "alone")


def test_observation_of_only_padding_is_finite() -> None:
    for kind in KINDS:
        assert np.isfinite(
            logits(make_network(kind), torch.zeros(4, NUM_FEATURES + NUM_CRITIC).double())
        ).all()


def test_the_table_pairs_seeds_and_sequences() -> None:
    def make_run(kind: str, seed: int, *sequences: float) -> dict[str, Any]:
        mean = float(np.exp(np.log(sequences).mean()))
        size = {"decisions": 400_000, "actor_parameters": 1234, "ratio": mean}
        return {"kind": kind, "seed": seed, "sequences": list(sequences), **size}

    runs = [make_run("pooled", 0, 0.5, 2.0), make_run("pooled", 1, 0.8, 0.8), make_run("wide", 0, 0.55, 2.2)]
    header, _, pooled, wide = table(runs).split("\n")
    assert header.count("|") == pooled.count("|") == wide.count("|")
    assert pooled == "| `pooled` | 1,234 | 0.40 M | 1.000, 0.800 | 0.894 |  |"
    assert wide == "| `wide` | 1,234 | 0.40 M | 1.100 | 1.100 | 1.100 [1.100, 1.100] |", "only seed 0"
