"""A day of jobs that share GPUs and borrow CPU cores, under the simulator and under a broker.

The simulator runs first. The broker is the real machine on a real journal; it gets the jobs at their times,
and its nodes report the ends of the simulator. Both must decide the same starts, with the same cores. Then
the simulator repeats the broker's journal: each start must be the same, bit for bit, with state and plans.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched.broker.journal.replay import journal_events
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.support.broker.live_day import CPUS, GPU_TYPE, GPUS, NODES, jobs_of_a_day, live_day
from tests.support.online.live_replay import repeated_starts

JOBS = 300
POLICY = Policy("fifo-backfill", share={"min_speed": 0.6}, cores=True)
MODELS = Models(noise=False, lends_cores=True)


def simulated(trace: Trace, models: Models) -> tuple[JobTable, list[Start]]:
    spec = ClusterSpec(name="day", nodes=(NodeGroup(count=NODES, gpus=GPUS, gpu_type=GPU_TYPE, cpus=CPUS),))
    engine = Engine(trace, spec, order=POLICY.rule.order, models=models)
    found: list[Start] = []
    table = engine.run(
        RuleScheduler(POLICY),
        on_record=lambda one: found.append(one.action) if isinstance(one.action, Start) else None,
    )
    return table, found


@pytest.mark.parametrize("most_cores", [pytest.param(5, marks=pytest.mark.soak), 8])
def test_broker_and_simulator_share_gpus_and_lend_cores_alike(tmp_path: Path, most_cores: int) -> None:
    """A GPU's part of the cores of its node is 5."""
    trace = jobs_of_a_day(JOBS, 4, (1, 2, 3, most_cores))
    table, starts = simulated(trace, MODELS)
    journal = tmp_path / "journal.sqlite"
    records, launches = live_day(POLICY, trace, lambda row, _: float(table.end_s[row]), journal)
    assert [one.action for one in records if isinstance(one.action, Start)] == starts
    repeated_starts(RuleScheduler(POLICY), journal_events(journal), records, plans=False)
    asked = trace.num_cpus / trace.num_gpus
    lent = [one.cpu_milli_each / 1000 - asked[one.seq] for one in starts]
    assert min(lent) == 0.0
    assert sum(one > 0.0 for one in lent) > 30
    assert sum(one.share_with >= 0 for one in starts) > 30
    for one, more in zip(starts, lent, strict=True):
        ranks = [order for order in launches if order.job == one.seq + 1]
        assert sum(order.cores for order in ranks) == trace.num_cpus[one.seq]
        assert sum(order.lent_cores for order in ranks) == more * trace.num_gpus[one.seq]
    kept, _ = simulated(trace, Models(noise=False))
    assert (kept.end_s != table.end_s).any()
