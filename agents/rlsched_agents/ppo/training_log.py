"""TensorBoard log of a PPO run: curves, configuration and result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from stable_baselines3.common.logger import KVWriter

from rlsched.board.curves import Curves, flat
from rlsched_agents.runtime.card import Card

DESCRIPTIONS: Final = {
    "rollout/ep_rew_mean": "Mean return of the last hundred episodes.",
    "rollout/ep_len_mean": "Mean number of decisions of the last hundred episodes.",
    "rollout/reference_.*": "The same for the reference rule on the same episodes.",
    "rollout/queue_ratio_frac": "Queueing delay / that of the reference rule; below 1 is better.",
    "rollout/wins_frac": "Share of episodes with less queueing delay than the reference rule.",
    "rollout/queue_mean_s": "Mean queueing delay of the episodes that ended, seconds.",
    "rollout/delay_mean_s": "Mean delay of jobs beyond their run time on GPUs of their own, seconds.",
    "rollout/jct_mean_s": "Mean time from submission to end, seconds.",
    "rollout/gpu_utilisation_frac": "Mean share of busy GPUs.",
    "rollout/energy_j": "Energy of the jobs, joules.",
    "reward/return_std": "Standard deviation of returns, by which rewards are divided.",
    "reward/return": "Mean return of the episodes that ended.",
    "reward/regret.*": "Waiting that the reference rule would have avoided, as in the reward.",
    "train/approx_kl": "Size of an update of the policy; a large value means too fast.",
    "train/clip_fraction": "Share of samples at which the update was clipped.",
    "train/clip_range.*": "Clipping range of updates.",
    "train/entropy_loss": "Negative entropy of the policy; near 0 the policy is deterministic.",
    "train/explained_variance": "Share of the variance of returns that the critic predicts; 1 is all.",
    "train/learning_rate": "Step size of the optimiser.",
    "train/loss": "The total loss.",
    "train/policy_gradient_loss": "Loss of the policy.",
    "train/value_loss": "Loss of the critic.",
    "time/fps": "Decisions per second.",
    "curriculum/stage_number": "Stage of the curriculum.",
    "validation/stale_count": "Successive validations without a better policy.",
    "validation/.*/score_frac": "Score for choosing checkpoints: queueing (with models, times cost) / that "
    "of the reference; below 1 is better.",
    "validation/.*/queue_mean_s": "Mean queueing delay on windows that choose, seconds.",
    "validation/.*/queue_p99_s": "99th percentile of the queueing delay on windows that choose, seconds.",
    "validation/.*/jct_mean_s": "Mean time from submission to end on windows that choose, seconds.",
    "validation/.*/gpu_utilisation_frac": "Mean share of busy GPUs.",
    "validation/.*/queue_ratio_frac": "Queueing delay / the reference rule's, geometric mean of windows.",
    "validation/.*/worst_source_ratio_frac": "The same for the trace with the largest ratio.",
    "validation/.*/wins_frac": "Share of windows with less queueing delay than the reference rule.",
    "validation/.*/cost_ratio_frac": "Cost of time and energy / the reference's, on windows with models.",
    "run/made_with": "The recipe.",
    "run/data": "The training data.",
    "run/outcome": "The result.",
}
LAYOUT: Final = {
    "Policy and reference": {
        "mean queueing delay, training, s": ["rollout/(reference_)?queue_mean_s"],
        "mean time from submission to end, training, s": ["rollout/(reference_)?jct_mean_s"],
        "mean queueing delay, windows that choose, s": ["validation/.*/queue_mean_s"],
        "99th percentile of it, s": ["validation/.*/queue_p99_s"],
        "relative to the reference rule": ["validation/.*/(score|queue_ratio|cost_ratio)_frac"],
    },
}
_COMPARED: Final = ("score_frac", "queue_ratio_frac", "worst_source_ratio_frac")


def served_as(temperature: float) -> str:
    """Return the name of this temperature of serving in tables and tags."""
    return "ppo" if temperature == 0 else f"ppo-t{temperature:g}"


class PpoCurves(KVWriter):
    """Writes the records of a Stable-Baselines3 logger to TensorBoard.

    Args:
        logdir: Folder of the event file.
        card: Card of the policy with the data known in advance, including the recipe.
        temperatures: Temperatures of serving.

    Raises:
        InputError: tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(self, logdir: Path, card: Card, temperatures: Sequence[float]) -> None:
        self._curves = Curves(logdir, DESCRIPTIONS, LAYOUT)
        metrics = [f"validation/{served_as(one)}/{name}" for one in temperatures for name in _COMPARED]
        self._curves.settings({"seed": card.seeds[0], **flat(card.recipe)}, metrics)
        recipe = msgspec.json.format(msgspec.json.encode(card.recipe)).decode()
        self._curves.text("run/made_with", f"seed {card.seeds[0]}\n\n```json\n{recipe}\n```")
        if card.traces:
            rows = [f"| {one.trace} | {one.jobs:,} |" for one in card.traces]
            self._curves.text("run/data", "\n".join(["| trace | jobs |", "|---|---|", *rows]))
        self._curves.flush()

    def write(
        self, key_values: dict[str, Any], key_excluded: Mapping[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Write each number that is not excluded from TensorBoard."""
        points = {
            tag: float(value)
            for tag, value in key_values.items()
            if "tensorboard" not in (key_excluded[tag] or ()) and not isinstance(value, str)
        }
        self._curves.add(step, points)
        self._curves.flush()

    def outcome(self, markdown: str) -> None:
        """Add the result as Markdown."""
        self._curves.text("run/outcome", markdown)
        self._curves.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._curves.close()
