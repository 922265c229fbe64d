"""Loans of idle CPU cores in the ledger, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.loans import lent_milli_on
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.clocks import cores_for
from rlsched.decide.compiled import for_state
from rlsched.decide.options import PLAIN_START
from rlsched.errors import AllocationError
from rlsched_node.processes.cores import Cores
from tests.support.sim.board import CATALOGUE, add, modelled, node

CORES = PLAIN_START._replace(cores=True)
HUNGRY, FRUGAL = "resnet18-imagenet-b128", "gpt2-b4"
"""Workloads that can use 8.66 cores and 1 core per GPU."""
NEEDED = 9


def lending(*nodes: NodeSpec) -> ClusterState:
    state = modelled(*nodes)
    state.lend_cores()
    return state


def start(state: ClusterState, seq: int, gpus: list[int]) -> int:
    """Start a job with the cores that a rule gives it; returns the lent cores per GPU."""
    where = np.array(gpus, np.int32)
    cores = int(for_state(cores_for, state)(state.arrays, state.slot_of(seq), where, CORES))
    state.start(seq, gpus, 0.0, cpu_milli_each=cores)
    return lent(state, seq)


def lent(state: ClusterState, seq: int) -> int:
    return state.lent_milli_each(seq) // 1000


def free(state: ClusterState, n: int = 0) -> int:
    return int(state.arrays.node.cpu_free_milli[n]) // 1000


def test_idle_cores_are_lent_up_to_the_need() -> None:
    state = lending(node("n0", 4, cpus=32))
    assert math.ceil(CATALOGUE.cell(HUNGRY, "V100", "cores_each").value) == NEEDED  # type: ignore[union-attr]
    hungry = add(state, HUNGRY, cores=4)
    assert start(state, hungry, [0]) == NEEDED - 4
    assert free(state) == 28, "lent cores count as free"
    assert start(state, add(state, FRUGAL, cores=4), [1]) == 0, "and no job releases requested cores"
    assert free(state) == 24
    assert start(state, add(state, HUNGRY, cores=4), [2]) == NEEDED - 4
    assert start(state, add(state, HUNGRY, cores=4), [3]) == NEEDED - 4
    assert lent_milli_on(state.arrays, 0) == 15_000
    state.release(hungry, 1.0)
    assert (free(state), lent_milli_on(state.arrays, 0)) == (20, 10_000)


def test_loan_is_withdrawn_as_a_whole_once_a_job_requests_the_cores() -> None:
    state = lending(node("n0", 4, cpus=16))
    first, second = (add(state, HUNGRY, cores=2) for _ in range(2))
    assert [start(state, one, [g]) for g, one in enumerate((first, second))] == [7, 5]
    small, large = add(state, FRUGAL, cores=1), add(state, FRUGAL, cores=4)
    start(state, small, [2])
    assert (lent(state, first), lent(state, second)) == (0, 5), "one core was missing: the first loan ends"
    start(state, large, [3])
    assert lent(state, second) == 5, "the other loan needs five of seven free cores"
    assert free(state) == 7


def test_job_without_gpus_withdraws_loans_too() -> None:
    state = lending(node("n0", 2, cpus=16))
    hungry = add(state, HUNGRY, cores=2)
    start(state, hungry, [0])
    work = add(state, FRUGAL, 0, cores=10)
    state.start(work, [], 0.0, node=0)
    assert lent(state, hungry) == 0
    assert free(state) == 4


@pytest.mark.parametrize(
    "reason", ["unknown workload", "no request", "whole nodes", "one job per GPU", "cores"]
)
def test_no_loan(reason: str) -> None:
    state = lending(node("n0", 2, cpus=0 if reason == "cores" else 16))
    if reason == "one job per GPU":
        state.let_share(0, shares=False)
    seq = add(state, HUNGRY, cores=0 if reason == "no request" else 2, exclusive=reason == "whole nodes")
    if reason == "unknown workload":
        state.arrays.job.workload[state.slot_of(seq)] = 0
    assert start(state, seq, [0]) == 0


def test_gang_gets_what_each_of_its_nodes_has() -> None:
    state = lending(node("n0", 2, cpus=16), node("n1", 2, cpus=8))
    gang = add(state, HUNGRY, 4, cores=2)
    assert start(state, gang, [0, 1, 2, 3]) == 2  # of the four idle cores of the second node
    assert (free(state, 0), free(state, 1)) == (12, 4)
    work = add(state, FRUGAL, 0, cores=3)
    state.start(work, [], 0.0, node=1)
    assert lent(state, gang) == 0, "on both nodes"


def test_request_of_a_waiting_job_is_free_while_its_cores_are_lent() -> None:
    state = lending(node("n0", 2, cpus=12))
    start(state, add(state, HUNGRY, cores=3), [0])
    assert lent_milli_on(state.arrays, 0) == 6000
    waiting = add(state, HUNGRY, cores=9)
    assert start(state, waiting, [1]) == 0
    assert (free(state), lent_milli_on(state.arrays, 0)) == (0, 0)


def test_illegal_numbers_of_cores_are_refused() -> None:
    state = lending(node("n0", 2, cpus=12))
    first, second = (add(state, HUNGRY, cores=3) for _ in range(2))
    for cores, match in ((2000, "expected at least 3 cores"), (12_001, "fewer cores free")):
        with pytest.raises(AllocationError, match=match):
            state.start(first, [0], 0.0, cpu_milli_each=cores)
    start(state, first, [0])
    with pytest.raises(AllocationError, match="fewer cores free"):
        state.start(second, [1], 0.0, cpu_milli_each=4000)
    state.start(second, [1], 0.0, cpu_milli_each=3000)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6), st.booleans()), min_size=1, max_size=40))
def test_ledger_and_node_withdraw_the_same_loans(steps: list[tuple[int, int, bool]]) -> None:
    """Jobs with one GPU start on a free GPU, or end if the GPU is taken."""
    state, cores = lending(node("n0", 8, cpus=24)), Cores(range(24))
    on: dict[int, int] = {}
    for g, asked, hungry in steps:
        if g in on:
            cores.give_back(on[g])
            state.release(on.pop(g), 1.0)
            continue
        seq = add(state, HUNGRY if hungry else FRUGAL, cores=asked)
        if asked > free(state):
            state.remove_waiting(seq)
            continue
        where = np.array([g], np.int32)
        milli = int(for_state(cores_for, state)(state.arrays, state.slot_of(seq), where, CORES))
        state.start(seq, [g], 0.0, cpu_milli_each=milli)
        on[g] = seq
        assert len(cores.take(seq, asked, [g])) == asked
        assert len(cores.lend(seq, milli // 1000 - asked, [g])) == milli // 1000 - asked
        withdrawn = set(cores.withdraw())
        assert withdrawn.isdisjoint(one for one in on.values() if lent(state, one))
        assert {one: lent(state, one) for one in on.values()} == {one: cores.lent(one) for one in on.values()}
