"""Jobs to preempt so that a gang fits, against all possible sets: on small random clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from rlsched.cluster.arrays import NODE_UP
from rlsched.cluster.placement import fits
from rlsched.cluster.state import ClusterState
from rlsched.decide.rules.victims import find_victims
from tests.support.sim.board import add, modelled, node, running

LIGHT = "a2c-b64"
"""Any two of these may share a GPU."""
SEEDS = (*range(200), 567, 765, 2017, 2312)
"""The last ones are gangs on several nodes: a gang that left for a later node made room on an earlier one."""


@dataclass
class Case:
    """A gang that waits for partition 0, and the index of each slot for preemption."""

    state: ClusterState
    gpus: int
    index: NDArray[np.float64]
    above: float

    def next(self) -> int:
        return int(find_victims(self.state.arrays, 0, self.gpus, self.index, self.above)[0])

    def fits(self) -> bool:
        return bool(fits(self.state.arrays, 0, self.gpus))

    def preempt(self, slot: int) -> None:
        self.state.preempt(int(self.state.arrays.job.seq[slot]), 1.0)

    def may_leave(self, slot: int) -> bool:
        return bool(self.index[slot] > self.above)

    def tenants(self, g: int) -> list[int]:
        return [slot for slot in self.state.arrays.gpu.tenant[g].tolist() if slot >= 0]


def draw(seed: int, *, alike: bool = False) -> Case | None:
    """Gangs on any GPUs of a partition, some of which share; nodes of all sizes, VCs and statuses."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))
    nodes = [
        node(
            f"n{k}", size if alike else int(rng.integers(1, 6)), vc=None if k and rng.random() < 0.2 else "a"
        )
        for k in range(int(rng.integers(1, 5)))
    ]
    state = modelled(*nodes)
    arrays = state.arrays
    if not alike and len(nodes) > 2 and rng.random() < 0.3:
        state.fail_node(int(rng.integers(len(nodes))))
    for _ in range(int(rng.integers(1, 10))):
        p = int(rng.integers(state.num_partitions))
        free = [
            g
            for g in range(state.num_gpus)
            if arrays.gpu.free_milli[g] == 1000
            and arrays.node.part_of[arrays.gpu.node[g]] == p
            and arrays.node.status[arrays.gpu.node[g]] == NODE_UP
        ]
        want = int(rng.choice([1, 1, 2, 3, 6]))
        if want > len(free):
            continue
        where = sorted(rng.choice(free, want, replace=False).tolist())
        first = running(state, LIGHT, where, vc="a")
        if rng.random() < 0.3:
            state.start(add(state, LIGHT, want, vc="a"), where, 0.0, share_with=first)
    if rng.random() < 0.2:
        state.drain_node(int(rng.integers(len(nodes))))
    index = rng.integers(0, 6, arrays.job.shape[0]).astype(float)
    index[rng.random(len(index)) < 0.25] = -math.inf
    case = Case(state, int(rng.choice([1, 2, 3, 4, 5, 8, 9])), index, float(rng.integers(-1, 3)))
    return None if case.fits() else case


def cases(*, alike: bool = False) -> list[Case]:
    drawn = (draw(seed, alike=alike) for seed in SEEDS)
    return [case for case in drawn if case is not None]


def free_of(case: Case, *, left: set[int]) -> dict[int, int]:
    """Free GPUs of each node of partition 0 that is up, if these slots had left."""
    arrays = case.state.arrays
    free = {
        n: 0
        for n in range(len(arrays.node))
        if arrays.node.part_of[n] == 0 and arrays.node.status[n] == NODE_UP
    }
    for g, n in enumerate(arrays.gpu.node.tolist()):
        if n in free:
            free[n] += left.issuperset(case.tenants(g))
    return free


def holds(case: Case, free: dict[int, int]) -> bool:
    """Whether the gang fits these free GPUs: on one node, or on whole nodes of the largest size and a rest.

    Gangs of several nodes follow `rules.victims`: smaller whole nodes are not used.
    """
    arrays = case.state.arrays
    largest = int(arrays.node.gpus[arrays.node.part_of == 0].max())
    if case.gpus <= largest:
        return max(free.values(), default=0) >= case.gpus
    wholes, rest = divmod(case.gpus, largest)
    untouched = [n for n in free if free[n] == largest]
    if len(untouched) < wholes:
        return False
    return rest == 0 or sum(count >= rest for count in free.values()) > wholes


def follow(case: Case) -> set[int]:
    """Preempt the chosen jobs until the gang fits; all of them may leave."""
    gone: set[int] = set()
    while not case.fits():
        slot = case.next()
        assert slot not in gone
        assert case.may_leave(slot)
        assert case.state.arrays.job.placed_in[slot] == 0
        case.preempt(slot)
        gone.add(slot)
    return gone


@pytest.mark.parametrize("alike", [False, True])
def test_refuses_only_where_no_preemption_helps(alike: bool) -> None:
    made = [0, 0]
    for case in cases(alike=alike):
        allowed = {slot for slot in range(len(case.index)) if case.may_leave(slot)}
        possible = holds(case, free_of(case, left=allowed))
        assert (case.next() >= 0) == possible
        made[possible] += 1
    assert min(made) > 20


@pytest.mark.parametrize("alike", [False, True])
def test_preempting_makes_room_and_no_job_leaves_in_vain(alike: bool) -> None:
    several = shared = 0
    for case in cases(alike=alike):
        if case.next() < 0:
            continue
        arrays = case.state.arrays
        before = {g: frozenset(case.tenants(g)) for g in range(case.state.num_gpus)}
        gone = follow(case)
        assert gone
        for slot in gone:
            group = next(tenants for tenants in before.values() if slot in tenants)
            assert group <= gone, "jobs that share GPUs leave together"
            shared += len(group) > 1
            free = free_of(case, left=gone)
            for g, tenants in before.items():
                if tenants == group and (n := int(arrays.gpu.node[g])) in free:
                    free[n] -= 1
            assert not holds(case, free), "it could have stayed"
        several += len(gone) > 2
    assert several > 4
    assert shared > 10


def test_node_with_the_fewest_preempted_gpus_is_chosen() -> None:
    """A gang of eight on both nodes, and a job of two on the second."""
    state = modelled(node("n0", 4), node("n1", 6))
    gang, small = running(state, LIGHT, [0, 1, 2, 3, 4, 5, 6, 7]), running(state, LIGHT, [8, 9])
    index = np.full(state.arrays.job.shape[0], 1.0)
    index[state.slot_of(small)] = 2.0
    assert find_victims(state.arrays, 0, 2, index, 0.0)[0] == state.slot_of(small)
    assert find_victims(state.arrays, 0, 3, index, 0.0)[0] == state.slot_of(gang)


def test_highest_index_on_a_node_goes_first_but_not_in_vain() -> None:
    """Three GPUs are needed: the job of one has the highest index, and with the other preempted may stay."""
    state = modelled(node("n0", 4))
    one, three = running(state, LIGHT, [0]), running(state, LIGHT, [1, 2, 3])
    index = np.full(state.arrays.job.shape[0], -math.inf)
    index[state.slot_of(one)], index[state.slot_of(three)] = 5.0, 4.0
    assert find_victims(state.arrays, 0, 1, index, 0.0)[0] == state.slot_of(one)
    assert find_victims(state.arrays, 0, 3, index, 0.0)[0] == state.slot_of(three)
    assert find_victims(state.arrays, 0, 3, index, 4.0)[0] == -1, "an index at the bound is not above it"


def test_gpu_stays_taken_if_one_of_its_jobs_must_stay() -> None:
    state = modelled(node("n0", 1), node("n1", 1))
    first = running(state, LIGHT, [0])
    second = add(state, LIGHT)
    state.start(second, [0], 0.0, share_with=first)
    index = np.full(state.arrays.job.shape[0], 1.0)
    running(state, LIGHT, [1])
    index[2:] = -math.inf
    assert find_victims(state.arrays, 0, 1, index, 0.0)[0] == state.slot_of(second)
    index[state.slot_of(first)] = -math.inf
    assert find_victims(state.arrays, 0, 1, index, 0.0)[0] == -1
