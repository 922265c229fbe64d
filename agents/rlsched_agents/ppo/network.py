"""The policy network in torch: scores candidate rows of any number and order with shared weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlsched.decide.rows.columns import FEASIBLE, IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT, RATE
from rlsched_agents.ppo.rows import ROWS_STEP, RowLinear, pool
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights


class PackedRows(NamedTuple):
    """The real rows of a batch of B observations of K rows, without padding; R real rows in total.

    Rows of zeros fill the array up to one of a few sizes S, since the matrix library spends as much time on
    the first use of a size as on a product.
    """

    rows: Tensor  # (S, F + C)
    place: Tensor  # (R,) index of each real row in the flattened batch, b * K + k
    state: Tensor  # (S,) observation of each row, b; 0 for the zero rows
    first: Tensor  # (B + 1,) first row of each observation, then R
    shape: tuple[int, int]  # (B, K)


def pack(observations: Tensor) -> PackedRows:
    """Gather the rows that are *wait*, a job or a variant from (B, K, F + C) observations."""
    batch, count, _ = observations.shape
    real = observations[:, :, IS_WAIT] + observations[:, :, IS_JOB] + observations[:, :, IS_VARIANT] > 0
    place = real.view(-1).nonzero().squeeze(1)
    found = place.numel()
    rows = observations.new_zeros(_size_for(found), observations.shape[2])
    torch.index_select(observations.reshape(batch * count, -1), 0, place, out=rows[:found])
    state, first = place.new_zeros(rows.shape[0]), place.new_zeros(batch + 1)
    torch.div(place, count, rounding_mode="floor", out=state[:found])
    torch.cumsum(real.sum(dim=1), 0, out=first[1:])
    return PackedRows(rows, place, state, first, (batch, count))


def _size_for(rows: int) -> int:
    """Round a number of rows up, by an eighth at most: eight sizes per power of 2, 64 or more apart."""
    step = max(1 << max(rows.bit_length() - 4, 0), ROWS_STEP)
    return -(-rows // step) * step


def prior(config: NetworkConfig, packed: PackedRows) -> Tensor:
    """Return the (S,) prior logit of each row: 0 except for the reference rule's row."""
    rows = packed.rows
    job = config.prior_job + config.prior_modelled * (rows[:, RATE] > 0).to(rows.dtype)
    given = torch.where(rows[:, IS_VARIANT] > 0, config.prior_variant, job)
    if config.prior_rows:
        open_rows = rows[:, FEASIBLE] + rows[:, IS_WAIT]
        count = rows.new_zeros(packed.shape[0]).index_add(0, packed.state, open_rows)
        given = given + config.prior_rows * (count - 1).clamp(min=1).log().index_select(0, packed.state)
    return given * rows[:, IS_REFERENCE]


class Actor(nn.Module):
    """Actor: computes logits from rows. Reads only the actor's columns."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width = config.width
        self.config = config
        self.row1 = RowLinear(config.features, width)
        self.row2 = RowLinear(width, width)
        self.context = nn.Linear(2 * width, width)
        self.mix_row = RowLinear(width, width)
        self.mix_context = nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, packed: PackedRows) -> Tensor:
        """Return (B, K) logits: the prior on the reference row plus the learned score; 0 for padding."""
        rows = packed.rows[:, : self.config.features].contiguous()
        encoded = torch.relu(self.row2(torch.relu(self.row1(rows))))
        context = self.mix_context(torch.relu(self.context(pool(encoded, packed.first))))
        mixed = torch.relu(self.mix_row(encoded) + context.index_select(0, packed.state))
        scores = self.score(mixed).squeeze(1) + prior(self.config, packed)
        batch, count = packed.shape
        found = scores[: packed.place.numel()]
        logits: Tensor = scores.new_zeros(batch * count).index_copy(0, packed.place, found)
        return logits.view(batch, count)


class Critic(nn.Module):
    """Critic: computes a value from rows. A separate trunk that also reads the critic's columns."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width = config.critic_width
        self.row1 = RowLinear(config.features + config.critic_features, width)
        self.row2 = RowLinear(width, width)
        self.hidden = nn.Linear(2 * width, width)
        self.value = nn.Linear(width, 1)

    def forward(self, packed: PackedRows) -> Tensor:
        """Return (B, 1) estimates of the normalised return."""
        encoded = torch.relu(self.row2(torch.relu(self.row1(packed.rows))))
        value: Tensor = self.value(torch.relu(self.hidden(pool(encoded, packed.first))))
        return value


class CandidateNetwork(nn.Module):
    """Actor and critic, which read the same (B, K, F + C) observations."""

    latent_dim_pi = latent_dim_vf = 1

    def __init__(self, config: NetworkConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.actor = Actor(config)
        self.critic = Critic(config)
        self.load_weights(initial_weights(config, seed))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, K) logits and (B, 1) values."""
        packed = pack(observations)
        return self.actor(packed), self.critic(packed)

    def forward_actor(self, observations: Tensor) -> Tensor:
        """Return (B, K) logits."""
        logits: Tensor = self.actor(pack(observations))
        return logits

    def forward_critic(self, observations: Tensor) -> Tensor:
        """Return (B, 1) values."""
        values: Tensor = self.critic(pack(observations))
        return values

    def load_weights(self, weights: Weights) -> None:
        """Load parameters by name."""
        self.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})

    def weights(self) -> Weights:
        """Return a copy of the parameters by name, in the order of `NetworkConfig.shapes`."""
        state = self.state_dict()
        return {name: state[name].detach().cpu().numpy().copy() for name in self.config.shapes()}
