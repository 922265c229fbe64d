"""Replays each day from its state at midnight, under the site's rule and under a policy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.broker.queries.as_history import OTHERS, JournalHistory
from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.pairs import DAY_S, MIN_BLOCKS, Ratio, ratio_of_sums
from rlsched_agents.whatif.recorded import Recorded
from rlsched_agents.whatif.site import NO_CLAIMS, Errors, errors, site_rules
from rlsched_agents.whatif.stretches import replayed_waits
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.sim.node_events import STATUS, NodeEvent

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
HOUR_S: Final = 3600.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of the same jobs under the site's rule and under the policy, from replays of each day.

    Attributes:
        jobs: Number of jobs.
        recorded_s: Mean recorded wait in Slurm, seconds.
        site_s: Mean wait in a replay under the site's rule, seconds.
        policy_s: Mean wait in a replay under the policy, seconds.
        ratio: Mean wait under the policy / mean wait under the site's rule, with an interval; None: no job
            waits, or the grade is `D`.
        blocks: Blocks that the bootstrap draws: `days` or `hours`; "": there are too few of both.
        wins_frac: Fraction of jobs that wait less under the policy.
        losses_frac: Fraction of jobs that wait longer under the policy.
        fidelity: Errors of the waits under the site's rule, compared with the recorded waits.
        grade: Grade of these errors, `A` to `C`; `D`: no results are reported.
    """

    jobs: int
    recorded_s: float
    site_s: float
    policy_s: float
    ratio: Ratio | None
    blocks: str
    wins_frac: float
    losses_frac: float
    fidelity: Errors
    grade: str


@dataclass(frozen=True)
class ReplayedDays:
    """Results of the replayed days.

    Attributes:
        rule: Name of the site's rule, as identified.
        line: Description of the rule.
        grade: Grade of the rule over all days.
        all: The change of the waits over all days.
        by_day: The change of the waits, by local day.
    """

    rule: str
    line: str
    grade: str
    all: Change
    by_day: dict[str, Change]


def replay(history: JournalHistory, policy: Policy) -> ReplayedDays:
    """Identify the site's rule, and replay each day under this rule and under the policy.

    Raises:
        InputError: too few jobs have a recorded start, or the jobs cannot have run on these nodes.
    """
    trace = history.trace
    recorded = Recorded.from_history(trace, history.cluster)
    changes = [NodeEvent(one.time_s, one.node, STATUS[one.event]) for one in history.changes]
    run = RunRules(node_events=tuple(changes))
    first_s = _midnight_s(history.origin_s) - history.origin_s
    ours = recorded.compared & (trace.user != OTHERS)
    tried = []
    for rule in site_rules(recorded):
        waits_s = replayed_waits(recorded, rule.policy, rule.predictions, run, first_s)
        found = errors(trace, recorded.wait_s, waits_s, ours & np.isfinite(waits_s))
        tried.append((found.grade, found.by_job_frac, rule, waits_s))
    grade, _, rule, site_s = min(tried, key=lambda one: one[:2])
    said = PredictedTimes(trace.predicted_s, trace.predicted_spread)
    policy_s = replayed_waits(recorded, policy, said, run, first_s)
    both = ours & np.isfinite(site_s) & np.isfinite(policy_s)
    day = np.floor((trace.submit_s - first_s) / DAY_S)
    names = {
        float(number): time.strftime(
            "%F", time.localtime(history.origin_s + first_s + (number + 0.5) * DAY_S)
        )
        for number in np.unique(day[both])
    }
    return ReplayedDays(
        rule=rule.policy.name,
        line=rule.line,
        grade=grade,
        all=_change(recorded, site_s, policy_s, both, first_s),
        by_day={
            name: _change(recorded, site_s, policy_s, both & (day == number), first_s)
            for number, name in names.items()
        },
    )


def _change(recorded: Recorded, site_s: Floats, policy_s: Floats, which: Mask, first_s: float) -> Change:
    trace = recorded.trace
    was, would = site_s[which], policy_s[which]
    blocks, ratio = _ratio(trace.submit_s[which] - first_s, would, was)
    fidelity = errors(trace, recorded.wait_s, site_s, which)
    jobs = int(which.sum())
    return Change(
        jobs=jobs,
        recorded_s=fidelity.recorded_mean_s,
        site_s=float(was.mean()) if jobs else 0.0,
        policy_s=float(would.mean()) if jobs else 0.0,
        ratio=ratio if fidelity.grade != NO_CLAIMS else None,
        blocks=blocks,
        wins_frac=float(np.mean(would < was)) if jobs else 0.0,
        losses_frac=float(np.mean(would > was)) if jobs else 0.0,
        fidelity=fidelity,
        grade=fidelity.grade,
    )


def _ratio(since_s: Floats, ours: Floats, theirs: Floats) -> tuple[str, Ratio | None]:
    """Return (blocks of the bootstrap, total wait under the policy / total wait under the site's rule).

    For the interval of this ratio, the bootstrap draws blocks of submissions: `days` if there are at least
    ten, otherwise `hours`. If there are too few of both, the blocks are "", and the ratio has no interval.
    With hours, the interval is too narrow if queues last longer than an hour.

    `since_s`: submission of each job, seconds after the first midnight. `ours`, `theirs`: waits under the
    policy and under the site's rule, seconds.
    """
    for name, length_s in (("days", DAY_S), ("hours", HOUR_S)):
        _, block = np.unique(np.floor(since_s / length_s), return_inverse=True)
        if len(block) and int(block.max()) + 1 >= MIN_BLOCKS:
            return name, ratio_of_sums(
                np.bincount(block, weights=ours).astype(np.float64),
                np.bincount(block, weights=theirs).astype(np.float64),
            )
    return "", ratio_of_sums(np.array([ours.sum()]), np.array([theirs.sum()]))


def _midnight_s(at_s: float) -> float:
    """Return the local midnight before a time, Unix seconds."""
    local = time.localtime(at_s)
    return time.mktime((local.tm_year, local.tm_mon, local.tm_mday, 0, 0, 0, 0, 0, -1))
