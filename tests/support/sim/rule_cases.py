"""Cases of rules, and the required agreement of both implementations of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.scheduler import Scheduler
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable

SIZES = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5, 8, 11])
JOB = st.tuples(
    st.integers(0, 30), st.integers(0, 12), SIZES, st.sampled_from(["", "a", "b"]), st.integers(1, 40)
)


GROUP = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([None, None, "a", "b"]))


@dataclass
class Case:
    """A workload on a cluster, with the predictions for every policy."""

    trace: Trace
    spec: ClusterSpec
    predictions: PredictedTimes

    def engine(self, who: Policy | Scheduler) -> Engine:
        oracle = PredictedTimes(self.trace.duration_s.copy(), np.zeros(len(self.trace)))
        order = who.rule.order if isinstance(who, Policy) else who.order
        return Engine(
            self.trace, self.spec, order=order, predictions=oracle if who.oracle else self.predictions
        )

    def run_rule(self, policy: Policy, *, until_started: NDArray[np.bool_] | None = None) -> JobTable:
        return self.engine(policy).run_rule(policy.rule, until_started=until_started)


@st.composite
def cases(draw: st.DrawFn, *, alike: bool = False) -> Case:
    jobs = draw(st.lists(JOB, min_size=1, max_size=25))
    submit, duration, gpus, vc, predicted = (list(column) for column in zip(*jobs, strict=True))
    trace = Trace.from_columns(
        name="random", submit_s=submit, duration_s=duration, num_gpus=gpus, vc=vc, predicted_s=predicted
    )
    groups = draw(st.lists(GROUP, min_size=1, max_size=1 if alike else 3))
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(count=n, gpus=g, vc=owner) for n, g, owner in groups))
    return Case(trace, spec, PredictedTimes(trace.predicted_s.copy(), np.ones(len(trace))))


def synthetic(like: str, seed: int) -> Case:
    trace, spec = synthesize(like, jobs=500, load=1.1, gpus=32, seed=seed)
    return Case(trace, spec, predict_trace(trace, spec))


def place(nodes: Sequence[NodeSpec], free: dict[int, list[int]], members: list[int], gpus: int) -> list[int]:
    """The GPUs that *consolidate* gives a gang, out of the free ones on the member nodes; [] for none."""
    size = max(nodes[n].gpus for n in members)
    if gpus <= size:
        holding = [(len(free[n]), n) for n in members if len(free[n]) >= gpus]
        return free[min(holding)[1]][:gpus] if holding else []
    out: list[int] = []
    used = []
    for n in sorted((n for n in members if len(free[n]) == nodes[n].gpus), key=lambda n: (-nodes[n].gpus, n)):
        if nodes[n].gpus <= gpus - len(out):
            out += free[n]
            used.append(n)
    if len(out) == gpus:
        return out
    rest = [(-len(free[n]), n) for n in members if n not in used]
    if not rest or -min(rest)[0] < gpus - len(out):
        return []
    return out + free[min(rest)[1]][: gpus - len(out)]


def check_valid(table: JobTable) -> None:
    """No job lost or early, ends as the run times require, gangs complete, no GPU given twice at a time."""
    trace = table.trace
    ran = ~table.rejected
    assert np.isfinite(table.start_s[ran]).all()
    assert np.isnan(table.start_s[~ran]).all()
    assert np.isnan(table.end_s[~ran]).all()
    assert (table.start_s[ran] >= trace.submit_s[ran]).all()
    np.testing.assert_array_equal(table.end_s[ran], (table.start_s + trace.duration_s)[ran])
    nodes = table.spec.expand()
    spans: dict[int, list[tuple[float, float]]] = {}
    for row, gpus in enumerate(table.gpus):
        assert len(gpus) == len(set(gpus)) == (int(trace.num_gpus[row]) if ran[row] else 0)
        owners = {nodes[table.gpu_node[g]].vc for g in gpus}
        assert len(owners) == int(ran[row])
        assert owners <= {None, str(trace.vc[row]) or None}
        for g in gpus:
            spans.setdefault(g, []).append((table.start_s[row], table.end_s[row]))
    for taken in spans.values():
        taken.sort()
        for (_, end), (start, _) in pairwise(taken):
            assert end <= start


def check_equal(one: JobTable, two: JobTable) -> None:
    np.testing.assert_array_equal(one.start_s, two.start_s)
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.gpus == two.gpus
    np.testing.assert_array_equal(one.rejected, two.rejected)
