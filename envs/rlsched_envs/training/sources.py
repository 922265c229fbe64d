"""Sources of episodes: windows of traces, reduced to jobs that fit small clusters and scaled to a load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.schema import WINDOW_ROWS
from rlsched.errors import InputError
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.predict.informed import Informed
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import PredictedTimes, predict_trace, run_time_s

LONGEST_S = 7 * 86_400.0
"""Upper limit of run times in training, seconds: a single longer job would decide a whole episode."""


class EpisodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of episodes.

    Attributes:
        warmup_jobs: Number of jobs that the reference rule schedules before the agent starts.
        agent_jobs: Number of arrivals for which the agent decides.
        tail_jobs: Number of later arrivals, which show the delayed cost of the agent's decisions.
        drain_frac: Share of episodes in which the agent also decides during the tail, to the last job.
        load_low: Lower bound of the offered load.
        load_high: Upper bound of the offered load.
        nodes_low: Lower bound of the number of nodes.
        nodes_high: Upper bound of the number of nodes.
        window_rows: Rows of an observation. Policies are always served with WINDOW_ROWS.
        modelled_frac: Share of episodes with models of speed and power; in the others jobs run as recorded in
            the trace, on whole GPUs at the highest clock.
        time_alone_frac: Share of the episodes with models in which energy has weight 0; in the others its
            weight is uniform between 0 and 1.
        learning: Whether episodes with models correct the predicted speeds of jobs that share by observed
            speeds. This costs 8 % of the training speed, since each cluster then has its own predictions.
        preempting_frac: Share of episodes in which jobs may be preempted; their reference is `gittins`.
        pinned_frac: Share of the preempting episodes in which a random half of the jobs must not be
            preempted; in the others all jobs can be.
        restart_s: Restart cost of a preempted job, seconds.
        reserving_frac: Share of episodes in which no start may delay the job with the reservation; their
            reference is `easy` by area^0.7.
        revising: Whether predictions of waiting jobs are revised by observations of their burst
            (`rlsched.decide.order.bursts`), for the agent and for the reference.
        block_jobs: Size of the blocks of successive jobs that compose an episode, drawn with replacement and
            joined in time, so that no window of a trace occurs twice; 0: an episode is one window as
            recorded. A job keeps its prediction and its time since the previous job.
        known_low: Lower bound of the correlation between drawn predictions and true run times; an episode
            draws its predictions (`predict.informed`) if its source supports it.
        known_high: Upper bound of that correlation, which is drawn uniformly; 0: always use the source's own
            predictions.
        as_made_frac: Share of episodes that use the source's own predictions instead of drawn ones.
    """

    warmup_jobs: int = 512
    agent_jobs: int = 768
    tail_jobs: int = 384
    drain_frac: float = 0.5
    load_low: float = 0.75
    load_high: float = 1.15
    nodes_low: int = 4
    nodes_high: int = 16
    window_rows: int = WINDOW_ROWS
    modelled_frac: float = 0.0
    time_alone_frac: float = 0.25
    learning: bool = False
    preempting_frac: float = 0.0
    pinned_frac: float = 0.5
    restart_s: float = 60.0
    reserving_frac: float = 0.0
    revising: bool = False
    block_jobs: int = 0
    known_low: float = 0.0
    known_high: float = 0.0
    as_made_frac: float = 0.3

    def __post_init__(self) -> None:
        if not 8 <= self.window_rows <= 1024:
            raise ValueError(f"window_rows must be between 8 and 1,024, got {self.window_rows}")
        if self.block_jobs < 0:
            raise ValueError(f"block_jobs must be 0 or more, got {self.block_jobs}")
        if self.known_low > self.known_high:
            raise ValueError(
                f"known_low must be at most known_high, got {self.known_low} and {self.known_high}"
            )
        for name in (
            "modelled_frac",
            "time_alone_frac",
            "preempting_frac",
            "pinned_frac",
            "reserving_frac",
            "known_low",
            "known_high",
            "as_made_frac",
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, got {getattr(self, name)}")

    @property
    def rows(self) -> int:
        """Number of jobs of one episode."""
        return self.warmup_jobs + self.agent_jobs + self.tail_jobs


@dataclass(frozen=True)
class EpisodeSource:
    """J jobs to cut windows from, in the order of submission.

    Attributes:
        name: Name of the trace.
        submit_s: (J,) times of submission, seconds.
        duration_s: (J,) run times, seconds.
        gpus: (J,) GPUs of each job.
        predictions: Predictions of the jobs.
        weight: Weight of this source in draws, relative to the others.
        gpus_per_node: GPUs per node.
        workload: (J,) number of each job's workload in the catalogue; None: unknown.
        informed: Draws other predictions of the same jobs; None: not supported.
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
        """Return the runnable jobs submitted in [since_s, until_s), with predictions from the whole past.

        Raises:
            InputError: nodes differ in size, or no job was submitted in this time.
        """
        sizes = {group.gpus for group in spec.nodes if group.count and group.gpus}
        if len(sizes) != 1:
            raise InputError(
                f"{spec.name}: training needs nodes that all have the same number of GPUs, "
                f"got {sorted(sizes)}; leave out the others or train on a part of the cluster"
            )
        predictions = predict_trace(trace, spec) if predictions is None else predictions
        whole = (trace.num_gpus >= 1) & (trace.num_gpus == np.floor(trace.num_gpus))
        rows = np.flatnonzero(whole & (trace.submit_s >= since_s) & (trace.submit_s < until_s))
        if rows.size == 0:
            raise InputError(f"{trace.name}: no job on whole GPUs between {since_s:g} and {until_s:g} s")
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
        )

    @cached_property
    def digest(self) -> str:
        """Return the first 12 hexadecimal digits of the SHA-256 of the data that windows are drawn from."""
        found = hashlib.sha256(repr((self.name, self.weight, self.gpus_per_node)).encode())
        columns = (self.submit_s, self.duration_s, self.gpus, *self.predictions, self.workload)
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
        )


class EpisodeJobs(msgspec.Struct, frozen=True):
    """Jobs of one episode: arrays with one entry per job; the first job is submitted at 0.

    `first`: index of the first job in its source.
    """

    submit_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]
    gpus: NDArray[np.int32]
    predicted_s: NDArray[np.float64]
    spread: NDArray[np.float64]
    nodes: int
    workload: NDArray[np.int32]
    first: int = 0


def largest_gang(nodes: int, gpus_per_node: int) -> int:
    """Return the upper limit of gang sizes, GPUs: half of the cluster, but at least one node."""
    return max(nodes * gpus_per_node // 2, min(nodes, 1) * gpus_per_node)


def draw_window(source: EpisodeSource, config: EpisodeConfig, rng: np.random.Generator) -> EpisodeJobs:
    """Draw a window at random, cap gangs at `largest_gang`, and scale time so that the load is as drawn."""
    pick, gaps = _drawn_jobs(source, config, rng)
    nodes = int(rng.integers(config.nodes_low, config.nodes_high + 1))
    total = nodes * source.gpus_per_node
    gpus = np.minimum(source.gpus[pick], largest_gang(nodes, source.gpus_per_node)).astype(np.int32)
    duration_s = source.duration_s[pick]
    load = float(rng.uniform(config.load_low, config.load_high))
    span_s = max(float(gaps.sum()), 1.0)
    stretch = float((duration_s * gpus).sum()) / (load * total * span_s)
    predictions = _drawn_predictions(source, config, pick, rng)
    return EpisodeJobs(
        np.round(np.cumsum(gaps) * stretch),
        duration_s,
        gpus,
        predictions.predicted_s,
        predictions.spread,
        nodes,
        np.zeros(pick.size, np.int32) if source.workload is None else source.workload[pick],
        int(pick[0]),
    )


def _drawn_jobs(
    source: EpisodeSource, config: EpisodeConfig, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the (T,) jobs of an episode, and the seconds between each job and the previous job."""
    rows, jobs = config.rows, source.submit_s.size
    if config.block_jobs == 0:
        first = int(rng.integers(0, max(1, jobs - rows + 1)))
        pick = np.arange(first, first + rows) % jobs
        submit_s = source.submit_s[pick]
        gaps = np.diff(submit_s, prepend=submit_s[0])
        return pick, np.where(gaps < 0, np.median(gaps[gaps >= 0]), gaps)
    block = min(config.block_jobs, jobs)
    firsts = rng.integers(0, jobs - block + 1, -(-rows // block))
    pick = (firsts[:, None] + np.arange(block)).ravel()[:rows]
    gaps = np.diff(source.submit_s, prepend=source.submit_s[0])[pick]
    gaps[0] = 0.0
    return pick, gaps


def _drawn_predictions(
    source: EpisodeSource, config: EpisodeConfig, pick: NDArray[np.int64], rng: np.random.Generator
) -> PredictedTimes:
    """Return the source's predictions of these jobs, or drawn predictions of a drawn accuracy."""
    own = source.predictions
    if source.informed is None or config.known_high == 0 or rng.random() < config.as_made_frac:
        return PredictedTimes(own.predicted_s[pick], own.spread[pick])
    known = float(rng.uniform(config.known_low, config.known_high))
    return PredictedTimes(*source.informed.rows(pick).draw(known, rng))
