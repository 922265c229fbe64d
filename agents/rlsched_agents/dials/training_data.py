"""Prepares the training data: reads or draws traces, splits each by time, and describes the split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.predict.kinds import kind_for
from rlsched.workload.predictability import Predictability
from rlsched.workload.split import time_split
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.whatif.job_history import JobHistory
from rlsched_envs.sim.engine import predict_trace
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.tariffs import Tariff, split

SYNTHETIC_JOBS = 40_000
SYNTHETIC_GPUS = 64
SYNTHETIC_LOAD = 0.95
VALIDATION_TRACES = 6
VALIDATION_JOBS = 5_000
CONFIRMATION_TRACES = 2
"""Number of synthetic validation traces that are used for confirmation."""
LEAST_JOBS = 100
"""Minimum number of jobs in each half of the validation part (for choosing, for confirming). With fewer jobs,
the part is not split."""
VALIDATION_SEED = 1_000
"""Difference between the seeds of the first synthetic validation trace and the synthetic training trace."""


class TraceUse(msgspec.Struct, frozen=True, kw_only=True):
    """How one trace was split by time.

    A span is [from, to), seconds after the first job of the trace; empty: there is no such part.

    Attributes:
        trace: Name of the trace.
        cluster: Name of its cluster.
        jobs: Number of jobs in the whole trace.
        train_s: Span from which windows for training are drawn.
        validation_s: Span from which windows for choosing and for confirming the policy are drawn.
        test_s: Span that is not used, so that users can test the policy on it.
    """

    trace: str
    cluster: str
    jobs: int
    train_s: tuple[float, float]
    validation_s: tuple[float, float]
    test_s: tuple[float, float]


@dataclass(frozen=True)
class TrainingData:
    """One trace, split by time into training, validation and test.

    Attributes:
        train: Source of the windows for training.
        validation: Sources of the windows for choosing among the results of a training run.
        confirmation: Sources of the windows for confirming the chosen result; empty if there are too few
            jobs.
        uses: How the trace was split, for the card of the policy.
        mixed: Whether the trace's cluster has several GPU types.
    """

    train: EpisodeSource
    validation: tuple[EpisodeSource, ...]
    confirmation: tuple[EpisodeSource, ...]
    uses: tuple[TraceUse, ...]
    mixed: bool = False

    @classmethod
    def cut(cls, trace: Trace, spec: ClusterSpec, *, own: bool = False) -> TrainingData:
        """Split a trace by time: 70 % for training, 10 % for validation, and the last 20 % for a test.

        The first half of the validation jobs is for choosing a result, the second half for confirming it. If
        there are too few, all are for choosing. The test part is not used. For a user's own history (`own`),
        all validation jobs are for choosing, and the test part is for confirming. Run times are predicted
        only from jobs that had ended before the submission.

        Raises:
            InputError: a part has no jobs, or nodes differ in size.
        """
        split = time_split(trace)
        predictions = predict_trace(trace, spec, kind=kind_for(trace))

        def jobs(span: tuple[float, float]) -> EpisodeSource:
            return EpisodeSource.from_trace(
                trace, spec, since_s=span[0], until_s=span[1], predictions=predictions
            )

        train, validation = jobs(split.train), jobs(split.validation)
        use = TraceUse(
            trace=trace.name,
            cluster=spec.name,
            jobs=len(trace),
            train_s=split.train,
            validation_s=(split.validation[0], split.test[1]) if own else split.validation,
            test_s=(0.0, 0.0) if own else split.test,
        )
        chooses, confirms = (validation, (jobs(split.test),)) if own else _halves(validation)
        mixed = len({group.gpu_type for group in spec.nodes if group.count and group.gpus}) > 1
        return cls(train, (chooses,), confirms, (use,), mixed)

    def with_tariffs(self, tariffs: Sequence[Tariff]) -> TrainingData:
        """Return a copy whose windows get prices from these tariffs.

        Training, choosing and confirming use different days of each tariff (`tariffs.split`).
        """
        parts = split(tariffs)
        return replace(
            self,
            train=replace(self.train, tariffs=parts.training),
            validation=tuple(replace(one, tariffs=parts.choosing) for one in self.validation),
            confirmation=tuple(replace(one, tariffs=parts.confirming) for one in self.confirmation),
        )


def _halves(source: EpisodeSource) -> tuple[EpisodeSource, tuple[EpisodeSource, ...]]:
    """Return the first half of a source's jobs, and a tuple with the second half.

    If a half has fewer than `LEAST_JOBS` jobs, return all jobs, and an empty tuple.
    """
    jobs = source.submit_s.size
    if jobs < 2 * LEAST_JOBS:
        return source, ()
    return source.rows(slice(0, jobs // 2)), (source.rows(slice(jobs // 2, jobs)),)


def say_nothing(line: str) -> None:
    """Callback that ignores its line."""


def read_data(
    traces: Sequence[Path],
    clusters: Sequence[Path],
    histories: Sequence[Path] = (),
    form: str = "",
    tell: Callable[[str], None] = say_nothing,
) -> list[TrainingData]:
    """Read traces and histories with their clusters. A single cluster applies to all files.

    Args:
        traces: Traces in the standard form.
        clusters: Cluster files of the traces, then of the histories. Can be empty if there are only histories
            whose formats describe the nodes.
        histories: Histories in any format (`rlsched_agents.whatif.job_history`).
        form: Name of the format of the histories; "": detect the format.
        tell: Called with a line about each file.

    Raises:
        InputError: the numbers of files and clusters do not match, or a file is invalid.
    """
    files = (*traces, *histories)
    if not files:
        return []
    if len(clusters) not in (1, len(files)) and (clusters or traces):
        raise InputError(
            "expected one --cluster for each --trace and --history, or one for all, got "
            f"{len(files)} traces and histories, and {len(clusters)} clusters"
        )
    of_each = [*clusters] if len(clusters) == len(files) else [*clusters] * len(files)
    first, data = len(traces), list[TrainingData]()
    for path, cluster in zip(traces, of_each[:first], strict=True):
        trace, spec = Trace.read(path), ClusterSpec.read(cluster)
        tell(f"{path}: {len(trace):,} jobs; {spec.num_gpus:,} GPUs")
        data.append(TrainingData.cut(trace, spec))
    for number, path in enumerate(histories, start=first):
        tell(f"{path}: reading")
        found = JobHistory.read(path, of_each[number] if of_each else None, form)
        tell(
            f"{path}: {len(found.trace):,} jobs from {found.format}, {found.skipped:,} rows skipped; "
            f"{found.cluster.num_gpus:,} GPUs"
        )
        data.append(TrainingData.cut(found.trace, found.cluster, own=True))
    return data


def synthetic_data(like: str, seed: int, predictability: Predictability) -> TrainingData:
    """Return synthetic traces at load 0.95 on 64 GPUs: a long one for training, short ones for validation.

    Of the 40,000 jobs for training, only the jobs submitted in the first 70 % of the time are used. The short
    traces have other seeds. The last two are for confirming a result, the others for choosing it.
    """

    def drawn(jobs: int, draw: int) -> tuple[Trace, ClusterSpec]:
        return synthesize(
            like, jobs, SYNTHETIC_LOAD, SYNTHETIC_GPUS, seed=draw, predictability=predictability
        )

    data = TrainingData.cut(*drawn(SYNTHETIC_JOBS, seed))
    first = seed + VALIDATION_SEED
    others = [drawn(VALIDATION_JOBS, first + k) for k in range(VALIDATION_TRACES)]
    use, changed = data.uses[0], msgspec.structs.replace
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
        (changed(use, trace=f"{use.trace}, seed {seed}", validation_s=(0.0, 0.0)), validation_use),
    )
