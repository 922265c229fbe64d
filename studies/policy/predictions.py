"""What the jobs of a case are predicted to take: causally, or as well as published predictors do it.

Published predictions come from users and job names, which these traces do not have. A diagnostic says what a
policy is worth where they are there: the good predictions know the true durations through a noisy look
(`rlsched.workload.predict.informed`), and jobs of one burst share most of its error.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.predict.informed import Informed
from rlsched.workload.trace import Trace
from rlsched_envs.engine import Predictions, predict_trace, run_time_s
from studies.policy.cases import Case, Workload

GOOD_CORRELATION: Final = 0.7
"""Correlation of the look with the normal score of the duration: the middle of the rank correlations of 0.6
to 0.8 that predictors with users and job names are published with."""
GOOD_SEED: Final = 0


def stamps_of(case: Case, work: Workload) -> Predictions:
    """The predictions of a case, the same for all policies."""
    if case.predictions == "good":
        return good_predictions(work.trace, stretch=work.stretch)
    return predict_trace(work.trace, work.spec, recorded_until_s=work.window.replay_from_s)


def good_predictions(trace: Trace, *, stretch: float = 1.0) -> Predictions:
    """AtSubmission whose rank correlation with the true run times is about `GOOD_CORRELATION`.

    They are calibrated, and never outside of what the jobs of a size class take. Only the jobs that are given
    are looked at; loads of one part of a trace have the same draws.

    Args:
        trace: J jobs.
        stretch: What submission times were multiplied by: bursts are those of the times before.
    """
    submit_s = np.round(trace.submit_s / stretch, 3)  # as in the trace, whatever the load
    burst = bursts(keyed(trace.vc).code, trace.num_gpus, submit_s)
    informed = Informed.of(run_time_s(trace), trace.num_gpus, burst)
    predicted_s, spread = informed.draw(GOOD_CORRELATION, np.random.default_rng(GOOD_SEED))
    return Predictions(np.fmin(predicted_s, trace.time_limit_s), spread)
