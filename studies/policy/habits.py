"""The best prediction from a job's own name: the generator's habits, with all parameters known.

A job's normal score is partly its name's, partly its burst's, partly its own (`rlsched.workload.synth`). From
the jobs of the same user, name and GPUs that had ended at its submission, the score's conditional mean
follows exactly, since all shares are known here. A predictor that learns the shares from the trace
cannot be expected to rank jobs better; running jobs are not used.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from rlsched.workload.predict.distribution import Floats
from rlsched.workload.profiles import DURATION_PROBABILITIES, PROFILES, Profile
from rlsched.workload.synth import NORMAL_SCORES
from rlsched.workload.trace import Trace

LATEST: Final = 80
"""Number of ended jobs of a key that are used."""
BURST_GAP_S: Final = 120.0


def best_by_name(trace: Trace, end_s: Floats, like: str, habit: float) -> Floats:
    """(J,) predicted run times, s: the median by the conditional mean of each job's normal score.

    Args:
        trace: J jobs of `synthesize`.
        end_s: (J,) end of each, nan if it never ended.
        like: The profile from which they were drawn.
        habit: Share of the variance of their scores that belongs to the name.
    """
    profile = PROFILES[like]
    in_burst = max(profile.burst_correlation, habit)
    curves = _curves(trace, profile)
    score = np.array([_score(curves[k], ln) for k, ln in enumerate(np.log(trace.duration_s).tolist())])
    mean = np.zeros(len(trace))
    past: dict[tuple[str, ...], list[int]] = defaultdict(list)
    burst = np.zeros(len(trace), np.int64)
    keys = zip(trace.user.tolist(), trace.job_name.tolist(), trace.num_gpus.astype(str).tolist(), strict=True)
    for row, key in enumerate(keys):
        mine = past[key]
        if mine:
            gap_s = trace.submit_s[row] - trace.submit_s[mine[-1]]
            burst[row] = burst[mine[-1]] + (gap_s > BURST_GAP_S)
        ended = np.array([one for one in mine if end_s[one] <= trace.submit_s[row]][-LATEST:], np.int64)
        if len(ended):
            with_mine = np.where(burst[ended] == burst[row], in_burst, habit)
            together = np.where(burst[ended][:, None] == burst[ended], in_burst, habit)
            np.fill_diagonal(together, 1.0)
            mean[row] = with_mine @ np.linalg.solve(together, score[ended])
        mine.append(row)
    return np.array([np.exp(np.interp(z, NORMAL_SCORES, curves[row])) for row, z in enumerate(mean.tolist())])


def _curves(trace: Trace, profile: Profile) -> Floats:
    """(J, knots) ln(run time) at `NORMAL_SCORES` of each job's size class."""
    sizes = np.array(list(profile.durations))
    mine = np.searchsorted(sizes, trace.num_gpus.astype(np.int64), side="right") - 1
    curves = np.log(np.array(list(profile.durations.values()), np.float64))
    assert curves.shape[1] == len(DURATION_PROBABILITIES)
    return np.asarray(curves[mine])


def _score(curve: Floats, ln: float) -> float:
    """The normal score of ln(run time): the middle of the scores that give it, within rounding to seconds."""
    dense = np.linspace(NORMAL_SCORES[0], NORMAL_SCORES[-1], 1601)
    values = np.interp(dense, NORMAL_SCORES, curve)
    low = int(np.searchsorted(values, ln - 1e-6))
    high = int(np.searchsorted(values, ln + 1e-6, side="right")) - 1
    return float((dense[min(low, 1600)] + dense[max(high, 0)]) / 2)
