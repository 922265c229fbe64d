"""The measured jobs: traces x parts of their time x offered loads, without any later part."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.load import nodes_for_load, offered_load
from rlsched.workload.split import Window as Bounds
from rlsched.workload.split import time_split
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.windows import MeasuredWindow

TRACES: Final = ("helios_venus", "philly/6214e9", "philly/6c71a0", "philly/11cb48")
"""Venus, and the VCs of Philly with most jobs in the training part: 39,540, 12,935 and 10,845."""
LOADS: Final = (0.7, 0.85, 0.95, 1.05)
UNSEEN: Final = (
    *(f"ms_itp_{number:02}" for number in (1, 2, 5, 6, 7, 8, 9, 10)),
    *(f"philly/{vc}" for vc in ("0e4a51", "103959", "2869ce", "7f04ca", "e13805")),
)
"""Clusters on which no rule was tuned: ITP, and the smaller VCs of Philly with 100 jobs or more in
the validation part. `ms_itp_01` has 40 there, `ms_itp_10` 56."""
TUNING_LOADS: Final = (0.85, 0.95, 1.05)
TUNING_PARTS: Final = ("train1", "train2", "train3")
PARTS: Final = (*TUNING_PARTS, "validation", "test")
SYNTHETIC: Final = "synthetic"
"""The part of a sequence that is drawn, not cut from a trace (`synthetic`)."""
WANTED_JOBS: Final = 4000
"""Wanted number of jobs of a test sequence; the tables note VCs with fewer."""
MIN_TUNING_JOBS: Final = 1000
"""A training part with fewer jobs is no case for tuning."""
Foresight = Literal["causal", "hedge-mean", "hedge-median", "hedge-fitted", "good"]
"""Predictions from the trace itself, by a running mean or by the mean or median of the hedge; or predictions
with the quality of published ones (`predictions.py`). `hedge-fitted`: the mean of the hedge, with the spread
of the lognormal that has the mean and the median of the hedge."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of jobs on one cluster.

    Attributes:
        trace: Name of the trace, with `/VC` for one VC of it; or of a synthetic sequence.
        part: One of `PARTS`, or `SYNTHETIC`.
        load: Offered load of the measured jobs.
        preemptible_frac: Share of the jobs that may be preempted, drawn with seed 0.
        declared: Whether the jobs declare that they may be preempted, if all of them may. `tuned` and `ppo`
            preempt only jobs that declare it; other rules preempt all jobs.
        predictions: Quality of the predicted durations, the same for all policies.
    """

    trace: str
    part: str
    load: float
    preemptible_frac: float = 1.0
    declared: bool = False
    predictions: Foresight = "causal"

    @property
    def flagged(self) -> bool:
        """Whether each job declares if it may be preempted."""
        return self.declared or self.preemptible_frac < 1.0

    @property
    def name(self) -> str:
        """Name of the case, fit for a file."""
        share = f"-preemptible{self.preemptible_frac:g}" if self.flagged else ""
        good = "" if self.predictions == "causal" else f"-{self.predictions}"
        return f"{self.trace.replace('/', '-')}-{self.part}-{self.load:g}{share}{good}"


@dataclass(frozen=True)
class Workload:
    """A case, ready for replay.

    Attributes:
        trace: The jobs up to the end of the part; none of a later one.
        spec: The cluster.
        window: The measured jobs.
        stretch: Factor on submission times that gives the requested load.
    """

    trace: Trace
    spec: ClusterSpec
    window: MeasuredWindow
    stretch: float


def part_bounds(trace: Trace, part: str) -> Bounds:
    """(since, until) of a part, seconds of the trace.

    `validation` and `test` follow `time_split`. The training part is the first 70 % of
    the time. Its last 60 % are three windows, each as long as the test part. The first 10 % are only history.

    Raises:
        InputError: there is no such part.
    """
    split = time_split(trace)
    if part == "validation":
        return split.validation
    if part == "test":
        return split.test
    if part not in TUNING_PARTS:
        raise InputError(f"expected a part of {', '.join(PARTS)}, got {part!r}")
    length_s = split.test[1] - split.test[0]
    before_end = len(TUNING_PARTS) - TUNING_PARTS.index(part)
    since_s = max(split.train[0], split.train[1] - before_end * length_s)
    until_s = split.train[1] - (before_end - 1) * length_s
    return since_s, until_s


def cases(
    traces: Iterable[str],
    parts: Iterable[str],
    loads: Iterable[float],
    *,
    preemptible_frac: float = 1.0,
    predictions: Foresight = "causal",
    declared: bool = False,
) -> list[Case]:
    """All cases, trace by trace."""
    wanted = [(trace, part, load) for trace in traces for part in parts for load in loads]
    return [
        Case(
            trace=trace,
            part=part,
            load=load,
            preemptible_frac=preemptible_frac,
            declared=declared,
            predictions=predictions,
        )
        for trace, part, load in wanted
    ]


@lru_cache(maxsize=2)
def read_trace(folder: Path, name: str) -> tuple[Trace, ClusterSpec]:
    """A trace and its cluster, both whole, from `NAME.csv.gz` and `NAME.cluster.toml`.

    Raises:
        InputError: One of them is missing, or cannot be read.
    """
    stem = name.partition("/")[0]
    path = folder / f"{stem}.csv.gz"
    if not path.is_file():
        raise InputError(f"no trace {stem!r} in {folder}; expected {path.name} there (set RLSCHED_DATA)")
    return Trace.read(path), ClusterSpec.read(folder / f"{stem}.cluster.toml")


def measured_jobs(folder: Path, case: Case) -> int:
    """Number of measured jobs of a case."""
    trace, _ = read_trace(folder, case.trace)
    since_s, until_s = part_bounds(trace, case.part)
    mine, vc = MeasuredWindow(since_s, until_s).measured(trace), case.trace.partition("/")[2]
    return int(np.count_nonzero(mine & (trace.vc == vc) if vc else mine))


def workload_of(folder: Path, case: Case) -> Workload:
    """Cut a case out of its trace, and make its load exact.

    The cuts are of the whole trace, also for one VC of it. Jobs submitted after the part are dropped
    before any replay or prediction: a tuned rule or a learned strategy has seen no later job,
    not even as a competitor of the last measured jobs. The nodes are scaled to the load, whole nodes that
    hold the largest gang; submission times are then stretched until the load is exact.

    Raises:
        InputError: No such trace, VC or part, or no measured job.
    """
    trace, spec = read_trace(folder, case.trace)
    since_s, until_s = part_bounds(trace, case.part)
    kept = trace.submit_s < until_s
    vc = case.trace.partition("/")[2]
    if vc:
        kept &= trace.vc == vc
        spec = ClusterSpec(
            name=f"{spec.name} {vc}", nodes=tuple(group for group in spec.nodes if group.vc == vc)
        )
    trace = trace.select(kept)
    measured = MeasuredWindow(since_s, until_s).measured(trace)
    if not measured.any():
        raise InputError(f"{case.trace}: no job is submitted in its {case.part} part")
    spec = nodes_for_load(trace.select(measured), spec, case.load)
    stretch = offered_load(trace.select(measured), spec) / case.load
    if not (math.isfinite(stretch) and stretch > 0):
        raise InputError(f"{case.trace}: the jobs of its {case.part} part are no load for {spec.name}")
    trace = replace(trace, submit_s=trace.submit_s * stretch)
    return Workload(
        with_flags(trace, case), spec, MeasuredWindow(since_s * stretch, until_s * stretch), stretch
    )


def with_flags(trace: Trace, case: Case) -> Trace:
    """The trace, in which each job declares if it may be preempted, if the case requires it."""
    if not case.flagged:
        return trace
    pinned = np.random.default_rng(0).random(len(trace)) >= case.preemptible_frac
    return replace(trace, extra=trace.extra | {"preemptible": np.where(pinned, "false", "true")})
