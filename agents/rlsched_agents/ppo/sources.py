"""From traces and clusters to what a training run needs: episodes, validation windows, lines for the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.predict.kinds import kind_for
from rlsched.workload.predictability import Predictability
from rlsched.workload.split import time_split
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.runtime.card import TraceUse
from rlsched_envs.engine import predict_trace
from rlsched_envs.sources import EpisodeSource

SYNTHETIC_JOBS = 40_000
SYNTHETIC_GPUS = 64
SYNTHETIC_LOAD = 0.95
VALIDATION_TRACES = 6
VALIDATION_JOBS = 5_000
CONFIRMATION_TRACES = 2
"""Of the synthetic validation traces, those that confirm."""
LEAST_JOBS = 100
"""Fewer validation jobs than twice these are not cut in two."""
VALIDATION_SEED = 1_000
"""Added to the seed of the trace that is trained on for the first of those that are validated on."""


@dataclass(frozen=True)
class TrainingData:
    """One trace, cut by time into training, validation and test.

    Attributes:
        train: Where episodes are drawn from.
        validation: Where the windows are cut from that choose among the policies of a run, each on its own.
        confirmation: Where those are cut from that the chosen one has to stand in as well: later jobs, or
            other traces. None where there is too little for both.
        uses: Its lines in the card.
    """

    train: EpisodeSource
    validation: tuple[EpisodeSource, ...]
    confirmation: tuple[EpisodeSource, ...]
    uses: tuple[TraceUse, ...]

    @classmethod
    def cut(cls, trace: Trace, spec: ClusterSpec) -> TrainingData:
        """Cut a trace 70 : 10 : 20 by time. Predictions are causal, so a part knows its past alone.

        The first half of the validation jobs chooses, the second one confirms.

        Raises:
            InputError: a part without jobs, or nodes of different sizes.
        """
        split = time_split(trace)
        predictions = predict_trace(trace, spec, kind=kind_for(trace))
        train, validation = (
            EpisodeSource.from_trace(trace, spec, since_s=since, until_s=until, predictions=predictions)
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
        chooses, confirms = _halves(validation)
        return cls(train, (chooses,), confirms, (use,))


def _halves(source: EpisodeSource) -> tuple[EpisodeSource, tuple[EpisodeSource, ...]]:
    """The first half of the jobs and the second; all of them and nothing where there are few."""
    jobs = source.submit_s.size
    if jobs < 2 * LEAST_JOBS:
        return source, ()
    return source.rows(slice(0, jobs // 2)), (source.rows(slice(jobs // 2, jobs)),)


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
    """Synthetic traces at load 0.95 on 64 GPUs: one to train on, and short ones to validate on.

    The first has 40,000 jobs and is cut like any other. The others have other seeds and the length of a
    validation window, so that no two windows and no window and training have a burst in common; the last two
    of them confirm.
    """

    def drawn(jobs: int, draw: int) -> tuple[Trace, ClusterSpec]:
        return synthesize(
            like, jobs, SYNTHETIC_LOAD, SYNTHETIC_GPUS, seed=draw, predictability=predictability
        )

    data = TrainingData.cut(*drawn(SYNTHETIC_JOBS, seed))
    first = seed + VALIDATION_SEED
    others = [drawn(VALIDATION_JOBS, first + k) for k in range(VALIDATION_TRACES)]
    replace = msgspec.structs.replace
    use = data.uses[0]
    validation_use = TraceUse(
        trace=f"{use.trace}, seeds {first} to {first + VALIDATION_TRACES - 1}",
        cluster=use.cluster,
        jobs=VALIDATION_JOBS * VALIDATION_TRACES,
        train_s=(0.0, 0.0),
        validation_s=(0.0, max(float(trace.submit_s[-1]) for trace, _ in others)),
        test_s=(0.0, 0.0),
    )
    sources = tuple(EpisodeSource.from_trace(*other) for other in others)
    return TrainingData(
        data.train,
        sources[:-CONFIRMATION_TRACES],
        sources[-CONFIRMATION_TRACES:],
        (replace(use, trace=f"{use.trace}, seed {seed}", validation_s=(0.0, 0.0)), validation_use),
    )
