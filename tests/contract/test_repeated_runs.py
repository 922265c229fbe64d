"""The simulator repeats a broker's run from its journal: same starts, states and plans, bit for bit.

Many jobs end at one time, and are reported in another order than they were submitted.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.journal.replay import journal_events
from rlsched.decide.actions import Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from tests.quick import quick
from tests.support.broker.live_day import jobs_of_a_day, live_day
from tests.support.online.live_replay import LiveRun, repeated_starts

JOBS, STEP_S = 300, 600.0
POLICIES = {
    "revised": Policy("qssf-backfill", share={}, predictions="revised"),
    "reserving": Policy("easy", share={"min_speed": 0.5}, cores=True, reserve_after="1h"),
    "four": Policy("qssf-backfill", share={"min_speed": 0.6, "max_jobs": 4}),
    "tuned": Policy("tuned"),
}


@pytest.mark.parametrize("name", quick(POLICIES, "revised".__eq__, soak=("reserving", "four")))
def test_simulator_repeats_the_run_of_a_broker(name: str, tmp_path: Path) -> None:
    policy, trace, rng = POLICIES[name], jobs_of_a_day(JOBS, 9, (1, 3)), np.random.default_rng(2)

    def end_s(row: int, start_s: float) -> float:
        return math.ceil((start_s + float(trace.duration_s[row])) / STEP_S) * STEP_S

    journal = tmp_path / "journal.sqlite"
    live, _ = live_day(policy, trace, end_s, journal, tie=lambda: float(rng.uniform(1.0, 2.0)))
    events = journal_events(journal)
    starts = repeated_starts(RuleScheduler(policy), events, live, plans=False)
    assert sum(isinstance(one.action, Start) and one.action.share_with >= 0 for one in starts) > 30

    run = LiveRun.from_journal(events)
    table = run.engine(RuleScheduler(policy)).run_rule(policy.rule)  # the compiled loop
    placed = {one.action.seq: (one.now_s, one.action.gpus) for one in starts if isinstance(one.action, Start)}
    assert [(at_s, table.gpus[job]) for job, at_s in enumerate(table.start_s)] == [
        placed[job] for job in range(JOBS)
    ]
    assert np.array_equal(table.end_s, [run.end_s[job + 1] for job in range(JOBS)])

    run.end_s = dict(sorted(run.end_s.items()))
    digests = [[one.state_digest for one in made] for made in (starts, run.starts(RuleScheduler(policy)))]
    revised = policy.rule.order.revised  # then the order of ends counts
    assert (digests[0] != digests[1]) == revised
