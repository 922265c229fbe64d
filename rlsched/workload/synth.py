"""Generator of synthetic traces: draws a trace similar to a published one, for a cluster and a load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import InputError
from rlsched.workload.predictability import Predictability, predict
from rlsched.workload.profiles import DURATION_PROBABILITIES, PROFILES, Profile
from rlsched.workload.trace import Trace

DAY_S = 86400.0
LARGEST_BURST = 25
"""A burst has at most 1/25 of all jobs, so that a short trace is not a single burst."""

NORMAL_SCORES = np.array([-4.0, *(NormalDist().inv_cdf(p) for p in DURATION_PROBABILITIES[1:-1]), 4.0])
"""The normal scores at `DURATION_PROBABILITIES`."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Bursts:
    """B bursts (sequences of similar jobs of one user). All jobs of a burst have the burst's values.

    Attributes:
        gpus: (B,) GPUs of each job of the burst.
        size_class: (B,) index of the burst's size class in the profile.
        jobs: (B,) number of jobs in the burst.
        user: (B,) index of the user.
        name: (B,) index of the job name among the names that the user has for this number of GPUs.
        start_s: (B,) submission of the first job of the burst, seconds.
    """

    gpus: Ints
    size_class: Ints
    jobs: Ints
    user: Ints
    name: Ints
    start_s: Floats


def synthesize(
    like: str,
    jobs: int,
    load: float,
    gpus: int,
    gpus_per_node: int = 8,
    seed: int = 0,
    predictability: Predictability = "none",
    habit: float | None = None,
) -> tuple[Trace, ClusterSpec]:
    """Draw a trace, and return it with a cluster of equal nodes on which its offered load is `load`.

    The same arguments give the same trace. Its span is (sum of duration x GPUs) / (load x GPUs of the
    cluster), and the first job is submitted at second 0. A job has at most half of the cluster's GPUs.
    Submission and run times are whole seconds.

    Args:
        like: `helios`, `philly`, `itp` or `acme`.
        jobs: Number of jobs in the trace.
        load: Offered load as `workload.load` defines it, above 0.
        gpus: GPUs of the cluster, a multiple of `gpus_per_node`.
        gpus_per_node: GPUs of each node.
        seed: Seed of all draws.
        predictability: Accuracy of predicted durations: `none` (no predictions in the trace), `causal`,
            `informative`, or the standard deviation of ln(true / predicted); see `predictability`.
        habit: Fraction, 0 to 1, of the variance of the run times that user and job name explain. The variance
            is that of the normal scores within a size class. None: the profile's value, which is small.

    Raises:
        InputError: an argument is out of its range; the message gives the range.
    """
    _check(like, jobs, load, gpus, gpus_per_node, seed, habit)
    profile = PROFILES[like]
    if habit is not None:
        shared = max(profile.burst_correlation, habit)
        profile = replace(profile, name_correlation=habit, burst_correlation=shared)
    rng = np.random.default_rng(np.random.SeedSequence([seed, *like.encode()]))
    spec = ClusterSpec.uniform(
        gpus // gpus_per_node,
        gpus_per_node,
        name=f"{like}-like",
        gpu_type=profile.gpu_type,
        cpus=profile.cpus_per_gpu * gpus_per_node,
    )
    spec.check(f"--gpus-per-node {gpus_per_node}")

    gang_sizes, size_class, burst_jobs = _draw_bursts(profile, jobs, max(1, gpus // 2), rng)
    user, name = _draw_owners(profile, len(gang_sizes), rng)
    burst = np.repeat(np.arange(len(gang_sizes)), burst_jobs)
    name_key = (gang_sizes * profile.users + user) * profile.names_per_user + name
    z = _duration_scores(profile, name_key, burst, rng)
    quantiles = _Quantiles(profile)
    duration = np.maximum(1.0, np.rint(np.exp(quantiles(size_class[burst], z))))

    span = float(np.sum(duration * gang_sizes[burst])) / (load * gpus)
    bursts = _Bursts(
        gang_sizes, size_class, burst_jobs, user, name, _starts(profile, len(gang_sizes), span, rng)
    )
    submit = _submissions(profile, bursts, burst, span, rng)
    status = rng.choice(list(profile.statuses), size=jobs, p=_shares(list(profile.statuses.values())))
    order = np.argsort(submit, kind="stable")
    forecast = predict(predictability, quantiles, size_class[burst], z, burst, rng)
    optional: dict[str, Any] = {}
    if forecast is not None:
        optional = {"predicted_s": forecast[0][order], "predicted_spread": forecast[1][order]}
    workloads = _draw_workloads(profile, size_class, rng)
    num_gpus = gang_sizes[burst][order].astype(np.float64)
    owner = [f"u{u:03d}" for u in user]
    names = [f"{owner[k]}-train{name[k]}-{gang_sizes[k]}gpu" for k in range(len(owner))]
    trace = Trace.from_columns(
        name=f"{like}-like",
        submit_s=submit[order],
        duration_s=duration[order],
        num_gpus=num_gpus,
        job_id=np.arange(jobs).astype(np.str_),
        user=np.array(owner)[burst][order],
        job_name=np.array(names)[burst][order],
        status=status[order],
        num_cpus=num_gpus * profile.cpus_per_gpu,
        extra=None if workloads is None else {"workload": workloads[burst][order]},
        **optional,
    )
    return trace, spec


def _check(
    like: str, jobs: int, load: float, gpus: int, gpus_per_node: int, seed: int, habit: float | None
) -> None:
    if like not in PROFILES:
        raise InputError(f"unknown kind of workload {like!r}; known: {', '.join(PROFILES)}")
    if jobs < 2:
        raise InputError(f"expected at least 2 jobs, got {jobs}")
    if not (load > 0 and np.isfinite(load)):
        raise InputError(f"expected a load above 0, got {load:g}")
    if gpus_per_node < 1 or gpus < 1 or gpus % gpus_per_node:
        raise InputError(f"expected a multiple of {gpus_per_node} GPUs (the GPUs of one node), got {gpus}")
    if seed < 0:
        raise InputError(f"expected a seed of 0 or more, got {seed}")
    if habit is not None and not 0.0 <= habit <= 1.0:
        raise InputError(f"expected a habit of 0 to 1, got {habit:g}")


class _Quantiles:
    """ln(duration) by size class and normal score: monotone, and linear between the `NORMAL_SCORES`."""

    def __init__(self, profile: Profile) -> None:
        self._ln = np.log(np.array(list(profile.durations.values()), dtype=np.float64))  # (classes, knots)

    def __call__(self, size_class: Ints, z: Floats) -> Floats:
        """Return ln(duration in seconds), in the shape of `size_class` and `z`."""
        out = np.empty(z.shape)
        for k, knots in enumerate(self._ln):
            mine = size_class == k
            out[mine] = np.interp(z[mine], NORMAL_SCORES, knots)
        return out

    def spread(self, size_class: Ints) -> Floats:
        """Return the standard deviation of ln(duration) within each job's size class."""
        grid = np.linspace(-3.5, 3.5, 141)
        weights = np.exp(-0.5 * grid**2)
        curves = np.stack([np.interp(grid, NORMAL_SCORES, knots) for knots in self._ln])
        mean = np.average(curves, axis=1, weights=weights)
        variance = np.average((curves - mean[:, None]) ** 2, axis=1, weights=weights)
        return np.sqrt(variance)[size_class]


def _draw_bursts(
    profile: Profile, jobs: int, largest_gang: int, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Draw bursts with `jobs` jobs in total.

    Returns:
        Three (B,) arrays with an entry per burst: GPUs per job, index of the size class, number of jobs.
    """
    sizes = np.array(list(profile.gpus))
    allowed = np.array([size for size in sizes if size <= largest_gang])
    gang = rng.choice(sizes, size=jobs, p=_shares(list(profile.gpus.values())))
    gang = allowed[np.searchsorted(allowed, gang, side="right") - 1]
    size_class = np.searchsorted(np.array(list(profile.durations)), gang, side="right") - 1
    count = np.ones(jobs, dtype=np.int64)
    draw = rng.random(jobs)
    for k, shares in enumerate(profile.bursts.values()):
        mine = size_class == k
        edges = np.cumsum(_shares(list(shares.values())))
        count[mine] = np.array(list(shares))[np.minimum(np.searchsorted(edges, draw[mine]), len(edges) - 1)]
    count = np.minimum(count, max(1, jobs // LARGEST_BURST))
    total = np.cumsum(count)
    bursts = int(np.searchsorted(total, jobs)) + 1
    count[bursts - 1] -= total[bursts - 1] - jobs
    return gang[:bursts], size_class[:bursts], count[:bursts]


def _draw_owners(profile: Profile, bursts: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Draw the (B,) index of the user and of the job name of each burst; lower indices are more frequent."""
    by_rank = _shares(np.arange(1, profile.users + 1) ** -profile.user_exponent)
    by_name = _shares(1.0 / np.arange(1, profile.names_per_user + 1))
    return (
        rng.choice(profile.users, size=bursts, p=by_rank),
        rng.choice(profile.names_per_user, size=bursts, p=by_name),
    )


def _draw_workloads(profile: Profile, size_class: Ints, rng: np.random.Generator) -> NDArray[np.str_] | None:
    """Draw the (B,) workload of each burst; None if the profile names no workloads."""
    if not profile.workloads:
        return None
    names = np.array(sorted({name for shares in profile.workloads.values() for name in shares}))
    drawn = np.empty(len(size_class), names.dtype)
    for k, shares in enumerate(profile.workloads.values()):
        mine = size_class == k
        drawn[mine] = rng.choice(list(shares), size=np.count_nonzero(mine), p=_shares(list(shares.values())))
    return drawn


def _duration_scores(profile: Profile, name_key: Ints, burst: Ints, rng: np.random.Generator) -> Floats:
    """Draw the (J,) normal scores of the durations.

    A score is the sum of three random numbers: one for the job name, one for the burst, and one for the job.
    """
    _, name = np.unique(name_key, return_inverse=True)
    of_name = rng.standard_normal(int(name.max()) + 1)[name]
    of_burst = rng.standard_normal(len(name_key))
    shared = profile.burst_correlation
    together = (
        np.sqrt(profile.name_correlation) * of_name + np.sqrt(shared - profile.name_correlation) * of_burst
    )
    scores: Floats = together[burst] + np.sqrt(1.0 - shared) * rng.standard_normal(len(burst))
    return scores


def _starts(profile: Profile, bursts: int, span_s: float, rng: np.random.Generator) -> Floats:
    """Draw the (B,) starts of the bursts, seconds, ascending.

    The rate of starts varies by hour of the day, by weekday, and randomly from day to day.
    """
    days = int(span_s // DAY_S) + 1
    noise = rng.standard_normal(days)
    for day in range(1, days):
        noise[day] = (
            profile.day_correlation * noise[day - 1] + np.sqrt(1.0 - profile.day_correlation**2) * noise[day]
        )
    hour = np.arange(days * 24)
    rate = (
        np.exp(profile.day_sigma * noise)[hour // 24]
        * np.array(profile.hours)[hour % 24]
        * np.array(profile.weekdays)[hour // 24 % 7]
    )
    end_s = np.minimum((hour + 1) * 3600.0, span_s)
    rate *= np.maximum(0.0, end_s - hour * 3600.0) / 3600.0
    cumulative = np.concatenate([[0.0], np.cumsum(rate)])
    draw = np.sort(rng.random(bursts)) * cumulative[-1]
    starts: Floats = np.interp(draw, cumulative, np.concatenate([[0.0], end_s]))
    return starts


def _submissions(
    profile: Profile, bursts: _Bursts, burst: Ints, span_s: float, rng: np.random.Generator
) -> Floats:
    """Draw the (J,) submissions in whole seconds, from 0 to `span_s`, with short gaps within a burst."""
    gap = rng.exponential(profile.burst_gap_s, size=len(burst))
    first = np.cumsum(bursts.jobs) - bursts.jobs
    elapsed = np.cumsum(gap)
    submit = bursts.start_s[burst] + elapsed - elapsed[first][burst]
    submit -= submit.min()
    stretched: Floats = np.rint(submit * (span_s / submit.max()))
    return stretched


def _shares(weights: Sequence[float] | NDArray[np.floating[Any]]) -> Floats:
    shares: Floats = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    return shares
