"""Placement on preferred GPU types, on random clusters, against a second implementation in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pytest

from rlsched.cluster.arrays import PLACEMENT_CODES
from rlsched.cluster.choose import choose, gpus_taken
from rlsched.cluster.demand import ANY_KIND, Demand
from rlsched.cluster.placement import BY_RULE, NO_PREFERENCE, fits_slot
from rlsched.cluster.spec import NodeSpec, Placement
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from tests.quick import quick

A, H, T, MIG = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA H100 80GB HBM3/1g.10gb"
ASKED: Final = ((), (), (), ("H100",), ("A100", "H100"), ("T4", "h100/1g.10gb"))
PREFERRED: Final = (("H100",), ("a100-sxm4",), ("A100", "T4"), ("h100/1g.10gb",), ("V100",), ("H100", "T4"))
UNKNOWN: Final = 1 << 60
RULES: Final = ("consolidate", "best-fit", "worst-fit", "spread")
QUICK: Final = ("consolidate", "fgd")
"""Rules of which `make test` draws random jobs."""


def cluster(nodes: Sequence[NodeSpec], placement: Placement = "consolidate") -> ClusterState:
    return ClusterState(nodes, OrderedQueue(Order()), placement=placement)


def add(state: ClusterState, demand: Demand) -> int:
    return state.add_job(demand=demand, submit_s=0.0, predicted_s=1.0, spread=1.0)


def chosen(state: ClusterState, demand: Demand, node: int = BY_RULE) -> list[int] | None:
    """GPUs that a new job gets; None if it does not fit. The job is removed again."""
    seq = add(state, demand)
    out = np.full(demand.gpus, -1, np.int32)
    host = choose(state.arrays, 0, state.slot_of(seq), node, out)
    fits = bool(fits_slot(state.arrays, 0, state.slot_of(seq)))
    assert (host >= 0) == fits
    if fits:
        state.check_start(seq, out.tolist())
    state.remove_waiting(seq)
    return out.tolist() if fits else None


# ---- a second implementation --------------------------------------------------------------------


@dataclass
class Board:
    """A cluster in plain Python: free thousandths of each GPU, and of the cores of each node."""

    nodes: list[NodeSpec]
    free: list[list[int]]
    cores: list[int]
    first: list[int]

    def usable(self, n: int, demand: Demand, accepts: Callable[[str], bool]) -> list[int]:
        """GPUs of a node with room for one place of the job."""
        node, free = self.nodes[n], self.free[n]
        if not accepts(node.gpu_type) or ("/" in node.gpu_type and (demand.gpus > 1 or not demand.whole)):
            return []
        if demand.exclusive and (min(free) < 1000 or self.cores[n] < 1000 * node.cpus):
            return []
        return [k for k, milli in enumerate(free) if milli >= demand.share_milli]

    def places(self, n: int, demand: Demand, accepts: Callable[[str], bool]) -> int:
        """Places of the job that are free on a node."""
        usable = len(self.usable(n, demand, accepts))
        usable = min(usable, 1) if not demand.whole else usable
        return min(usable, self.cores[n] // demand.cpu_milli_each) if demand.cpu_milli else usable

    def take(self, n: int, count: int) -> list[int]:
        """The lowest numbers of GPUs of a node that are wholly free."""
        return [self.first[n] + k for k, milli in enumerate(self.free[n]) if milli == 1000][:count]


def as_idle(board: Board) -> Board:
    free = [[1000] * node.gpus for node in board.nodes]
    cores = [1000 * node.cpus if node.cpus else UNKNOWN for node in board.nodes]
    return Board(board.nodes, free, cores, board.first)


def placed(board: Board, demand: Demand, rule: str, accepts: Callable[[str], bool]) -> list[int] | None:
    """GPUs by the description of the placement rules, on nodes whose type is accepted.

    A gang that fits on one idle node that the job accepts, preferred or not, gets one node.
    """
    every = range(len(board.nodes))
    room = [board.places(n, demand, accepts) for n in every]
    idle = [as_idle(board).places(n, demand, accepts) for n in every]
    largest = max(as_idle(board).places(n, demand, demand.names) for n in every)
    free = [board.free[n].count(1000) for n in every]
    if demand.whole and rule == "spread":
        return spread(board, room, demand.gpus)
    if demand.gpus > largest:
        return gang(board, room, idle, demand.gpus, fewest=rule == "best-fit")
    able = [n for n in every if room[n] >= demand.gpus]
    if not able:
        return None
    loosest = rule in ("worst-fit", "spread")
    sign = -1 if loosest else 1
    if demand.whole:
        return board.take(min(able, key=lambda n: (sign * free[n], n)), demand.gpus)
    usable = {n: board.usable(n, demand, accepts) for n in able}
    best = {n: min(usable[n], key=lambda k: (sign * board.free[n][k], k)) for n in able}
    n = min(able, key=lambda n: (sign * board.free[n][best[n]], sign * free[n], n))
    return [board.first[n] + best[n]]


def spread(board: Board, room: list[int], gpus: int) -> list[int] | None:
    given = [0] * len(room)
    if sum(room) < gpus:
        return None
    for _ in range(gpus):
        n = max(range(len(room)), key=lambda n: (room[n] - given[n], -n))
        given[n] += 1
    return [g for n, count in enumerate(given) for g in board.take(n, count)]


def gang(board: Board, room: list[int], idle: list[int], gpus: int, *, fewest: bool) -> list[int] | None:
    whole = list[int]()
    for size in range(max(idle), 0, -1):
        for n, places in enumerate(room):
            empty = min(board.free[n], default=0) == 1000 and places == idle[n]
            if n not in whole and empty and places == size <= gpus - sum(room[k] for k in whole):
                whole.append(n)
    rest = gpus - sum(room[n] for n in whole)
    found = [g for n in sorted(whole) for g in board.take(n, room[n])]
    if not rest:
        return found
    able = [n for n, places in enumerate(room) if n not in whole and places >= rest]
    if not able:
        return None
    sign = 1 if fewest else -1
    return [*found, *board.take(min(able, key=lambda n: (sign * room[n], n)), rest)]


def preferring(board: Board, demand: Demand, rule: str) -> list[int] | None:
    """GPUs of preferred types if the job fits there, else any GPUs that it accepts."""
    narrow = placed(board, demand, rule, lambda name: demand.names(name) and demand.prefers(name))
    return placed(board, demand, rule, demand.names) if narrow is None else narrow


# ---- random clusters ----------------------------------------------------------------------------


def drawn_nodes(rng: random.Random) -> list[NodeSpec]:
    sizes, types, cores = (1, 2, 4, 8), (A, H, H, T, MIG), (0, 8, 16)
    return [
        NodeSpec(name=f"n{k}", gpus=rng.choice(sizes), gpu_type=rng.choice(types), cpus=rng.choice(cores))
        for k in range(rng.randint(1, 7))
    ]


def drawn_demand(rng: random.Random) -> Demand:
    share = rng.random() < 0.2
    return Demand(
        gpus=1 if share else rng.choice((1, 1, 2, 3, 4, 5, 8, 9, 12)),
        share_milli=rng.choice((300, 500)) if share else 1000,
        gpu_types=rng.choice(ASKED),
        preferred_types=rng.choice(PREFERRED),
        cpu_milli=rng.choice((0, 0, 0, 2000, 8000)),
        exclusive=rng.random() < 0.1,
    )


def filled(rng: random.Random, nodes: list[NodeSpec], placement: Placement) -> tuple[ClusterState, Board]:
    """A cluster on which some jobs run, twice: in the ledger, and in plain Python."""
    state = cluster(nodes, placement)
    first = [int(one) for one in state.arrays.node.first_gpu]
    board = as_idle(Board(nodes, [], [], first))
    for n, node in enumerate(nodes):
        for k in range(node.gpus):
            share = rng.choice((0, 0, 0, 0, 1000, 1000, 1000, 400))
            share = 1000 if share and "/" in node.gpu_type else share
            cores = rng.choice((0, 0, 1)) if board.cores[n] >= 1000 else 0
            if share:
                demand = Demand(gpus=1, share_milli=share, cpu_milli=1000 * cores)
                state.start(add(state, demand), [first[n] + k], 0.0)
                board.free[n][k] -= share
                board.cores[n] -= 1000 * cores
    return state, board


def in_order(gpus: list[int] | None) -> list[int] | None:
    """GPUs by number: the order of a gang's whole nodes is not part of the rules."""
    return None if gpus is None else sorted(gpus)


@pytest.mark.parametrize("rule", quick(RULES, QUICK.__contains__))
def test_random_jobs_are_placed_as_by_the_second_implementation(rule: Placement) -> None:
    rng, counts = random.Random(PLACEMENT_CODES[rule]), {"preferred": 0, "other": 0, "none": 0}
    for _ in range(250):
        state, board = filled(rng, drawn_nodes(rng), rule)
        for _ in range(6):
            demand = drawn_demand(rng)
            expected = preferring(board, demand, rule)
            assert in_order(chosen(state, demand)) == in_order(expected), demand
            plain = msgspec.structs.replace(demand, preferred_types=())
            assert chosen(state, demand, NO_PREFERENCE) == chosen(state, plain)
            names = {board.nodes[state.gpu_location(g)[0]].gpu_type for g in expected or ()}
            wanted = "preferred" if all(map(demand.prefers, names)) else "other"
            counts[wanted if expected is not None else "none"] += 1
    assert min(counts.values()) > 100, counts


@pytest.mark.parametrize("rule", quick(sorted(PLACEMENT_CODES), QUICK.__contains__))
def test_job_of_one_gpu_gets_the_gpu_of_a_job_that_accepts_only_preferred_ones(rule: Placement) -> None:
    """Under every rule; the jobs that arrived before are the same (`fgd` counts arrivals)."""
    rng, found = random.Random(7), 0
    for _ in range(120):
        nodes = drawn_nodes(rng)
        demand = msgspec.structs.replace(drawn_demand(rng), gpu_types=(), gpus=1)
        seed = rng.random()
        state, _ = filled(random.Random(seed), nodes, rule)
        same, _ = filled(random.Random(seed), nodes, rule)
        only = msgspec.structs.replace(demand, gpu_types=demand.preferred_types, preferred_types=())
        on_preferred = chosen(same, only)
        if on_preferred is not None:
            found += 1
            assert chosen(state, demand) == on_preferred
    assert found > 30


# ---- by hand ------------------------------------------------------------------------------------


def node(name: str, gpus: int, gpu_type: str, **more: int) -> NodeSpec:
    return NodeSpec(name=name, gpus=gpus, gpu_type=gpu_type, **more)


MIXED = (node("a", 4, A), node("h", 4, H), node("t", 8, T))


def test_job_gets_preferred_gpus_else_others_at_once() -> None:
    state = cluster(MIXED)
    for gpus in ([4, 5, 6], [7], [0]):
        seq = add(state, Demand(gpus=len(gpus), preferred_types=("H100",)))
        if gpus != [0]:
            assert chosen(state, Demand(gpus=len(gpus), preferred_types=("H100",))) == gpus
            state.start(seq, gpus, 0.0)
    assert chosen(state, Demand(gpus=1, preferred_types=("H100",))) == [0], "consolidate: the smallest hole"
    assert chosen(state, Demand(gpus=1, preferred_types=("A100", "T4"))) == [0]
    assert chosen(state, Demand(gpus=5, preferred_types=("A100",))) == [8, 9, 10, 11, 12], "it fits no A100"


def test_preference_does_not_split_a_gang_that_fits_on_one_node() -> None:
    asked = Demand(gpus=8, preferred_types=("H100",))
    assert chosen(cluster((*MIXED, node("h2", 4, H))), asked) == list(range(8, 16)), "the T4s"
    assert chosen(cluster((node("a", 4, A), node("h", 4, H), node("h2", 4, H))), asked) == list(range(4, 12))


def test_preference_counts_only_within_the_accepted_types() -> None:
    state = cluster(MIXED)
    asked = Demand(gpus=1, gpu_types=("A100", "T4"), preferred_types=("H100", "T4"))
    assert chosen(state, asked) == [8]
    assert chosen(state, Demand(gpus=1, gpu_types=("A100",), preferred_types=("H100",))) == [0]


def test_slices_are_a_type_and_shares_prefer_too() -> None:
    state = cluster((node("a", 2, A), node("h", 2, H), node("m", 7, MIG)))
    assert chosen(state, Demand(gpus=1, preferred_types=("h100/1g.10gb",))) == [4]
    assert chosen(state, Demand(gpus=2, preferred_types=("h100/1g.10gb",))) == [0, 1], "no gang on slices"
    half = Demand(gpus=1, share_milli=500, preferred_types=("H100",))
    state.start(add(state, Demand(gpus=1, share_milli=500)), [0], 0.0)
    assert chosen(state, half) == [2], "not the tightest GPU, which is an A100"


def test_named_node_is_used_whatever_the_job_prefers() -> None:
    state = cluster(MIXED)
    assert chosen(state, Demand(gpus=1, preferred_types=("H100",)), 0) == [0]
    assert chosen(state, Demand(gpus=8, preferred_types=("H100",)), 2) == list(range(8, 16))


def test_whole_nodes_count_where_the_job_is_placed() -> None:
    state = cluster(MIXED)
    for preferred, node_gpus in ((("T4",), 8), ((), 4)):
        seq = add(state, Demand(gpus=1, exclusive=True, preferred_types=preferred))
        slot = state.slot_of(seq)
        assert gpus_taken(state.arrays, 0, slot, BY_RULE) == node_gpus
        assert gpus_taken(state.arrays, 0, slot, NO_PREFERENCE) == 4


# ---- demand classes -----------------------------------------------------------------------------


def test_class_with_a_preference_follows_the_class_of_the_preferred_types() -> None:
    state = cluster(MIXED)
    demand = Demand(gpus=2, preferred_types=("H100",))
    assert state.reserve_demands([Demand(gpus=1), demand, demand]) == [0, 2, 2]
    assert state.demands == [Demand(gpus=1), demand.on_preferred, demand]
    row = state.arrays.demand
    assert row.preferred[:3].tolist() == [-1, -1, 1]
    assert row.kinds[:3].tolist() == [ANY_KIND, 0b010, ANY_KIND]
    assert row.plain[:3].tolist() == [1, 0, 1], "whether it fits does not depend on the preference"
    state.add_node(node("h2", 2, "NVIDIA H100 NVL"))
    assert state.arrays.demand.kinds[1] == 0b1010, "a new type that is preferred too"
    state.refit_node(0, cpus=0, memory_mib=0, gpu_type=H)
    assert chosen(state, demand) == [16, 17]


def test_in_a_cluster_of_one_type_a_preference_changes_nothing() -> None:
    nodes = [node(f"n{k}", 4, H) for k in range(3)]
    with_it, without = cluster(nodes), cluster(nodes)
    for gpus in (3, 2, 4, 1, 2):
        demand = Demand(gpus=gpus, preferred_types=("H100",))
        plain = msgspec.structs.replace(demand, preferred_types=())
        got = chosen(with_it, demand)
        assert got == chosen(without, plain)
        if got is not None:
            with_it.start(add(with_it, demand), got, 0.0)
            without.start(add(without, plain), got, 0.0)
    assert with_it.digest() == without.digest()


def test_request_of_a_trace() -> None:
    demand = Demand.from_request(2.0, gpu_type="A100|H100", prefer=" H100 | A100|H100")
    assert demand.preferred_types == ("A100", "H100")
    for word in ("any", "Any", ""):
        assert Demand.from_request(1.0, gpu_type=word, prefer=word) == Demand(gpus=1)
    assert Demand.from_request(0.0, num_cpus=1.0, prefer="H100") == Demand(gpus=0, cpu_milli=1000)
    assert Demand(gpus=1).on_preferred is None
    narrow = demand.on_preferred
    assert narrow is not None
    assert narrow.on_preferred is None
    assert [narrow.accepts(kind) for kind in (A, H, T)] == [True, True, False]
