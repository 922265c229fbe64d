"""Cases of preemption, and the required agreement of both implementations of a rule."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED, REASONS
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.node_events import NodeEvent

COSTS = PreemptionCosts(restart_s=2.0, restart_large_s=3.0, large_gpus=3)
SIZES = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, 8])
JOB = st.tuples(
    st.integers(0, 30),
    st.integers(0, 20),
    SIZES,
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "false"]),
)


GROUP = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, None, "a", "b"]))
EVENT = st.tuples(st.integers(0, 60), st.sampled_from([NODE_DOWN, NODE_DRAINED]), st.integers(1, 40))


@dataclass
class Case:
    """A workload on a cluster, and the events of its nodes."""

    trace: Trace
    spec: ClusterSpec
    events: tuple[NodeEvent, ...] = ()

    def engine(self, policy: Policy) -> Engine:
        rules = RunRules(costs=COSTS, node_events=self.events)
        return Engine(self.trace, self.spec, order=policy.rule.order, oracle=True, rules=rules)


@st.composite
def cases(draw: st.DrawFn, *, one_pool: bool = False) -> Case:
    jobs = draw(st.lists(JOB, min_size=1, max_size=25))
    submit, duration, gpus, vc, preemptible = (list(column) for column in zip(*jobs, strict=True))
    duration = [max(one, 1) for one in duration] if one_pool else duration
    columns = {} if one_pool else {"vc": vc, "extra": {"preemptible": preemptible}}
    trace = Trace.from_columns(name="random", submit_s=submit, duration_s=duration, num_gpus=gpus, **columns)
    groups = draw(st.lists(GROUP, min_size=1, max_size=3))
    nodes = tuple(NodeGroup(count=n, gpus=g, vc=None if one_pool else owner) for n, g, owner in groups)
    spec = ClusterSpec(name="c", nodes=nodes)
    events = []
    if not one_pool:
        for at_s, status, for_s in draw(st.lists(EVENT, max_size=2)):
            n = draw(st.integers(0, len(spec.expand()) - 1))
            events += [NodeEvent(at_s, n, status), NodeEvent(at_s + for_s, n, NODE_UP)]
    return Case(trace, spec, tuple(sorted(events, key=lambda event: event.time_s)))


def attempts_of(table: JobTable) -> list[list[tuple[float, float]]]:
    log = table.log
    assert log is not None
    out: list[list[tuple[float, float]]] = [[] for _ in table.trace.job_id]
    for k, row in enumerate(log.job.tolist()):
        out[row].append((float(log.start_s[k]), float(log.end_s[k])))
    return out


def check_equal(one: JobTable, two: JobTable) -> None:
    assert attempts_of(one) == attempts_of(two)
    assert one.gpus == two.gpus
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.log is not None
    assert two.log is not None
    np.testing.assert_array_equal(one.log.reason, two.log.reason)
    np.testing.assert_array_equal(one.log.gpu, two.log.gpu)


def check_valid(table: JobTable) -> None:
    """No job lost or early, work done exactly once, gangs complete and in their VC, no GPU given twice."""
    trace, log, nodes = table.trace, table.log, table.spec.expand()
    assert log is not None
    ran = ~table.rejected
    np.testing.assert_array_equal(np.isfinite(table.end_s), ran)
    assert (table.start_s[ran] >= trace.submit_s[ran]).all()
    useful_s = np.bincount(log.job, log.useful_s, minlength=len(trace))
    np.testing.assert_allclose(useful_s[ran], trace.duration_s[ran], rtol=1e-9)
    pinned = trace.extra.get("preemptible", np.full(len(trace), "")) == "false"
    spans: dict[int, list[tuple[float, float]]] = {}
    last_end_s = trace.submit_s.copy()
    for k, row in enumerate(log.job.tolist()):
        gpus, start_s, end_s = log.gpus(k), log.start_s[k], log.end_s[k]
        assert len(set(gpus)) == len(gpus) == trace.num_gpus[row]
        owners = {nodes[table.gpu_node[g]].vc for g in gpus}
        assert len(owners) == 1
        assert owners <= {None, str(trace.vc[row]) or None}
        assert last_end_s[row] <= start_s <= end_s
        last_end_s[row] = end_s
        assert not (pinned[row] and REASONS[log.reason[k]] == "preempted")
        if log.reason[k] != ENDED:
            assert end_s > start_s or REASONS[log.reason[k]] == "node_failure"
        for g in gpus:
            spans.setdefault(g, []).append((start_s, end_s))
    for taken in spans.values():
        taken.sort()
        for (_, end_s), (start_s, _) in pairwise(taken):
            assert end_s <= start_s
