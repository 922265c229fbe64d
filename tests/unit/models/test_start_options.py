"""Start options of rules: partners, clocks and cores; computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState, LearntUse
from rlsched.decide.clocks import clock_for, cores_for, join_cores
from rlsched.decide.compiled import for_state
from rlsched.decide.move import Move, start_of
from rlsched.decide.options import (
    BLOCKED,
    FIXED,
    LUCID,
    LULL,
    NO_GATE,
    PLAIN,
    PLAIN_START,
    SLOWDOWN,
    WEIGHED,
    StartOptions,
)
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.best import LOOK_AT, best_partner, next_to_share
from rlsched.decide.plans.plan import TAKEN_OR_OPEN, Plan
from rlsched.decide.plans.shared import shared_plan
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rules import greedy
from rlsched.decide.start import join_action, start_action
from rlsched.errors import InputError
from rlsched.models.sharing import shared_speed, stranger_speed
from tests.support.sim.board import CATALOGUE, add, modelled, node, running

SHARE = PLAIN_START._replace(share=BLOCKED)
ANY = SHARE._replace(min_speed=0.0)
FOUR = SHARE._replace(max_jobs=4)
BY_LUCID = PLAIN_START._replace(share=LUCID)
CORES = PLAIN_START._replace(cores=True)
LIGHT, MEDIUM, HEAVY = "a2c-b64", "resnet101", "gpt2-b4"
"""Workloads without measured pairs; solo utilisation 0.03, 0.57 and 0.96 on a V100."""


def value(state: ClusterState, waiting: int, holder: int, o: StartOptions = SHARE) -> float:
    """Predicted speeds of both together; for more jobs, 1 more than the newcomer adds; 0: not allowed."""
    find = for_state(shared_plan, state)
    plan = Plan(*find(state.arrays, state.slot_of(waiting), state.slot_of(holder), o, 1.0, -math.inf))
    return 1.0 + plan.gain if plan.verdict == TAKEN_OR_OPEN else 0.0


def partner(state: ClusterState, waiting: int, o: StartOptions = SHARE) -> int:
    slot = int(for_state(best_partner, state)(state.arrays, 0, state.slot_of(waiting), o, 1.0))
    return int(state.arrays.job.seq[slot]) if slot >= 0 else -1


def pair(state: ClusterState, o: StartOptions = SHARE, *, blocks: bool = False) -> tuple[int, int]:
    one, other = for_state(next_to_share, state)(state.arrays, 0, blocks, o, 1.0)
    seq = state.arrays.job.seq
    return (int(seq[one]), int(seq[other])) if one >= 0 else (-1, -1)


def move(state: ClusterState, o: StartOptions) -> Move:
    """Next action of `fifo-backfill`."""
    next_move = for_state(greedy.next_move, state)
    return Move(*next_move(state.arrays, 0, PLAIN._replace(start=o), 1.0))


def trait(name: str, field: str) -> float:
    cell = CATALOGUE.cell(name, "V100", field)
    assert cell is not None
    return cell.value


# ---- partners ---------------------------------------------------------------------------


def test_measured_pair_counts_as_measured() -> None:
    known = next(one for one in CATALOGUE.pairs if one.gpu_type == "V100" and one.a != one.b)
    state = modelled(node("n0", 1))
    holder, waiting = running(state, known.b, [0]), add(state, known.a)
    low = min(known.speed_a, known.speed_b)
    both = value(state, waiting, holder, SHARE._replace(min_speed=low - 1e-9))
    assert both == pytest.approx(known.speed_a + known.speed_b, abs=1e-12)
    assert value(state, waiting, holder, SHARE._replace(min_speed=low + 1e-9)) == 0.0


def test_strangers_count_by_the_formula() -> None:
    state = modelled(node("n0", 1))
    holder, waiting = running(state, MEDIUM, [0]), add(state, LIGHT)
    u, v = trait(LIGHT, "util_frac"), trait(MEDIUM, "util_frac")
    expected = stranger_speed(u, v) + stranger_speed(v, u)
    assert value(state, waiting, holder) == pytest.approx(expected, abs=1e-12)
    assert 1.9 < expected < 2.0


def test_two_heavy_jobs_share_only_at_a_low_threshold() -> None:
    state = modelled(node("n0", 1))
    holder, waiting = running(state, HEAVY, [0]), add(state, HEAVY)
    assert value(state, waiting, holder) == 0.0
    assert partner(state, waiting) == -1
    assert value(state, waiting, holder, SHARE._replace(min_speed=0.5)) > 1.0


def test_memory_admits_all_but_a_tenth() -> None:
    state = modelled(node("n0", 1))
    big = "bert-large-squad-b8"
    holder = running(state, big, [0])
    limit = 0.9 * float(state.arrays.models.gpu.memory_mib[0])
    assert trait(big, "memory_mib") + trait(LIGHT, "memory_mib") > limit
    assert value(state, add(state, LIGHT), holder, ANY) == 0.0
    state.arrays.models.trait.memory_mib[CATALOGUE.number(big), 0] = limit - trait(LIGHT, "memory_mib")
    assert value(state, add(state, LIGHT), holder, ANY) > 1.0


def test_jobs_that_are_no_partners() -> None:
    state = modelled(node("n0", 2), node("n1", 2), node("n2", 2, "A100"), node("n3", 4))
    two = running(state, LIGHT, [0, 1])
    assert value(state, add(state, LIGHT), two) == 0.0  # another number of GPUs
    half = add(state, LIGHT, share_milli=500)
    state.start(half, [2], 0.0)
    assert value(state, add(state, LIGHT), half) == 0.0  # a fractional GPU
    assert partner(state, add(state, LIGHT, share_milli=500)) == -1
    assert value(state, add(state, LIGHT, memory_mib=5), running(state, LIGHT, [3])) == 0.0
    picky = add(state, LIGHT, 2, gpu_types=("A100",))
    assert value(state, picky, two) == 0.0
    assert value(state, picky, running(state, LIGHT, [4, 5])) > 1.9
    waiting = add(state, LIGHT, 2)
    assert partner(state, waiting) == two
    state.drain_node(0)
    assert value(state, waiting, two) == 0.0  # its node takes no new jobs
    state.resume_node(0)
    state.start(add(state, LIGHT, 2), [0, 1], 1.0, share_with=two)
    assert value(state, waiting, two) == 0.0  # pairs only


def gated(**asks: float) -> StartOptions:
    """Sharing by its gain, whatever speed the jobs keep."""
    return ANY._replace(max_jobs=4, gate=NO_GATE._replace(is_shut=True, **asks))


def test_second_job_has_to_add_the_threshold() -> None:
    state = modelled(node("n0", 1))
    holder, waiting = running(state, HEAVY, [0]), add(state, HEAVY)
    gain = value(state, waiting, holder, ANY) - 1.0
    assert 0.0 < gain < 0.5
    assert value(state, waiting, holder, gated(pair=gain - 1e-9)) == 1.0 + gain
    assert value(state, waiting, holder, gated(pair=gain + 1e-9)) == 0.0
    assert partner(state, waiting, gated(pair=gain + 1e-9)) == -1
    assert value(state, waiting, holder, gated(more=9.0)) == 1.0 + gain, "it is the second"


def test_third_job_has_a_separate_gate() -> None:
    state = modelled(node("n0", 1))
    first, third = running(state, LIGHT, [0]), add(state, LIGHT)
    state.start(add(state, LIGHT), [0], 0.0, share_with=first)
    gain = value(state, third, first, ANY._replace(max_jobs=4)) - 1.0
    assert value(state, third, first, gated(pair=9.0, more=gain - 1e-9)) == 1.0 + gain
    assert value(state, third, first, gated(pair=-1.0, more=gain + 1e-9)) == 0.0


@pytest.mark.parametrize(
    ("tilt", "by", "predicted_s", "left_s", "others"),
    [
        ("by_length", math.tanh(math.log(8.0) / 3.0), 8 * 3600.0, 100.0, 0),
        ("by_length", 0.0, 3600.0, 100.0, 0),
        ("by_left", math.tanh(math.log(2.0) / 3.0), 60.0, 7201.0, 0),
        ("by_queue", 1.0 - math.exp(-4.0 * 3 / 2), 60.0, 100.0, 2),
        ("by_slowest", None, 60.0, 100.0, 0),
    ],
)
def test_tilts_add_to_the_threshold(
    tilt: str, by: float | None, predicted_s: float, left_s: float, others: int
) -> None:
    state = modelled(node("n0", 2))
    holder = running(state, HEAVY, [0], predicted_s=left_s)
    running(state, LIGHT, [1])
    waiting = add(state, HEAVY, predicted_s=predicted_s)
    for _ in range(others):
        add(state, LIGHT)
    both = value(state, waiting, holder, ANY)
    if by is None:
        by = 0.85 - both / 2  # two of a kind are equally slow
        assert by > 0
    least = both - 1.0 - 0.1 * by
    for more, opens in ((-1e-9, True), (1e-9, False)):
        asked = gated(pair=least + more, **{tilt: 0.1})
        assert (value(state, waiting, holder, asked) > 0) == opens
    assert value(state, waiting, holder, gated(pair=least, **{tilt: -0.1})) > 0 or by == 0.0


@pytest.mark.parametrize(
    ("predicted_s", "left_s"),
    [(36_000.0, 601.0), (600.0, 36_001.0)],
    ids=["the newcomer stays when the other has left", "the newcomer slows the other"],
)
def test_longer_holds_of_gpus_have_to_add_more(predicted_s: float, left_s: float) -> None:
    """A gang of half of the cluster is priced, one of a quarter by an eighth of that."""
    for nodes, share in ((2, 1.0), (4, 0.5**3)):
        state = modelled(*(node(f"n{k}", 2) for k in range(nodes)))
        holder = running(state, HEAVY, [0, 1], predicted_s=left_s)
        waiting = add(state, HEAVY, 2, predicted_s=predicted_s)
        both = value(state, waiting, holder, ANY)
        shorter_s, longer_s = sorted((predicted_s, left_s - 1.0))  # it has run for a second
        later_s = shorter_s * (2.0 / both - 1.0) + (longer_s - shorter_s) * (predicted_s > left_s)
        by = share * later_s / (later_s + 3600.0)
        least = both - 1.0 - 0.1 * by
        for more, opens in ((-1e-9, True), (1e-9, False)):
            asked = gated(pair=least + more, by_hold=0.1)
            assert (value(state, waiting, holder, asked) > 0) == opens, nodes


def test_settings_set_the_gate() -> None:
    assert Policy("pack").rule.options.start.gate == NO_GATE
    gate = Policy("pack", share={"min_gain": 0.3, "by_left": 0.1, "by_hold": 5.0}).rule.options.start.gate
    assert gate == NO_GATE._replace(is_shut=True, pair=0.3, more=0.3, by_left=0.1, by_hold=5.0)
    both = Policy("pack", share={"min_gain": 0.3, "min_gain_more": 0.4}).rule.options.start.gate
    assert (both.pair, both.more) == (0.3, 0.4)
    with pytest.raises(InputError, match=r"share\.min_gain: expected a speed from -1 to 4, got 5"):
        Policy("pack", share={"min_gain": 5.0})


def test_best_partner_keeps_most_speed_and_ties_go_to_the_first() -> None:
    state = modelled(node("n0", 4))
    medium = running(state, MEDIUM, [0])
    first, second = running(state, LIGHT, [2]), running(state, LIGHT, [1])
    waiting = add(state, MEDIUM)
    assert value(state, waiting, first) == value(state, waiting, second) > value(state, waiting, medium)
    assert partner(state, waiting) == first
    state.release(first, 1.0)
    assert partner(state, waiting) == second
    state.release(second, 1.0)
    assert partner(state, waiting) in (medium, -1)


def test_more_than_two_share_where_allowed_and_all_keep_enough() -> None:
    """Four light jobs, a gang of two GPUs each: the fifth finds the GPUs full."""
    state = modelled(node("n0", 2))
    first = running(state, LIGHT, [0, 1])
    numbers = CATALOGUE.number(LIGHT), state.kind_names.index("V100")
    for others in (1, 2, 3):
        waiting = add(state, LIGHT, 2)
        speeds = [
            shared_speed(state.arrays.models, numbers[1], numbers[0], np.full(3, numbers[0]), count)
            for count in (others - 1, others)
        ]
        gained = 1 + speeds[1] - others * (speeds[0] - speeds[1])
        assert value(state, waiting, first, FOUR) == pytest.approx(gained, abs=1e-12)
        assert (value(state, waiting, first, SHARE) > 0) == (others == 1)
        assert partner(state, waiting, FOUR) == first
        strict = FOUR._replace(min_speed=speeds[1] + 1e-9)
        assert value(state, waiting, first, strict) == 0.0
        state.start(waiting, [0, 1], 0.0, share_with=first)
    assert value(state, add(state, LIGHT, 2), first, FOUR) == 0.0


def test_memory_holds_all_sharing_jobs() -> None:
    state = modelled(node("n0", 1))
    four = FOUR._replace(min_speed=0.0)
    memory = {name: trait(name, "memory_mib") for name in CATALOGUE.names}
    capacity = 0.9 * state.arrays.models.gpu.memory_mib[0]
    name = min(memory, key=lambda one: abs(memory[one] - capacity / 2.5))
    assert 2 * memory[name] < capacity < 3 * memory[name]
    first = running(state, name, [0])
    state.start(add(state, name), [0], 0.0, share_with=first)
    assert value(state, add(state, name), first, four) == 0.0
    assert value(state, add(state, LIGHT), first, four) > 0.0 or memory[LIGHT] + 2 * memory[name] > capacity


def test_cores_of_all_sharing_jobs_are_counted() -> None:
    """Two jobs bring all the cores that they need. A third brings its need, if the node has it."""
    needs = trait(MEDIUM, "cores_each")
    state = modelled(node("n0", 1, cpus=math.ceil(3 * needs) + 1))
    first = running(state, MEDIUM, [0], cores=needs)
    slot = state.slot_of(first)
    second = add(state, MEDIUM, cores=needs)
    brings = int(join_cores(state.arrays, state.slot_of(second), slot, 0))
    assert brings == pytest.approx(1000 * needs, abs=2)
    state.start(second, [0], 0.0, share_with=first, cpu_milli_each=brings)
    third = add(state, MEDIUM, cores=needs)
    assert join_cores(state.arrays, state.slot_of(third), slot, 0) == pytest.approx(1000 * needs, abs=4)


def test_short_cores_are_divided_by_need_and_can_prevent_sharing() -> None:
    """Both need 5.56 cores; with 8 for the two of them each has 8 / 11.12 of what it needs."""
    state = modelled(node("n0", 1, cpus=8))
    need = trait(MEDIUM, "cores_each")
    holder, waiting = running(state, MEDIUM, [0], cores=8), add(state, MEDIUM, cores=8)
    fed = (8 / (2 * need)) ** 0.83
    alone = stranger_speed(trait(MEDIUM, "util_frac"), trait(MEDIUM, "util_frac"))
    assert fed < alone
    expected = 2 * fed
    assert value(state, waiting, holder, ANY) == pytest.approx(expected, abs=1e-9)
    assert value(state, waiting, holder, SHARE._replace(min_speed=fed + 1e-6)) == 0.0


def test_lucid_packs_up_to_a_score_of_two() -> None:
    """0 tiny + 2 jumbo is allowed, 1 medium + 2 jumbo is not; the cuts are 0.5 and 0.85."""
    state = modelled(node("n0", 3))
    light, medium, heavy = (running(state, name, [g]) for g, name in enumerate((LIGHT, MEDIUM, HEAVY)))
    for name, allowed in (
        (LIGHT, (True, True, True)),
        (MEDIUM, (True, True, False)),
        (HEAVY, (True, False, False)),
    ):
        waiting = add(state, name)
        got = tuple(value(state, waiting, other, BY_LUCID) == 1.0 for other in (light, medium, heavy))
        assert got == allowed, name


def test_lucid_packs_with_a_job_at_least_half_as_long() -> None:
    state = modelled(node("n0", 1))
    holder = running(state, LIGHT, [0], predicted_s=100.0)
    assert value(state, add(state, LIGHT, predicted_s=200.0), holder, BY_LUCID) == 1.0
    assert value(state, add(state, LIGHT, predicted_s=200.1), holder, BY_LUCID) == 0.0


def test_lucid_packs_up_to_eight_gpus() -> None:
    for gpus, allowed in ((8, True), (9, False)):
        state = modelled(node("n0", gpus))
        holder, waiting = running(state, LIGHT, range(gpus)), add(state, LIGHT, gpus)
        assert (value(state, waiting, holder, BY_LUCID) > 0.0) == allowed


def test_first_job_of_the_order_with_a_partner_starts() -> None:
    state = modelled(node("n0", 1))
    holder = running(state, LIGHT, [0])
    add(state, LIGHT, 2)
    second = add(state, LIGHT)
    assert pair(state) == (second, holder)
    assert pair(state, blocks=True) == (-1, -1)  # the first has no partner
    assert pair(state, PLAIN_START) == (-1, -1)


def test_number_of_examined_jobs_is_limited() -> None:
    for before, found in ((LOOK_AT - 1, True), (LOOK_AT, False)):
        state = modelled(node("n0", 1))
        holder = running(state, LIGHT, [0])
        for _ in range(before):
            add(state, LIGHT, 2)
        last = add(state, LIGHT)
        assert pair(state) == ((last, holder) if found else (-1, -1))


def test_free_gpus_come_first_except_for_lucid() -> None:
    for o, joins in ((SHARE, False), (BY_LUCID, True)):
        state = modelled(node("n0", 2))
        holder, waiting = running(state, LIGHT, [0]), add(state, LIGHT)
        found = move(state, o)
        assert found.start == state.slot_of(waiting)
        assert found.share_with == (state.slot_of(holder) if joins else -1)
        state.start(add(state, HEAVY), [1], 0.0)
        found = move(state, o)
        assert (found.start, found.share_with) == (state.slot_of(waiting), state.slot_of(holder))


# ---- clocks ---------------------------------------------------------------------------------------


def chosen_clock(state: ClusterState, seq: int, o: StartOptions) -> float:
    return float(for_state(clock_for, state)(state.arrays, 0, state.slot_of(seq), 0, o))


def clock_options(rule: int, value: float) -> StartOptions:
    """Options that choose clocks by a rule."""
    return PLAIN_START._replace(clock=rule, clock_value=value)


def level_of_least_energy(state: ClusterState, name: str, slowdown: float) -> float:
    """By the formulas of the model, for all levels."""
    g = state.arrays.models.gpu[0]
    rho, dynamic_w = trait(name, "clock_bound"), trait(name, "dynamic_w")
    costs = {}
    for x in g.levels_frac.tolist():
        time = ((rho / x) ** 5 + 1 - rho**5) ** 0.2
        v = max(1 + g.voltage_slope * (x - 1), 1 + g.voltage_slope * (g.knee_frac - 1))
        power_w = g.static_w + dynamic_w * (g.theta / time + (1 - g.theta) * x) * v * v
        if time <= 1 + slowdown:
            costs[x] = max(g.idle_w, min(power_w, g.tdp_w)) * time
    return min(costs, key=lambda x: costs[x])


def test_clocks_by_rule() -> None:
    state = modelled(node("n0", 2))
    seq = add(state, HEAVY)
    assert chosen_clock(state, seq, clock_options(FIXED, 0.63)) == 0.63
    levels = state.arrays.models.gpu.levels_frac[0].tolist()
    for slowdown in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):
        expected = level_of_least_energy(state, HEAVY, slowdown)
        assert chosen_clock(state, seq, clock_options(SLOWDOWN, slowdown)) == expected
        assert chosen_clock(state, seq, clock_options(LULL, slowdown)) == expected
    assert chosen_clock(state, seq, clock_options(SLOWDOWN, 0.0)) == 1.0
    assert chosen_clock(state, seq, clock_options(SLOWDOWN, 1.0)) < 1.0
    assert set(levels) >= {chosen_clock(state, seq, clock_options(SLOWDOWN, 0.1))}
    add(state, LIGHT)  # a job waits behind it
    assert chosen_clock(state, seq, clock_options(LULL, 1.0)) == 1.0
    assert chosen_clock(state, seq, clock_options(SLOWDOWN, 1.0)) < 1.0
    assert chosen_clock(state, seq, SHARE) == 1.0


def test_weighing_time_and_energy() -> None:
    state = modelled(node("n0", 2))
    seq = add(state, HEAVY)
    clocks = [
        chosen_clock(state, seq, clock_options(WEIGHED, weight)) for weight in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert clocks[0] == 1.0
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[-1] == level_of_least_energy(state, HEAVY, 9.0) < 1.0


@pytest.mark.parametrize("ratio", [0.2, 3.0])
def test_learnt_power_chooses_the_clock_of_a_workload_with_this_power(ratio: float) -> None:
    learnt, catalogue = modelled(node("n0", 2)), modelled(node("n0", 2))
    seq = add(learnt, HEAVY)
    learnt.set_use(seq, LearntUse(dynamic_ratio=ratio))
    assert add(catalogue, HEAVY) == seq
    catalogue.arrays.models.trait.dynamic_w[CATALOGUE.number(HEAVY), 0] *= ratio
    options = [clock_options(WEIGHED, weight) for weight in (0.1, 0.3, 0.5, 0.7, 0.9)]
    clocks = [chosen_clock(learnt, seq, o) for o in options]
    assert clocks == [chosen_clock(catalogue, seq, o) for o in options]
    plain = modelled(node("n0", 2))
    assert clocks != [chosen_clock(plain, add(plain, HEAVY), o) for o in options]


# ---- cores ----------------------------------------------------------------------------------------


def cores_given(state: ClusterState, seq: int, gpus: list[int], o: StartOptions = CORES) -> int:
    return int(for_state(cores_for, state)(state.arrays, state.slot_of(seq), np.array(gpus, np.int32), o))


def test_cores_by_need() -> None:
    """Two GPUs, 16 cores, 8 requested with each: gpt2 needs 1, resnet101 5.56, resnet18 on ImageNet 8.66."""
    state = modelled(node("n0", 2, cpus=16))
    few, enough, many = (add(state, name, cores=8) for name in (HEAVY, MEDIUM, "resnet18-imagenet-b128"))
    assert cores_given(state, few, [0]) == 1000
    assert cores_given(state, enough, [0]) == math.ceil(1000 * trait(MEDIUM, "cores_each")) < 8000
    assert cores_given(state, many, [0]) == 8000  # no core is idle: the other GPU will need 8
    assert cores_given(state, many, [0], SHARE) == cores_given(state, few, [0], SHARE) == 8000
    state.start(few, [0], 0.0, cpu_milli_each=1000)
    wanted = math.ceil(1000 * trait("resnet18-imagenet-b128", "cores_each"))
    assert cores_given(state, many, [1]) == wanted > 8000  # of the 7 that the first has left
    assert wanted < 15_000


def test_lent_cores_reduce_the_share_of_all_free_gpus_alike() -> None:
    state = modelled(node("n0", 4, cpus=16))
    small = [add(state, HEAVY, cores=4) for _ in range(3)]
    large = add(state, "resnet18-imagenet-b128", cores=4)
    for g, seq in enumerate(small):
        state.start(seq, [g], 0.0, cpu_milli_each=1000)
    state.start(large, [3], 0.0, cpu_milli_each=cores_given(state, large, [3]))
    lent = int(state.arrays.job.cpu_milli_each[state.slot_of(large)])
    assert lent == math.ceil(1000 * trait("resnet18-imagenet-b128", "cores_each"))
    for seq in small[:2]:
        state.release(seq, 1.0)
    free = 16_000 - lent - 1000
    first, second = (add(state, "resnet18-imagenet-b128", cores=4) for _ in range(2))
    assert cores_given(state, first, [0]) == free // 2 < 4000
    state.start(first, [0], 1.0, cpu_milli_each=free // 2)
    assert cores_given(state, second, [1]) == free - free // 2
    assert cores_given(state, second, [1]) > 0


def test_gang_takes_the_available_cores_of_each_node() -> None:
    state = modelled(node("n0", 2, cpus=16), node("n1", 2, cpus=16))
    running(state, HEAVY, [0], cores=1)
    gang = add(state, "resnet18-imagenet-b128", 3, cores=8)
    assert cores_given(state, gang, [1, 2, 3]) == 8000  # the second node has nothing beyond two fair parts


def test_unknown_cores_are_never_short() -> None:
    state = modelled(node("n0", 2))
    seq = add(state, "resnet18-imagenet-b128", cores=2)
    assert cores_given(state, seq, [0]) == math.ceil(1000 * trait("resnet18-imagenet-b128", "cores_each"))
    assert cores_given(state, add(state, MEDIUM), [0]) == 0  # a job that requests no cores gets none


def test_joining_job_brings_the_cores_that_both_lack() -> None:
    state = modelled(node("n0", 2, cpus=16))
    holder, waiting = running(state, MEDIUM, [0], cores=4), add(state, MEDIUM, cores=4)

    def brings() -> int:
        return int(join_cores(state.arrays, state.slot_of(waiting), state.slot_of(holder), 0))

    assert brings() == 4000  # 12 are free, 8 of them for the other GPU; the job needs 7.12
    state.start(add(state, HEAVY, cores=1), [1], 0.0)
    assert brings() == math.ceil(1000 * 2 * trait(MEDIUM, "cores_each")) - 4000
    nothing = add(state, MEDIUM)
    assert join_cores(state.arrays, state.slot_of(nothing), state.slot_of(holder), 0) == 0


# ---- without models -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "o",
    [
        SHARE,
        ANY,
        clock_options(FIXED, 0.6),
        clock_options(SLOWDOWN, 0.2),
        clock_options(LULL, 0.2),
        CORES,
        clock_options(WEIGHED, 0.9),
    ],
)
def test_options_do_nothing_without_models(o: StartOptions) -> None:
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(Order()))
    first, second = (state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0) for _ in range(2))
    action = start_action(state, 0, first, start=o)
    assert (action.sm_clock_frac, action.share_with) == (1.0, -1)
    state.start(first, action.gpus, 0.0, sm_clock_frac=1.0, cpu_milli_each=action.cpu_milli_each)
    assert state.arrays.job.cpu_milli_each[state.slot_of(first)] == 0
    assert pair(state, o) == (-1, -1)
    assert move(state, o) == start_of(state.slot_of(second), -1)


def test_action_to_join_is_legal_unchanged() -> None:
    state = modelled(node("n0", 2, cpus=16))
    holder, waiting = running(state, MEDIUM, [1], cores=4), add(state, LIGHT, cores=4)
    action = join_action(state, 0, waiting, holder, SHARE._replace(clock=FIXED, clock_value=0.8))
    assert (action.gpus, action.share_with, action.sm_clock_frac) == ((1,), holder, 0.8)
    state.start(
        action.seq,
        action.gpus,
        1.0,
        share_milli=action.share_milli,
        sm_clock_frac=action.sm_clock_frac,
        share_with=action.share_with,
        cpu_milli_each=action.cpu_milli_each,
    )
    held = state.arrays.job.cpu_milli_each[[state.slot_of(holder), state.slot_of(waiting)]].sum()
    assert held == math.ceil(1000 * (trait(MEDIUM, "cores_each") + trait(LIGHT, "cores_each")))
