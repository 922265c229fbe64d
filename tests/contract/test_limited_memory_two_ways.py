"""Jobs on GPUs of which other processes use memory: compiled, and one decision at a time with legal starts.

Jobs get whole GPUs, share them, or get a part of a GPU. The jobs of a GPU together get the memory that is
free for jobs there, and no more.
"""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.support.sim.modelled_runs import check_equal

USABLE_MIB: Final = {0: {0: 9_000, 1: 5_000}, 1: {2: 7_000, 3: 12_000}}
"""By node and GPU; the other GPUs have no limit."""
REQUESTS_MIB: Final = {250: 3_000, 500: 4_500}
"""Requested memory by share of a GPU, thousandths."""
SPEC: Final = ClusterSpec(name="v", nodes=(NodeGroup(count=3, gpus=4, gpu_type="V100"),))
POLICIES: Final = {
    "pack": Policy("pack"),
    "share": Policy("qssf-backfill", share={"min_speed": 0.5}),
    "easy": Policy("easy", share={"min_speed": 0.5}),
    "groups": Policy("fifo-backfill", share={"min_speed": 0.2, "max_jobs": 4}),
}
PLACEMENTS: Final = ("consolidate", "best-fit", "worst-fit", "spread", "fgd")
SIZES: Final = (0.25, 0.5, 0.25, 0.5, 1.0, 1.0, 1.0, 2.0, 4.0)


def drawn(seed: int, jobs: int = 300) -> Trace:
    """Jobs with whole GPUs have known needs of memory; jobs with a part of a GPU request memory."""
    rng = random.Random(seed)
    num_gpus = [rng.choice(SIZES) for _ in range(jobs)]
    return Trace.from_columns(
        name="limited",
        submit_s=sorted(rng.uniform(0.0, 20_000.0) for _ in range(jobs)),
        duration_s=[rng.uniform(60.0, 2_000.0) for _ in range(jobs)],
        num_gpus=num_gpus,
        extra={"gpu_need_mib": [rng.randrange(1_000, 7_000) if size >= 1 else 0 for size in num_gpus]},
    )


def engine(
    trace: Trace, policy: Policy, *, is_limited: bool = True, placement: str = "consolidate"
) -> Engine:
    predictions = PredictedTimes(trace.duration_s.copy(), np.ones(len(trace)))
    spec = ClusterSpec(name="v", nodes=SPEC.nodes, placement=placement)
    made = Engine(trace, spec, order=policy.rule.order, predictions=predictions, models=Models())
    demand = made.state.arrays.demand
    for share_milli, mib in REQUESTS_MIB.items():
        demand.gpu_free_mib[demand.share_milli == share_milli] = mib
    for node, usable_mib in USABLE_MIB.items() if is_limited else ():
        made.state.limit_gpu_memory(node, usable_mib)
    return made


def counted_mib(trace: Trace, job: int) -> int:
    """Memory with which a job counts on each GPU."""
    size = float(trace.num_gpus[job])
    return int(trace.extra["gpu_need_mib"][job]) if size >= 1 else REQUESTS_MIB[round(1000 * size)]


def most_together(table: JobTable) -> tuple[int, int]:
    """Check the limits at each start. Returns the most parts, and the most whole jobs, on such a GPU."""
    parts = whole = 0
    limits = {4 * n + gpu: mib for n, usable_mib in USABLE_MIB.items() for gpu, mib in usable_mib.items()}
    for g, usable_mib in limits.items():
        on_gpu = [job for job, gpus in enumerate(table.gpus) if g in gpus]
        for job in on_gpu:
            now_s = table.start_s[job]
            beside = [one for one in on_gpu if table.start_s[one] <= now_s < table.end_s[one]]
            is_part = table.trace.num_gpus[job] < 1
            if is_part or len(beside) > 1:
                assert sum(counted_mib(table.trace, one) for one in beside) <= usable_mib
            if is_part:
                parts = max(parts, len(beside))
            else:
                whole = max(whole, len(beside))
    return parts, whole


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_equals_one_decision_at_a_time_and_keeps_the_limits(name: str) -> None:
    trace, policy = drawn(seed=1), POLICIES[name]
    compiled = engine(trace, policy).run_rule(policy.rule)
    check_equal(compiled, engine(trace, policy).run(RuleScheduler(policy)))
    assert np.isfinite(compiled.end_s).all(), "all jobs have run"
    parts, whole = most_together(compiled)
    assert parts >= 2
    assert whole >= 2
    without = engine(trace, policy, is_limited=False).run_rule(policy.rule)
    with pytest.raises(AssertionError):
        most_together(without)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_rule_keeps_the_limits(placement: str) -> None:
    trace, policy = drawn(seed=2, jobs=200), POLICIES["share"]
    compiled = engine(trace, policy, placement=placement).run_rule(policy.rule)
    check_equal(compiled, engine(trace, policy, placement=placement).run(RuleScheduler(policy)))
    most_together(compiled)
