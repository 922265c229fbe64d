"""The ledger under any sequence of legal and illegal calls, against a model in plain Python."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlsched.cluster import kernels, placement
from rlsched.cluster.arrays import (
    MAX_TENANTS,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    SLOT_EMPTY,
    WAITING,
    WHOLE_GPU_MILLI,
)
from rlsched.cluster.spec import SHARED_PARTITION, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.errors import AllocationError
from tests.support.soak_size import times

VCS = ("", "a", "b")
NODES = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, "a", "b"])), min_size=0, max_size=4)


@dataclass
class Job:
    """The model's state of a live job."""

    gpus: int
    vc: str
    submit_s: float
    predicted_s: float
    held: tuple[int, ...] = ()
    start_s: float = math.nan
    attempt: int = 1
    attempts: list[float] = field(default_factory=list)
    """GPU-seconds of each finished attempt."""
    eligible: bool = True

    def key(self, order: str) -> float:
        return {
            "submit": self.submit_s,
            "predicted": self.predicted_s,
            "area": self.predicted_s * self.gpus,
        }[order]


class Ledger(RuleBasedStateMachine):
    """Calls on a `ClusterState`; the model holds jobs by number and, for every node, (GPUs, VC, status)."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Job] = {}
        self.nodes: list[tuple[int, str | None, int]] = []
        self.now_s = 0.0
        self.served_gpu_s = 0.0
        self.ended_gpu_s = 0.0
        self.last_seq = -1

    @initialize(nodes=NODES, order=st.sampled_from(["submit", "predicted", "area"]))
    def begin(self, nodes: list[tuple[int, str | None]], order: str) -> None:
        self.order = order
        specs = [NodeSpec(name=f"n{n}", gpus=gpus, vc=vc) for n, (gpus, vc) in enumerate(nodes)]
        self.state = ClusterState(specs, OrderedQueue(Order.parse(order)), slots=2)
        self.nodes = [(gpus, vc, NODE_UP) for gpus, vc in nodes]

    # ---- state of the model ------------------------------------------------------------------

    def gpus(self) -> list[tuple[int, str | None, int]]:
        """(node, VC, status of the node) of every GPU."""
        return [(n, vc, status) for n, (gpus, vc, status) in enumerate(self.nodes) for _ in range(gpus)]

    def taken(self) -> dict[int, int]:
        return {g: seq for seq, job in self.jobs.items() for g in job.held}

    def free(self, owner: str | None) -> list[int]:
        """Free GPUs on nodes that are up and belong to this VC (None: to all)."""
        taken = self.taken()
        return [
            g
            for g, (_, vc, status) in enumerate(self.gpus())
            if vc == owner and status == NODE_UP and g not in taken
        ]

    def numbers(self, *, running: bool) -> list[int]:
        return [seq for seq, job in self.jobs.items() if job.eligible and bool(job.held) == running]

    def ineligible(self) -> list[int]:
        return [seq for seq, job in self.jobs.items() if not job.eligible]

    def refused(self, call: Callable[[], object], match: str) -> None:
        before, arrays = self.state.digest(), self.state.arrays
        counters = arrays.counters.copy()
        with pytest.raises(AllocationError, match=match):
            call()
        assert self.state.digest() == before
        assert self.state.arrays is arrays
        np.testing.assert_array_equal(arrays.counters, counters)

    def end_attempt(self, seq: int) -> None:
        job = self.jobs[seq]
        gpu_s = (self.now_s - job.start_s) * job.gpus
        self.served_gpu_s += gpu_s
        job.attempts.append(gpu_s)

    # ---- legal calls ---------------------------------------------------------------------------

    @rule(step_s=st.integers(1, 100))
    def time_passes(self, step_s: int) -> None:
        self.now_s += step_s

    @rule(
        gpus=st.integers(1, 9),
        vc=st.sampled_from(VCS),
        predicted_s=st.integers(0, 5),
        late_s=st.integers(0, 3),
    )
    def add_job(self, gpus: int, vc: str, predicted_s: int, late_s: int) -> None:
        submit_s = self.now_s - late_s
        seq = self.state.add_job(
            num_gpus=gpus, vc=vc, submit_s=submit_s, predicted_s=float(predicted_s), spread=1.0
        )
        assert seq == self.last_seq + 1
        self.last_seq = seq
        self.jobs[seq] = Job(gpus, vc, submit_s, float(predicted_s))

    @precondition(lambda self: self.numbers(running=False))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.numbers(running=False)))
        job = self.jobs[seq]
        owner = data.draw(st.sampled_from([None, job.vc or None]))
        free = self.free(owner)
        if len(free) < job.gpus:
            return
        gpus = tuple(data.draw(st.permutations(free))[: job.gpus])
        self.state.check_start(seq, gpus)
        self.state.start(seq, gpus, self.now_s)
        job.held, job.start_s = gpus, self.now_s

    @precondition(lambda self: self.numbers(running=True))
    @rule(data=st.data(), again=st.booleans())
    def end(self, data: st.DataObject, again: bool) -> None:
        seq = data.draw(st.sampled_from(self.numbers(running=True)))
        self.end_attempt(seq)
        job = self.jobs[seq]
        if again:
            self.state.requeue(seq, self.now_s)
            job.held, job.start_s, job.attempt = (), math.nan, job.attempt + 1
        else:
            slot = self.state.slot_of(seq)
            self.state.release(seq, self.now_s)
            self.ended_gpu_s += float(self.state.arrays.job.attained_gpu_s[slot])
            del self.jobs[seq]

    @precondition(lambda self: self.numbers(running=False))
    @rule(data=st.data())
    def remove_waiting(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.numbers(running=False)))
        self.state.remove_waiting(seq)
        self.ended_gpu_s += sum(self.jobs[seq].attempts)
        del self.jobs[seq]

    @precondition(lambda self: self.numbers(running=False))
    @rule(data=st.data())
    def make_ineligible(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(self.numbers(running=False)), unique=True))
        self.state.make_ineligible(seqs)
        for seq in seqs:
            self.jobs[seq].eligible = False

    @precondition(lambda self: self.ineligible())
    @rule(data=st.data())
    def make_eligible(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(self.ineligible()), unique=True))
        self.state.make_eligible(seqs, self.now_s)
        for seq in seqs:
            self.jobs[seq].eligible = True

    @precondition(lambda self: self.ineligible())
    @rule(data=st.data())
    def remove_ineligible(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.ineligible()))
        self.refused(lambda: self.state.start(seq, [0], self.now_s), "not waiting")
        self.refused(lambda: self.state.make_ineligible([seq]), "only 0 of these 1 jobs are waiting")
        self.state.remove_waiting(seq)
        self.ended_gpu_s += sum(self.jobs[seq].attempts)
        del self.jobs[seq]

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), status=st.sampled_from([NODE_UP, NODE_DRAINED, NODE_DOWN]))
    def change_node(self, data: st.DataObject, status: int) -> None:
        n = data.draw(st.integers(0, len(self.nodes) - 1))
        gpus, vc, _ = self.nodes[n]
        self.nodes[n] = (gpus, vc, status)
        if status == NODE_DOWN:
            places = self.gpus()
            hit = sorted(seq for seq, job in self.jobs.items() if any(places[g][0] == n for g in job.held))
            assert self.state.fail_node(n) == hit
        elif status == NODE_DRAINED:
            self.state.drain_node(n)
        else:
            self.state.resume_node(n)

    @precondition(lambda self: len(self.nodes) < 6)
    @rule(gpus=st.integers(0, 5), vc=st.sampled_from([None, "a", "b"]))
    def add_node(self, gpus: int, vc: str | None) -> None:
        n = self.state.add_node(NodeSpec(name=f"n{len(self.nodes)}", gpus=gpus, vc=vc))
        assert n == len(self.nodes)
        self.nodes.append((gpus, vc, NODE_UP))

    # ---- illegal calls -------------------------------------------------------------------------

    @rule(gpus=st.integers(-2, 0))
    def refuse_a_job_without_gpus(self, gpus: int) -> None:
        self.refused(
            lambda: self.state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=1.0, spread=1.0), "1 GPU or"
        )

    @rule(
        bad=st.sampled_from([math.nan, math.inf, -1.0]),
        what=st.sampled_from(["predicted_s", "spread", "submit_s"]),
    )
    def refuse_a_job_without_prediction(self, bad: float, what: str) -> None:
        if bad < 0 and what != "predicted_s":
            return
        numbers = {"submit_s": 0.0, "predicted_s": 1.0, "spread": 1.0} | {what: bad}
        self.refused(lambda: self.state.add_job(num_gpus=1, vc="new", **numbers), "finite")
        assert "new" not in self.state.vc_names

    @precondition(lambda self: self.numbers(running=False))
    @rule(data=st.data())
    def refuse_an_incomplete_gang(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.numbers(running=False)))
        free, gpus = self.free(None), self.jobs[seq].gpus
        if len(free) <= gpus:
            return
        self.refused(lambda: self.state.start(seq, free[: gpus - 1], self.now_s), "different GPUs")
        self.refused(lambda: self.state.start(seq, free[: gpus + 1], self.now_s), "different GPUs")
        self.refused(lambda: self.state.check_start(seq, free[: gpus + 1]), "different GPUs")
        if gpus > 1:
            self.refused(lambda: self.state.start(seq, [free[0]] * gpus, self.now_s), "different GPUs")
        self.refused(
            lambda: self.state.start(seq, free[:gpus], self.now_s, share_milli=500), "thousandths of each GPU"
        )
        self.refused(lambda: self.state.start(seq, free[:gpus], self.now_s, sm_clock_frac=0.5), "SM clock")

    @precondition(lambda self: self.numbers(running=False))
    @rule(data=st.data())
    def refuse_unavailable_gpus(self, data: st.DataObject) -> None:
        """One wrong GPU among right ones: taken, unknown, on a node that is not up, of another partition."""
        seq = data.draw(st.sampled_from(self.numbers(running=False)))
        job, taken = self.jobs[seq], self.taken()
        good = self.free(None)[: job.gpus - 1]
        if len(good) < job.gpus - 1:
            return
        places = self.gpus()
        wrong = {-1: "no GPU", len(places): "no GPU", 10**9: "no GPU"}
        for g, (_, vc, status) in enumerate(places):
            if g in taken and g not in good:
                wrong[g] = "taken" if status == NODE_UP else "not up"
            elif status != NODE_UP:
                wrong[g] = "not up"
            elif vc is not None and good:
                wrong[g] = "one partition"
            elif vc not in (None, job.vc or None):
                wrong[g] = "does not serve"
        g = data.draw(st.sampled_from(sorted(wrong)))
        at = data.draw(st.integers(0, len(good)))
        self.refused(lambda: self.state.start(seq, [*good[:at], g, *good[at:]], self.now_s), wrong[g])

    @rule(
        seq=st.integers(-1, 60),
        call=st.sampled_from(["start", "release", "requeue", "remove_waiting", "gpus_of"]),
    )
    def refuse_unknown_jobs(self, seq: int, call: str) -> None:
        if seq in self.jobs:
            return
        extra = {"start": ([0], self.now_s), "release": (self.now_s,), "requeue": (self.now_s,)}.get(call, ())
        self.refused(lambda: getattr(self.state, call)(seq, *extra), "no live job")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def refuse_jobs_in_the_wrong_state(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.jobs)))
        if self.jobs[seq].held:
            self.refused(lambda: self.state.remove_waiting(seq), "not waiting")
            self.refused(lambda: self.state.start(seq, self.jobs[seq].held, self.now_s), "not waiting")
        else:
            self.refused(lambda: self.state.release(seq, self.now_s), "not running")
            self.refused(lambda: self.state.requeue(seq, self.now_s), "not running")

    @rule(beyond=st.integers(0, 3))
    def refuse_unknown_nodes(self, beyond: int) -> None:
        for n in (-1 - beyond, len(self.nodes) + beyond):
            self.refused(lambda n=n: self.state.fail_node(n), "no node number")
            self.refused(lambda n=n: self.state.drain_node(n), "no node number")
            self.refused(lambda n=n: self.state.resume_node(n), "no node number")
        if self.nodes:
            self.refused(lambda: self.state.add_node(NodeSpec(name="n0", gpus=1)), "already")

    # ---- invariants ---------------------------------------------------------------------

    @invariant()
    def gangs_are_whole_and_no_gpu_is_given_twice(self) -> None:
        owner: dict[int, int] = {}
        for seq, job in self.jobs.items():
            held = self.state.gpus_of(seq)
            assert sorted(held) == sorted(job.held)
            nodes = [self.gpus()[g][0] for g in held]
            assert len(set(nodes)) == 1 + sum(a != b for a, b in pairwise(nodes)) or not nodes, "by node"
            assert len(held) in (0, job.gpus)
            assert len({self.gpus()[g][1] for g in held}) <= 1
            for g in held:
                assert g not in owner
                owner[g] = seq
        arrays = self.state.arrays
        for g in range(self.state.num_gpus):
            tenants = [int(arrays.job.seq[slot]) for slot in arrays.gpu.tenant[g] if slot >= 0]
            assert tenants == ([owner[g]] if g in owner else [])
            assert arrays.gpu.free_milli[g] == (0 if g in owner else WHOLE_GPU_MILLI)
        for n, (gpus, _, status) in enumerate(self.nodes):
            first = sum(node[0] for node in self.nodes[:n])
            assert arrays.node.free[n] == sum(first + k not in owner for k in range(gpus))
            assert arrays.node.status[n] == status
            assert [self.state.gpu_location(first + k) for k in range(gpus)] == [(n, k) for k in range(gpus)]

    @invariant()
    def jobs_are_where_the_model_has_them(self) -> None:
        assert self.state.running() == sorted(self.numbers(running=True))
        owners = sorted({vc for _, vc, _ in self.nodes if vc is not None})
        shared = any(vc is None for _, vc, _ in self.nodes)
        assert self.state.partition_names == owners + ([SHARED_PARTITION] if shared else [])
        for p, name in enumerate(self.state.partition_names):
            serves_all = shared and p == len(owners)
            waiting = [seq for seq in self.numbers(running=False) if serves_all or self.jobs[seq].vc == name]
            assert self.state.waiting(p) == sorted(
                waiting, key=lambda seq: (self.jobs[seq].key(self.order), seq)
            )
        job = self.state.arrays.job
        for seq, known in self.jobs.items():
            slot = self.state.slot_of(seq)
            assert job.attempt[slot] == known.attempt
            assert job.gpus[slot] == known.gpus
            np.testing.assert_equal(float(job.start_s[slot]), known.start_s)

    @invariant()
    def gpu_seconds_are_conserved(self) -> None:
        """Only whole seconds, so sums are exact."""
        job = self.state.arrays.job
        attained = {seq: float(job.attained_gpu_s[self.state.slot_of(seq)]) for seq in self.jobs}
        assert attained == {seq: sum(known.attempts) for seq, known in self.jobs.items()}
        assert self.ended_gpu_s + sum(attained.values()) == self.served_gpu_s

    @invariant()
    def every_class_queue_is_a_heap_of_the_waiting_jobs_of_its_class(self) -> None:
        a = self.state.arrays
        for p in range(self.state.num_partitions):
            queue = self.state.queue(p).tolist()
            for c in range(a.demand.shape[0]):
                members = [slot for slot in queue if a.job.demand[slot] == c]
                root = int(a.derived.class_queue.root[p, c])
                assert root == (members[0] if members else -1)
                assert sorted(self.linked(root, p)) == sorted(members)
                if members:
                    fits = placement.class_fits(a, p, c)
                    assert fits == placement.fits(a, p, int(a.demand.gpus[c])), "no stale answer is kept"
                    assert a.derived.class_queue.least_s[p, c] <= a.job.predicted_s[members].min()

    @invariant()
    def the_first_that_fits_is_found_from_any_position(self) -> None:
        a = self.state.arrays
        for p in range(self.state.num_partitions):
            queue = self.state.queue(p).tolist()
            fit = [at for at, slot in enumerate(queue) if placement.fits_slot(a, p, slot)]
            for start in range(len(queue) + 1):
                wanted = next((at for at in fit if at >= start), -1)
                assert placement.first_fitting(a, p, start) == wanted

    @invariant()
    def every_class_has_its_running_jobs_linked(self) -> None:
        job, index = self.state.arrays.job, self.state.arrays.derived
        found: dict[tuple[int, int], set[int]] = {}
        for slot in index.slot.running[: index.running_len[0]].tolist():
            found.setdefault((int(job.placed_in[slot]), int(job.demand[slot])), set()).add(slot)
        for p, c in np.ndindex(index.class_queue.shape):
            linked, at, back = set[int](), int(index.class_queue.running[p, c]), -1
            while at >= 0:
                assert at not in linked
                assert index.slot.back_alike[at] == back
                linked.add(at)
                at, back = int(index.slot.next_alike[at]), at
            assert linked == found.get((p, c), set())

    def linked(self, root: int, p: int) -> list[int]:
        """All slots of a heap, by its links."""
        slot, job, found = self.state.arrays.derived.slot, self.state.arrays.job, []
        todo = [root] if root >= 0 else []
        while todo:
            at = todo.pop()
            found.append(at)
            side = 0 if job.own_partition[at] == p else 1
            todo += [int(x) for x in (slot.child[at, side], slot.next[at, side]) if x >= 0]
        return found

    @invariant()
    def index_equals_a_rebuild(self) -> None:
        kept = self.state.arrays
        fresh = copy.deepcopy(kept)
        for part in (
            fresh.derived.holes,
            fresh.derived.whole,
            fresh.derived.by_free,
            fresh.derived.by_whole,
            fresh.derived.queue,
        ):
            part[:] = 77
        for name in fresh.derived.part.dtype.names:
            fresh.derived.part[name] = 77
        kernels.rebuild_index(fresh)
        old, new = kept.derived, fresh.derived
        for name in ("open_gpus", "open_nodes", "free_gpus", "node_size", "queue_len"):
            np.testing.assert_array_equal(old.part[name], new.part[name])
        np.testing.assert_array_equal(old.holes, new.holes)
        np.testing.assert_array_equal(old.whole, new.whole)
        np.testing.assert_array_equal(old.by_free, new.by_free)
        np.testing.assert_array_equal(old.by_whole, new.by_whole)
        np.testing.assert_array_equal(old.class_queue.waiting, new.class_queue.waiting)
        np.testing.assert_array_equal(old.class_queue.node_size, new.class_queue.node_size)
        for p in range(self.state.num_partitions):
            length = old.part.queue_len[p]
            np.testing.assert_array_equal(old.queue[p, :length], new.queue[p, :length])
        waits = kept.job.status == WAITING
        np.testing.assert_array_equal(old.slot.key[waits], new.slot.key[waits])
        length = int(old.running_len[0])
        running = old.slot.running[:length]
        assert set(running.tolist()) == set(new.slot.running[:length].tolist())
        assert length == new.running_len[0] == len(set(running.tolist()))
        np.testing.assert_array_equal(old.slot.running_at[running], np.arange(length))
        empty = int((kept.job.status == SLOT_EMPTY).sum())
        for index in (old, new):
            assert set(index.slot.stack[:empty].tolist()) == set(
                np.flatnonzero(kept.job.status == SLOT_EMPTY).tolist()
            )
            assert sorted(index.slot.stack.tolist()) == list(range(len(kept.job)))
            np.testing.assert_array_equal(index.slot.stack[index.slot.stack_at], np.arange(len(kept.job)))


Ledger.TestCase.settings = settings(max_examples=times(30), stateful_step_count=40, deadline=None)
TestLedger = Ledger.TestCase


def filled(slots: int, order: tuple[int, ...]) -> ClusterState:
    """Five jobs, of which 1 runs and 3 has left; `order`: which of 0 and 2 leaves and comes back first."""
    state = ClusterState([NodeSpec(name="n0", gpus=4)], OrderedQueue(Order()), slots=slots)
    for k in range(5):
        state.add_job(num_gpus=1, submit_s=float(k), predicted_s=10.0, spread=1.0)
    for seq in order:
        state.start(seq, [seq], 5.0)
    state.start(1, [1], 6.0)
    for seq in order:
        state.requeue(seq, 8.0)
    state.remove_waiting(3)
    return state


def test_equal_states_have_equal_digests_for_any_slots() -> None:
    small, large = filled(2, (0, 2)), filled(64, (2, 0))
    assert small.arrays.job.shape != large.arrays.job.shape
    assert small.digest() == large.digest()
    small.grow()
    assert small.digest() == large.digest()
    assert small.running() == [1]
    assert small.waiting(0) == [0, 2, 4]
    assert small.gpus_of(1) == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.drain_node(0),
        lambda state: state.release(1, 9.0),
        lambda state: state.remove_waiting(0),
        lambda state: state.start(0, [0], 9.0),
        lambda state: state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0),
        lambda state: state.add_node(NodeSpec(name="n1", gpus=1)),
    ],
)
def test_digest_distinguishes_states(change: Callable[[ClusterState], object]) -> None:
    state = filled(8, (0, 2))
    before = state.digest()
    change(state)
    assert state.digest() != before


def test_gpus_are_chained_in_the_order_given() -> None:
    state = ClusterState([NodeSpec(name="n0", gpus=3)], OrderedQueue(Order()))
    seq = state.add_job(num_gpus=3, submit_s=0.0, predicted_s=1.0, spread=1.0)
    state.start(seq, (2, 0, 1), 0.0)
    assert state.gpus_of(seq) == [2, 0, 1]
    assert state.arrays.job.head[state.slot_of(seq)] == 2 * MAX_TENANTS
