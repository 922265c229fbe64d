"""The verbs of this package: `rlsched train`, `rlsched train-rows` and `rlsched evaluate`."""

from __future__ import annotations

from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.cli.train import train
from rlsched_agents.cli.train_rows import train_rows

__all__ = ["evaluate", "train", "train_rows"]
