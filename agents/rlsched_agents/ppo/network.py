"""The policy network in torch: scores candidate rows with shared weights; any number and order of rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlsched_agents.runtime.network import (
    FEASIBLE,
    JOB,
    RATE,
    REFERENCE,
    VARIANT,
    WAIT,
    NetworkConfig,
    Weights,
    initial_weights,
)


class Packed(NamedTuple):
    """The real rows of a batch of B observations of K rows, padding left out; R real rows in all."""

    rows: Tensor  # (R, F + C)
    place: Tensor  # (R,) place of each in the flattened batch, b * K + k
    state: Tensor  # (R,) observation each belongs to, b
    real: Tensor  # (B, 1) real rows of each observation, at least 1 so that means stay finite
    shape: tuple[int, int]  # (B, K)


def pack(observations: Tensor) -> Packed:
    """Gather the rows that are *wait*, a job or a variant from (B, K, F + C) observations."""
    batch, count, _ = observations.shape
    real = observations[:, :, [WAIT, JOB, VARIANT]].sum(dim=2) > 0
    index = real.view(-1).nonzero().squeeze(1)
    rows = observations.reshape(batch * count, -1).index_select(0, index)
    return Packed(
        rows,
        index,
        torch.div(index, count, rounding_mode="floor"),
        real.sum(dim=1, keepdim=True).clamp(min=1).to(rows.dtype),
        (batch, count),
    )


def _pool(encoded: Tensor, packed: Packed) -> Tensor:
    """(B, 2 * W) mean and maximum of (R, W) row encodings, each 0 or more, over an observation's rows."""
    states = encoded.new_zeros(packed.shape[0], encoded.shape[1])
    total = states.index_add(0, packed.state, encoded)
    most = states.scatter_reduce(0, packed.state.unsqueeze(1).expand_as(encoded), encoded, "amax")
    return torch.cat((total / packed.real, most), dim=1)


def prior(config: NetworkConfig, packed: Packed) -> Tensor:
    """(R,) what a row's logit gets beforehand: 0 but for the row that the reference rule would take."""
    rows = packed.rows
    job = config.prior_job + config.prior_modelled * (rows[:, RATE] > 0).to(rows.dtype)
    given = torch.where(rows[:, VARIANT] > 0, config.prior_variant, job)
    if config.prior_rows:
        open_rows = rows[:, FEASIBLE] + rows[:, WAIT]
        count = rows.new_zeros(packed.shape[0]).index_add(0, packed.state, open_rows)
        given = given + config.prior_rows * (count - 1).clamp(min=1).log().index_select(0, packed.state)
    return given * rows[:, REFERENCE]


class Actor(nn.Module):
    """Rows -> logits. Sees the actor's columns alone."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.row1 = nn.Linear(config.features, width)
        self.row2 = nn.Linear(width, width)
        self.context = nn.Linear(2 * width, width)
        self.mix_row = nn.Linear(width, width)
        self.mix_context = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, packed: Packed) -> Tensor:
        """(B, K) logits: prior on the reference row plus the learned score; 0 where padded."""
        rows = packed.rows[:, : self.config.features]
        encoded = torch.relu(self.row2(torch.relu(self.row1(rows))))
        context = self.mix_context(torch.relu(self.context(_pool(encoded, packed))))
        mixed = torch.relu(self.mix_row(encoded) + context.index_select(0, packed.state))
        scores = self.score(mixed).squeeze(1) + prior(self.config, packed)
        batch, count = packed.shape
        logits: Tensor = scores.new_zeros(batch * count).index_copy(0, packed.place, scores)
        return logits.view(batch, count)


class Critic(nn.Module):
    """Rows -> value. A trunk of its own, which also sees the critic's columns."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width = config.critic_width
        self.row1 = nn.Linear(config.features + config.critic_features, width)
        self.row2 = nn.Linear(width, width)
        self.hidden = nn.Linear(2 * width, width)
        self.value = nn.Linear(width, 1)

    def forward(self, packed: Packed) -> Tensor:
        """(B, 1) estimates of the normalised return."""
        encoded = torch.relu(self.row2(torch.relu(self.row1(packed.rows))))
        value: Tensor = self.value(torch.relu(self.hidden(_pool(encoded, packed))))
        return value


class CandidateNetwork(nn.Module):
    """Actor and critic over the same (B, K, F + C) observations."""

    latent_dim_pi = latent_dim_vf = 1

    def __init__(self, config: NetworkConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.actor = Actor(config)
        self.critic = Critic(config)
        self.load_weights(initial_weights(config, seed))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K) logits and (B, 1) values."""
        packed = pack(observations)
        return self.actor(packed), self.critic(packed)

    def forward_actor(self, observations: Tensor) -> Tensor:
        """(B, K) logits."""
        logits: Tensor = self.actor(pack(observations))
        return logits

    def forward_critic(self, observations: Tensor) -> Tensor:
        """(B, 1) values."""
        values: Tensor = self.critic(pack(observations))
        return values

    def load_weights(self, weights: Weights) -> None:
        """Take over parameters by name."""
        self.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    def weights(self) -> Weights:
        """A copy of the parameters by name, in the order of `NetworkConfig.shapes`."""
        state = self.state_dict()
        return {name: state[name].detach().cpu().numpy().copy() for name in self.config.shapes()}
