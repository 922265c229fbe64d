"""The commands of this package: `rlsched train`, `evaluate`, `shadow`, `warm` and `whatif`."""

from __future__ import annotations

from rlsched_agents.cli.evaluate import evaluate
from rlsched_agents.cli.shadow import shadow
from rlsched_agents.cli.train import train
from rlsched_agents.cli.warm import warm
from rlsched_agents.cli.whatif import whatif

__all__ = ["evaluate", "shadow", "train", "warm", "whatif"]
