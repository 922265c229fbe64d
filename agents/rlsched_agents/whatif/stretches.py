"""Replays a history in stretches of time (days), each from the state that was recorded at its start.

A continuous replay of months differs more and more from the record even under the right rule: a job that
starts a minute late changes all later starts until the queue is empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.pairs import DAY_S
from rlsched_agents.whatif.recorded import Recorded
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_STRETCHES: Final = 60
"""Maximum number of stretches. A stretch is a day long, or longer if the history has more days."""
MOST_AFTER_S: Final = 7 * DAY_S
"""The replay of a stretch includes jobs submitted up to this time after the end of the stretch, seconds."""
_BEFORE_S: Final = 1.0
"""Jobs that already run at the start of a stretch are submitted this time before it, seconds, so that they
start before all other jobs."""
_RELATIONS: Final = ("depends_on", "array_id", "array_limit")


def replayed_waits(
    recorded: Recorded,
    policy: Policy,
    predictions: PredictedTimes,
    run: RunRules,
    first_s: float | None = None,
) -> Floats:
    """Return the (J,) waits of jobs under a policy, seconds.

    The history is replayed in stretches (days), each from the recorded state at its start. A job's wait is
    from the stretch in which the job is submitted; nan: it is submitted in no stretch, or does not start.

    Args:
        recorded: The recorded history.
        policy: The rule, or another policy.
        predictions: Predicted run times of the J jobs, for the policy.
        run: Retries and node events of the replays.
        first_s: Start of the first stretch, seconds of the trace, for example a midnight. None: submission of
            the first job.
    """
    trace, last_s = recorded.trace, float(recorded.trace.submit_s[-1])
    first_s = float(trace.submit_s[0]) if first_s is None else first_s
    length_s = max(DAY_S, (last_s - first_s) / MOST_STRETCHES)
    wait_s = np.full(len(trace), np.nan)
    since_s = first_s
    while since_s <= last_s:
        _replay(recorded, policy, predictions, run, (since_s, since_s + length_s), wait_s)
        since_s += length_s
    return wait_s


def _replay(
    recorded: Recorded,
    policy: Policy,
    predictions: PredictedTimes,
    run: RunRules,
    span_s: tuple[float, float],
    wait_s: Floats,
) -> None:
    """Replay one stretch, and write the waits of the jobs submitted in it to `wait_s`."""
    trace = recorded.trace
    since_s, until_s = span_s
    low, high = (int(np.searchsorted(trace.submit_s, at)) for at in span_s)
    if low == high:
        return
    start_s = trace.submit_s + recorded.wait_s
    over_s = start_s[low:high][np.isfinite(start_s[low:high])].max(initial=until_s)
    end = int(np.searchsorted(trace.submit_s, min(over_s, until_s + MOST_AFTER_S), side="right"))
    runs = np.flatnonzero((start_s[:low] < since_s) & (start_s[:low] + trace.duration_s[:low] > since_s))
    runs = runs[np.argsort(-trace.num_gpus[runs], kind="stable")]
    waits = np.flatnonzero(start_s[:low] >= since_s)
    rows = np.concatenate((runs, waits, np.arange(low, max(end, high))))
    ran_s = np.zeros(len(rows))
    ran_s[: len(runs)] = since_s - _BEFORE_S - start_s[runs]
    part = _part(trace, rows, since_s, len(runs), ran_s)
    scheduler = load_scheduler(policy)
    engine = Engine(
        part,
        recorded.cluster,
        order=scheduler.order,
        predictions=PredictedTimes(
            np.maximum(predictions.predicted_s[rows] - ran_s, 1.0), predictions.spread[rows]
        ),
        keep_placements=False,
        rules=run,
    )
    measured = (rows >= low) & (rows < high)
    if scheduler.rule is not None:
        table = engine.run_rule(scheduler.rule, until_started=measured)
    else:
        table = engine.run(scheduler, until_started=measured)
    wait_s[low:high] = (table.start_s - part.submit_s)[measured]


def _part(trace: Trace, rows: Ints, since_s: float, runs: int, ran_s: Floats) -> Trace:
    """Return the trace for the replay of one stretch (period) of the history.

    It contains the jobs in `rows`. The first `runs` of these jobs already run at the start of the stretch:
    they get their remaining run times, and are submitted before the other jobs.

    `since_s`: start of the stretch. `ran_s`: run time of each job before the stretch, seconds.
    """
    part = trace.select(rows)
    submit_s = np.maximum(part.submit_s, since_s)
    submit_s[:runs] = since_s - _BEFORE_S
    return replace(
        part,
        submit_s=submit_s,
        duration_s=np.maximum(part.duration_s - ran_s, 0.0),
        time_limit_s=np.maximum(part.time_limit_s - ran_s, 1.0),
        extra={name: cells for name, cells in part.extra.items() if name not in _RELATIONS},
    )
