"""A PPO training run from environment to checkpoint: start or resume, learn, validate, save, stop."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from rlsched.errors import InputError
from rlsched_agents.ppo.average import WeightAverage
from rlsched_agents.ppo.callbacks import (
    Best,
    ProgressBar,
    ScheduleLog,
    Snapshots,
    Validate,
    Validation,
)
from rlsched_agents.ppo.confirming import Verdict, confirm_best
from rlsched_agents.ppo.lessons import Lessons
from rlsched_agents.ppo.network import CandidateNetwork
from rlsched_agents.ppo.normalize import ReturnNormalizer
from rlsched_agents.ppo.policy import CandidatePolicy
from rlsched_agents.ppo.ranges import SeenRanges
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.resume import pack_run, restore_run
from rlsched_agents.ppo.stopping import NothingGained, StopRequest, StopRun
from rlsched_agents.ppo.training_log import PpoCurves
from rlsched_agents.runtime.card import Card, TraceUse
from rlsched_agents.runtime.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from rlsched_agents.runtime.network import Weights, widened

LAST_FILE = "last.zip"
BEST_FILE = "best.zip"
START_FILE = "start.zip"
INIT_FILE = "init.zip"


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Output files of a run.

    Attributes:
        logdir: Folder for TensorBoard event files, and for `checkpoints/` with the last state and the best
            policy.
        out: Resulting policy of the run: the best policy by validation, or the last policy if none was
            validated.
    """

    logdir: Path
    out: Path

    @property
    def last_snapshot(self) -> Path:
        """The last snapshot of the run, with the state for resuming."""
        return self.logdir / "checkpoints" / LAST_FILE

    @property
    def best(self) -> Path:
        """The best policy by validation."""
        return self.logdir / "checkpoints" / BEST_FILE

    @property
    def start(self) -> Path:
        """The initial policy of the run; missing in runs of older versions and in unconfirmed runs."""
        return self.logdir / "checkpoints" / START_FILE

    @property
    def init(self) -> Path:
        """A copy of the policy of `--init`, so that a resumed run can read it; otherwise missing."""
        return self.logdir / "checkpoints" / INIT_FILE


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run.

    Attributes:
        timesteps: Decisions trained on, including earlier parts of a resumed run.
        stopped: Whether a signal ended the run early; `RunFiles.last_snapshot` resumes it. A run that ended
            early for lack of gain (`Recipe.patience`) is not stopped but finished.
        steps_per_s: Decisions per second, without validation.
        card: The card of the policy in `RunFiles.out`.
        verdict: Comparison of that policy with the initial one; None if there was no confirmation.
    """

    timesteps: int
    stopped: bool
    steps_per_s: float
    card: Card
    verdict: Verdict | None = None


def build_model(
    normalizer: ReturnNormalizer,
    recipe: Recipe,
    seed: int,
    policy: type[CandidatePolicy] = CandidatePolicy,
) -> MaskablePPO:
    """Create a MaskablePPO model over candidate rows, on the CPU; equal seeds give equal initial weights."""
    return MaskablePPO(
        policy,
        normalizer,
        device="cpu",
        seed=seed,
        verbose=0,
        n_steps=recipe.rollout_steps,
        batch_size=recipe.batch_size,
        n_epochs=recipe.epochs,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        learning_rate=recipe.learning_rate_at,
        clip_range=recipe.clip_range,
        ent_coef=recipe.entropy,
        vf_coef=recipe.value_weight,
        max_grad_norm=recipe.max_grad_norm,
        policy_kwargs={"network": recipe.exploring_network, "network_seed": seed},
    )


def train(
    venv: VecEnv,
    recipe: Recipe,
    *,
    timesteps: int,
    files: RunFiles,
    seed: int,
    card: Card,
    validate: Validate | None = None,
    confirm: Validate | None = None,
    init: Path | None = None,
    resume: bool = False,
    threads: int = 1,
    progress: bool = True,
) -> TrainingResult:
    """Train a policy, or continue its training.

    With confirmation, the written policy beats the initial policy on the held-out windows, or is the initial
    policy (`confirming`). A stopped run writes the best policy so far, unconfirmed.

    Args:
        venv: Windows of candidates, with `action_masks`; closed by the caller.
        recipe: Hyperparameters.
        timesteps: Total number of decisions to train on, rounded up to whole rollouts.
        files: Output files.
        seed: Seed of weights, draws and minibatches.
        card: Card of the policy with the data known in advance (name, traces, network); training fills in the
            other data.
        validate: Runs a policy on the validation windows.
        confirm: Runs a policy on held-out windows; needs `validate`.
        init: Checkpoint with the initial weights.
        resume: Continue from `files.last_snapshot`, exactly where the run stopped.
        threads: Threads of torch; more than one is slower on a busy machine.
        progress: Whether to show progress on standard error.

    Raises:
        InputError: `resume` with another recipe or with a finished run, or a curriculum that does not fit the
            environment.
        CheckpointError: the initial checkpoint is missing or unusable.
    """
    torch.set_num_threads(threads)
    card = msgspec.structs.replace(
        card, seeds=(seed,), network=recipe.network, recipe=_hyper_parameters(recipe)
    )
    normalizer = ReturnNormalizer(venv, gamma=recipe.gamma, clip=recipe.reward_clip)
    model = build_model(normalizer, recipe, seed)
    best, average = Best(), WeightAverage(recipe.average_decay)
    if resume:
        last = _resume(model, normalizer, recipe, files, card, timesteps, best, average)
        card = msgspec.structs.replace(card, familiar=last.card.familiar or card.familiar)
    elif init is not None:
        _network(model).load_weights(first_weights(load_checkpoint(init), recipe))
    lessons, seen = Lessons(venv, recipe.curriculum, timesteps), SeenRanges(card.familiar)
    lessons.enter(model.num_timesteps)
    if confirm is not None and not resume:
        untrained = msgspec.structs.replace(card, familiar=None)
        origin = load_checkpoint(init).card if init is not None else untrained
        save_checkpoint(files.start, _card_now(origin, 0), _network(model).weights())
    drawing = PpoCurves(files.logdir, card, recipe.temperatures)
    model.set_logger(Logger(str(files.logdir), [drawing]))

    def save_last() -> None:
        state = pack_run(model, normalizer, average, best.score if best.weights else None)
        own = _card_now(seen.onto(card), model.num_timesteps)
        save_checkpoint(files.last_snapshot, own, _network(model).weights(), state)

    def save_best(found: Best) -> None:
        save_checkpoint(files.best, _card_of(seen.onto(card), found), found.weights)

    request = StopRequest()
    schedules = ScheduleLog(normalizer)
    bar = ProgressBar(timesteps, schedules, shown=progress)
    validation = (
        Validation(validate, recipe, average=average, seed=seed, best=best, on_best=save_best)
        if validate
        else None
    )
    callbacks = CallbackList(
        [
            schedules,
            lessons,
            seen,
            average,
            *([validation] if validation else []),
            Snapshots(save_last, recipe.checkpoint_every, request),
            bar,
        ]
    )
    with closing(drawing):
        began, first, stopped = time.perf_counter(), model.num_timesteps, False
        try:
            with request.on_signals():
                model.learn(timesteps - first, callback=callbacks, reset_num_timesteps=not resume)
        except NothingGained:
            save_last()
        except StopRun:
            stopped = True
        finally:
            bar.close()
        wall_s = time.perf_counter() - began - (validation.wall_s if validation else 0.0)
        verdict, card = None, seen.onto(card)
        unconfirmed = best.weights and best.timesteps and not stopped
        if unconfirmed and confirm is not None and validate is not None and files.start.exists():
            start = load_checkpoint(files.start)
            verdict = confirm_best(_card_of(card, best), best, start, validate, confirm, recipe, seed)
        if verdict is not None:
            written = save_checkpoint(files.out, verdict.card, verdict.weights)
        elif best.weights:
            written = save_checkpoint(files.out, _card_of(card, best), best.weights)
        else:
            written = save_checkpoint(files.out, _card_now(card, model.num_timesteps), average.weights)
        if not stopped:
            drawing.outcome(written.to_markdown())
    return TrainingResult(
        timesteps=model.num_timesteps,
        stopped=stopped,
        card=written,
        verdict=verdict,
        steps_per_s=(model.num_timesteps - first) / max(wall_s, 1e-9),
    )


def _resume(
    model: MaskablePPO,
    normalizer: ReturnNormalizer,
    recipe: Recipe,
    files: RunFiles,
    card: Card,
    timesteps: int,
    best: Best,
    average: WeightAverage,
) -> Checkpoint:
    """Restore the model, the environment and the best policy from `files.last_snapshot`."""
    last = load_checkpoint(files.last_snapshot)
    if last.card.traces != card.traces:
        raise InputError(
            f"{files.last_snapshot}: this run was started on other data ({_names(last.card.traces)}), "
            f"got {_names(card.traces)}; give the same data, or start again with --overwrite"
        )
    ours = _hyper_parameters(recipe)
    changed = sorted(
        key for key in ours.keys() | last.card.recipe.keys() if ours.get(key) != last.card.recipe.get(key)
    )
    if changed or last.card.network != recipe.network:
        raise InputError(
            f"{files.last_snapshot}: this run was started with another recipe (it differs in "
            f"{', '.join(changed) or 'network'}); give the same --recipe, or start again with --init"
        )
    if last.card.seeds != card.seeds:
        began, given = (", ".join(map(str, one.seeds)) for one in (last.card, card))
        raise InputError(
            f"{files.last_snapshot}: this run was started with --seed {began}, got --seed {given}; give "
            "the same seed, or start again with --overwrite"
        )
    _network(model).load_weights(last.weights)
    found = restore_run(files.last_snapshot, model, normalizer, average)
    if found.timesteps >= timesteps:
        raise InputError(
            f"{files.last_snapshot}: this run already has {found.timesteps:,} decisions; give a larger "
            "--timesteps to continue"
        )
    if found.best_score is not None:
        kept = load_checkpoint(files.best)
        best.score, best.temperature = found.best_score, kept.card.temperature
        best.timesteps, best.weights, best.table = kept.card.timesteps, kept.weights, kept.card.validation
    return last


def _names(traces: tuple[TraceUse, ...]) -> str:
    """Format the names of traces so that users can distinguish the traces."""
    return ", ".join(f"{one.trace} on {one.cluster}, {one.jobs:,} jobs" for one in traces) or "nothing named"


def first_weights(checkpoint: Checkpoint, recipe: Recipe) -> Weights:
    """Return the checkpoint's weights, extended for columns that its network did not read."""
    network, features = checkpoint.card.network, recipe.network.features
    wide = msgspec.structs.replace(network, features=max(features, network.features))
    if wide.shapes() != recipe.network.shapes():
        raise InputError(
            f"{checkpoint.path}: its network has other sizes than the recipe's: "
            f"{network} and {recipe.network}"
        )
    return widened(checkpoint.weights, network, features)


def _network(model: MaskablePPO) -> CandidateNetwork:
    network: CandidateNetwork = model.policy.mlp_extractor
    return network


def _hyper_parameters(recipe: Recipe) -> dict[str, object]:
    """Return the recipe as plain data, without the network, which the card has in a separate field.

    Without a curriculum the key is missing, so that runs from versions without curricula can continue.
    """
    plain: dict[str, object] = msgspec.json.decode(msgspec.json.encode(recipe))
    left_out = {"network"} if recipe.curriculum else {"network", "curriculum"}
    return {key: value for key, value in plain.items() if key not in left_out}


def _card_now(card: Card, timesteps: int) -> Card:
    return msgspec.structs.replace(card, timesteps=timesteps)


def _card_of(card: Card, best: Best) -> Card:
    return msgspec.structs.replace(
        card, timesteps=best.timesteps, temperature=best.temperature, validation=best.table
    )
