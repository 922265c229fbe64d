"""A state's digest covers everything that a decision may read, and no derived data."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.arrays import JOB, MAX_TENANTS, SLOT_EMPTY
from rlsched.cluster.digest import of_jobs
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from tests.support.sim.board import add, modelled, node

FOLLOWS = ("key", "head", "placed_in", "own_partition", "shared_partition", "demand")
OF_MODELS = ("energy_ppm", "unshared", "gpu_need_mib")
OF_PRICE = ("slack_s",)
LEARNT = ("core_need_milli", "dynamic_ratio")
OF_BURSTS = ("first_predicted_s", "burst", "burst_ended", "burst_ln_sum", "burst_spread", "look_s")


def state_of(order: tuple[int, ...] = (0, 1, 2), *, revised: bool = False) -> ClusterState:
    """Three jobs, of which two run and one waits; they take the slots of `order`."""
    queue = OrderedQueue(Order(revised=revised))
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 2), queue, slots=3)
    state.arrays.derived.slot.stack[:] = order[::-1]
    for number, slot in enumerate(order):
        state.arrays.derived.slot.stack_at[slot] = len(order) - 1 - number
        state.add_job(num_gpus=1 + number % 2, submit_s=float(number), predicted_s=100.0, spread=1.0)
    state.start(0, [0], 3.0)
    state.start(1, [2, 3], 4.0)
    return state


def test_every_significant_field_of_a_job_counts() -> None:
    state = state_of()
    before, slot = state.digest(), state.slot_of(1)
    for name in JOB.names or ():
        kept = state.arrays.job[name][slot].copy()
        state.arrays.job[name][slot] = kept + 1 if np.isfinite(kept) else 7
        counts = name not in (*FOLLOWS, *OF_BURSTS, *OF_MODELS, *OF_PRICE, *LEARNT)
        assert (state.digest() != before) == counts, name
        state.arrays.job[name][slot] = kept
    assert state.digest() == before


@pytest.mark.parametrize("name", OF_BURSTS)
def test_burst_statistics_count_where_predictions_are_revised(name: str) -> None:
    state = state_of(revised=True)
    before = state.digest()
    state.arrays.job[name][state.slot_of(1)] += 1
    assert state.digest() != before


def test_slack_counts_where_a_price_is_known() -> None:
    state = state_of()
    state.set_price(1.2, (), 100.0)
    before = state.digest()
    state.arrays.job.slack_s[state.slot_of(1)] = 60.0
    assert state.digest() != before


@pytest.mark.parametrize("name", LEARNT)
def test_learnt_use_counts_where_there_are_models(name: str) -> None:
    state = modelled(node("n0", 2))
    seq = add(state, "gpt2-b4")
    before = state.digest()
    state.arrays.job[name][state.slot_of(seq)] = 3
    assert state.digest() != before
    state.arrays.job[name][state.slot_of(seq)] = 0
    assert state.digest() == before


def test_slots_of_jobs_do_not_count() -> None:
    assert state_of((0, 1, 2)).digest() == state_of((2, 0, 1)).digest()


def test_leftovers_of_earlier_jobs_in_a_slot_do_not_count() -> None:
    one, two = state_of(), state_of()
    for state in (one, two):
        state.release(0, 9.0)
    one.arrays.job.predicted_s[one.arrays.job.status == SLOT_EMPTY] = 5.0
    assert one.digest() == two.digest()


def test_swapped_gpus_change_the_digest() -> None:
    one, two = state_of(), state_of()
    two.arrays.gpu.tenant[0, 0], two.arrays.gpu.tenant[1, 0] = -1, two.slot_of(0)
    assert one.digest() != two.digest()


def test_sums_equal_splitmix64() -> None:
    """Computed again with Python's integers."""
    state, most = state_of(), 1 << 64

    def mixed(word: int, salt: int) -> int:
        z = (word + salt * 0x9E3779B97F4A7C15) % most
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % most
        z = (z ^ z >> 27) * 0x94D049BB133111EB % most
        return z ^ z >> 31

    job, jobs, places = state.arrays.job.view(np.ndarray).copy(), 0, 0
    for name in (*FOLLOWS, *OF_BURSTS, *OF_MODELS):
        job[name] = 0
    for row in job.view(np.uint64).reshape(len(job), -1)[:, :-3].tolist():  # without `slack_s` and learnt use
        jobs += mixed(sum(mixed(word, at) for at, word in enumerate(row)) % most, 0)
    for place, slot in enumerate(state.arrays.gpu.tenant.ravel().tolist()):
        if slot >= 0:
            places += mixed(int(job["seq"][slot]), place)
    assert state.arrays.gpu.tenant.shape[1] == MAX_TENANTS
    assert of_jobs(state.arrays) == (jobs % most).to_bytes(8, "big") + (places % most).to_bytes(8, "big")
