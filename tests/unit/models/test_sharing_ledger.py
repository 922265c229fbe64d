"""Sharing, clocks and cores in the ledger: refused calls change nothing, given resources are returned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlsched.cluster import kernels
from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP, RUNNING, WAITING
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.gittins import attained_gpu_s
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import AllocationError
from tests.support.sim.board import add, modelled, node, running

LIGHT, HEAVY = "a2c-b64", "gpt2-b4"
FULL_MEMORY = "bert-large-squad-b8"
"""15,340 MiB of a V100's 16,160."""


def refused(state: ClusterState, call: Callable[[], object], match: str) -> None:
    before, job = state.digest(), state.arrays.job.copy()
    counters, gpu = state.arrays.counters.copy(), state.arrays.gpu.copy()
    with pytest.raises(AllocationError, match=match):
        call()
    assert state.digest() == before
    np.testing.assert_array_equal(state.arrays.counters, counters)
    for old, new in ((job, state.arrays.job), (gpu, state.arrays.gpu)):
        for name in old.dtype.names:  # fields one by one: there is padding between them
            np.testing.assert_array_equal(old[name], new[name])


def both(state: ClusterState, seq: int, gpus: list[int], match: str, **how: object) -> None:
    """`start` and `check_start` refuse alike."""
    refused(state, lambda: state.start(seq, gpus, 1.0, **how), match)
    refused(state, lambda: state.check_start(seq, gpus, **how), match)


def test_without_models_nothing_is_shared_or_slowed() -> None:
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(Order(by="area")))
    first, second = (state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0) for _ in range(2))
    state.start(first, [0], 0.0)
    both(state, second, [0], "only if models predict", share_with=first)
    both(state, second, [1], "only the full SM clock", sm_clock_frac=0.75)
    both(state, second, [0], "only the full SM clock", sm_clock_frac=0.75, share_with=first)


@pytest.mark.parametrize("clock", [0.49, 1.01, 0.0, -1.0, float("nan")])
def test_clocks_outside_of_the_range_are_refused(clock: float) -> None:
    state = modelled(node("n0", 2))
    first, second = running(state, LIGHT, [0]), add(state, LIGHT)
    both(state, second, [1], "expected an SM clock of 0.5 to 1", sm_clock_frac=clock)
    both(state, second, [0], "expected an SM clock of 0.5 to 1", sm_clock_frac=clock, share_with=first)


def test_jobs_that_cannot_share() -> None:
    state = modelled(
        node("n0", 2), node("n1", 2, vc="a"), node("n2", 2, "A100"), node("n3", 2, memory_mib=1000)
    )
    first = running(state, LIGHT, [0, 1])
    one, two = add(state, LIGHT), add(state, LIGHT, 2)
    both(state, one, [0], "expected equally many whole GPUs", share_with=first)
    both(state, two, [0, 1], "no live job has number 99", share_with=99)
    both(state, two, [0, 1], "is not running", share_with=one)
    both(state, two, [0], "expected all the GPUs", share_with=first)
    both(state, two, [0, 2], "expected all the GPUs", share_with=first)
    both(state, first, [0, 1], "is not waiting", share_with=first)
    picky = add(state, LIGHT, 2, gpu_types=("A100",))
    both(state, picky, [0, 1], "expected GPUs of one type that the job accepts", share_with=first)
    big = add(state, FULL_MEMORY, 2)
    both(state, big, [0, 1], "too little memory left", share_with=first)
    half = add(state, LIGHT, share_milli=500)
    state.start(half, [4], 0.0)
    both(state, one, [4], "expected equally many whole GPUs", share_with=half)
    hungry = running(state, LIGHT, [6, 7], memory_mib=800)
    third = add(state, LIGHT, 2, memory_mib=400)
    both(state, third, [6, 7], "too little host memory", share_with=hungry)
    state.start(add(state, LIGHT, 2, memory_mib=200), [6, 7], 1.0, share_with=hungry)
    assert state.arrays.node.memory_free_mib[3] == 0


def test_no_job_joins_on_a_node_that_takes_no_new_jobs() -> None:
    state = modelled(node("n0", 2), node("n1", 2))
    first = running(state, LIGHT, [0, 1, 2, 3])
    other = add(state, LIGHT, 4)
    state.drain_node(1)
    both(state, other, [0, 1, 2, 3], "on nodes that are up", share_with=first)
    state.resume_node(1)
    state.start(other, [0, 1, 2, 3], 1.0, share_with=first)
    assert state.gpus_of(other) == [0, 1, 2, 3]


def test_gang_on_two_gpu_types_does_not_share() -> None:
    state = modelled(node("n0", 1), node("n1", 1, "A100"))
    first, other = running(state, LIGHT, [0, 1]), add(state, LIGHT, 2)
    both(state, other, [0, 1], "of one type", share_with=first)


def test_job_of_another_partition_cannot_join() -> None:
    state = modelled(node("n0", 1, vc="a"), node("n1", 1))
    mine = state.add_job(num_gpus=1, vc="a", submit_s=0.0, predicted_s=1.0, spread=1.0)
    state.start(mine, [0], 0.0)
    both(state, add(state, LIGHT), [0], "does not serve the VC of job", share_with=mine)


def test_at_most_four_jobs_share() -> None:
    state = modelled(node("n0", 1))
    first = running(state, LIGHT, [0])
    for count in (2, 3, 4):
        state.start(add(state, LIGHT), [0], 1.0, share_with=first)
        shares = state.arrays.job.share_milli[state.arrays.job.status == RUNNING]
        assert sorted(shares.tolist()) == {2: [500] * 2, 3: [333, 333, 334], 4: [250] * 4}[count]
        assert state.arrays.gpu.free_milli[0] == 0
    both(state, add(state, LIGHT), [0], "4 jobs share", share_with=first)


def test_unavailable_cores_are_refused() -> None:
    state = modelled(node("n0", 2, cpus=8))
    first, second, third = (add(state, LIGHT, cores=4) for _ in range(3))
    both(state, first, [0], "fewer cores free than 1 x 8.001", cpu_milli_each=8001)
    both(state, first, [0], "requests cores", cpu_milli_each=0)
    state.start(first, [0], 0.0, cpu_milli_each=1000)
    both(state, third, [0], "fewer cores to spare", share_with=first, cpu_milli_each=3001)
    state.start(second, [1], 0.0, cpu_milli_each=7000)
    assert state.arrays.node.cpu_free_milli[0] == 0
    both(state, third, [0], "fewer cores to spare", share_with=first, cpu_milli_each=1)
    state.start(third, [0], 1.0, share_with=first)
    state.release(first, 2.0)
    assert state.arrays.node.cpu_free_milli[0] == 0  # the remaining job has the cores of both
    assert state.arrays.job.cpu_milli_each[state.slot_of(third)] == 1000
    state.release(second, 2.0)
    state.release(third, 2.0)
    assert state.arrays.node.cpu_free_milli[0] == 8000


def test_given_cores_of_a_job_outside_the_counts_are_checked() -> None:
    """Its demand fits, but its given cores do not."""
    state = modelled(node("n0", 2, cpus=8, memory_mib=100))
    odd = add(state, LIGHT, cores=4, memory_mib=90)
    assert not state.arrays.demand.plain[state.arrays.job.demand[state.slot_of(odd)]]
    both(state, odd, [0], "fewer cores free", cpu_milli_each=9000)
    state.start(odd, [0], 0.0, cpu_milli_each=8000)
    assert state.arrays.node.cpu_free_milli[0] == 0


def test_gpus_in_any_order_are_grouped_by_node() -> None:
    state = modelled(node("n0", 2, cpus=4), node("n1", 2, cpus=4))
    seq = add(state, LIGHT, 3, cores=1)
    state.start(seq, [2, 0, 3], 0.0)
    assert state.gpus_of(seq) == [2, 3, 0]
    other = add(state, LIGHT, 3, cores=1)
    both(state, other, [0, 2, 3], "fewer cores to spare", share_with=seq, cpu_milli_each=1001)
    state.start(other, [0, 2, 3], 0.0, share_with=seq, cpu_milli_each=1000)
    assert state.arrays.node.cpu_free_milli.tolist() == [2000, 0]


def test_attained_service_counts_the_share_of_the_time() -> None:
    """Unshared for 100 s, with one other for 200 s, with two for 30 s, with one, unshared again: all of it
    counts.
    """
    state = modelled(node("n0", 2))
    first = running(state, LIGHT, [0, 1])
    job, slot = state.arrays.job, state.slot_of(first)
    second, third = add(state, LIGHT, 2), add(state, LIGHT, 2)

    def attained(seq: int, now_s: float) -> float:
        return float(attained_gpu_s(state.arrays, state.slot_of(seq), now_s))

    state.start(second, [0, 1], 100.0, share_with=first)
    assert attained(first, 100.0) == 200.0
    assert attained(second, 100.0) == 0.0
    state.start(third, [0, 1], 300.0, share_with=first)
    assert attained(first, 300.0) == 400.0
    assert attained(second, 300.0) == 200.0
    before = sum(attained(seq, 300.0) for seq in (first, second, third))
    assert sum(attained(seq, 330.0) for seq in (first, second, third)) == pytest.approx(before + 60.0)
    left = attained(second, 330.0)
    state.preempt(second, 330.0)
    assert attained(second, 400.0) == pytest.approx(left)
    one, other = attained(first, 330.0), attained(third, 330.0)
    state.release(third, 350.0)
    assert attained(first, 350.0) == pytest.approx(one + 20.0)
    assert attained(first, 351.0) == pytest.approx(one + 22.0)
    assert other == pytest.approx(20.0, abs=0.1)
    state.preempt(first, 360.0)
    assert job.attained_gpu_s[slot] == pytest.approx(one + 40.0)


class Sharers(RuleBasedStateMachine):
    """Starts, joins, ends, preemptions and node changes in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    @initialize(cpus=st.sampled_from([0, 8, 12]))
    def begin(self, cpus: int) -> None:
        self.state = modelled(
            node("n0", 4, cpus=2 * cpus), node("n1", 2, cpus=cpus), node("n2", 2, "A100", cpus=cpus)
        )

    def with_status(self, status: int) -> list[int]:
        job = self.state.arrays.job
        return sorted(job.seq[job.status == status].tolist())

    @rule(
        gpus=st.sampled_from([1, 1, 2, 3, 6]),
        cores=st.sampled_from([0, 1, 4]),
        workload=st.sampled_from([LIGHT, HEAVY]),
        share=st.sampled_from([1000, 1000, 1000, 300]),
    )
    def add_job(self, gpus: int, cores: int, workload: str, share: int) -> None:
        self.now_s += 1.0
        if len(self.with_status(WAITING)) < 5:
            add(self.state, workload, 1 if share < 1000 else gpus, cores=cores, share_milli=share)

    @precondition(lambda self: self.with_status(WAITING))
    @rule(data=st.data(), clock=st.sampled_from([1.0, 0.5, 0.8]), cores=st.integers(-1, 8000))
    def start(self, data: st.DataObject, clock: float, cores: int) -> None:
        state, seq = self.state, data.draw(st.sampled_from(self.with_status(WAITING)))
        slot = state.slot_of(seq)
        share = int(state.arrays.job.share_milli[slot])
        free = np.flatnonzero(state.arrays.gpu.free_milli >= share).tolist()
        gpus = data.draw(st.permutations(free))[: int(state.arrays.job.gpus[slot])]
        self.attempt(lambda: state.start(seq, gpus, self.now_s, sm_clock_frac=clock, cpu_milli_each=cores))

    @precondition(lambda self: self.with_status(WAITING) and self.with_status(RUNNING))
    @rule(data=st.data(), cores=st.integers(-1, 8000))
    def join(self, data: st.DataObject, cores: int) -> None:
        state = self.state
        seq = data.draw(st.sampled_from(self.with_status(WAITING)))
        gpus = int(state.arrays.job.gpus[state.slot_of(seq)])
        alike = [k for k in self.with_status(RUNNING) if len(state.gpus_of(k)) == gpus]
        if alike:
            other = data.draw(st.sampled_from(alike))
            self.attempt(
                lambda: state.start(
                    seq, state.gpus_of(other), self.now_s, share_with=other, cpu_milli_each=cores
                )
            )

    def attempt(self, call: Callable[[], None]) -> None:
        before = self.state.digest()
        try:
            call()
        except AllocationError:
            assert self.state.digest() == before

    @precondition(lambda self: self.with_status(RUNNING))
    @rule(data=st.data(), how=st.sampled_from(["release", "requeue", "preempt"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        self.now_s += 1.0
        getattr(self.state, how)(data.draw(st.sampled_from(self.with_status(RUNNING))), self.now_s)

    @rule(n=st.integers(0, 2), status=st.sampled_from([NODE_UP, NODE_UP, NODE_DRAINED, NODE_DOWN]))
    def change_node(self, n: int, status: int) -> None:
        if status == NODE_DOWN:
            for seq in self.state.fail_node(n):
                self.state.requeue(seq, self.now_s)
        elif status == NODE_DRAINED:
            self.state.drain_node(n)
        else:
            self.state.resume_node(n)

    @invariant()
    def all_is_accounted_for(self) -> None:
        a = self.state.arrays
        held, cores = np.zeros(8, np.int64), np.zeros(3, np.int64)
        for seq in self.with_status(RUNNING):
            slot, gpus = self.state.slot_of(seq), self.state.gpus_of(seq)
            held[gpus] += a.job.share_milli[slot]
            np.add.at(cores, a.gpu.node[gpus], a.job.cpu_milli_each[slot])
            assert (a.gpu.tenant[gpus] == slot).sum() == len(gpus) == a.job.gpus[slot]
        np.testing.assert_array_equal(held + a.gpu.free_milli, WHOLE_GPU_MILLI)
        assert (a.gpu.free_milli >= 0).all()
        if a.node.cpu_milli[0] < 1 << 59:
            np.testing.assert_array_equal(cores + a.node.cpu_free_milli, a.node.cpu_milli)
            assert (a.node.cpu_free_milli >= 0).all()
        joint = (a.gpu.tenant >= 0).sum(axis=1) > 1
        whole = [
            a.demand.share_milli[a.job.demand[a.gpu.tenant[g].max()]] == WHOLE_GPU_MILLI for g in range(8)
        ]
        np.testing.assert_array_equal(held[joint & np.array(whole)], WHOLE_GPU_MILLI)

    @invariant()
    def a_rebuild_finds_the_same(self) -> None:
        before, index = self.state.digest(), self.state.arrays.derived
        old = (
            index.holes.copy(),
            index.whole.copy(),
            index.part.free_gpus.copy(),
            index.class_queue.waiting.copy(),
        )
        queues = [self.state.waiting(p) for p in range(self.state.num_partitions)]
        kernels.rebuild_index(self.state.arrays)
        assert self.state.digest() == before
        new = (index.holes, index.whole, index.part.free_gpus, index.class_queue.waiting)
        for one, other in zip(old, new, strict=True):
            np.testing.assert_array_equal(one, other)
        assert queues == [self.state.waiting(p) for p in range(self.state.num_partitions)]

    def teardown(self) -> None:
        if hasattr(self, "state"):
            for seq in self.with_status(RUNNING):
                self.state.release(seq, self.now_s)
            a = self.state.arrays
            assert (a.gpu.free_milli == WHOLE_GPU_MILLI).all()
            assert (a.gpu.tenant == -1).all()
            np.testing.assert_array_equal(a.node.cpu_free_milli, a.node.cpu_milli)
            np.testing.assert_array_equal(a.node.free, a.node.gpus)


Sharers.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSharers = Sharers.TestCase
