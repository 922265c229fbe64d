"""Fair share: weights of users, computed from their past usage relative to their shares.

The formula is Slurm's classic fair share: the weight of a user with the fraction U of all usage and the
fraction S of all shares is 2^(-U / S). Usage is measured in charged GPU-seconds: GPUs x time x (SM clock as a
fraction of the highest clock). Usage decays with a half-life.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from rlsched.broker.state.jobs import Attempt, Job

LEAST_LN_WEIGHT: Final = -10.0 * math.log(2.0)
"""Minimum of ln(weight): the lowest weight is 1/1024 of the weight of a user without usage."""


class FairShareUsage:
    """GPU-seconds charged to users, with decay.

    Args:
        half_life_s: Half-life of usage, seconds; infinite: fair share is off.
    """

    def __init__(self, half_life_s: float = math.inf) -> None:
        self.half_life_s = half_life_s
        self._gpu_s: dict[str, float] = {}
        self._at_s = -math.inf

    @property
    def sums(self) -> tuple[dict[str, float], float]:
        """(GPU-seconds of ended attempts by user, Unix time up to which they have decayed)."""
        return dict(self._gpu_s), self._at_s

    def restore_usage(self, gpu_s: dict[str, float], at_s: float) -> None:
        """Restore usage from a value of `sums`."""
        self._gpu_s, self._at_s = dict(gpu_s), at_s

    def usage_by_user(self, now_s: float, running: Iterable[Job]) -> dict[str, float]:
        """Return the decayed GPU-seconds by user, including running attempts."""
        used = {user: gpu_s * self._remaining_frac(now_s - self._at_s) for user, gpu_s in self._gpu_s.items()}
        for job in running:
            attempt = job.active
            if attempt is not None and attempt.seated_s < math.inf:
                used[job.spec.user] = used.get(job.spec.user, 0.0) + self._charge(job, attempt, now_s, now_s)
        return used

    def charge_attempt(self, job: Job, attempt: Attempt, end_s: float, now_s: float) -> None:
        """Charge the job's user for an attempt that has released its GPUs."""
        if attempt.seated_s < math.inf:
            self._fade(now_s)
            charge = self._charge(job, attempt, end_s, now_s)
            self._gpu_s[job.spec.user] = self._gpu_s.get(job.spec.user, 0.0) + charge

    def _charge(self, job: Job, attempt: Attempt, end_s: float, now_s: float) -> float:
        """Return the usage of an attempt, GPU-seconds: the integral of GPUs x SM clock x decay over its time.

        If the attempt shared GPUs, it is charged its mean fraction of the GPUs for the whole run time.
        """
        ran_s, rate = max(end_s - attempt.seated_s, 0.0), job.spec.num_gpus * attempt.sm_clock_frac
        if attempt.lent_s > 0.0 and ran_s > 0.0:
            rate *= max(1.0 - attempt.lent_s / ran_s, 0.0)
        if math.isinf(self.half_life_s):
            return rate * ran_s
        fade = math.log(2.0) / self.half_life_s
        return rate * -math.expm1(-fade * ran_s) / fade * math.exp(-fade * max(now_s - end_s, 0.0))

    def _fade(self, now_s: float) -> None:
        if math.isfinite(self._at_s) and now_s > self._at_s:
            left = self._remaining_frac(now_s - self._at_s)
            self._gpu_s = {user: gpu_s * left for user, gpu_s in self._gpu_s.items() if gpu_s * left > 1e-3}
        self._at_s = max(now_s, self._at_s)

    def _remaining_frac(self, passed_s: float) -> float:
        return 0.5 ** (passed_s / self.half_life_s) if math.isfinite(passed_s) else 1.0


def fair_ln_weights(
    used_gpu_s: Mapping[str, float], shares: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return ln(2^(-U / S)) by user, at least `LEAST_LN_WEIGHT`; empty if there is no usage.

    U is the user's fraction of all usage, S the user's fraction of all shares.

    Args:
        used_gpu_s: GPU-seconds by user.
        shares: Shares of each user, above 0, in any unit; a user without an entry has 1.
    """
    used_in_all = sum(used_gpu_s.values())
    if used_in_all <= 0.0:
        return {}
    due = {user: (shares or {}).get(user, 1.0) for user in used_gpu_s}
    due_in_all = sum(due.values())
    return {
        user: max(-math.log(2.0) * (gpu_s / used_in_all) * due_in_all / due[user], LEAST_LN_WEIGHT)
        for user, gpu_s in used_gpu_s.items()
    }
