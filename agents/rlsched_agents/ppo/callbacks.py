"""Callbacks around PPO's updates: episode logs, validation, snapshots, progress."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Never

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm

from rlsched_agents.ppo.average import WeightAverage
from rlsched_agents.ppo.normalize import ReturnNormalizer
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.stopping import NothingGained, StopRequest, StopRun
from rlsched_agents.ppo.training_log import served_as
from rlsched_agents.runtime.network import NetworkConfig, Weights
from rlsched_agents.runtime.policy import PpoScheduler

Table = dict[str, dict[str, float]]
"""Policy -> metric, with its unit in the name -> value."""
Validate = Callable[[PpoScheduler], Table]
"""Runs a policy on the validation windows; rows `ppo` and `qssf-backfill`, each with `queue_mean_s`."""

REFERENCE_POLICY = "qssf-backfill"


@dataclass
class Best:
    """The best policy so far in validation.

    Attributes:
        score: Mean queueing delay / mean queueing delay under the reference rule; lower is better.
        temperature: Temperature of serving.
        timesteps: Number of decisions at which this policy was found.
        stale: Number of validations since this policy was found.
        weights: Parameters of the policy.
        table: Validation table with the score.
    """

    score: float = math.inf
    temperature: float = 0.0
    timesteps: int = 0
    stale: int = 0
    weights: Weights = field(default_factory=dict)
    table: Table = field(default_factory=dict)


class ScheduleLog(BaseCallback):
    """Logs mean metrics of the episodes that ended in a rollout, and their queueing over the reference's."""

    def __init__(self, normalizer: ReturnNormalizer) -> None:
        super().__init__()
        self._normalizer = normalizer
        self._ended: list[dict[str, Any]] = []
        self.queue_ratio = math.nan

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        for i in np.flatnonzero(self.locals["dones"]):
            self._ended.append({"return": infos[i]["episode"]["r"], **infos[i].get("schedule", {})})
        return True

    def _on_rollout_end(self) -> None:
        self.logger.record("reward/return_std", self._normalizer.scale)
        if not self._ended:
            return
        numbers = [name for name, value in self._ended[0].items() if isinstance(value, float | int)]
        for name in numbers:
            group = "reward" if name.startswith(("return", "regret")) else "rollout"
            self.logger.record(f"{group}/{name}", float(np.mean([one[name] for one in self._ended])))
        policy = np.array([one.get("queue_mean_s", math.nan) for one in self._ended])
        reference = np.array([one.get("reference_queue_mean_s", math.nan) for one in self._ended])
        if np.isfinite(reference).all() and reference.sum() > 0:
            self.queue_ratio = float(policy.sum() / reference.sum())
            self.logger.record("rollout/queue_ratio_frac", self.queue_ratio)
            self.logger.record("rollout/wins_frac", float(np.mean(policy < reference)))
        self._ended.clear()


class Validation(BaseCallback):
    """Validates the averaged policy at intervals with each temperature of serving, and keeps the best policy.
    Ends the run (`NothingGained`) after `Recipe.patience` successive validations without a better policy.
    """

    def __init__(
        self,
        validate: Validate,
        recipe: Recipe,
        *,
        average: WeightAverage,
        seed: int,
        best: Best,
        on_best: Callable[[Best], None],
    ) -> None:
        super().__init__()
        self.best = best
        self.wall_s = 0.0
        self._validate, self._recipe, self._average = validate, recipe, average
        self._seed, self._on_best = seed, on_best
        self._last_at: int | None = None

    def _on_training_start(self) -> None:
        if self.num_timesteps > 0:
            self._last_at = self.num_timesteps

    def _on_rollout_start(self) -> None:
        if self._last_at is None or self.num_timesteps - self._last_at >= self._recipe.validate_every:
            self.run()
            if 0 < self._recipe.patience <= self.best.stale:
                raise NothingGained

    def _on_training_end(self) -> None:
        if self._last_at != self.num_timesteps:
            self.run()

    def _on_step(self) -> bool:
        return True

    def run(self) -> None:
        """Validate the current policy, and log the metrics of each policy."""
        began = time.perf_counter()
        self._last_at = self.num_timesteps
        weights = dict(self._average.weights)
        before = self.best.score
        for temperature in self._recipe.temperatures:
            table = self._validate(as_scheduler(weights, self._recipe.network, temperature, self._seed))
            label = served_as(temperature)
            for policy, metrics in table.items():
                for metric, value in metrics.items():
                    self.logger.record(f"validation/{label if policy == 'ppo' else policy}/{metric}", value)
            score = score_of(table, self._recipe.tolerated_loss_frac)
            self.logger.record(f"validation/{label}/score_frac", score)
            if score < self.best.score:
                self.best.score, self.best.temperature = score, temperature
                self.best.timesteps, self.best.weights, self.best.table = self.num_timesteps, weights, table
        self.best.stale += 1
        if self.best.score < before:
            self.best.stale = 0
            self._on_best(self.best)
        self.logger.record("validation/stale_count", self.best.stale)
        self.logger.dump(self.num_timesteps)
        self.wall_s += time.perf_counter() - began


class Snapshots(BaseCallback):
    """Saves the run at intervals, between two updates, and when a stop is requested."""

    def __init__(self, save: Callable[[], None], every: int, stop: StopRequest) -> None:
        super().__init__()
        self._save, self._every, self._stop = save, every, stop
        self._last_at = 0

    def _on_training_start(self) -> None:
        self._last_at = self.num_timesteps

    def _on_rollout_start(self) -> None:
        if self._stop.asked:
            self._save()
            raise StopRun
        if self.num_timesteps - self._last_at >= self._every:
            self._last_at = self.num_timesteps
            self._save()

    def _on_training_end(self) -> None:
        self._save()

    def _on_step(self) -> bool:
        return True


class ProgressBar(BaseCallback):
    """Shows a bar on a terminal, otherwise a line every ten seconds; both on standard error."""

    LINE_EVERY_S = 10.0

    def __init__(self, timesteps: int, schedules: ScheduleLog, *, shown: bool = True) -> None:
        super().__init__()
        self._timesteps, self._schedules, self._shown = timesteps, schedules, shown
        self._bar: tqdm[Never] | None = None
        self._from, self._began, self._printed = 0, 0.0, 0.0

    def _on_training_start(self) -> None:
        self._from, self._began = self.num_timesteps, time.perf_counter()
        self._printed = self._began
        if self._shown and sys.stderr.isatty():
            self._bar = tqdm(
                total=self._timesteps,
                initial=self._from,
                unit=" decisions",
                unit_scale=True,
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def _on_step(self) -> bool:
        if self._bar is not None:
            self._bar.update(self.training_env.num_envs)
        return True

    def _on_rollout_end(self) -> None:
        known = math.isfinite(self._schedules.queue_ratio)
        ratio = f"queueing {self._schedules.queue_ratio:.3f} x reference" if known else ""
        now = time.perf_counter()
        if self._bar is not None:
            self._bar.set_postfix_str(ratio)
        elif self._shown and now - self._printed >= self.LINE_EVERY_S:
            self._printed = now
            pace = (self.num_timesteps - self._from) / (now - self._began)
            print(
                f"{self.num_timesteps:>11,} of {self._timesteps:,} decisions  {pace:,.0f} a second  {ratio}",
                file=sys.stderr,
            )

    def close(self) -> None:
        """Close the bar and leave it visible."""
        if self._bar is not None:
            self._bar.close()


def as_scheduler(weights: Weights, network: NetworkConfig, temperature: float, seed: int) -> PpoScheduler:
    """Return the policy as it is served with only the permissions of its training."""
    return PpoScheduler(
        weights,
        network,
        permissions=network.permissions,
        temperature=temperature,
        seed=seed,
        policy_id="training",
    )


def score_of(table: Table, tolerated_loss_frac: float) -> float:
    """Return the score of a validation, lower is better: mean queueing delay of `ppo` / the reference rule's.

    If some windows run with models, the score is multiplied by the cost ratio of time and energy on these
    windows. If a policy loses more than tolerated on one source, its score is this loss: gains on other
    sources do not compensate for the loss.
    """
    mine = table["ppo"]
    if "queue_ratio_frac" not in mine:
        reference = table[REFERENCE_POLICY]["queue_mean_s"]
        return mine["queue_mean_s"] / reference if reference > 0 else math.inf
    ratio = mine["queue_ratio_frac"]
    worst = mine.get("worst_source_ratio_frac", ratio)
    cost = mine.get("cost_ratio_frac", 1.0)
    return worst * cost if worst > 1.0 + tolerated_loss_frac else ratio * cost
