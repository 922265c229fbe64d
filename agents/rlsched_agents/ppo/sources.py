"""From traces and clusters to what a training run needs: episodes, validation windows, lines for the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.foresight import Predictability
from rlsched.workload.split import time_split
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.runtime.card import TraceUse
from rlsched_envs.engine import predict_trace
from rlsched_envs.sources import EpisodeSource

SYNTHETIC_JOBS = 40_000
SYNTHETIC_GPUS = 64
SYNTHETIC_LOAD = 0.95
OTHER_SEED = 1_000
"""Added to the seed of the trace that is trained on for the one that is validated on."""


@dataclass(frozen=True)
class TrainingData:
    """One trace, cut by time into training, validation and test.

    Attributes:
        train: Where episodes are drawn from.
        validation: Where validation windows are cut from.
        uses: Its lines in the card.
    """

    train: EpisodeSource
    validation: EpisodeSource
    uses: tuple[TraceUse, ...]

    @classmethod
    def cut(cls, trace: Trace, spec: ClusterSpec) -> TrainingData:
        """Cut a trace 70 : 10 : 20 by time. Predictions are causal, so a part knows its past alone.

        Raises:
            InputError: a part without jobs, or nodes of different sizes.
        """
        split = time_split(trace)
        stamps = predict_trace(trace, spec)
        train, validation = (
            EpisodeSource.from_trace(trace, spec, since_s=since, until_s=until, predictions=stamps)
            for since, until in (split.train, split.validation)
        )
        use = TraceUse(
            trace=trace.name,
            cluster=spec.name,
            jobs=len(trace),
            train_s=split.train,
            validation_s=split.validation,
            test_s=split.test,
        )
        return cls(train, validation, (use,))


def read_data(traces: Sequence[Path], clusters: Sequence[Path]) -> list[TrainingData]:
    """Read (trace, cluster) pairs; one cluster serves all traces.

    Raises:
        InputError: the numbers of traces and clusters do not go together.
    """
    if len(clusters) not in (1, len(traces)) and traces:
        raise InputError(
            "expected one --cluster for each --trace, or one for all, got "
            f"{len(traces)} traces and {len(clusters)} clusters"
        )
    of_each = list(clusters) * len(traces) if len(clusters) == 1 else list(clusters)
    return [
        TrainingData.cut(Trace.read(trace), ClusterSpec.read(cluster))
        for trace, cluster in zip(traces, of_each, strict=True)
    ]


def synthetic_data(like: str, seed: int, predictability: Predictability) -> TrainingData:
    """Synthetic traces of 40,000 jobs at load 0.95 on 64 GPUs, one to train on and one to validate on.

    The first is cut like any other; the second has another seed, so that validation windows are many and
    have no burst in common with training.
    """
    data, other = (
        TrainingData.cut(
            *synthesize(
                like,
                SYNTHETIC_JOBS,
                SYNTHETIC_LOAD,
                SYNTHETIC_GPUS,
                seed=draw,
                predictability=predictability,
            )
        )
        for draw in (seed, seed + OTHER_SEED)
    )
    return TrainingData(
        data.train,
        other.train,
        (
            _renamed(data.uses[0], f"seed {seed}", validation_s=(0.0, 0.0)),
            _renamed(
                other.uses[0],
                f"seed {seed + OTHER_SEED}",
                train_s=(0.0, 0.0),
                validation_s=other.uses[0].train_s,
            ),
        ),
    )


def _renamed(use: TraceUse, suffix: str, **spans: tuple[float, float]) -> TraceUse:
    return msgspec.structs.replace(use, trace=f"{use.trace}, {suffix}", **spans)
