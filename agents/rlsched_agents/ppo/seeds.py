"""Several runs that differ only in their seed; the best run is kept, since chance affects a run strongly.

The folder of each run has the initial policy before any run starts, since a stopped command can be resumed
before all of its runs have started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rlsched_agents.ppo.callbacks import score_of
from rlsched_agents.ppo.training import RunFiles, TrainingResult
from rlsched_agents.runtime.checkpoint import checkpoint_file, load_checkpoint, save_checkpoint

TrainOne = Callable[[int, RunFiles, bool], TrainingResult]
"""Trains with one seed: (seed, files, whether to resume) -> result of the run."""


def files_of(files: RunFiles, first: int, runs: int) -> dict[int, RunFiles]:
    """Return the files of each seed's run; several runs have the folders `seed-K` below `files.logdir`."""
    if runs == 1:
        return {first: files}
    folders = {seed: files.logdir / f"seed-{seed}" for seed in range(first, first + runs)}
    return {seed: RunFiles(logdir=at, out=at / "policy.zip") for seed, at in folders.items()}


def note_init(files: RunFiles, first: int, runs: int, init: Path | None) -> None:
    """Record the initial policy in the folder of each new run before the first run starts.

    Args:
        files: As for `train_seeds`.
        first: The first seed.
        runs: Number of runs.
        init: The checkpoint of `--init`; None: runs start from the rule.

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
    """Return the initial policy of these runs that `note_init` recorded; None for the rule."""
    return next((own.init for own in files_of(files, first, runs).values() if own.init.exists()), None)


def begun(files: RunFiles, first: int, runs: int) -> Path | None:
    """Return the snapshot of one of these runs; None if there is none. Ignores runs of other seeds."""
    return next(
        (own.last_snapshot for own in files_of(files, first, runs).values() if own.last_snapshot.exists()),
        None,
    )


def train_seeds(
    train_one: TrainOne, first: int, runs: int, files: RunFiles, tolerated_loss_frac: float, *, resume: bool
) -> TrainingResult:
    """Train with `runs` successive seeds in sequence, and write the best policy by validation.

    Each run has a folder `seed-K` below `files.logdir`, which has a `policy.zip` once the run has finished.
    Each run is confirmed separately: the validation that chooses among the runs does not confirm any of them.

    Args:
        train_one: Trains with one seed.
        first: The first seed.
        runs: Number of runs.
        files: Path for the best policy, and the folder above the runs.
        tolerated_loss_frac: As in the recipe, for the score.
        resume: Continue; finished runs are not repeated.

    Returns:
        The result of the best run, or of the run that was stopped, in which case the remaining runs do not
        start.
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
        result = train_one(seed, own, resume and own.last_snapshot.exists())
        if result.stopped:
            own.out.unlink()
            return result
        results.append(result)
    best = min(range(runs), key=lambda k: score_of(results[k].card.validation, tolerated_loss_frac))
    kept = load_checkpoint(every[first + best].out)
    return replace(results[best], card=save_checkpoint(files.out, kept.card, kept.weights))
