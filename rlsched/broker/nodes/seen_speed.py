"""Observed speeds of jobs that share GPUs, computed from their processes' GPU time; kept only in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rlsched.broker.base.profiles import Estimate
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.learning import solo_frac
from rlsched.decide.start import policy_start
from rlsched.models.sharing import RESIDUAL_SD
from rlsched.wire.messages import RankMetered

AT_WORK_FRAC: Final = 0.01
"""Minimum GPU time of a working job, as a fraction. Below it, the job's programs are still loading."""
HOLDS_S: Final = 80.0
"""Time for which a reading of GPU time is valid, seconds. Nodes take a reading every 10 s, and report it
again every 60 s if it has not changed.
"""
SLOW_AFTER_S: Final = 45.0
"""Time for which a job must be slow before it is reported, seconds. With 10 s between readings, a slow job is
reported within a minute.
"""
THROTTLED_MILLI: Final = 50
"""Fraction of throttled CPU periods, thousandths, above which the CPU limit is assumed to slow a job down."""


class SeenSpeed(NamedTuple):
    """Speed of a job with its present co-tenants, relative to its speed without co-tenants at the same clock.

    Attributes:
        speed_frac: Mean speed during `seen_s`; for a slow job, mean speed during `slow_s`.
        seen_s: Measured time with these co-tenants, seconds.
        predicted_frac: Speed predicted by the models, with the pairs learnt so far.
        slow_s: Time for which the job has been slow, seconds; 0: the job is not slow. Slow means: slower than
            the policy permits, or slower than predicted by more than one standard deviation.
        is_fed: Whether no CPU limit has slowed the job down.
    """

    speed_frac: float
    seen_s: float
    predicted_frac: float
    slow_s: float
    is_fed: bool


@dataclass(slots=True)
class _Watch:
    """GPU time of one attempt, measured while it has its present co-tenants.

    Attributes:
        attempt: Attempt number.
        since_s: Time since which the attempt has had these co-tenants, Unix seconds.
        ranks: GPU time in the last report of each rank, as a fraction, by rank.
        until_s: End of the measured time, Unix seconds; nan: the job has not begun to work.
        share: GPU time of the job as a fraction: mean of `ranks`, weighted by GPUs.
        seconds: Length of the measured time, seconds.
        worked_s: Integral of `share` over the measured time, seconds.
        slow_since_s: Time since which the job has been slow without interruption, Unix seconds; nan: it is
            not slow.
        slow_from: Values of `seconds` and `worked_s` at `slow_since_s`.
        is_fed: Whether no CPU limit has slowed the job down.
    """

    attempt: int
    since_s: float
    ranks: dict[int, float] = field(default_factory=dict)
    until_s: float = math.nan
    share: float = 0.0
    seconds: float = 0.0
    worked_s: float = 0.0
    slow_since_s: float = math.nan
    slow_from: tuple[float, float] = (0.0, 0.0)
    is_fed: bool = True

    def count(self, to_s: float, share: float) -> None:
        """Add the time up to `to_s` to the measured time.

        Args:
            to_s: End of the time, Unix seconds.
            share: Fraction of this time in which the job's kernels ran.
        """
        lasted_s = max(to_s - self.until_s, 0.0)
        self.seconds += lasted_s
        self.worked_s += lasted_s * share
        self.until_s = max(to_s, self.until_s)


class SeenSpeeds:
    """Observed speeds of running jobs with their co-tenants.

    GPU time is the fraction of time in which kernels of the job run. The speed of a job is its GPU time with
    co-tenants, divided by the mean GPU time of earlier attempts of the same command without co-tenants, on
    the same GPU type (`full_util_frac` of its profile)::

        speed = shared GPU time / full_util_frac

    Assumption: a unit of work takes the same GPU time with and without co-tenants. Under time slicing, one
    context runs at a time, so the assumption holds except for cold caches. Under MPS, kernels of several
    processes run at the same time and each takes longer, so the quotient is an upper bound of the speed. Both
    GPU times are from NVML's utilisation by process (`nvmlDeviceGetProcessUtilization`), as means over 10 s.
    GPM is not used, because it measures a whole GPU.

    The speed of a job is unknown if the command has no profile, or uses a GPU for less than `LEAST_SOLO_FRAC`
    of the time. It is also unknown if the SM clock is below the highest, if the job got lent cores, if the
    GPUs are of several types, or if the driver does not report utilisation by process.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._watched: dict[int, _Watch] = {}
        self._latest_s = -math.inf  # last report; a caller's `now_s` may be older

    @property
    def jobs(self) -> list[int]:
        """Numbers of the jobs with observations, ascending."""
        return sorted(self._watched)

    def store_measurement(self, one: RankMetered, now_s: float) -> None:
        """Store a rank's resource use. `now_s`: time of the report, Unix seconds."""
        self._latest_s = now_s
        job = self._state.jobs.get(one.job)
        attempt = None if job is None else job.active
        if job is None or attempt is None or attempt.tenants < 2 or one.usage.shared_gpu_milli is None:
            return
        watch = self._watched.get(one.job)
        since_s = max(attempt.tenants_since_s, attempt.seated_s)
        if watch is None or (watch.attempt, watch.since_s) != (attempt.number, since_s):
            watch = self._watched[one.job] = _Watch(attempt.number, since_s)
        watch.ranks[one.rank] = min(one.usage.shared_gpu_milli / 1e3, 1.0)
        if len(watch.ranks) < len(attempt.ranks):
            return
        gpus = [len(rank.gpus) for rank in attempt.ranks]
        share = sum(count * watch.ranks[rank] for rank, count in enumerate(gpus)) / max(sum(gpus), 1)
        if (one.usage.throttled_milli or 0) > THROTTLED_MILLI:
            watch.is_fed = False
        if math.isnan(watch.until_s):
            if share < AT_WORK_FRAC:
                return
            watch.until_s = max(now_s - one.usage.measured_s, since_s)
        window_s = min(float(one.usage.measured_s), now_s - watch.until_s)
        watch.count(now_s - window_s, watch.share)  # without a report, the share did not change
        if not self._is_slow(job, attempt, share):
            watch.slow_since_s = math.nan
        elif math.isnan(watch.slow_since_s):
            watch.slow_since_s, watch.slow_from = now_s - window_s, (watch.seconds, watch.worked_s)
        watch.count(now_s, share)
        watch.share = share

    def of(self, job: Job, now_s: float) -> SeenSpeed | None:
        """Return the observed speed of a job with its present co-tenants; None: unknown."""
        now_s = max(now_s, self._latest_s)
        attempt, watch = job.active, self._watched.get(job.number)
        if attempt is None or watch is None or attempt.tenants < 2 or math.isnan(watch.until_s):
            return None
        since_s = max(attempt.tenants_since_s, attempt.seated_s)
        solo = self.solo_frac(job, attempt)
        if (watch.attempt, watch.since_s) != (attempt.number, since_s) or solo is None:
            return None
        left_s = now_s - watch.until_s
        if left_s > HOLDS_S:
            return None
        left_s = max(left_s, 0.0)
        seconds, worked_s = watch.seconds + left_s, watch.worked_s + left_s * watch.share
        if seconds <= 0.0:
            return None
        speed_frac, slow_s = worked_s / seconds, 0.0
        if not math.isnan(watch.slow_since_s):
            slow_s = max(now_s - watch.slow_since_s, 0.0)
            if seconds > watch.slow_from[0]:
                speed_frac = (worked_s - watch.slow_from[1]) / (seconds - watch.slow_from[0])
        predicted_frac = self._state.models.shared_frac(job.seq)
        return SeenSpeed(speed_frac / solo.value, seconds, predicted_frac, slow_s, watch.is_fed)

    def mean_frac(self, job: Job, now_s: float) -> float | None:
        """Return a job's mean speed since its co-tenants last changed; None: unknown.

        The speed is relative to the job's speed without co-tenants.
        """
        seen, attempt = self.of(job, now_s), job.active
        if seen is None or attempt is None:
            return None
        watch, solo = self._watched[job.number], self.solo_frac(job, attempt)
        assert solo is not None
        left_s = max(now_s - watch.until_s, 0.0)
        return (watch.worked_s + left_s * watch.share) / (watch.seconds + left_s) / solo.value

    def solo_frac(self, job: Job, attempt: Attempt) -> Estimate | None:
        """Return the GPU time of the job's command without co-tenants, as a fraction; None: unknown."""
        return solo_frac(self._state.profiles, job, attempt, self._state.nodes)

    def slow_jobs(self, now_s: float) -> int:
        """Return the number of jobs that have been slow for at least `SLOW_AFTER_S`."""
        found = (self.of(self._state.jobs[job], now_s) for job in self.jobs if job in self._state.jobs)
        return sum(seen is not None and seen.slow_s >= SLOW_AFTER_S for seen in found)

    def forget(self, now_s: float) -> None:
        """Remove the observations of jobs that no longer share GPUs. `now_s`: Unix seconds."""
        self._latest_s = now_s
        for number in self.jobs:
            job, watch = self._state.jobs.get(number), self._watched[number]
            attempt = None if job is None else job.active
            if attempt is None or attempt.tenants < 2 or attempt.number != watch.attempt:
                del self._watched[number]

    def _is_slow(self, job: Job, attempt: Attempt, share: float) -> bool:
        solo = self.solo_frac(job, attempt)
        if solo is None:
            return False
        predicted = self._state.models.shared_frac(job.seq)
        scatter = math.hypot(RESIDUAL_SD, solo.spread)
        least = max(float(policy_start(self._state.cluster).min_speed), predicted * math.exp(-scatter))
        return share / solo.value < least
