"""The inputs of a strategy's training: hyperparameters (`DialRecipe`) and windows (`Lesson`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from rlsched.decide.dials.strategy import NUM_DIALS
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.objective import DEFAULT, Objective
from rlsched_agents.dials.evolution import EvolutionConfig
from rlsched_agents.dials.training_data import TrainingData
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.windows import Windows, draw_setting

LEAST_STRETCHES: Final = 6
"""Minimum number of windows without common jobs that must fit in the parts of the traces for confirmation, so
that a confidence interval can be computed."""
LEAST_JOBS: Final = 250
"""Minimum number of jobs in a window."""
MIXED_FRAC: Final = 0.5
"""Fraction of windows on clusters with several GPU types, if the cluster of a trace has several types."""
PRICED_JOBS: Final = 600
PRICED_NODES: Final = (6, 8)
PRICED_LOADS: Final = (0.4, 0.9)
"""Lowest and highest load of windows with prices. At higher loads, no work can be moved to cheaper hours."""
SETTINGS_TRIED: Final = (
    "share.min_gain=0.05",
    "share.min_gain=0.3",
    "share.min_gain_more=0.5",
    "share.min_speed=0.6",
    "share.max_jobs=2",
    "preempt.margin=0.25",
    "preempt.margin=1",
    "preempt.gpus_power=1",
    "reserve_after=15m",
    "reserve_after=4h",
    "types.price=0.25",
    "types.price=0.75",
)
"""Alternative settings of the policy, in the form of `--set`; a training run tries them one by one."""


_PRICED_PPO: Final = {"gamma": 0.998, "gae_lambda": 0.99, "learning_rate": 3e-5, "noise": 0.2}
"""Fields of `PpoConfig` for windows with prices: smaller steps, and advantages that include rewards days
ahead."""


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyperparameters of PPO on the dials.

    Attributes:
        clusters: Number of clusters simulated in parallel, even. Clusters 2 k and 2 k + 1 are a pair, and run
            the same windows.
        rollout_steps: Steps of each cluster in a rollout. The noise is constant in a rollout.
        rollouts: Number of rollouts; 0: no training by PPO.
        batch_size: Steps in a minibatch, a divisor of `clusters` x `rollout_steps`.
        epochs: Number of passes over a rollout in an update.
        gamma: Discount per step (ten simulated minutes or less).
        gae_lambda: Decay of the advantage estimator (GAE).
        learning_rate: Step size of Adam.
        target_kl: KL divergence at which an update stops.
        width: Units of each of the two hidden layers; at least the number of dials.
        noise: Initial standard deviation of the noise on the position of a dial.
        pair_weight: Weight, relative to the usual advantage, of half the difference between the returns of
            the two clusters of a pair (`PairedBuffer`).
    """

    clusters: int = 64
    rollout_steps: int = 512
    rollouts: int = 40
    batch_size: int = 4096
    epochs: int = 4
    gamma: float = 0.99
    gae_lambda: float = 0.98
    learning_rate: float = 1e-4
    target_kl: float = 0.03
    width: int = 64
    noise: float = 0.3
    pair_weight: float = 1.0

    def with_prices(self) -> PpoConfig:
        """Return a copy for windows with prices.

        With prices, costs vary more, and pausing a job pays off only a day later. The copy has six times as
        many clusters, rollouts of half the length, and a quarter of the rollouts. Fields that have their
        default get the values of `_PRICED_PPO`.
        """
        replace, default = msgspec.structs.replace, PpoConfig()
        steps = self.rollout_steps if self.rollout_steps % 2 else self.rollout_steps // 2
        clusters = 6 * self.clusters
        doubles = clusters * steps % (2 * self.batch_size) == 0
        changed = {
            name: to for name, to in _PRICED_PPO.items() if getattr(self, name) == getattr(default, name)
        }
        return replace(
            self,
            clusters=clusters,
            rollout_steps=steps,
            rollouts=-(-self.rollouts // 4),
            batch_size=2 * self.batch_size if doubles else self.batch_size,
            **changed,
        )

    def __post_init__(self) -> None:
        if self.width < NUM_DIALS:
            raise ValueError(f"width: expected {NUM_DIALS} or more, one per dial, got {self.width}")
        if self.clusters < 2 or self.clusters % 2:
            raise ValueError(f"clusters: expected an even number, 2 or more, got {self.clusters}")
        steps = self.clusters * self.rollout_steps
        if self.batch_size < 2 or steps % self.batch_size:
            raise ValueError(
                f"batch_size: expected a divisor of clusters x rollout_steps = {steps}, got {self.batch_size}"
            )


class DialRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyperparameters of the training of a strategy.

    Attributes:
        drawn: How windows are drawn.
        windows: Number of windows for training.
        choosing: Number of windows for choosing among the results.
        confirming: Number of windows for confirming the chosen result.
        settings: Alternatives to the policy's settings, in the form of `--set`, which are tried one by one.
            Settings without effect are skipped.
        constants: Evolution of constant dials.
        following: Evolution of dials that depend on the cluster's state; starts from the constant dials.
        ppo: Training of a network by PPO; starts from the evolved strategy.
        scales: Factors for figures of the catalogue that are assumed, not measured. The windows get these
            factors in turn.
    """

    drawn: Drawn = Drawn()
    windows: int = 480
    choosing: int = 240
    confirming: int = 400
    settings: tuple[str, ...] = SETTINGS_TRIED
    constants: EvolutionConfig = EvolutionConfig(
        generations=20, pairs=200, spread=0.35, step=0.06, columns=()
    )
    following: EvolutionConfig = EvolutionConfig(generations=25)
    ppo: PpoConfig = PpoConfig()
    scales: tuple[float, ...] = (1.0, 0.7, 1.3)

    def fitted(self, data: Sequence[TrainingData]) -> DialRecipe:
        """Return this recipe, adapted to these traces.

        Windows are shortened until `LEAST_STRETCHES` of them fit in the parts of the traces for confirmation.
        If a trace's cluster has several GPU types, `MIXED_FRAC` of the windows have several types.

        Raises:
            InputError: there are too few jobs even for the shortest windows.
        """
        sizes = [source.submit_s.size for one in data for source in one.confirmation]
        least = min(LEAST_JOBS, self.drawn.jobs)
        mixed_frac = MIXED_FRAC if any(one.mixed for one in data) else 0.0
        for jobs in range(self.drawn.jobs, least - 1, -1):
            if sum(size // jobs for size in sizes) >= LEAST_STRETCHES:
                mixed_frac = max(self.drawn.mixed_frac, mixed_frac)
                drawn = msgspec.structs.replace(self.drawn, jobs=jobs, mixed_frac=mixed_frac)
                return msgspec.structs.replace(self, drawn=drawn)
        have, needed = sum(sizes), LEAST_STRETCHES * least
        jobs = sum(use.jobs for one in data for use in one.uses)
        longer = f", about {_rounded(jobs * needed / have):,} jobs in all" if have else ""
        raise InputError(
            f"too few jobs: the part of the data for confirmation (the last 20 % of the time of a --history, "
            f"5 % of a --trace) must have {needed:,} or more jobs with whole GPUs, got {have:,} of {jobs:,} "
            f"jobs in all; give a longer trace or history{longer}"
        )

    def with_prices(self) -> DialRecipe:
        """Return this recipe for windows with prices of electricity and jobs with slack (an accepted delay).

        If the field `drawn` already has slack, `drawn` stays unchanged.
        """
        replace, drawn = msgspec.structs.replace, self.drawn
        if not drawn.has_prices:
            jobs = min(drawn.jobs, PRICED_JOBS)
            nodes = min(drawn.nodes_low, PRICED_NODES[0]), min(drawn.nodes_high, PRICED_NODES[1])
            drawn = replace(
                drawn,
                jobs=jobs,
                load_low=PRICED_LOADS[0],
                load_high=PRICED_LOADS[1],
                nodes_low=nodes[0],
                nodes_high=nodes[1],
                thins=True,
                slack_fracs=(0.5, 1.0),
                preemptible_fracs=(0.5, 1.0),
                energy_weights=(0.3, 0.5),
            )
        constants, following = self.constants.with_prices(), self.following.with_prices()
        return replace(
            self, drawn=drawn, constants=constants, following=following, ppo=self.ppo.with_prices()
        )

    def others(self, policy: Policy) -> dict[str, Policy]:
        """Return a dict: each alternative in `settings` -> a copy of `policy` with this setting.

        Settings that have no effect on `policy`, or that need another compiled rule, are left out.
        """
        found = {}
        for change in self.settings:
            table = change.partition("=")[0].partition(".")[0].strip()
            if getattr(policy.settings, table, None) is None:
                continue
            if table == "types" and self.drawn.mixed_frac == 0.0:  # no window offers a choice of types
                continue
            try:
                other = policy.changed([change])
            except InputError as error:
                raise InputError(f"recipe: settings: {error}") from None
            if other != policy and other.rule.steps == policy.rule.steps:
                found[change] = other
        return found


def _rounded(jobs: float) -> int:
    """Round a number of jobs up to two significant figures."""
    unit = 10 ** max(len(str(int(jobs))) - 2, 0)
    return int(-(-jobs // unit) * unit)


@dataclass(frozen=True)
class Lesson:
    """Windows for training, for choosing among the results, and for confirming the chosen result.

    Attributes:
        policy: The policy whose settings apply in the windows.
        sources: Traces from which PPO draws its own training windows.
        drawn: How PPO draws windows.
        teaching: Windows for training by evolution.
        choosing: Windows for choosing among the results.
        confirming: Windows for confirming the chosen result.
        objective: Defines the cost.
    """

    policy: Policy
    sources: tuple[EpisodeSource, ...]
    drawn: Drawn
    teaching: tuple[Windows, ...]
    choosing: tuple[Windows, ...]
    confirming: tuple[Windows, ...]
    objective: Objective = DEFAULT

    @classmethod
    def from_traces(
        cls,
        data: Sequence[TrainingData],
        recipe: DialRecipe,
        policy: Policy,
        seed: int,
        objective: Objective | None = None,
    ) -> Lesson:
        """Draw the windows for training, choosing and confirming. A trace with too few jobs is left out.

        Raises:
            InputError: no trace has enough jobs for one of these purposes, or the objective needs prices and
                the windows have none.
        """
        chosen = objective or DEFAULT
        parts = {
            "training": ([one.train for one in data], recipe.windows),
            "choosing": ([source for one in data for source in one.validation], recipe.choosing),
            "confirming": ([source for one in data for source in one.confirmation], recipe.confirming),
        }
        drawn, least = [], max(recipe.drawn.jobs // 3, 1)
        for number, (purpose, (sources, count)) in enumerate(parts.items()):
            fit = [source for source in sources if source.submit_s.size >= least]
            if not fit:
                most = max((source.submit_s.size for source in sources), default=0)
                raise InputError(
                    f"too few jobs: expected {least:,} or more in the part of a trace for {purpose} "
                    f"the policy, got {most:,}; give a longer trace"
                )
            rng = np.random.default_rng([seed, number])
            drawn.append(draw_windows(fit, count, recipe, policy, rng, chosen))
        train = tuple(one for one in parts["training"][0] if one.submit_s.size >= least)
        teaching, choosing, confirming = drawn
        return cls(policy, train, recipe.drawn, teaching, choosing, confirming, chosen)


def draw_windows(
    sources: list[EpisodeSource],
    count: int,
    recipe: DialRecipe,
    policy: Policy,
    rng: np.random.Generator,
    objective: Objective | None = None,
) -> tuple[Windows, ...]:
    """Draw about `count` windows. In turn, they get the recipe's `scales`, the factors for assumed figures.

    The number of windows from a source is proportional to the source's weight. Returns one `Windows` object
    for each scale.
    """
    weights = np.array([source.weight for source in sources])
    picks = np.repeat(np.arange(len(sources)), np.ceil(count * weights / weights.sum()).astype(int))
    settings = [draw_setting(sources[k], recipe.drawn, rng) for k in picks]
    scales = recipe.scales
    return tuple(
        Windows(
            settings[k :: len(scales)],
            sources,
            recipe.drawn,
            policy,
            assumed_scale=scale,
            objective=objective,
        )
        for k, scale in enumerate(scales)
    )
