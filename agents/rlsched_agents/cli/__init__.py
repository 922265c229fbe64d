"""The verbs of this package: `rlsched train` and `rlsched evaluate`."""

from __future__ import annotations

from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.cli.train import train

__all__ = ["evaluate", "train"]
