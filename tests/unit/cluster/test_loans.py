"""Loans of idle CPU cores in the ledger, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster import legality
from rlsched.cluster.loans import lent_milli_on
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.clocks import cores_for
from rlsched.decide.compiled import for_state
from rlsched.decide.options import BLOCKED, PLAIN_START
from rlsched.decide.plans.plan import Plan
from rlsched.decide.plans.shared import shared_plan
from rlsched.decide.start import start_action
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
    for n in range(len(nodes)):
        state.let_lend(n, lends=True)
    return state


def start(state: ClusterState, seq: int, gpus: list[int]) -> int:
    """Start a job with the cores that a rule gives it; returns the lent cores per GPU."""
    where = np.array(gpus, np.int32)
    cores = int(for_state(cores_for, state)(state.arrays, state.slot_of(seq), where, CORES))
    state.start(seq, gpus, 0.0, cpu_milli_each=cores)
    return lent(state, seq)


def lent(state: ClusterState, seq: int) -> int:
    return state.cpu_milli_each(seq)[1] // 1000


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
    assert lent_milli_on(state.arrays, 0) == legality._lent_milli(state, 0) == 15_000
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
    "reason", ["unknown workload", "no request", "whole nodes", "node", "cores", "fraction"]
)
def test_no_loan(reason: str) -> None:
    state = lending(node("n0", 2, cpus=0 if reason == "cores" else 16))
    state.let_lend(0, lends=reason != "node")
    seq = add(
        state,
        HUNGRY,
        cores={"no request": 0, "fraction": 2.5}.get(reason, 2),
        exclusive=reason == "whole nodes",
    )
    if reason == "unknown workload":
        state.arrays.job.workload[state.slot_of(seq)] = 0
    assert start(state, seq, [0]) == 0


def test_gang_gets_a_loan_only_on_one_node() -> None:
    state = lending(node("n0", 2, cpus=16), node("n1", 2, cpus=16))
    assert start(state, add(state, HUNGRY, 2, cores=2), [1, 2]) == 0
    state = lending(node("n0", 2, cpus=16))
    assert start(state, add(state, HUNGRY, 2, cores=2), [0, 1]) == 6, "of the 12 idle cores"


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
    for cores, match in ((0, "expected more than 0 cores"), (12_001, "fewer cores free")):
        with pytest.raises(AllocationError, match=match):
            state.start(first, [0], 0.0, cpu_milli_each=cores)
    start(state, first, [0])
    with pytest.raises(AllocationError, match="fewer cores free"):
        state.start(second, [1], 0.0, cpu_milli_each=4000)
    state.start(second, [1], 0.0, cpu_milli_each=3000)


@pytest.mark.parametrize("cpus", [11, 20])
def test_plan_to_share_does_not_count_on_a_loan(cpus: int) -> None:
    """The borrower has two cores of its own and seven lent ones; the gain is less than without a loan."""
    borrowing, plain = lending(node("n0", 1, cpus=cpus)), lending(node("n0", 1, cpus=cpus))
    plans = []
    for state in (borrowing, plain):
        holder, waiting = add(state, HUNGRY, cores=2), add(state, FRUGAL, cores=3)
        if state is borrowing:
            assert start(state, holder, [0]) == 7
        else:
            state.start(holder, [0], 0.0)
        find = for_state(shared_plan, state)
        o = PLAIN_START._replace(share=BLOCKED, min_speed=0.0)
        slots = state.slot_of(waiting), state.slot_of(holder)
        plans.append(Plan(*find(state.arrays, *slots, o, 1.0, -math.inf)))
    assert (plans[0].own, plans[0].slowest) == (plans[1].own, plans[1].slowest)
    gain = (9 / 2) ** 0.83 - 1.0
    assert plans[1].gain - plans[0].gain == pytest.approx(gain, rel=0.05)


def starts(state: ClusterState, seq: int) -> bool:
    """Whether the rules find a place for the first waiting job, and its start is legal there."""
    if first_fitting(state.arrays, 0, 0) < 0:
        return False
    action = start_action(state, 0, seq, start=CORES)
    state.check_start(seq, action.gpus, cpu_milli_each=action.cpu_milli_each)
    return True


@pytest.mark.parametrize("change", ["join", "fewer cores", "more cores"])
def test_free_gpu_without_its_part_of_the_cores_is_not_offered(change: str) -> None:
    """Jobs on a GPU exceed its part by a join of an earlier version, or because the node has changed."""
    cpus = {"join": 16, "fewer cores": 32, "more cores": 20}[change]
    state = lending(node("n0", 4, cpus=cpus))
    if change == "more cores":
        add(state, FRUGAL, cores=6)  # more than the part: cores are counted, and joins may exceed the part
    each = 6 if change == "more cores" else 4
    first, second = (add(state, FRUGAL, cores=each) for _ in range(2))
    small = [add(state, FRUGAL, cores=1) for _ in range(2)]
    state.start(first, [0], 0.0)
    for g, seq in enumerate(small, start=1):
        state.start(seq, [g], 0.0)
    state.start(second, [0], 0.0, share_with=first, cpu_milli_each=1000 * each)
    if change == "fewer cores":
        state.refit_node(0, cpus=16, memory_mib=0)
    elif change == "more cores":
        state.remove_waiting(0)
        state.refit_node(0, cpus=24, memory_mib=0)
    for seq in small:
        state.release(seq, 1.0)
    part = 6 if change == "more cores" else 4
    waiting = [add(state, FRUGAL, cores=part) for _ in range(3)]
    begun = []
    for seq in waiting:
        if starts(state, seq):
            action = start_action(state, 0, seq, start=CORES)
            state.start(seq, action.gpus, 2.0, cpu_milli_each=action.cpu_milli_each)
            begun.append(seq)
    assert begun == waiting[:2]
    assert free(state) == 0


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
