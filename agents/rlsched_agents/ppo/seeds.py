"""Several runs that differ in their seed alone: one run's luck is large, so the best of a few is kept.

What they begin with stands in the folder of each from the first moment on: a command that is stopped may be
resumed when some of its runs have not begun yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlsched_agents.ppo.callbacks import score_of
from rlsched_agents.ppo.training import RunFiles, TrainingResult
from rlsched_agents.runtime.checkpoint import checkpoint_file, load_checkpoint, save_checkpoint

TrainOne = Callable[[int, RunFiles, bool], TrainingResult]
"""(seed, where to write, whether to go on with what is there) -> how the run ended."""


def files_of(files: RunFiles, first: int, runs: int) -> dict[int, RunFiles]:
    """Where the run of each seed writes: one alone in `files.logdir`, several each in `seed-K` of it."""
    if runs == 1:
        return {first: files}
    folders = {seed: files.logdir / f"seed-{seed}" for seed in range(first, first + runs)}
    return {seed: RunFiles(logdir=at, out=at / "policy.zip") for seed, at in folders.items()}


def note_init(files: RunFiles, first: int, runs: int, init: Path | None) -> None:
    """Before runs begin anew: note in the folder of each what all begin with.

    Args:
        files: As for `train_seeds`.
        first: The first seed.
        runs: How many.
        init: The checkpoint of `--init`; None: they begin with the rule.

    Raises:
        OSError: the checkpoint or a folder cannot be read or written.
    """
    packed = None if init is None else checkpoint_file(init).read_bytes()
    for own in files_of(files, first, runs).values():
        own.init.parent.mkdir(parents=True, exist_ok=True)
        if packed is None:
            own.init.unlink(missing_ok=True)
        else:
            own.init.write_bytes(packed)


def noted_init(files: RunFiles, first: int, runs: int) -> Path | None:
    """What these runs began with, as `note_init` left it; None: with the rule."""
    return next((own.init for own in files_of(files, first, runs).values() if own.init.exists()), None)


def begun(files: RunFiles, first: int, runs: int) -> Path | None:
    """The snapshot of one of these runs, None where none has one. Runs of other seeds are not looked at."""
    return next((own.last for own in files_of(files, first, runs).values() if own.last.exists()), None)


def train_seeds(
    train_one: TrainOne, first: int, runs: int, files: RunFiles, tolerated_loss_frac: float, *, resume: bool
) -> TrainingResult:
    """Train with `runs` successive seeds, one after the other, and write the best policy by validation.

    Each run has a folder `seed-K` below `files.logdir`; its `policy.zip` is there once the run has come to
    its end. Each is confirmed by itself, so the validation that chooses among them confirms nothing.

    Args:
        train_one: Trains with one seed.
        first: The first seed.
        runs: How many.
        files: Where the best goes, and below which folder the runs stand.
        tolerated_loss_frac: As in the recipe, for the score.
        resume: Go on: runs that have ended are not repeated.

    Returns:
        How the best run ended, or the one that was stopped, with which all the others wait.
    """
    if runs == 1:
        return train_one(first, files, resume)
    results = []
    every = files_of(files, first, runs)
    for seed, own in every.items():
        if resume and own.out.exists():
            card = load_checkpoint(own.out).card
            results.append(
                TrainingResult(timesteps=card.timesteps, stopped=False, steps_per_s=0.0, card=card)
            )
            continue
        result = train_one(seed, own, resume and own.last.exists())
        if result.stopped:
            own.out.unlink()
            return result
        results.append(result)
    best = min(range(runs), key=lambda k: score_of(results[k].card.validation, tolerated_loss_frac))
    kept = load_checkpoint(every[first + best].out)
    return replace(results[best], card=save_checkpoint(files.out, kept.card, kept.weights))
