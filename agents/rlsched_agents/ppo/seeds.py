"""Several runs that differ in their seed alone: one run's luck is large, so the best of a few is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rlsched_agents.ppo.callbacks import score_of
from rlsched_agents.ppo.training import RunFiles, TrainingResult
from rlsched_agents.runtime.checkpoint import load_checkpoint, save_checkpoint

TrainOne = Callable[[int, RunFiles, bool], TrainingResult]
"""(seed, where to write, whether to go on with what is there) -> how the run ended."""


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
    for seed in range(first, first + runs):
        folder = files.logdir / f"seed-{seed}"
        own = RunFiles(logdir=folder, out=folder / "policy.zip")
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
    kept = load_checkpoint(files.logdir / f"seed-{first + best}" / "policy.zip")
    return replace(results[best], card=save_checkpoint(files.out, kept.card, kept.weights))
