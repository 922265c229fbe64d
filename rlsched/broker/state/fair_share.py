"""Fair share: what users have used against what they are due.

It is Slurm's classic formula: a user who has used the part U of all that was used, and is due the part S, has
the factor 2^(-U / S). What is used are GPU-seconds as charged: GPUs x SM clock x time, of which half is
forgotten every half-life.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from rlsched.broker.state.jobs import Attempt, Job

LEAST_LN_WEIGHT: Final = -10.0 * math.log(2.0)
"""Whoever has used far too much still has a thousandth of the weight of who has used nothing."""


class Usage:
    """GPU-seconds that users have been charged, fading.

    Args:
        half_life_s: Half of it is forgotten after so long; infinite: nothing is.
    """

    def __init__(self, half_life_s: float = math.inf) -> None:
        self.half_life_s = half_life_s
        self._gpu_s: dict[str, float] = {}
        self._at_s = -math.inf

    @property
    def sums(self) -> tuple[dict[str, float], float]:
        """(GPU-seconds by user, faded up to then; when), what runs left out."""
        return dict(self._gpu_s), self._at_s

    def take_up(self, gpu_s: dict[str, float], at_s: float) -> None:
        """What users had used at a time, as `sums` has it."""
        self._gpu_s, self._at_s = dict(gpu_s), at_s

    def used(self, now_s: float, running: Iterable[Job]) -> dict[str, float]:
        """By user, GPU-seconds, what runs included."""
        used = {user: gpu_s * self._left(now_s - self._at_s) for user, gpu_s in self._gpu_s.items()}
        for job in running:
            attempt = job.active
            if attempt is not None and attempt.seated_s < math.inf:
                used[job.spec.user] = used.get(job.spec.user, 0.0) + self._charge(job, attempt, now_s, now_s)
        return used

    def over(self, job: Job, attempt: Attempt, end_s: float, now_s: float) -> None:
        """An attempt has left its GPUs."""
        if attempt.seated_s < math.inf:
            self._fade(now_s)
            charge = self._charge(job, attempt, end_s, now_s)
            self._gpu_s[job.spec.user] = self._gpu_s.get(job.spec.user, 0.0) + charge

    def _charge(self, job: Job, attempt: Attempt, end_s: float, now_s: float) -> float:
        """What of an attempt is not forgotten by now: the integral of its GPUs x what is left of them.

        Of GPUs that it shared its part counts, taken to be the same all along.
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
            left = self._left(now_s - self._at_s)
            self._gpu_s = {user: gpu_s * left for user, gpu_s in self._gpu_s.items() if gpu_s * left > 1e-3}
        self._at_s = max(now_s, self._at_s)

    def _left(self, passed_s: float) -> float:
        return 0.5 ** (passed_s / self.half_life_s) if math.isfinite(passed_s) else 1.0


def fair_ln_weights(
    used_gpu_s: Mapping[str, float], shares: Mapping[str, float] | None = None
) -> dict[str, float]:
    """ln(2^(-U / S)) by user.

    Args:
        used_gpu_s: By user.
        shares: What users are due, in any unit, above 0; 1 where it names nobody.
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
