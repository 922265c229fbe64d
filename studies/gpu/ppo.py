"""PPO on a vector of cart-poles that are stepped on the CPU while the network is on the device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical

Floats = NDArray[np.float32]

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M, FORCE_N, STEP_S = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
MAX_ANGLE, MAX_PLACE_M, MAX_STEPS = 12 * np.pi / 180, 2.4, 500
"""Constants and limits of the cart-pole of Barto, Sutton and Anderson (1983), as benchmarks use it."""
DISCOUNT, TRACE_DECAY, CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.99, 0.95, 0.2, 0.5, 0.01
ROLLOUT_STEPS, EPOCHS, MINIBATCHES = 32, 4, 4


class CartPoles:
    """N cart-poles in numpy. A pole that falls, or stands for `MAX_STEPS`, starts again at once."""

    def __init__(self, count: int, seed: int) -> None:
        self._draws = np.random.default_rng(seed)
        self._steps = np.zeros(count, np.int64)
        self.state = self._start(count)  # (N, 4): place, speed, angle, turning speed

    def step(self, actions: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """(N,) of 0 or 1 -> observations (N, 4), rewards (N,), whether an episode ended (N,)."""
        _, speed, angle, turning = self.state.T
        force = np.where(actions == 1, FORCE_N, -FORCE_N)
        cosine, sine, mass = np.cos(angle), np.sin(angle), CART_KG + POLE_KG
        push = (force + POLE_KG * HALF_POLE_M * turning**2 * sine) / mass
        turn = (GRAVITY * sine - cosine * push) / (HALF_POLE_M * (4 / 3 - POLE_KG * cosine**2 / mass))
        pull = push - POLE_KG * HALF_POLE_M * turn * cosine / mass
        change = np.stack([speed, pull, turning, turn], axis=1)
        self.state = (self.state + STEP_S * change).astype(np.float32)
        self._steps += 1
        has_fallen = (abs(self.state[:, 0]) > MAX_PLACE_M) | (abs(self.state[:, 2]) > MAX_ANGLE)
        is_over = has_fallen | (self._steps >= MAX_STEPS)
        self.state[is_over] = self._start(int(is_over.sum()))
        self._steps[is_over] = 0
        return self.state, np.ones(len(actions), np.float32), is_over

    def _start(self, count: int) -> Floats:
        return self._draws.uniform(-0.05, 0.05, (count, 4)).astype(np.float32)


def advantages(rewards: Floats, values: Floats, is_over: NDArray[np.bool_], last_value: Floats) -> Floats:
    """Generalised advantage estimates (arXiv:1506.02438, equation 16), (T, N) from (T, N) and (N,)."""
    result = np.zeros_like(rewards)
    running = np.zeros_like(last_value)
    for step in reversed(range(len(rewards))):
        goes_on = ~is_over[step]
        error = rewards[step] + DISCOUNT * last_value * goes_on - values[step]
        running = error + DISCOUNT * TRACE_DECAY * goes_on * running
        result[step], last_value = running, values[step]
    return result


class Ppo:
    """A step is a rollout of `ROLLOUT_STEPS` and `EPOCHS` passes over it (arXiv:1707.06347).

    Args:
        count: Environments.
        width: Width of the two hidden layers of actor and critic.
    """

    def __init__(self, count: int, width: int, device: torch.device, seed: int) -> None:
        self.samples_per_step = count * ROLLOUT_STEPS
        self.precision = "float32"
        self._device = device
        self._poles = CartPoles(count, seed)
        self._actor = mlp(4, width, 2).to(device)
        self._critic = mlp(4, width, 1).to(device)
        self._optimiser = torch.optim.Adam(self.parameters(), lr=3e-4)

    def step(self) -> Tensor:
        """Collect, then learn."""
        seen, actions, chances, gains, targets = self._collect()
        loss = torch.zeros((), device=self._device)
        for _ in range(EPOCHS):
            for part in torch.randperm(len(actions), device=self._device).chunk(MINIBATCHES):
                loss = self._loss(seen[part], actions[part], chances[part], gains[part], targets[part])
                self._optimiser.zero_grad(set_to_none=True)
                loss.backward()
                self._optimiser.step()
        return loss.detach()

    def parameters(self) -> Iterator[Tensor]:
        """The trained parameters."""
        return itertools.chain(self._actor.parameters(), self._critic.parameters())

    @torch.no_grad()
    def _collect(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        states, actions, chances, values, rewards, overs = [], [], [], [], [], []
        for _ in range(ROLLOUT_STEPS):
            seen = torch.from_numpy(self._poles.state.copy()).to(self._device)
            policy = Categorical(logits=self._actor(seen), validate_args=False)
            action = policy.sample()
            states.append(seen)
            actions.append(action)
            chances.append(policy.log_prob(action))
            values.append(self._critic(seen).squeeze(1))
            _, reward, over = self._poles.step(action.cpu().numpy())
            rewards.append(reward)
            overs.append(over)
        last = self._critic(torch.from_numpy(self._poles.state.copy()).to(self._device)).squeeze(1)
        known = torch.stack(values).cpu().numpy()
        gain = advantages(np.stack(rewards), known, np.stack(overs), last.cpu().numpy())
        gains = torch.from_numpy(gain.ravel()).to(self._device)
        targets = torch.from_numpy((gain + known).ravel()).to(self._device)
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        return torch.cat(states), torch.cat(actions), torch.cat(chances), gains, targets

    def _loss(self, seen: Tensor, actions: Tensor, chances: Tensor, gains: Tensor, targets: Tensor) -> Tensor:
        policy = Categorical(logits=self._actor(seen), validate_args=False)
        ratio = (policy.log_prob(actions) - chances).exp()
        gain = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains).mean()
        miss = (self._critic(seen).squeeze(1) - targets).square().mean()
        return VALUE_WEIGHT * miss - gain - ENTROPY_WEIGHT * policy.entropy().mean()


def mlp(inner: int, width: int, outer: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inner, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outer)
    )
