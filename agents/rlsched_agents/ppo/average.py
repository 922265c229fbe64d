"""A running average of the weights, which is validated and served instead of the noisy last weights."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from rlsched_agents.runtime.network import Weights


class WeightAverage(BaseCallback):
    """Exponential average of the weights after each update (Polyak and Juditsky 1992).

    The reward of a single decision is mostly noise, so the weights fluctuate around the learned weights;
    their average does not. The decay is (1 + n) / (10 + n) over the first n updates, so that the first
    weights have little influence.

    Args:
        decay: Largest share of the average that an update keeps; 0 gives the last weights.
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self._decay = decay
        self.weights: Weights = {}
        self.updates = 0
        self._last_at = 0

    def restore(self, weights: Weights, updates: int) -> None:
        """Continue from an average over this number of updates."""
        self.weights, self.updates = weights, updates

    def _on_training_start(self) -> None:
        self._last_at = self.num_timesteps
        if not self.weights:
            self.weights = self._now()

    def _on_rollout_start(self) -> None:
        self.update()

    def _on_training_end(self) -> None:
        self.update()

    def _on_step(self) -> bool:
        return True

    def update(self) -> None:
        """Include the current weights, if there was an update since the last call."""
        if self.num_timesteps == self._last_at:
            return
        self._last_at = self.num_timesteps
        self.updates += 1
        taken = np.float32(1 - min(self._decay, (1 + self.updates) / (10 + self.updates)))
        for name, now in self._now().items():
            self.weights[name] = self.weights[name] + taken * (now - self.weights[name])

    def _now(self) -> Weights:
        weights: Weights = self.model.policy.mlp_extractor.weights()  # type: ignore[operator, union-attr]
        return weights
