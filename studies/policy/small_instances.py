"""Small instances on two GPU types: speed and power of their jobs, and the engine that plays them.

A few jobs of one or two GPUs come at once, or within ten minutes, to a node of V100s and one of A100s, two
GPUs each. Run times are known, models have no noise. Speeds and power are tables of the engine's own kernels,
by job, GPU type, SM clock and the set of jobs that share the GPUs. The engine plays the result of a
search.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.speed import added_power_w, gpu_rate, type_speed
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.order.keys import Order
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.models.arrays import NUM_LEVELS
from rlsched.models.catalogue import load_catalogue
from rlsched.models.clocks import job_part_w
from rlsched.models.memory import fits_memory
from rlsched.models.sharing import shared_speed
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

SPEC: Final = ClusterSpec(
    name="small", nodes=tuple(NodeGroup(count=1, gpus=2, gpu_type=kind) for kind in ("V100", "A100"))
)
PLACES: Final = ((0,), (1,), (0, 1), (2,), (3,), (2, 3))
"""Possible GPUs of a job; the first three entries are V100s. Jobs that share have the same GPUs."""
TENANTS: Final = 4
"""Maximum number of jobs on a GPU."""


class Instance(NamedTuple):
    """One instance.

    Attributes:
        trace: J jobs; `restart_s` is the restart cost of each after a preemption.
        energy_weight: Weight of energy against time.
        preempts: Whether jobs may be preempted.
    """

    trace: Trace
    energy_weight: float
    preempts: bool

    @property
    def models(self) -> Models:
        """Configuration of its runs."""
        return Models(noise=False, learning=False, energy_weight=self.energy_weight)


class Tables(NamedTuple):
    """Tables for a search.

    Attributes:
        jobs: (J, 4) submission, run time, GPUs, restart cost.
        rate: (2, C, J, 2^J) by GPU type, clock, job, and the jobs on the same GPUs, itself among them; 0
            if they may not share.
        watts: Power draw, with the same axes.
        clock: (2, C) SM clocks, of the maximum.
        switch_s: (2,) cost of a change of the clock for running jobs.
        time_price: Price of a second of a job's time in the system.
        energy_price: Price of a joule: cost is 1 if every job runs at once, unshared, at full clock.
    """

    jobs: NDArray[np.float64]
    rate: NDArray[np.float64]
    watts: NDArray[np.float64]
    clock: NDArray[np.float64]
    switch_s: NDArray[np.float64]
    time_price: float
    energy_price: float


class Step(NamedTuple):
    """A step of a search: at `at_s` a job starts on the GPUs `PLACES[place]` at a clock.

    With place -1, the job is preempted instead.
    """

    at_s: float
    job: int
    place: int
    clock: int


def instance(
    jobs: int,
    rng: np.random.Generator,
    *,
    energy_weight: float = 0.0,
    preempts: bool = False,
    within_s: float = 600.0,
) -> Instance:
    """Draw an instance with jobs that arrive within `within_s` seconds."""
    names = load_catalogue().names
    submit_s = np.sort(np.round(rng.uniform(0.0, within_s, jobs)))
    trace = Trace.from_columns(
        name="small",
        submit_s=submit_s - submit_s[0],
        duration_s=np.round(np.exp(rng.normal(7.0, 1.0, jobs))) + 1.0,
        num_gpus=rng.integers(1, 3, jobs),
        extra={
            "workload": [names[int(rng.integers(1, len(names)))] for _ in range(jobs)],
            "restart_s": np.round(rng.uniform(10.0, 90.0, jobs)),
        },
    )
    return Instance(trace, energy_weight, preempts)


def engine_of(one: Instance, order: Order, *, at_once: bool = False) -> Engine:
    """The run of an instance before its first event; `at_once`: all jobs come at its beginning."""
    trace = one.trace
    if at_once:
        trace = replace(trace, submit_s=np.zeros(len(trace)))
    known = PredictedTimes(np.maximum(trace.duration_s, 1.0), np.full(len(trace), 0.1))
    return Engine(trace, SPEC, order=order, predictions=known, models=one.models)


def tables_of(one: Instance) -> Tables:
    """Speeds and power of an instance, by the engine's kernels."""
    engine = engine_of(one, Order(), at_once=True)
    engine.advance()
    state, count = engine.state, len(one.trace)
    s, demand = state.arrays, one.trace
    rate_of, type_of, added = (for_state(each, state) for each in (gpu_rate, type_speed, added_power_w))
    slots = [state.slot_of(seq) for seq in sorted(state.waiting(0))]
    rate = np.zeros((2, NUM_LEVELS, count, 1 << count))
    watts, gpu = np.zeros_like(rate), s.models.gpu
    kinds = [int(s.node.kind[n]) for n in range(2)]
    for node, kind in enumerate(kinds):
        for members in _groups(s, slots, demand.num_gpus, kind):
            mask = sum(1 << k for k in members)
            for level in range(NUM_LEVELS):
                clock, own_w = float(gpu.levels_frac[kind, level]), []
                for k in members:
                    others = np.array([s.job.workload[slots[i]] for i in members if i != k], np.int64)
                    shared = shared_speed(s.models, kind, int(s.job.workload[slots[k]]), others, len(others))
                    speed = rate_of(s, slots[k], kind, clock, shared, 1, 1) * type_of(s, slots[k], kind)
                    rate[node, level, k, mask] = speed
                    own_w.append(added(s, slots[k], kind, clock, speed))
                for k, own in zip(members, own_w, strict=True):
                    part_w = job_part_w(gpu, kind, len(members), sum(own_w), own)
                    watts[node, level, k, mask] = part_w * demand.num_gpus[k]
    alone = [1 << k for k in range(count)]
    own_j = demand.duration_s * [watts[0, 0, k, m] / rate[0, 0, k, m] for k, m in enumerate(alone)]
    jobs = np.stack([demand.submit_s, demand.duration_s, demand.num_gpus, demand.extra["restart_s"]], axis=1)
    return Tables(
        jobs.astype(np.float64),
        rate,
        watts,
        np.array([gpu.levels_frac[kind] for kind in kinds]),
        np.array([gpu.switch_s[kind] for kind in kinds]),
        (1.0 - one.energy_weight) / float(demand.duration_s.sum()),
        one.energy_weight / float(own_j.sum()),
    )


def _groups(s: StateArrays, slots: list[int], gpus: NDArray[np.int64], kind: int) -> list[tuple[int, ...]]:
    """Sets of jobs that may share GPUs of a type: of the same size, and their memory fits."""
    found, trait = list[tuple[int, ...]](), s.models.trait
    for size in range(1, TENANTS + 1):
        for members in combinations(range(len(slots)), size):
            mib = [float(trait.memory_mib[s.job.workload[slots[k]], kind]) for k in members]
            alike = len({int(gpus[k]) for k in members}) == 1
            fits = fits_memory(float(s.models.gpu.memory_mib[kind]), sum(mib[1:]), size - 1, mib[0])
            if size == 1 or (alike and fits):
                found.append(members)
    return found


def cost(tables: Tables, table: JobTable) -> float:
    """Return the cost of a run: its time and energy at the prices of the tables."""
    assert table.energy is not None
    time_s = float((table.end_s - table.trace.submit_s).sum())
    return tables.time_price * time_s + tables.energy_price * float(table.energy.job_j.sum())


class Scripted(Scheduler):
    """Scheduler that makes only the decisions of a search."""

    name = policy_id = "scripted"
    order = Order()
    abilities = Abilities(preempts=True, shares=True, needs_models=True)

    def __init__(self, steps: list[Step], tables: Tables) -> None:
        self._steps, self._tables = list(steps), tables

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        """Return the next step if it is due now."""
        action: Action = Wait()
        if self._steps and self._steps[0].at_s <= now_s + 1e-6 * max(now_s, 1.0):
            action = self._action(state, self._steps.pop(0))
        return Decision(action=action, source="rule")

    def _action(self, state: ClusterState, step: Step) -> Action:
        if step.place < 0:
            return Preempt(seq=step.job)
        gpus = PLACES[step.place]
        beside = [seq for seq in state.running() if tuple(state.gpus_of(seq)) == gpus]
        clock = float(self._tables.clock[step.place // 3, step.clock])
        return Start(seq=step.job, gpus=gpus, sm_clock_frac=clock, share_with=beside[0] if beside else -1)


def played(one: Instance, steps: list[Step], tables: Tables) -> float:
    """Cost of a sequence of steps, by the engine."""
    scheduler = Scripted(steps, tables)
    return cost(tables, engine_of(one, scheduler.order).run(scheduler))
