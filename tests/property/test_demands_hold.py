"""Random clusters of several kinds and jobs with any request: no resource is given twice, no job is lost."""

from __future__ import annotations

import math
from collections import defaultdict

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.arrays import MAX_TENANTS, PLACEMENT_CODES
from rlsched.cluster.placement import class_fits
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.workload.load import runnable_mask, trace_demands
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from tests.support.sim.stepped import run_stepped

KINDS = ["T4", "V100", "A100"]
GROUP = st.builds(
    NodeGroup,
    count=st.integers(1, 2),
    gpus=st.sampled_from([0, 1, 2, 4]),
    gpu_type=st.sampled_from(KINDS[:2]),
    cpus=st.sampled_from([0, 4, 8]),
    memory_mib=st.sampled_from([0, 1000]),
    vc=st.sampled_from([None, None, "a"]),
)
JOB = st.tuples(
    st.integers(0, 20),
    st.integers(1, 9),
    st.sampled_from([0, 0.05, 0.3, 0.5, 0.7, 1, 1, 1, 2, 3, 4, 5, 6]),
    st.sampled_from(["", "", "", "T4", "V100", "T4|V100", "A100"]),
    st.sampled_from([math.nan, math.nan, 1, 2, 5]),
    st.sampled_from([math.nan, math.nan, 100, 600]),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "", "T4", "V100|A100"]),
)
POLICIES = (
    *("fifo", "fifo-backfill", "qssf-backfill", "easy", "random"),
    Policy("easy", order="area", reserve_after="6s"),
    Policy("reserve", leave_free={"longer_than": "3s"}),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, ClusterSpec]:
    groups = draw(st.lists(GROUP, min_size=1, max_size=3).filter(lambda some: any(one.gpus for one in some)))
    jobs = draw(st.lists(JOB, min_size=1, max_size=20))
    submit, duration, gpus, kind, cpus, memory, vc, prefer = map(list, zip(*jobs, strict=True))
    prefer = [two if not one or one in two else "" for one, two in zip(kind, prefer, strict=True)]
    trace = Trace.from_columns(
        name="random",
        submit_s=submit,
        duration_s=duration,
        num_gpus=gpus,
        gpu_type=kind,
        num_cpus=cpus,
        vc=vc,
        predicted_s=duration,
        extra={"memory_mib": memory, "prefer": prefer},
    )
    return trace, ClusterSpec(name="c", nodes=tuple(groups))


def check_valid(table: JobTable) -> None:
    """At every start: shares of each GPU, tenants, cores and memory of each node, types, and VCs."""
    trace, nodes = table.trace, table.spec.expand()
    demands, which = trace_demands(trace)
    ran = ~table.rejected
    assert np.isfinite(table.start_s[ran]).all(), "no job is lost"
    assert (table.start_s[ran] >= trace.submit_s[ran]).all()
    np.testing.assert_array_equal(table.end_s[ran], (table.start_s + trace.duration_s)[ran])
    for instant in np.unique(table.start_s[ran]):
        milli: dict[int, int] = defaultdict(int)
        tenants: dict[int, int] = defaultdict(int)
        cores: dict[int, int] = defaultdict(int)
        memory: dict[int, int] = defaultdict(int)
        for row in np.flatnonzero(ran & (table.start_s <= instant) & (table.end_s > instant)).tolist():
            demand, gpus = demands[which[row]], table.gpus[row]
            assert len(gpus) == len(set(gpus)) == demand.gpus
            for g in gpus:
                n = int(table.gpu_node[g])
                assert not demand.gpu_types or nodes[n].gpu_type in demand.gpu_types
                assert nodes[n].vc in (None, str(trace.vc[row]) or None)
                milli[g] += demand.share_milli
                tenants[g] += 1
                cores[n] += demand.cpu_milli_each
                memory[n] += demand.memory_mib_each
        assert all(value <= 1000 for value in milli.values())
        assert all(value <= MAX_TENANTS for value in tenants.values())
        assert all(value <= nodes[n].cpus * 1000 for n, value in cores.items() if nodes[n].cpus)
        assert all(value <= nodes[n].memory_mib for n, value in memory.items() if nodes[n].memory_mib)


@settings(max_examples=120, deadline=None)
@given(cases(), st.sampled_from(POLICIES), st.sampled_from(sorted(PLACEMENT_CODES)))
def test_no_resource_is_given_twice_and_no_job_is_lost(
    case: tuple[Trace, ClusterSpec], policy: Policy | str, placement: str
) -> None:
    trace, spec = case[0], msgspec.structs.replace(case[1], placement=placement)
    check_valid(run_stepped(trace, spec, policy))


@settings(max_examples=120, deadline=None)
@given(cases())
def test_rejected_jobs_do_not_fit_the_idle_cluster(case: tuple[Trace, ClusterSpec]) -> None:
    trace, spec = case
    state = ClusterState.from_spec(spec, OrderedQueue(Order()))
    demands, which = trace_demands(trace)
    numbers = state.reserve_demands(demands)
    expected = []
    for vc, k in zip(trace.vc.tolist(), which.tolist(), strict=True):
        parts = [p for p in state.partitions_of(vc) if p >= 0]
        fits = any(class_fits(state.arrays, p, numbers[k]) for p in parts)
        assert state.can_ever_run(vc, demands[k]) == fits
        expected.append(fits)
    assert runnable_mask(trace, spec).mask.tolist() == expected


@pytest.mark.parametrize(
    "policy",
    [Policy("tiresias", preempt={"threshold_gpu_s": 20.0}), Policy("srtf")],
    ids=lambda one: one.name,
)
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_rules_that_preempt_lose_no_job(policy: Policy, case: tuple[Trace, ClusterSpec]) -> None:
    trace, spec = case
    table = Engine(trace, spec, order=policy.rule.order, oracle=True).run_rule(policy.rule)
    ran = ~table.rejected
    assert np.isfinite(table.end_s[ran]).all()
    attempts = table.attempts
    useful_s = np.bincount(attempts.job, attempts.useful_s, minlength=len(trace))
    np.testing.assert_allclose(useful_s[ran], trace.duration_s[ran])
