"""Recipes: all hyperparameters of a training run in one frozen struct, and the named recipes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.schema import SCHEMA
from rlsched.errors import InputError
from rlsched_agents.runtime.network import NetworkConfig
from rlsched_envs.training.curriculum import Stage, check_stages
from rlsched_envs.training.sources import EpisodeConfig


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Hyperparameters of PPO, of the reward's scale, of episodes and of validation.

    Attributes:
        network: Sizes of the network and strength of the prior.
        exploring_prior_job: The network's `prior_job` during training, when actions are drawn; at most the
            value used for serving by arg max. Training with a strong prior explores too little to leave the
            reference rule. Serving with a weak prior leaves the rule in cases of doubt.
        num_envs: Number of clusters simulated in parallel.
        rollout_steps: Decisions per cluster between two updates.
        batch_size: Decisions in a minibatch.
        epochs: Passes over a rollout.
        gamma: Discount per decision.
        gae_lambda: Decay of the advantage estimator (Schulman et al. 2016).
        learning_rate: Adam's step size at the start.
        final_learning_rate_frac: Step size at the end, as a fraction of the step size at the start; the decay
            is linear.
        clip_range: PPO's clip on the probability ratio.
        entropy: Weight of the entropy bonus.
        value_weight: Weight of the critic's loss.
        max_grad_norm: Clip on the norm of the gradient.
        average_decay: Share of the running average of the weights that an update keeps; 0 serves the last
            weights.
        reward_clip: Clip on a reward after division by the standard deviation of the discounted return.
        episode: Configuration of training episodes.
        curriculum: Stages that at first draw episodes from a part of the mixture; empty: always from the
            whole mixture.
        validate_every: Decisions between two validations.
        validation_jobs: Jobs per validation window, including the warm-up.
        validation_loads: Offered loads of the validation windows.
        validation_nodes: Numbers of nodes of the clusters of validation windows.
        validation_windows: Windows per source, load and number of nodes.
        validation_least: Minimum number of windows that choose, and of windows that confirm; to reach it,
            each source gets additional windows, composed of blocks of its jobs.
        validation_weights: Energy weights of the windows that run with models: one per source, in turn, half
            as long as other windows. Empty: no models in validation.
        tolerated_loss_frac: Largest queueing in excess of the reference rule's, on the windows of one source,
            with which a policy is still kept.
        patience: Successive validations without a better policy after which the run ends; 0: no limit.
        checkpoint_every: Decisions between two snapshots for resuming.
        temperatures: Temperatures of serving that validation tries: 0 for arg max, otherwise softmax
            temperature.
    """

    network: NetworkConfig = NetworkConfig()
    exploring_prior_job: float = 2.0
    num_envs: int = 256
    rollout_steps: int = 128
    batch_size: int = 4096
    epochs: int = 4
    gamma: float = 0.998
    gae_lambda: float = 0.95
    learning_rate: float = 8e-4
    final_learning_rate_frac: float = 0.2
    clip_range: float = 0.2
    entropy: float = 0.001
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    average_decay: float = 0.9
    reward_clip: float = 10.0
    episode: EpisodeConfig = EpisodeConfig(
        agent_jobs=1024, tail_jobs=256, load_high=1.1, nodes_low=6, nodes_high=10, modelled_frac=0.5
    )
    curriculum: tuple[Stage, ...] = ()
    validate_every: int = 589_824
    validation_jobs: int = 5_000
    validation_loads: tuple[float, ...] = (0.85, 1.0)
    validation_nodes: tuple[int, ...] = (8,)
    validation_windows: int = 1
    validation_least: int = 20
    validation_weights: tuple[float, ...] = (0.0, 0.4)
    tolerated_loss_frac: float = 0.02
    patience: int = 0
    checkpoint_every: int = 262_144
    temperatures: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for name in (
            "num_envs",
            "rollout_steps",
            "batch_size",
            "epochs",
            "validate_every",
            "validation_windows",
            "validation_least",
            "checkpoint_every",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.network.order == "index":
            raise ValueError(
                "network.order: validation does not support preemption; expected predicted_gpu_time or "
                "predicted_size, under which only jobs that declare themselves preemptible are preempted"
            )
        if self.network.revises != self.episode.revising:
            raise ValueError(
                "network.revises and episode.revising: expected both or neither, "
                f"got {self.network.revises} and {self.episode.revising}"
            )
        check_stages(self.curriculum, self.episode)
        if self.batch_size > self.rollout:
            raise ValueError(
                f"batch_size must be at most num_envs * rollout_steps = {self.rollout}, got {self.batch_size}"
            )
        for name in ("gamma", "gae_lambda"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if self.patience < 0:
            raise ValueError(f"patience must be 0 or more, got {self.patience}")
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay must be 0 or more and below 1, got {self.average_decay}")
        if self.episode.window_rows != SCHEMA.window_rows:
            raise ValueError(
                f"episode.window_rows must be {SCHEMA.window_rows}, as policies are served, "
                f"got {self.episode.window_rows}"
            )
        if not self.temperatures or min(self.temperatures) < 0:
            raise ValueError(
                f"temperatures must name at least one of 0 or more, got {list(self.temperatures)}"
            )

    @property
    def rollout(self) -> int:
        """Decisions between two updates."""
        return self.num_envs * self.rollout_steps

    @property
    def exploring_network(self) -> NetworkConfig:
        """The network configuration during training."""
        return msgspec.structs.replace(self.network, prior_job=self.exploring_prior_job, prior_modelled=0.0)

    def going_on(self, network: NetworkConfig, name: str = "this policy") -> Recipe:
        """Return the recipe adapted to an existing policy, which is trained and served as before.

        The policy's network keeps its order, its prior and whether it revises predictions, even if the recipe
        differs, and episodes match these settings. Columns that the policy did not read are added.

        Args:
            network: Network of the policy.
            name: Name of the policy in errors.

        Raises:
            InputError: the policy preempts, which validation does not support.
        """
        if (network.order, network.revises) == (self.network.order, self.network.revises):
            return self
        if network.order == "index":
            raise InputError(
                f"{name}: its queue is ordered by the index, and validation does not support preemption; "
                "expected a policy of the order predicted_gpu_time or predicted_size"
            )
        reserves, episode = network.order == "predicted_size", self.episode
        return msgspec.structs.replace(
            self,
            network=msgspec.structs.replace(network, features=max(network.features, self.network.features)),
            exploring_prior_job=min(self.exploring_prior_job, network.prior_job),
            episode=msgspec.structs.replace(
                episode,
                revising=network.revises,
                reserving_frac=1.0 if reserves else 0.0,
                preempting_frac=0.0 if reserves else episode.preempting_frac,
            ),
        )

    def learning_rate_at(self, progress_left: float) -> float:
        """Return Adam's step size at this remaining fraction of the run, which may be below 0 at the end."""
        final = self.final_learning_rate_frac
        return self.learning_rate * (final + (1.0 - final) * max(progress_left, 0.0))


_MIXTURE: Final = Recipe(
    network=NetworkConfig(prior_job=3.0, prior_modelled=3.0, prior_rows=1.0),
    exploring_prior_job=1.0,
    num_envs=64,
    batch_size=1024,
    gamma=0.999,
    learning_rate=2.5e-3,
    final_learning_rate_frac=0.1,
    entropy=0.002,
    validate_every=196_608,
    checkpoint_every=196_608,
    validation_jobs=3000,
    validation_weights=(),
    episode=EpisodeConfig(
        agent_jobs=1536, load_high=1.1, nodes_high=8, block_jobs=256, known_low=0.5, known_high=0.95
    ),
)

_RESERVING: Final = msgspec.structs.replace(
    _MIXTURE,
    network=msgspec.structs.replace(_MIXTURE.network, order="predicted_size", revises=True),
    validate_every=131_072,
    checkpoint_every=131_072,
    episode=msgspec.structs.replace(_MIXTURE.episode, agent_jobs=1024, reserving_frac=1.0, revising=True),
)
_GROWING: Final = (
    Stage(until_frac=0.25, load_low=0.9, load_high=1.0, nodes_high=5, known_low=0.8, as_made_frac=0.0),
    Stage(until_frac=0.5, load_low=0.8, load_high=1.05, nodes_high=6, known_low=0.65, as_made_frac=0.15),
)

RECIPES: Final[dict[str, Recipe]] = {
    "default": Recipe(
        num_envs=64,
        batch_size=1024,
        validate_every=65_536,
        checkpoint_every=65_536,
        episode=EpisodeConfig(
            warmup_jobs=256,
            agent_jobs=256,
            tail_jobs=256,
            load_high=1.1,
            nodes_low=6,
            nodes_high=10,
            modelled_frac=0.5,
        ),
    ),
    "quick": Recipe(
        network=NetworkConfig(prior_job=3.0),
        num_envs=64,
        batch_size=1024,
        gamma=0.999,
        learning_rate=2.5e-3,
        final_learning_rate_frac=1.0,
        entropy=0.002,
        average_decay=0.8,
        validate_every=131_072,
        checkpoint_every=131_072,
        validation_jobs=3000,
        validation_nodes=(4, 8),
        validation_weights=(),
        episode=EpisodeConfig(agent_jobs=384, load_high=1.1, nodes_high=8),
    ),
    "mixture": _MIXTURE,
    "reserving": _RESERVING,
    "growing": msgspec.structs.replace(_RESERVING, curriculum=_GROWING),
    "large": Recipe(),
    "steady": Recipe(final_learning_rate_frac=0.1, entropy=0.001),
    "smoke": Recipe(
        num_envs=8,
        rollout_steps=64,
        batch_size=256,
        validate_every=8192,
        checkpoint_every=8192,
        validation_jobs=500,
        validation_loads=(1.0,),
        validation_nodes=(4,),
        validation_least=1,
        validation_weights=(),
    ),
}
"""The named recipes. `reserving` trained the default policy: it is `mixture` with EASY's reservations and
revised predictions. `growing` is `reserving` with a curriculum that begins with narrow loads, small clusters
and good predictions. `large` has long episodes with models, for millions of decisions. `default` has shorter
episodes and shows first curves within 50,000 decisions. `quick` departs from the reference within 200,000
decisions, `mixture` does the same on several kinds of workload, and both have no models. `steady` is `large`
with a step size that falls further. `smoke` is tiny, for tests.
"""


def load_recipe(name_or_path: str) -> Recipe:
    """Return a recipe by name, or from a TOML file whose keys are the fields of `Recipe`.

    Raises:
        InputError: the name is unknown, the file cannot be read, or a key or value is invalid.
    """
    if name_or_path in RECIPES:
        return RECIPES[name_or_path]
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise InputError(f"unknown recipe {name_or_path!r}; known: {', '.join(RECIPES)}, or a .toml file")
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Recipe)
    except OSError as error:
        raise InputError(f"{path}: cannot read this recipe: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path}: {error}; the keys of a recipe are the fields of rlsched_agents.ppo.recipes.Recipe"
        ) from error
