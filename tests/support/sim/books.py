"""A run's work and energy counted again, slowly and in plain Python, from the holders of GPUs at all times.

`Watched` is an engine that records, for every span of time between two instants, the running jobs and their
places: from the ledger, which has its own tests. `recount` turns that into work and energy by the formulas of
docs/explanation/model.md, implemented here a second time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlsched.cluster.arrays import (
    MAX_TENANTS,
    NODE_ASLEEP,
    NODE_BOOTING,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    UNCOUNTED,
)
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.models.power import NodePower
from rlsched.models.sharing import pair_noise, share_deviate, with_noise
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import job_keys


class Holder(NamedTuple):
    """A running attempt: its row, its number, its GPUs in order, the clock that it requested and the clock
    that they have, and its cores with each."""

    row: int
    attempt: int
    gpus: tuple[int, ...]
    asked_clock: float
    clock: float
    cores_each: float
    host: int


class Span(NamedTuple):
    """Span between two instants: running attempts, and the status of every node."""

    since_s: float
    until_s: float
    holders: tuple[Holder, ...]
    status: tuple[int, ...]


class Watched(Engine):
    """An engine that records every span, and checks the ledger at the end of each instant.

    Attributes:
        spans: All spans so far.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.spans: list[Span] = []

    def advance(self) -> bool:
        """Advance to the next instant."""
        since_s, holders = self.now_s, self._holders()
        status = tuple(self.state.arrays.node.status.tolist())
        ledger_is_sound(self)
        moved = super().advance()
        if moved:
            self.spans.append(Span(since_s, self.now_s, holders, status))
        return moved

    def _holders(self) -> tuple[Holder, ...]:
        job, rows = self.state.arrays.job, self.arrays.progress.ends.row
        return tuple(
            Holder(
                int(rows[slot]),
                int(job.attempt[slot]),
                tuple(self.state.gpus_of(int(job.seq[slot]))),
                float(job.sm_clock_frac[slot]),
                self._clock(int(job.head[slot])),
                float(job.cpu_milli_each[slot]) / 1000,
                int(job.host[slot]),
            )
            for slot in np.flatnonzero(job.status == RUNNING).tolist()
        )

    def _clock(self, head: int) -> float:
        return float(self.state.arrays.gpu.clock_frac[head // MAX_TENANTS]) if head >= 0 else 1.0


def clocks_are_kept(engine: Watched) -> int:
    """No job runs below its requested clock, and no clock falls within 10 s of its last change.

    Returns how often a clock stayed higher than all of its jobs requested.
    """
    known: dict[tuple[int, ...], tuple[set[tuple[int, int]], float, float]] = {}
    higher = 0
    for span in engine.spans:
        groups: dict[tuple[int, ...], list[Holder]] = defaultdict(list)
        for holder in span.holders:
            if holder.gpus and span.until_s > span.since_s:
                groups[tuple(sorted(holder.gpus))].append(holder)
        now = {}
        for gpus, members in groups.items():
            names, (clock,) = {one[:2] for one in members}, {one.clock for one in members}
            asked = max(one.asked_clock for one in members)
            assert clock >= asked
            there, before, since_s = known.get(gpus, (set(), clock, span.since_s))
            stayed = bool(names & there)
            assert not (stayed and clock < before) or span.since_s >= since_s + 10.0
            higher += clock > asked
            changed_s = since_s if stayed and clock == before else span.since_s
            if gpus in known and not stayed:  # one after another, or together for a moment
                changed_s = -math.inf
            now[gpus] = names, clock, changed_s
        known = {**known, **now} if span.until_s == span.since_s else now
    return higher


def ledger_is_sound(engine: Engine) -> None:
    """Shares fill every GPU, no core is lost or added, and counters of allocated resources are right."""
    a = engine.state.arrays
    held = np.zeros(len(a.gpu), np.int64)
    cores = np.zeros(len(a.node), np.int64)
    memory = np.zeros(len(a.node), np.int64)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for slot in np.flatnonzero(a.job.status == RUNNING).tolist():
        gpus = engine.state.gpus_of(int(a.job.seq[slot]))
        assert len(gpus) == a.job.gpus[slot]
        nodes = a.gpu.node[gpus].tolist() or [int(a.job.host[slot])]
        assert nodes[0] == a.job.host[slot]
        for n in nodes:
            cores[n] += a.job.cpu_milli_each[slot]
            memory[n] += a.demand.memory_mib_each[a.job.demand[slot]]
        held[gpus] += a.job.share_milli[slot]
        groups[tuple(gpus)].append(slot)
    np.testing.assert_array_equal(a.gpu.free_milli + held, WHOLE_GPU_MILLI)
    assert (a.gpu.free_milli >= 0).all()
    counted = a.node.cpu_milli < UNCOUNTED
    np.testing.assert_array_equal((a.node.cpu_free_milli + cores)[counted], a.node.cpu_milli[counted])
    assert (a.node.cpu_free_milli >= 0).all()
    counted = a.node.memory_mib < UNCOUNTED
    np.testing.assert_array_equal((a.node.memory_free_mib + memory)[counted], a.node.memory_mib[counted])
    assert (a.node.memory_free_mib >= 0).all()
    for n in range(len(a.node)):
        first = int(a.node.first_gpu[n])
        mine = a.gpu.free_milli[first : first + int(a.node.gpus[n])]
        assert a.node.free[n] == (mine == WHOLE_GPU_MILLI).sum()
    for slots in groups.values():
        whole = [k for k in slots if a.demand.share_milli[a.job.demand[k]] == WHOLE_GPU_MILLI]
        if whole and a.job.gpus[whole[0]]:
            assert whole == slots
            shares = a.job.share_milli[slots]
            assert shares.sum() == WHOLE_GPU_MILLI
            assert shares.max() - shares.min() <= 1
    assert int(held.sum()) == engine.arrays.progress.run[0].allocated_milli
    assert np.count_nonzero(a.job.status != SLOT_EMPTY) == a.counters[0].live_jobs
    places = [(g, k) for g in range(len(a.gpu)) for k in range(MAX_TENANTS) if a.gpu.tenant[g, k] >= 0]
    assert len(places) == sum(int(a.job.gpus[k]) for slots in groups.values() for k in slots)


@dataclass
class Books:
    """Totals of a run; energies in J, work in s by (row, attempt)."""

    work_s: dict[tuple[int, int], float] = field(default_factory=lambda: defaultdict(float))
    job_j: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    idle_j: float = 0.0
    cluster_j: float = 0.0
    slowest: float = math.inf
    fastest: float = 0.0


def recount(engine: Watched, *, noise: bool, power: NodePower | None = None) -> Books:
    """Work and energy of a run, summed over its spans."""
    count, books = _Count(engine, noise, power or NodePower()), Books()
    for span in engine.spans:
        seconds = span.until_s - span.since_s
        if seconds > 0:
            count.add(books, span, seconds)
    return books


class _Count:
    def __init__(self, engine: Watched, noise: bool, power: NodePower) -> None:
        self.state, self.truth, self.noise = engine.state, engine.arrays.truth, noise
        self.m, self.luck = engine.state.arrays.models, int(engine.arrays.progress.books[0].luck)
        self.keys = job_keys(engine.trace.select(engine._rows))
        self.nodes = engine.spec.expand()
        self.node_of = engine.state.arrays.gpu.node.tolist()
        self.kind_of_node = engine.state.arrays.node.kind.tolist()
        self.power = power
        self.core_w = self.power.cpu_active_w_per_core - self.power.cpu_idle_w_per_core

    def kind(self, g: int) -> int:
        return int(self.kind_of_node[self.node_of[g]])

    def trait(self, holder: Holder, kind: int) -> Any:
        return self.m.trait[int(self.truth.workload[holder.row]), kind]

    def asked_each(self, holder: Holder) -> float:
        return self.state.demands[int(self.truth.demand[holder.row])].cpu_milli_each / 1000

    def add(self, books: Books, span: Span, seconds: float) -> None:
        groups: dict[tuple[int, ...], list[Holder]] = defaultdict(list)
        watts: dict[int, float] = defaultdict(float)
        total_w = 0.0
        for holder in span.holders:
            if holder.gpus:
                groups[tuple(sorted(holder.gpus))].append(holder)
            else:
                watts[holder.row] = self.core_w * holder.cores_each
                total_w += watts[holder.row]
                books.work_s[holder.row, holder.attempt] += seconds
        for members in groups.values():
            clock = members[0].clock
            rates = [self.rate(one, members, clock) for one in members]
            for one, rate in zip(members, rates, strict=True):
                books.work_s[one.row, one.attempt] += seconds * rate
                books.slowest, books.fastest = min(books.slowest, rate), max(books.fastest, rate)
            total_w += self.group_w(members, rates, clock, watts)
        used = {g for gpus in groups for g in gpus}
        idle_w = 0.0
        for n, node in enumerate(self.nodes):
            if span.status[n] in (NODE_UP, NODE_DRAINED):
                idle_w += self.power.idle_w(node.cpus, node.devices, 0.0) + self.uncut_w(n)
            elif span.status[n] == NODE_ASLEEP:
                idle_w += self.power.asleep_w
            elif span.status[n] == NODE_BOOTING:
                idle_w += self.power.booting_w(node.cpus, node.devices, self.whole_idle_w(n))
        for g, n in enumerate(self.node_of):
            if g not in used and span.status[n] in (NODE_UP, NODE_DRAINED):
                idle_w += float(self.m.gpu.idle_w[self.kind(g)])
        for row, mine_w in watts.items():
            books.job_j[row] += seconds * mine_w
        books.idle_j += seconds * idle_w
        books.cluster_j += seconds * (total_w + idle_w)

    def whole_idle_w(self, n: int) -> float:
        """Idle power of each GPU in a node, cut or not."""
        slice_w = float(self.m.gpu.idle_w[self.kind_of_node[n]])
        return slice_w * 8 / self.memory_slices(n) if self.nodes[n].slices else slice_w

    def uncut_w(self, n: int) -> float:
        """Idle power of the part of its GPUs that the slices of a node leave."""
        node = self.nodes[n]
        if not node.slices:
            return 0.0
        return node.devices * self.whole_idle_w(n) * (1 - node.slices * self.memory_slices(n) / 8)

    def memory_slices(self, n: int) -> int:
        """Eighths of a GPU's memory that one slice of a node has."""
        profile = self.nodes[n].gpu_type.split("/")[1]
        return {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}[profile.split(".")[0]]

    # ---- speed ------------------------------------------------------------------------------------

    def rate(self, one: Holder, members: list[Holder], clock: float) -> float:
        """Rate of the slowest of its GPUs, or of its cores."""
        shared = self.shared(one, [other for other in members if other is not one])
        nodes = len({self.node_of[g] for g in one.gpus})
        rate = math.inf
        for kind in {self.kind(g) for g in one.gpus}:
            allowed = shared / self.slower(one, kind, clock) / (1 + self.spread(one, kind, nodes))
            fed = self.feed(one, kind, self.given(one, members, kind))
            rate = min(rate, min(allowed, fed) * self.at_full_use(one, kind))
        return rate

    def at_full_use(self, one: Holder, kind: int) -> float:
        """Rate on GPUs of this type, fully used. It is 1 on the reference type with the requested cores."""
        reference = int(self.truth.reference_kind[one.row])
        reference = kind if reference < 0 else reference
        faster = self.trait(one, kind).speed / self.trait(one, reference).speed
        return float(faster / self.feed(one, reference, self.asked_each(one)))

    def slower(self, one: Holder, kind: int, clock: float) -> float:
        rho = float(self.trait(one, kind).clock_bound)
        return float(((rho / clock) ** 5 + 1 - rho**5) ** 0.2)

    def spread(self, one: Holder, kind: int, nodes: int) -> float:
        demand = self.state.demands[int(self.truth.demand[one.row])]
        p = int(self.state.arrays.node.part_of[one.host])
        own = [node for n, node in enumerate(self.nodes) if self.state.arrays.node.part_of[n] == p]
        fewest = -(-len(one.gpus) // max(demand.places_on_node(node) for node in own))
        return float(self.trait(one, kind).node_penalty) * math.log2(max(nodes / fewest, 1))

    def given(self, one: Holder, members: list[Holder], kind: int) -> float:
        """Its cores: a joint group divides them among all members, by need."""
        if self.state.demands[int(self.truth.demand[one.row])].share_milli < WHOLE_GPU_MILLI:
            return one.cores_each
        if len(members) == 1:
            return one.cores_each
        needs = {other: float(self.trait(other, kind).cores_each) for other in members}
        return needs[one] * min(1.0, sum(other.cores_each for other in members) / sum(needs.values()))

    def feed(self, one: Holder, kind: int, cores_each: float) -> float:
        if self.asked_each(one) == 0 or cores_each == 0:
            return 1.0
        return float(min(1.0, (cores_each / self.trait(one, kind).cores_each) ** 0.83))

    def shared(self, one: Holder, others: list[Holder]) -> float:
        """Table, latent factors, formula; unknown workloads scatter."""
        if not others:
            return 1.0
        kind = self.kind(one.gpus[0])
        mine, slowdown, known, strange = self.trait(one, kind), 0.0, 0.0, 0.0
        deviates = []
        for other in others:
            theirs = self.trait(other, kind)
            speed = self.measured(one, other, kind)
            if math.isnan(speed):
                deviates.append(self.deviate(one, other, kind))
            elif len(others) == 1:
                return speed
            factors = float(mine.sensitivity * theirs.pressure)
            if not math.isnan(speed) or not math.isnan(factors):
                slowdown += factors if math.isnan(speed) else 1 / speed - 1
                known += float(theirs.util_frac)
            else:
                strange += float(theirs.util_frac)
        if strange:
            slowdown += self.stranger(float(mine.util_frac), known + strange)
            slowdown -= self.stranger(float(mine.util_frac), known)
        speed = 1 / (1 + max(slowdown, 0.0))
        if self.noise and deviates:
            return float(with_noise(speed, sum(deviates) / math.sqrt(len(deviates))))
        return speed

    def deviate(self, one: Holder, other: Holder, kind: int) -> float:
        a, b = int(self.truth.workload[one.row]), int(self.truth.workload[other.row])
        of_jobs = float(pair_noise(self.keys[one.row], self.keys[other.row]))
        return float(share_deviate(np.uint64(self.luck), kind, a, b, of_jobs))

    def measured(self, one: Holder, other: Holder, kind: int) -> float:
        a, b = int(self.truth.workload[one.row]), int(self.truth.workload[other.row])
        return float(self.m.pair[kind, a, b])

    @staticmethod
    def stranger(u: float, v: float) -> float:
        def soft(y: float) -> float:
            return math.log(1 + math.exp(2.80 * y)) / 2.80

        return 1.194 * (soft(u + v - 1.487) - soft(u - 1.487)) + 0.0187 * v

    # ---- power ------------------------------------------------------------------------------------

    def group_w(
        self, members: list[Holder], rates: list[float], clock: float, watts: dict[int, float]
    ) -> float:
        """Power of the GPUs of a group and of its busy cores; each member's part is added to `watts`."""
        total_w, first = 0.0, self.kind(members[0].gpus[0])
        for one, rate in zip(members, rates, strict=True):
            asked = self.asked_each(one)
            if asked:
                use = min(rate / self.at_full_use(one, first), 1)
                full = float(self.trait(one, first).cores_each) * use
                busy = min(self.given(one, members, first), full)
                watts[one.row] += self.core_w * len(one.gpus) * busy
                total_w += self.core_w * len(one.gpus) * busy
        for g in members[0].gpus:
            kind = self.kind(g)
            gpu = self.m.gpu[kind]
            own = [self.dynamic_w(one, kind, clock, rate) for one, rate in zip(members, rates, strict=True)]
            drawn = max(float(gpu.idle_w), min(float(gpu.static_w) + sum(own), float(gpu.tdp_w)))
            total_w += drawn
            cut = min(1.0, (float(gpu.tdp_w) - float(gpu.static_w)) / sum(own))
            for one, mine in zip(members, own, strict=True):
                watts[one.row] += cut * mine + (drawn - cut * sum(own)) / len(own)
        return total_w

    def dynamic_w(self, one: Holder, kind: int, clock: float, rate: float) -> float:
        gpu, trait = self.m.gpu[kind], self.trait(one, kind)
        v = 1 + float(gpu.voltage_slope) * (max(clock, float(gpu.knee_frac)) - 1)
        theta = float(gpu.theta)
        work = theta / self.slower(one, kind, clock) + (1 - theta) * clock
        busy = min(rate / self.at_full_use(one, kind) * self.slower(one, kind, clock), 1.0)
        return float(trait.dynamic_w) * work * v * v * busy
