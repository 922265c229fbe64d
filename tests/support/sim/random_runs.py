"""Random clusters, traces and schedulers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP, UNCOUNTED
from rlsched.cluster.spec import NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.loop import fitting_jobs
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.errors import AllocationError
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import ENDED, FAILED, NODE_FAILURE, PREEMPTED, TIMEOUT
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.node_events import NodeEvent
from tests.support.sim.books import Watched, ledger_is_sound

MIXED = (
    NodeGroup(count=2, gpus=2, gpu_type="V100", cpus=10, memory_mib=64_000),
    NodeGroup(count=1, gpus=4, gpu_type="A100", cpus=16, memory_mib=64_000),
    NodeGroup(count=1, gpus=2, gpu_type="P100", vc="v", cpus=8),
)
"""Types, sizes and owners of all kinds; the fair part is four cores a GPU."""


ALIKE = (NodeGroup(count=3, gpus=2, gpu_type="V100", cpus=12),)
NOT_TOLD = (NodeGroup(count=2, gpus=4, gpu_type="T4"),)
CUT = (
    NodeGroup.sliced(("2g.10gb",) * 3, gpus=2, gpu_type="A100-40GB", cpus=24),
    NodeGroup(count=2, gpus=2, gpu_type="V100", cpus=10),
)
"""Whole GPUs, and six slices that leave a quarter of their GPUs' memory uncut."""


CLUSTERS = {"mixed": MIXED, "alike": ALIKE, "not told": NOT_TOLD, "cut": CUT}
CLOCKS = (1.0, 1.0, 0.9, 0.75, 0.6, 0.5)
REL = 1e-9
NEAR_S = 1e-6


class Whimsical(Scheduler):
    """Starts, shares, lowers clocks, gives few cores, preempts and waits at random; always legally."""

    name = policy_id = "whimsical"
    oracle = True
    abilities = Abilities(preempts=True, shares=True)

    def __init__(self, seed: int, preemptions: int = 30) -> None:
        self._rng, self._left = np.random.default_rng(seed), preemptions
        self.joins = self.slowed = self.cores = 0

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """A random legal action."""
        del record
        return Decision(action=self._action(state, partition, now_s), source="rule")

    def _action(self, state: ClusterState, partition: int, now_s: float) -> Action:
        rng, job = self._rng, state.arrays.job
        running = [state.slot_of(seq) for seq in state.running()]
        able = [k for k in running if not job.pinned[k] and job.start_s[k] < now_s]
        if able and self._left > 0 and rng.random() < 0.15:
            self._left -= 1
            return Preempt(int(job.seq[rng.choice(able)]))
        for seq in rng.permutation(state.waiting(partition)).tolist():
            if rng.random() < 0.6 and (action := self._join(state, seq)):
                self.joins += 1
                return action
            if rng.random() < 0.7 and (action := self._start(state, partition, seq)):
                return action
        return Wait(until_s=now_s + float(rng.integers(1, 20)))

    def _clock(self) -> float:
        clock = float(self._rng.choice(CLOCKS))
        self.slowed += clock < 1.0
        return clock

    def _join(self, state: ClusterState, seq: int) -> Start | None:
        for other in self._rng.permutation(state.running()).tolist():
            gpus = tuple(state.gpus_of(other))
            spare = (
                min(
                    (self._spare(state, n) // [state.gpu_location(g)[0] for g in gpus].count(n))
                    for n in {state.gpu_location(g)[0] for g in gpus}
                )
                if gpus
                else 0
            )
            cores = int(self._rng.integers(-1, min(spare, 8000) + 1))
            action = Start(seq, gpus, 1000, self._clock(), share_with=other, cpu_milli_each=cores)
            if legal(state, action):
                self.cores += cores > 0
                return action
        return None

    @staticmethod
    def _spare(state: ClusterState, n: int) -> int:
        node = state.arrays.node
        if node.cpu_milli[n] >= UNCOUNTED:
            return UNCOUNTED
        fair = int(node.cpu_milli[n]) // max(int(node.gpus[n]), 1)
        return max(int(node.cpu_free_milli[n]) - int(node.free[n]) * fair, 0)

    def _start(self, state: ClusterState, partition: int, seq: int) -> Start | None:
        if seq not in fitting_jobs(state, partition):
            return None
        action = start_action(state, partition, seq)
        if not legal(state, action):
            return None
        nodes = [state.gpu_location(g)[0] for g in action.gpus]
        cores = -1
        if nodes and self._rng.random() < 0.5:
            node = state.arrays.node
            most = min(int(node.cpu_free_milli[n]) // nodes.count(n) for n in nodes)
            if most > 0:
                cores = int(self._rng.integers(1, min(most, 9000) + 1))
        clock = self._clock() if nodes else 1.0
        odd = Start(seq, action.gpus, action.share_milli, clock, action.node, -1, cores)
        self.cores += cores >= 0
        return odd if legal(state, odd) else action


def legal(state: ClusterState, action: Start) -> bool:
    try:
        state.check_start(
            action.seq,
            action.gpus,
            action.share_milli,
            action.sm_clock_frac,
            action.node,
            action.share_with,
            action.cpu_milli_each,
        )
    except AllocationError:
        return False
    return True


def workload(seed: int, jobs: int, *, small: bool) -> Trace:
    """Gangs, shares, jobs without GPUs (unless `small`), limits, failures, checkpoints, owners, types."""
    rng = np.random.default_rng([seed, 1])

    def column(values: list[object]) -> list[object]:
        return [values[k] for k in rng.integers(0, len(values), jobs)]

    gpus = column([1.0, 1.0, 2.0, 2.0, 4.0] if small else [1.0, 1.0, 2.0, 4.0, 6.0, 0.5, 0.3, 0.0])
    return Trace.from_columns(
        name="random",
        submit_s=np.round(rng.uniform(0, 150, jobs), 1),
        duration_s=np.round(rng.exponential(60, jobs), 2),
        num_gpus=gpus,
        num_cpus=[2.0 if g == 0 else math.nan for g in gpus],
        vc=column(["", "v"]),
        gpu_type=column(["", "", "V100"]) if not small else [""] * jobs,
        time_limit_s=column([math.nan, math.nan, 20.0, 90.0]),
        extra={
            "fail_after_s": column(["", "", "", "12", "0;30.5"]),
            "checkpoint_s": column([math.nan, 0.0, 7.0]),
            "restart_s": column([math.nan, 0.0, 4.5]),
            "preemptible": column(["", "true", "false"]),
        },
    )


def disasters(seed: int, nodes: int) -> RunRules:
    rng = np.random.default_rng([seed, 2])
    events = [
        NodeEvent(float(at), int(n), int(status))
        for at, n, status in zip(
            np.sort(rng.integers(0, 300, 10)),
            rng.integers(0, nodes, 10),
            rng.choice([NODE_DOWN, NODE_DRAINED, NODE_UP], 10),
            strict=True,
        )
    ]
    events += [NodeEvent(301.0, n, NODE_UP) for n in range(nodes)]
    return RunRules(
        costs=PreemptionCosts(restart_s=3.0, restart_large_s=5.0, large_gpus=2),
        max_retries=[None, 0, 1][seed % 3],
        node_events=tuple(events),
    )


def all_resources_are_returned(engine: Watched) -> None:
    ledger_is_sound(engine)
    a = engine.state.arrays
    assert engine.state.running() == []
    assert (a.gpu.free_milli == 1000).all()
    assert (a.gpu.tenant == -1).all()
    assert engine.arrays.progress.run[0].allocated_milli == 0
    np.testing.assert_array_equal(a.node.free, a.node.gpus)
    np.testing.assert_array_equal(a.node.cpu_free_milli, a.node.cpu_milli)
    books = engine.arrays.progress.books[0]
    assert books.total_w == pytest.approx(books.idle_w, rel=REL)
    assert abs(books.jobs_w) < 1e-6


def energy_is_conserved(table: JobTable) -> None:
    energy = table.energy
    assert energy is not None
    assert energy.job_j.sum() + energy.idle_j == pytest.approx(energy.cluster_j, rel=REL)
    ran = ~np.isnan(table.start_s) & (table.end_s > table.start_s)
    assert (energy.job_j[ran] > 0).all()
    assert (energy.job_j[np.isnan(table.start_s)] == 0).all()
    assert energy.idle_j > 0


def work_is_done(table: JobTable, job: int, done: dict[tuple[int, int], float], restart_s: float) -> None:
    """The work of each attempt is its rate times its time, and it is kept, or lost by the rules."""
    trace, log = table.trace, table.log
    assert log is not None
    mine = log.select(log.job == job)
    given = [float(text) for text in str(trace.extra["fail_after_s"][job]).split(";") if text]
    saved_s = since_failure_s = 0.0
    assert len(mine) >= 1
    for k in range(len(mine)):
        assert mine.attempt[k] == k + 1
        wall_s = float(mine.end_s[k] - mine.start_s[k])
        work_s, useful_s = done.get((job, k + 1), 0.0), float(mine.useful_s[k])
        overhead_s = restart_s if k else 0.0
        left_s = float(trace.duration_s[job]) - saved_s
        reason, limit_s = int(mine.reason[k]), float(trace.time_limit_s[job])
        assert not wall_s > limit_s + NEAR_S
        since_failure_s += work_s
        if reason == ENDED:
            assert work_s == pytest.approx(overhead_s + left_s, abs=NEAR_S)
            assert useful_s == pytest.approx(left_s, abs=NEAR_S)
        elif reason == FAILED:
            assert since_failure_s == pytest.approx(given.pop(0), abs=NEAR_S)
            since_failure_s = 0.0
        else:
            assert reason in (TIMEOUT, PREEMPTED, NODE_FAILURE)
            assert work_s <= overhead_s + left_s + NEAR_S
            if reason == TIMEOUT:
                assert wall_s == pytest.approx(limit_s, abs=NEAR_S)
                assert k == len(mine) - 1
        if reason != ENDED:
            got_s = min(max(work_s - overhead_s, 0.0), left_s)
            every_s = float(trace.extra["checkpoint_s"][job])
            if reason != TIMEOUT and every_s > 0:
                assert useful_s <= got_s + NEAR_S
                assert useful_s >= got_s - every_s - NEAR_S
                assert math.remainder(saved_s + useful_s, every_s) == pytest.approx(0, abs=NEAR_S) or (
                    useful_s == 0.0
                )
            elif reason in (FAILED, NODE_FAILURE) and math.isnan(every_s):
                assert useful_s == 0.0
            else:
                assert useful_s == pytest.approx(got_s, abs=NEAR_S)
        saved_s += useful_s
    assert table.ended_by is not None
    assert table.ended_by[job] == mine.reason[-1]
    if mine.reason[-1] == ENDED:
        assert saved_s == pytest.approx(trace.duration_s[job], abs=NEAR_S)
