"""Predicted run times of the jobs of a case: causal, or with the quality of published predictions.

Causal predictions come from a running mean, or from the hedge of four predictors
(`rlsched.workload.predict.predictor`), whose distribution gives a mean or a median and the spread about it.
Both use the jobs that had ended by then in one reference history, that of `predict_trace`.

Published predictions come from users and job names, which these traces lack. As a diagnostic of a
policy's value with such predictions, the good predictions see the true durations through a noisy observation
(`rlsched.workload.predict.informed`), and jobs of one burst share most of its error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from rlsched.workload.characterise.parts import keyed
from rlsched.workload.characterise.repeats import bursts
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import Floats, spread_around
from rlsched.workload.predict.informed import Informed
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import PredictedTimes, predict_trace, reference_end_s, run_time_s
from studies.policy.cases import Case, Workload

GOOD_CORRELATION: Final = 0.7
"""Correlation of the observation with the normal score of the duration: the middle of the published rank
correlations of 0.6 to 0.8 of predictors with users and job names."""
GOOD_SEED: Final = 0


def stamps_of(case: Case, work: Workload, kept: Path | None = None) -> PredictedTimes:
    """The predictions of a case, the same for all policies.

    Args:
        case: The case.
        work: Its jobs.
        kept: Folder of the cached predictions of the hedge, as a fit takes a minute.
    """
    if case.predictions == "good":
        return good_predictions(work.trace, stretch=work.stretch)
    if case.predictions == "causal":
        return predict_trace(work.trace, work.spec, recorded_until_s=work.window.replay_from_s)
    path = kept / f"{case.trace.replace('/', '-')}-{case.part}-{case.load:g}.npz" if kept else None
    found = _kept(path, len(work.trace))
    if found is None:
        found = _hedged(work)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            half_written = path.with_suffix(f".{os.getpid()}.npz")
            np.savez(half_written, **found)
            half_written.replace(path)
    if case.predictions == "hedge-fitted":
        variance = 2.0 * np.log(np.maximum(found["mean_s"] / found["median_s"], 1.0))
        return PredictedTimes(found["mean_s"], np.sqrt(variance))
    point = case.predictions.removeprefix("hedge-")
    return PredictedTimes(found[f"{point}_s"], found[f"{point}_spread"])


def _kept(path: Path | None, jobs: int) -> dict[str, Floats] | None:
    if path is None or not path.is_file():
        return None
    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    return found if len(found["mean_s"]) == jobs else None


def _hedged(work: Workload) -> dict[str, Floats]:
    """(J,) mean and median of the hedge at each submission, each with the spread about it."""
    end_s = reference_end_s(work.trace, work.spec, work.window.replay_from_s)
    said = predict_at_submission(work.trace, end_s)
    points = {"mean": said.mean_s, "median": said.median_s}
    return {f"{name}_s": point for name, point in points.items()} | {
        f"{name}_spread": spread_around(said.probabilities, point) for name, point in points.items()
    }


def good_predictions(trace: Trace, *, stretch: float = 1.0) -> PredictedTimes:
    """Return predictions whose rank correlation with the true run times is about `GOOD_CORRELATION`.

    The predictions are calibrated, and never outside of the run times of a size class. Only the given jobs
    are used. The draws are the same for all loads of one part of a trace.

    Args:
        trace: J jobs.
        stretch: Factor on submission times: bursts are found in the unstretched times.
    """
    submit_s = np.round(trace.submit_s / stretch, 3)  # as in the trace, for every load
    burst = bursts(keyed(trace.vc).code, trace.num_gpus, submit_s)
    informed = Informed.from_jobs(run_time_s(trace), trace.num_gpus, burst)
    predicted_s, spread = informed.draw(GOOD_CORRELATION, np.random.default_rng(GOOD_SEED))
    return PredictedTimes(np.fmin(predicted_s, trace.time_limit_s), spread)
