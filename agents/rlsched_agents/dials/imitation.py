"""Trains a network to imitate strategies (teachers), before PPO improves it.

Each teacher has its own windows. In the first round, a teacher sets the dials in its windows. In later
rounds, the network sets them, and learns what the teacher would have set (DAgger: Ross, Gordon, Bagnell,
AISTATS 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from rlsched.decide.dials.strategy import dials_of
from rlsched.decide.policies.policy import Policy
from rlsched_agents.dials.judging import Layers
from rlsched_agents.dials.ppo import DialPolicy
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv

CLUSTERS: Final = 32
STEPS: Final = 512
ROUNDS: Final = 3
EPOCHS: Final = 60
BATCH: Final = 4096
LEARNING_RATE: Final = 1e-3
"""Hyperparameters of `imitate`; `LEARNING_RATE` is the step size of Adam.

In each of `ROUNDS` rounds, each teacher's windows run on `CLUSTERS` clusters for `STEPS` steps. Each round
ends with `EPOCHS` training passes over the observations of all rounds so far, in minibatches of `BATCH`.
"""


@dataclass(frozen=True)
class Teacher:
    """A strategy, and the windows on which the network imitates it.

    Attributes:
        layers: Matrices of the strategy (`Strategy.matrices`).
        sources: Traces that windows are drawn from.
        drawn: How windows are drawn.
    """

    layers: Layers
    sources: Sequence[EpisodeSource]
    drawn: Drawn


def imitate(network: DialPolicy, teachers: Sequence[Teacher], policy: Policy, seed: int) -> float:
    """Train a network to set the same dials as each teacher on the teacher's windows.

    Returns:
        Root mean square error of the dials in the last pass, as a fraction of their ranges.
    """
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    seen, wanted = list[NDArray[np.float32]](), list[NDArray[np.float32]]()
    parameters = [*network.mlp_extractor.policy_net.parameters(), *network.action_net.parameters()]
    optimizer, error = torch.optim.Adam(parameters, LEARNING_RATE), 0.0
    for number in range(ROUNDS):
        for k, teacher in enumerate(teachers):
            leads = teacher.layers if number == 0 else network.layers()
            rows = _observations(teacher, leads, policy, seed * len(teachers) * ROUNDS + k * ROUNDS + number)
            seen.append(rows)
            wanted.append(dials_of(teacher.layers, rows).astype(np.float32))
        x, y = (torch.from_numpy(np.concatenate(rows)) for rows in (seen, wanted))
        for _ in range(EPOCHS):
            total = 0.0
            order = torch.randperm(len(x), generator=rng)
            for part in (order[at : at + BATCH] for at in range(0, len(x), BATCH)):
                moved = torch.tanh(network.action_net(network.mlp_extractor.policy_net(x[part])))
                loss = ((moved - y[part]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += float(loss.detach()) * len(part)
            error = (total / len(x)) ** 0.5
    return error


def _observations(teacher: Teacher, leads: Layers, policy: Policy, seed: int) -> NDArray[np.float32]:
    """Run a teacher's windows, with dials set by the network `leads`; return all N observations, (N, F)."""
    clusters = ClusterVecEnv(teacher.sources, CLUSTERS, seed=seed, drawn=teacher.drawn, policy=policy)
    seen, found = np.asarray(clusters.reset()), list[NDArray[np.float32]]()
    for _ in range(STEPS):
        found.append(seen)
        clusters.step_async(dials_of(leads, seen))
        seen = np.asarray(clusters.step_wait()[0])
    return np.concatenate(found)
