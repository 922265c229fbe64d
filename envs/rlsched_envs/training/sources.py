"""Draws windows from traces for episodes: cuts jobs to fit small clusters, and scales times to a load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.energy.series import DAY_S, HOUR_S, Series
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.predict.informed import Informed
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import PredictedTimes, predict_trace, run_time_s
from rlsched_envs.training.tariffs import Tariff

GPU_TYPES: Final = ("V100", "P100", "A100")
"""GPU types of windows: the types with the most data in the catalogue."""
AS_MADE_FRAC: Final = 0.3
"""Fraction of windows with the source's own predictions; for other windows, `Drawn` gives the accuracy."""
SHORT_JOB_S: Final = 2 * 3_600.0
SHORT_SLACK_S: Final = 6 * 3_600.0
LONG_SLACK_S: Final = 86_400.0
"""Slack (accepted delay) if a job is predicted to run for 2 h or more; shorter jobs have a slack of 6 h, as
in GAIA (ASPLOS'24).
"""
_THINNED_TRIES: Final = 20
LOAD_ERROR: Final = 0.15
"""Relative error of the load up to which a window of randomly drawn jobs (`Drawn.thins`) is accepted."""
LONGEST_S: Final = 7 * 86_400.0
"""Upper limit of run times in training, seconds. A longer job would dominate a whole episode."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Distribution from which windows are drawn. If a field has several choices, all are equally probable.

    Attributes:
        jobs: Number of jobs in a window.
        load_low: Lower bound of the offered load.
        load_high: Upper bound of the offered load.
        nodes_low: Lower bound of the number of nodes.
        nodes_high: Upper bound of the number of nodes.
        block_jobs: If above 0, a window is composed of blocks of this many successive jobs, drawn at random
            with replacement. A job keeps its prediction and its time since the previous job. 0: a window is
            one part of the trace.
        known_low: Lower bound of the correlation between a window's predictions and its true run times.
        known_high: Upper bound of this correlation, which is drawn uniformly for each window
            (`predict.informed`). If `known_high` is 0, or the source does not support this, the source's own
            predictions are used.
        preemptible_fracs: Choices for the fraction of jobs without slack that may be preempted. All jobs with
            slack may be preempted.
        restart_low_s: Lower bound of the restart cost of a preempted job, log-uniform.
        restart_high_s: Upper bound of the restart cost.
        energy_weights: Choices for the weight of energy relative to time.
        kinds: Choices for the GPU type of a window's cluster, indices in `GPU_TYPES`.
        mixed_frac: Fraction of windows with nodes of all types in `kinds`: nodes get the types in turn, in a
            random order of the types. Run times then refer to the first type.
        thins: Whether windows keep the times of day of submissions. If so, jobs are drawn at random from a
            part of the trace that is long enough to give the load. If not, times are scaled.
        slack_fracs: Choices for the fraction of jobs with slack (`SHORT_SLACK_S`, `LONG_SLACK_S`). If a
            choice is above 0, each window has one of its source's tariffs. The cost then has money in place
            of energy, and only the part of each delay beyond the slack.
    """

    jobs: int = 1500
    load_low: float = 0.85
    load_high: float = 1.05
    nodes_low: int = 6
    nodes_high: int = 10
    block_jobs: int = 0
    known_low: float = 0.0
    known_high: float = 0.0
    preemptible_fracs: tuple[float, ...] = (0.0, 0.5, 1.0)
    restart_low_s: float = 30.0
    restart_high_s: float = 300.0
    energy_weights: tuple[float, ...] = (0.0, 0.0, 0.3)
    kinds: tuple[int, ...] = tuple(range(len(GPU_TYPES)))
    mixed_frac: float = 0.0
    thins: bool = False
    slack_fracs: tuple[float, ...] = (0.0,)

    @property
    def has_prices(self) -> bool:
        """Whether jobs have slack, so that windows need prices of electricity."""
        return max(self.slack_fracs) > 0.0

    def __post_init__(self) -> None:
        for name in ("load", "nodes"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            if not low <= high:
                raise ValueError(f"{name}_low must be at most {name}_high, got {low} and {high}")
        if self.block_jobs < 0:
            raise ValueError(f"block_jobs must be 0 or more, got {self.block_jobs}")
        if not 0 <= self.known_low <= self.known_high <= 1:
            raise ValueError(
                "known_low and known_high must be between 0 and 1, and known_low at most known_high, got "
                f"{self.known_low} and {self.known_high}"
            )


@dataclass(frozen=True)
class EpisodeSource:
    """J jobs from which windows are drawn, in the order of submission.

    Attributes:
        name: Name of the trace.
        submit_s: (J,) times of submission, seconds.
        duration_s: (J,) run times, seconds.
        gpus: (J,) GPUs of each job.
        predictions: Predictions of the jobs.
        weight: Weight of this source in draws, relative to other sources.
        gpus_per_node: GPUs per node.
        workload: (J,) index of each job's workload in the catalogue; None: unknown.
        informed: Draws predictions of any accuracy for the jobs; None: not supported.
        tariffs: Prices of electricity; each window with prices has one of these tariffs.
        day_s: Time of day (UTC) of the trace's second 0, seconds; 0 if the trace has no origin.
        vc: (J,) virtual cluster (VC) of each job; None: unknown.
    """

    name: str
    submit_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    gpus: NDArray[np.int32]
    predictions: PredictedTimes
    weight: float = 1.0
    gpus_per_node: int = 8
    workload: NDArray[np.int32] | None = None
    informed: Informed | None = None
    tariffs: tuple[Tariff, ...] = ()
    day_s: float = 0.0
    vc: NDArray[np.str_] | None = None

    @classmethod
    def from_trace(
        cls,
        trace: Trace,
        spec: ClusterSpec,
        *,
        since_s: float = 0.0,
        until_s: float = np.inf,
        weight: float = 1.0,
        predictions: PredictedTimes | None = None,
    ) -> EpisodeSource:
        """Return a source of the jobs on whole GPUs that were submitted in [since_s, until_s).

        Args:
            trace: All jobs.
            spec: The cluster of the trace.
            since_s: Start of the interval, seconds of the trace.
            until_s: End of the interval, seconds of the trace.
            weight: Weight of the source in draws, relative to other sources.
            predictions: Predictions of all jobs of the trace; None: made by `predict_trace`.

        Raises:
            InputError: nodes differ in size, or no job was submitted in this time.
        """
        sizes = {group.gpus for group in spec.nodes if group.count and group.gpus}
        if len(sizes) != 1:
            raise InputError(
                f"{spec.name}: training needs nodes that all have the same number of GPUs, "
                f"got {sorted(sizes)}; give a cluster with nodes of one size"
            )
        predictions = predict_trace(trace, spec) if predictions is None else predictions
        whole = (trace.num_gpus >= 1) & (trace.num_gpus == np.floor(trace.num_gpus))
        rows = np.flatnonzero(whole & (trace.submit_s >= since_s) & (trace.submit_s < until_s))
        if rows.size == 0:
            raise InputError(
                f"{trace.name}: expected jobs on whole GPUs between {since_s:g} and {until_s:g} s, got none; "
                "choose a longer part of the trace"
            )
        duration_s = np.clip(run_time_s(trace)[rows], 1.0, LONGEST_S)
        burst = bursts(keyed(trace.vc[rows]).code, trace.num_gpus[rows], trace.submit_s[rows])
        return cls(
            trace.name,
            trace.submit_s[rows],
            duration_s,
            trace.num_gpus[rows].astype(np.int32),
            PredictedTimes(predictions.predicted_s[rows], predictions.spread[rows]),
            weight,
            sizes.pop(),
            load_catalogue().draw(trace, 0)[rows],
            Informed.from_jobs(duration_s, trace.num_gpus[rows], burst),
            day_s=_seconds_of_day(trace.origin),
            vc=np.asarray(trace.vc[rows], np.str_),
        )

    def with_prices(self, *series: Series, known_ahead_h: float = 12.0) -> EpisodeSource:
        """Return a copy of this source whose windows can have these prices of electricity.

        Args:
            series: Prices or carbon intensities, `rlsched_envs.training.tariffs.LEAST_DAYS` days or more.
            known_ahead_h: How far ahead prices are known, hours.

        Raises:
            InputError: a series is too short, or its steps do not divide an hour.
        """
        tariffs = tuple(Tariff.of(one, known_ahead_h * HOUR_S) for one in series)
        return replace(self, tariffs=tariffs)

    @cached_property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of the data that windows are drawn from."""
        found = hashlib.sha256(repr((self.name, self.weight, self.gpus_per_node)).encode())
        prices = [one.rows for one in self.tariffs]
        columns = (self.submit_s, self.duration_s, self.gpus, *self.predictions, self.workload, *prices)
        for column in columns:
            found.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
        return found.hexdigest()[:12]

    def rows(self, kept: slice) -> EpisodeSource:
        """Return a copy of this source with only these jobs."""
        predictions = PredictedTimes(self.predictions.predicted_s[kept], self.predictions.spread[kept])
        return replace(
            self,
            submit_s=self.submit_s[kept],
            duration_s=self.duration_s[kept],
            gpus=self.gpus[kept],
            predictions=predictions,
            workload=None if self.workload is None else self.workload[kept],
            informed=None if self.informed is None else self.informed.rows(kept),
            vc=None if self.vc is None else self.vc[kept],
        )


def _seconds_of_day(origin: datetime | None) -> float:
    """Return the time of day (UTC) of a trace's origin, seconds; an origin without a time zone is UTC."""
    if origin is None:
        return 0.0
    at = origin.replace(tzinfo=UTC) if origin.tzinfo is None else origin.astimezone(UTC)
    return at.timestamp() % DAY_S


class EpisodeJobs(msgspec.Struct, frozen=True):
    """Jobs of one window: arrays with one entry per job.

    Time 0 is the submission of the first job or, in a thinned window (`Drawn.thins`), the midnight (UTC)
    before. `nodes`: number of nodes of the window's cluster. `first`: index of the window's first job in the
    source. `vc`: empty if unknown.
    """

    submit_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    gpus: NDArray[np.int32]
    predicted_s: NDArray[np.float64]
    spread: NDArray[np.float64]
    nodes: int
    workload: NDArray[np.int32]
    first: int = 0
    vc: NDArray[np.str_] = np.zeros(0, np.str_)


def largest_gang(nodes: int, gpus_per_node: int) -> int:
    """Return the most GPUs that a job may have: half of the cluster's GPUs, but at least one node's GPUs."""
    return max(nodes * gpus_per_node // 2, min(nodes, 1) * gpus_per_node)


def draw_window(source: EpisodeSource, drawn: Drawn, rng: np.random.Generator) -> EpisodeJobs:
    """Draw a window, limit the GPUs of its jobs to `largest_gang`, and scale its times to a drawn load."""
    if drawn.thins:
        nodes = int(rng.integers(drawn.nodes_low, drawn.nodes_high + 1))
        load = float(rng.uniform(drawn.load_low, drawn.load_high))
        pick, submit_s, nodes = _thinned(source, drawn.jobs, nodes, load, rng)
    else:
        pick, gaps = _drawn_jobs(source, drawn, rng)
        nodes = int(rng.integers(drawn.nodes_low, drawn.nodes_high + 1))
        load = float(rng.uniform(drawn.load_low, drawn.load_high))
        work_gpu_s = float((source.duration_s[pick] * _capped(source, nodes)[pick]).sum())
        span_s = max(float(gaps.sum()), 1.0)
        stretch = work_gpu_s / (load * nodes * source.gpus_per_node * span_s)
        submit_s = np.round(np.cumsum(gaps) * stretch)
    gpus, duration_s = _capped(source, nodes)[pick], source.duration_s[pick]
    predictions = _drawn_predictions(source, drawn, pick, rng)
    return EpisodeJobs(
        submit_s,
        duration_s,
        gpus,
        predictions.predicted_s,
        predictions.spread,
        nodes,
        np.zeros(pick.size, np.int32) if source.workload is None else source.workload[pick],
        int(pick[0]),
        np.zeros(0, np.str_) if source.vc is None else source.vc[pick],
    )


def _capped(source: EpisodeSource, nodes: int) -> NDArray[np.int32]:
    """Return the (J,) GPUs of each job of a source, limited to `largest_gang`."""
    return np.minimum(source.gpus, largest_gang(nodes, source.gpus_per_node)).astype(np.int32)


def _thinned(
    source: EpisodeSource, jobs: int, nodes: int, load: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """Draw `jobs` jobs at random from a part of a trace, so long that their load on `nodes` nodes is `load`.

    If the part has fewer jobs than `jobs`, a longer part and fewer nodes are used.

    Returns:
        Indices of the jobs, their submissions in seconds after a midnight (UTC), and the number of nodes.
    """
    at_s = source.day_s + source.submit_s
    if at_s.size < jobs:  # repeat the trace after a whole number of days
        period_s = DAY_S * (np.floor((at_s[-1] - at_s[0]) / DAY_S) + 1.0)
        at_s = (at_s + period_s * np.arange(-(-jobs // at_s.size))[:, None]).ravel()
    rows = np.arange(at_s.size) % source.submit_s.size
    work_gpu_s = (source.duration_s * _capped(source, nodes))[rows]
    gpu_s = load * source.gpus_per_node  # GPU-seconds of work per node and second
    span_s = float(work_gpu_s.mean()) * jobs / (gpu_s * nodes)
    best, least = np.arange(0), np.inf
    for _ in range(_THINNED_TRIES):
        since_s = float(rng.uniform(at_s[0], max(at_s[-1] - span_s, at_s[0] + 1.0)))
        first = min(int(np.searchsorted(at_s, since_s)), at_s.size - jobs)
        end = max(int(np.searchsorted(at_s, since_s + span_s)), first + jobs)
        found = np.sort(rng.choice(np.arange(first, end), jobs, replace=False))
        lasts_s = max(span_s, float(at_s[found[-1]] - at_s[found[0]]))
        fit = max(min(round(float(work_gpu_s[found].sum()) / (gpu_s * lasts_s)), nodes), 1)
        error = abs(float(work_gpu_s[found].sum()) / (gpu_s * fit * lasts_s) - 1.0)
        if error < least:
            best, least, fitting = found, error, fit
        if least <= LOAD_ERROR:
            break
    midnight_s = DAY_S * np.floor(at_s[best[0]] / DAY_S)
    return rows[best], np.round(at_s[best] - midnight_s), fitting


def _drawn_jobs(
    source: EpisodeSource, drawn: Drawn, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the indices of the jobs of a window, and the seconds between each job and the previous job."""
    rows, jobs = drawn.jobs, source.submit_s.size
    if drawn.block_jobs == 0:
        first = int(rng.integers(0, max(1, jobs - rows + 1)))
        pick = np.arange(first, first + rows) % jobs
        submit_s = source.submit_s[pick]
        gaps = np.diff(submit_s, prepend=submit_s[0])
        return pick, np.where(gaps < 0, np.median(gaps[gaps >= 0]), gaps)
    block = min(drawn.block_jobs, jobs)
    firsts = rng.integers(0, jobs - block + 1, -(-rows // block))
    pick = (firsts[:, None] + np.arange(block)).ravel()[:rows]
    gaps = np.diff(source.submit_s, prepend=source.submit_s[0])[pick]
    gaps[0] = 0.0
    return pick, gaps


def _drawn_predictions(
    source: EpisodeSource, drawn: Drawn, pick: NDArray[np.int64], rng: np.random.Generator
) -> PredictedTimes:
    """Return predictions of the jobs `pick`: the source's own, or drawn with a random accuracy (`Drawn`)."""
    own = source.predictions
    if source.informed is None or drawn.known_high == 0 or rng.random() < AS_MADE_FRAC:
        return PredictedTimes(own.predicted_s[pick], own.spread[pick])
    known = float(rng.uniform(drawn.known_low, drawn.known_high))
    return PredictedTimes(*source.informed.rows(pick).draw(known, rng))
