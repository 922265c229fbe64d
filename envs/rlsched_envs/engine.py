"""Replay of a trace on a cluster: one engine, driven by a compiled rule or by any `Scheduler`.

Jobs that run once, from a start to an end that is known then, take `simulation` alone. Where something can
interrupt a job or keep it from the queue, the run has `lives` (`rlsched_envs.life`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import RUNNING, Records, records
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.spec import ClusterSpec, whole_type
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, SetClock, Start, Wait
from rlsched.decide.candidates import next_hold_end_s
from rlsched.decide.index_walk import IndexRule
from rlsched.decide.loop import decide_all
from rlsched.decide.orders import Order
from rlsched.decide.quota_walk import PreemptiveRule
from rlsched.decide.record import DecisionRecord
from rlsched.decide.repack import repack_code
from rlsched.decide.rules import Rule
from rlsched.decide.scheduler import Information, Scheduler, may_preempt, revises_predictions
from rlsched.errors import InputError
from rlsched.workload.distinct import distinct_rows
from rlsched.workload.load import trace_demands
from rlsched.workload.predict import causal_predictions, own_spread
from rlsched.workload.relations import flags
from rlsched.workload.trace import Trace
from rlsched_envs import able_loop, life, room_loop
from rlsched_envs import simulation as sim
from rlsched_envs.index_loop import run_index
from rlsched_envs.job_table import JobTable
from rlsched_envs.life_arrays import (
    ENDED,
    NEED_ROOM,
    NEXT_NODE_EVENT,
    PREEMPTED,
    REVIEW_DUE,
    TIMEOUT,
    UNDECIDED,
    LifeArrays,
    grown_life,
)
from rlsched_envs.lives import LifeRules, has_lives, new_life, segments_of
from rlsched_envs.modelling import (
    Energy,
    Models,
    fair_cores_milli,
    open_books,
    reference_kinds,
    restart_costs_s,
    set_watts,
    with_fair_cores,
)
from rlsched_envs.physics import ENERGY_J, IDLE_J, settle
from rlsched_envs.placements import Placements
from rlsched_envs.sleeping import SleepingNodes
from rlsched_envs.slices import fit_slices
from rlsched_envs.walk_loop import run_walk

_ROWS_BETWEEN_LOOKS = 256
"""Arrivals between two looks at whether a run may stop, the same for rules and schedulers."""
_REFERENCE = Rule(name="fifo-backfill", order="submit", blocks=False)


@runtime_checkable
class Foreseeing(Protocol):
    """A scheduler that is shown the run before it begins: a bound, which knows what comes."""

    def foresee(self, engine: Engine) -> None:
        """The run that it will decide in.

        Raises:
            InputError: it cannot foresee such a run.
        """


class Predictions(NamedTuple):
    """What each job was stamped with at its arrival."""

    predicted_s: NDArray[np.float64]  # (J,)
    spread: NDArray[np.float64]  # (J,)


def predict_trace(
    trace: Trace,
    spec: ClusterSpec,
    information: Information = "causal",
    *,
    recorded_until_s: float = -math.inf,
) -> Predictions:
    """The stamps that every policy under comparison gets.

    `oracle`: the true run times. `causal`: the trace's own predictions where it has them, elsewhere a
    running mean over the jobs that had ended by then in one reference history: the trace run by
    `fifo-backfill` on this cluster. A prediction that comes without a spread gets the spread of the trace's
    own predictions so far.

    Args:
        trace: J jobs.
        spec: The cluster.
        information: Which of the two.
        recorded_until_s: In the history, jobs submitted before this ended as the trace recorded them
            (submission + recorded queueing delay, 0 where unknown, + duration), and `fifo-backfill` runs the
            others alone: a cluster that is scaled for a window would be overloaded, or idle, before it.
    """
    if information == "oracle":
        return Predictions(run_time_s(trace), np.zeros(len(trace)))
    known = np.isfinite(trace.predicted_s)
    spread_known = known & np.isfinite(trace.predicted_spread)
    predicted_s, spread = np.fmin(trace.predicted_s, trace.time_limit_s), trace.predicted_spread.copy()
    if not spread_known.all():
        end_s = reference_end_s(trace, spec, recorded_until_s)
        if not known.all():
            mean_s, mean_spread = causal_predictions(trace, end_s)
            predicted_s, spread = np.where(known, predicted_s, mean_s), np.where(known, spread, mean_spread)
        if (known & ~spread_known).any():
            spread = np.where(known & ~spread_known, own_spread(trace, end_s), spread)
    return Predictions(predicted_s, spread)


def reference_end_s(
    trace: Trace, spec: ClusterSpec, recorded_until_s: float = -math.inf
) -> NDArray[np.float64]:
    """(J,) when each job ended in the reference history, nan where it never did.

    The trace is run by `fifo-backfill`; jobs submitted before `recorded_until_s` ended as recorded.
    """
    start = int(np.searchsorted(trace.submit_s, recorded_until_s))
    run = trace.select(slice(start, None))
    truth = predict_trace(run, spec, "oracle")
    history = Engine(run, spec, order=_REFERENCE.order, predictions=truth, keep_placements=False)
    recorded_s = np.nan_to_num(np.asarray(trace.extra.get("queue_s", np.zeros(len(trace))), np.float64))
    end_s = trace.submit_s + recorded_s + trace.duration_s
    end_s[start:] = history.run_rule(_REFERENCE).end_s
    return end_s


class Engine:
    """One run of a trace on a cluster.

    Args:
        trace: The jobs.
        spec: The cluster.
        order: The queue order to keep (a scheduler's `order`).
        predictions: The stamps; `predict_trace` by default.
        information: Which stamps to make when none are given.
        fixed_end_s: (J,) ends as recorded online; nan: start + duration.
        keep_placements: Whether to remember every job's GPUs.
        placement: The placement rule (`rlsched.cluster.choose`).
        rules: Restart costs, retries and node events.
        models: How fast jobs run and what they draw; None: as the trace says, and energy is not known.

    Attributes:
        trace, spec: As given.
        state: The cluster.
        arrays: Where the run stands.
        life: The lives of its jobs; None where every job runs once.
    """

    def __init__(
        self,
        trace: Trace,
        spec: ClusterSpec,
        *,
        order: Order = "predicted_gpu_time",
        predictions: Predictions | None = None,
        information: Information = "causal",
        fixed_end_s: NDArray[np.float64] | None = None,
        keep_placements: bool = True,
        placement: str = "consolidate",
        rules: LifeRules | None = None,
        models: Models | None = None,
    ) -> None:
        if models is not None and fixed_end_s is not None:
            raise ValueError("ends as recorded and models of speed exclude each other")
        self.trace, self.spec = trace, spec
        self._rules, self._keep_placements = rules or LifeRules(), keep_placements
        stamps = predict_trace(trace, spec, information) if predictions is None else predictions
        fitted, self._runnable = fit_slices(trace, spec, models)
        self._rows = np.flatnonzero(self._runnable.mask)
        slots = min(1024, max(16, len(self._rows)))
        self.state = ClusterState.from_spec(spec, order=order, slots=slots, placement=placement)
        fair_milli = fair_cores_milli(spec) if models else 0
        truth = truth_records(fitted, self._rows, stamps, self.state, fixed_end_s, fair_milli)
        progress = sim.new_progress(
            self.state.arrays.job.shape[0], truth, self.state.num_gpus, keep_placements=keep_placements
        )
        self.arrays = sim.SimArrays(self.state.arrays, truth, progress)
        self.life: LifeArrays | None = None
        self._models = models
        if models is not None:
            self._use(models)
        if models is not None or has_lives(trace, self._rules):
            self._give_lives()
        self._sleeping: SleepingNodes | None = None
        if models is not None and models.power_down is not None:
            if self._rules.node_events:
                raise InputError(
                    "nodes that sleep and nodes that fail cannot be simulated in one run: leave out the node "
                    "events, or the power-down rule"
                )
            self._sleeping = SleepingNodes(self.state, spec, models.power_down, models.power, self.now_s)
            self.arrays.progress.clock[sim.REVIEW] = self._sleeping.next_s

    def _use(self, models: Models) -> None:
        """Jobs run and draw as models say."""
        catalogue, truth = models.catalogue(), self.arrays.truth
        for group in self.spec.nodes:
            if group.slices:
                self.state.know_kind(whole_type(group.gpu_type))
        self.state.use_models(models.arrays(catalogue, self.state.kind_names))
        self.state.weigh_energy(models.energy_weight)
        truth.workload = catalogue.draw(self.trace, models.seed)[self._rows]
        demands, which = trace_demands(self.trace)
        reference = reference_kinds(demands, self.spec, self.state.kind_names)
        truth.reference_kind = reference[which[self._rows]]
        set_watts(self.state, self.spec, models.power)
        self.arrays = self.arrays._replace(state=self.state.arrays)
        open_books(self.arrays, self.trace, self._rows, models)

    def _give_lives(self) -> None:
        """From now on attempts are written down one by one; nothing has happened yet."""
        models = self._models
        self.life = new_life(
            self.trace,
            self._rows,
            self._rules,
            keep_placements=self._keep_placements,
            checkpoint_s=restart_costs_s(self.arrays) if models else None,
            fault_frac=models.spreading_frac if models else 0.0,
        )
        progress = self.arrays.progress
        self.arrays = self.arrays._replace(
            progress=progress._replace(placed_gpu=np.zeros(0, np.int32))  # segments have them
        )

    @property
    def now_s(self) -> float:
        """The current instant."""
        return float(self.arrays.progress.clock[sim.NOW])

    def run_rule(self, rule: Rule, *, until_started: NDArray[np.bool_] | None = None) -> JobTable:
        """Run a compiled rule to the end of the trace. The engine must keep the rule's order.

        Args:
            rule: The rule.
            until_started: (J,) stop soon after these jobs have started, since their ends follow from that; or
                after they have ended, where jobs can be interrupted.
        """
        if rule.order != self.state.order:
            raise ValueError(f"rule {rule.name} orders by {rule.order}, this engine by {self.state.order}")
        walks = isinstance(rule, PreemptiveRule | IndexRule)
        self._check_abilities(rule)
        if walks and self.life is None:
            self._give_lives()
        self._charge_profiler(rule)
        self.state.revise_predictions(rule.revises)
        self.state.sort_queue(walks or rule.kind != "plain" or rule.abilities.needed)
        stop = self._stop(until_started)
        while (moved := self._run_rule(rule, stop.next_look_row)) != sim.FINISHED:
            if moved == sim.NEED_SLOTS:
                self._grow()
            elif moved == NEED_ROOM:
                self._grow_life()
            elif moved == REVIEW_DUE:
                self._review()
            elif stop.now():
                break
        decisions = int(self.arrays.progress.tally[sim.STARTS])
        if self.life is not None:
            decisions += int((self.life.segments.reason == PREEMPTED).sum())
        return self._table(decisions, np.empty(0), {"rule": decisions})

    def _charge_profiler(self, rule: Rule) -> None:
        """What a rule's profiler costs each job; only runs with models know rules that profile."""
        if self.life is not None:
            profiled = self.arrays.truth.gpus <= rule.profile_max_gpus
            self.life.jobs.profile_s[:] = np.where(profiled, rule.profile_s, 0.0)

    def _check_abilities(self, rule: Rule) -> None:
        if rule.abilities.needed and not self.state.arrays.config[0].modelled:
            raise ValueError(f"rule {rule.name} shares GPUs or sets clocks: this engine has no models")

    def _run_rule(self, rule: Rule, until_row: int) -> int:
        if self.life is None:
            run = sim.run_rule if rule.kind == "plain" else room_loop.run_rule
            return int(run(self.arrays, rule.code, until_row))
        if isinstance(rule, IndexRule):
            can = rule.abilities.code
            repack = repack_code(rule.repack)
            return int(
                run_index(self.arrays, self.life, rule.index.code, can, rule.preempts, repack, until_row)
            )
        if self.state.arrays.config[0].modelled and not isinstance(rule, PreemptiveRule):
            return int(able_loop.run_rule(self.arrays, self.life, rule.code, until_row))
        if isinstance(rule, PreemptiveRule):
            return int(run_walk(self.arrays, self.life, rule.threshold_gpu_s, rule.tick_s, until_row))
        return int(life.run_rule(self.arrays, self.life, rule.code, until_row))

    def _stop(self, wanted: NDArray[np.bool_] | None) -> _Stop:
        outcome = self.arrays.progress.outcome
        done_s = outcome.start_s if self.life is None else outcome.end_s
        return _Stop(self.arrays.progress.tally, done_s, None if wanted is None else wanted[self._rows])

    def run(
        self,
        scheduler: Scheduler,
        *,
        until_started: NDArray[np.bool_] | None = None,
        on_record: Callable[[DecisionRecord], None] | None = None,
        on_instant: Callable[[float], None] | None = None,
    ) -> JobTable:
        """Run any scheduler to the end of the trace, decision by decision.

        Args:
            scheduler: It must keep the engine's order.
            until_started: As for `run_rule`.
            on_record: Called with every decision's record; None: no records are made.
            on_instant: Called with every instant, for progress bars.
        """
        import time

        if scheduler.order != self.state.order:
            raise ValueError(
                f"{scheduler.name} orders by {scheduler.order}, this engine by {self.state.order}"
            )
        rule = getattr(scheduler, "rule", None)
        if isinstance(rule, Rule):
            self._check_abilities(rule)
        if may_preempt(scheduler) and self.life is None:
            self._give_lives()
        if isinstance(rule, Rule):
            self._charge_profiler(rule)
        if isinstance(scheduler, Foreseeing):
            scheduler.foresee(self)
        self.state.revise_predictions(revises_predictions(scheduler))
        stop = self._stop(until_started)
        asked_for_s = np.full(self.state.num_partitions, math.inf)
        sources: Counter[str] = Counter()
        took_us: list[float] = []
        while self.advance():
            if on_instant is not None:
                on_instant(self.now_s)
            began = time.perf_counter()
            asked_for_s[asked_for_s <= self.now_s] = math.inf
            for partition, decision in decide_all(
                self.state, scheduler, self.now_s, record=on_record is not None
            ):
                took_us.append((time.perf_counter() - began) * 1e6)
                if isinstance(decision.action, Wait):
                    until_s = decision.action.until_s
                    asked_for_s[partition] = math.inf if until_s is None else until_s
                else:
                    self._note(decision.action)
                sources[decision.source] += 1
                if on_record is not None and decision.record is not None:
                    on_record(decision.record)
                began = time.perf_counter()
            asked_for_s[self.state.arrays.derived.part.queue_len == 0] = math.inf
            timer_s = min(next_hold_end_s(self.state, self.now_s), float(asked_for_s.min(initial=math.inf)))
            self.arrays.progress.clock[sim.TIMER] = math.inf if self._is_stuck() else timer_s
            if stop.now():
                break
        return self._table(sum(sources.values()), np.array(took_us), dict(sources))

    def _is_stuck(self) -> bool:
        """Whether nothing can ever happen again: no event is to come, and no job fits (a node is down)."""
        progress, state = self.arrays.progress, self.state.arrays
        if progress.tally[sim.HEAP_LEN] > 0 or progress.tally[sim.NEXT_ROW] < len(self._rows):
            return False
        if self.life is not None and self.life.counts[NEXT_NODE_EVENT] < len(self.life.node_events):
            return False
        return all(first_fitting(state, p, 0) < 0 for p in range(self.state.num_partitions))

    def advance(self) -> bool:
        """Go to the next instant at which something happens; False when nothing is left to happen."""
        while (moved := self._next_instant()) not in (sim.MOVED, sim.FINISHED):
            if moved == sim.NEED_SLOTS:
                self._grow()
            elif self._review():
                return True
        return moved == sim.MOVED

    def _review(self) -> bool:
        """Look at the nodes that can sleep; whether there are decisions to take now."""
        assert self._sleeping is not None
        assert self.life is not None
        came_up = self._sleeping.review(self.arrays, self.life)
        self.life.counts[UNDECIDED] = came_up
        return came_up

    def _next_instant(self) -> int:
        if self.life is None:
            return int(sim.next_instant(self.arrays))
        return int(life.next_instant(self.arrays, self.life))

    def _note(self, action: Action) -> None:
        """The ledger has followed this action: write it down."""
        if isinstance(action, Start):
            slot = self.state.slot_of(action.seq)
            if self.life is None:
                sim.note_start(self.arrays, slot)
                return
            while not life.has_room(self.arrays, self.life, 1):
                self._grow_life()
            life.note_start(self.arrays, self.life, slot)
        elif isinstance(action, SetClock):
            slot = self.state.slot_of(action.seq)
            sim.refresh_group(self.arrays, int(self.arrays.progress.run.first_gpu[slot]))
        elif isinstance(action, Preempt) and self.life is not None:
            life.note_preemption(self.arrays, self.life, self.state.slot_of(action.seq))
        else:
            raise TypeError(f"{type(action).__name__} is not legal here")

    def _grow_life(self) -> None:
        assert self.life is not None
        self.life = grown_life(self.life)

    def _grow(self) -> None:
        self.state.grow()
        slots = self.state.arrays.job.shape[0]
        self.arrays = sim.SimArrays(
            self.state.arrays,
            self.arrays.truth,
            sim.grown_progress(self.arrays.progress, slots),
        )

    def _table(self, decisions: int, decision_us: NDArray[np.float64], by_source: dict[str, int]) -> JobTable:
        start_s, end_s = np.full(len(self.trace), math.nan), np.full(len(self.trace), math.nan)
        start_s[self._rows] = self.arrays.progress.outcome.start_s
        end_s[self._rows] = self._ends_s()
        table = JobTable(
            self.trace,
            self.spec,
            start_s,
            end_s,
            ~self._runnable.mask,
            self._runnable.reasons,
            self._gpus(),
            self.state.arrays.gpu.node.copy(),
            decisions,
            decision_us,
            by_source,
        )
        ended_by = np.zeros(len(self.trace), np.int8)
        if self.life is None:
            late = self.trace.time_limit_s < self.trace.duration_s
            late[self._rows] &= np.isnan(self.arrays.truth.fixed_end_s)
            ended_by[~np.isnan(end_s)] = ENDED
            ended_by[~np.isnan(end_s) & late] = TIMEOUT
            return replace(table, ended_by=ended_by)
        ended_by[self._rows] = self.life.jobs.over_by
        eligible_s = np.full(len(self.trace), math.nan)
        eligible_s[self._rows] = self.life.jobs.eligible_s
        modelled = bool(self.state.arrays.config[0].modelled)
        segments = segments_of(self.life, self._rows, modelled=modelled)
        return replace(
            table,
            ended_by=ended_by,
            eligible_s=eligible_s,
            segments=segments,
            energy=self._energy(),
            slept=self._sleeping.slept(self.now_s) if self._sleeping else None,
        )

    def _energy(self) -> Energy | None:
        """What was drawn up to now, None without models."""
        if not self.state.arrays.config[0].modelled:
            return None
        progress, now_s = self.arrays.progress, self.now_s
        for slot in np.flatnonzero(self.state.arrays.job.status == RUNNING).tolist():
            settle(progress, self.state.arrays, slot, now_s)
        job_j = np.zeros(len(self.trace))
        job_j[self._rows] = progress.outcome.energy_j
        span_s = now_s - float(self.arrays.truth.submit_s[0]) if len(self._rows) else 0.0
        return Energy(job_j, float(progress.clock[IDLE_J]), float(progress.clock[ENERGY_J]), span_s)

    def _ends_s(self) -> NDArray[np.float64]:
        """(T,) ends of the rows of the run; an attempt that nothing can interrupt ends as it began."""
        outcome, truth = self.arrays.progress.outcome, self.arrays.truth
        if self.life is not None:
            return outcome.end_s
        will_end_s = np.where(
            np.isnan(truth.fixed_end_s), outcome.start_s + truth.duration_s, truth.fixed_end_s
        )
        return np.where(np.isnan(outcome.start_s) | ~np.isnan(outcome.end_s), outcome.end_s, will_end_s)

    def _gpus(self) -> Sequence[tuple[int, ...]]:
        """GPUs of each job, of its last attempt where it had several."""
        if self.life is not None:
            gpus: list[tuple[int, ...]] = [()] * len(self.trace)
            segments = segments_of(self.life, self._rows)
            for k, job in enumerate(segments.job.tolist()):
                gpus[job] = segments.gpus(k)
            return gpus
        progress = self.arrays.progress
        started = ~np.isnan(progress.outcome.start_s)
        return Placements.of_rows(
            len(self.trace), self._rows, started, progress.placed_at, progress.placed_gpu
        )


class _Stop:
    """Looks, every so many arrivals, whether all wanted jobs are done; never stops where none are named.

    What is done stays done, so each look begins at the first job that was not when the last one ended.

    Attributes:
        next_look_row: The next look is due when so many rows have arrived.
    """

    def __init__(
        self, tally: NDArray[np.int64], done_s: NDArray[np.float64], wanted: NDArray[np.bool_] | None
    ) -> None:
        self._tally, self._done_s = tally, done_s
        self._wanted = None if wanted is None else np.flatnonzero(wanted)
        self._done = 0  # of the wanted jobs, the first so many are done
        self.next_look_row = len(done_s) + 1 if wanted is None else _ROWS_BETWEEN_LOOKS

    def now(self) -> bool:
        """Whether the run may stop at this instant."""
        if self._wanted is None or self._tally[sim.NEXT_ROW] < self.next_look_row:
            return False
        self.next_look_row = int(self._tally[sim.NEXT_ROW]) + _ROWS_BETWEEN_LOOKS
        while len(some := self._wanted[self._done : self._done + _ROWS_BETWEEN_LOOKS]):
            undone = np.isnan(self._done_s[some])
            if undone.any():
                self._done += int(np.argmax(undone))
                return False
            self._done += len(some)
        return True


def run_time_s(trace: Trace) -> NDArray[np.float64]:
    """(J,) how long each job runs in one go, seconds: its duration, or its time limit if that is shorter."""
    return np.fmin(trace.duration_s, trace.time_limit_s)


def truth_records(
    trace: Trace,
    rows: NDArray[np.intp],
    stamps: Predictions,
    state: ClusterState,
    fixed_end_s: NDArray[np.float64] | None = None,
    fair_milli: int = 0,
) -> Records:
    """The runnable rows of a trace as the compiled loop wants them; VC names are made known to the state.

    `fair_milli`: CPU cores with each GPU of a job that tells none, thousandths; 0: they are not counted.
    """
    first, inverse = distinct_rows([trace.vc[rows]])
    names = [str(name) for name in trace.vc[rows[first]]]
    partitions = np.array([state.partitions_of(name) for name in names], np.int32).reshape(-1, 2)
    vc_numbers = np.array([state.vc_number(name) for name in names], np.int32)
    truth = records(len(rows), sim.TRUTH)
    truth.submit_s, truth.duration_s = trace.submit_s[rows], run_time_s(trace)[rows]
    truth.fixed_end_s = math.nan if fixed_end_s is None else fixed_end_s[rows]
    demands, which = trace_demands(trace)
    first, kind = distinct_rows([which[rows]])
    used = which[rows[first]].tolist()
    classes = state.reserve_demands([with_fair_cores(demands[number], fair_milli) for number in used])
    truth.demand = np.array(classes, np.int32)[kind]
    truth.gpus, truth.limit_s = state.arrays.demand.gpus[truth.demand], trace.time_limit_s[rows]
    truth.predicted_s, truth.spread = stamps.predicted_s[rows], stamps.spread[rows]
    truth.vc = vc_numbers[inverse]
    truth.reference_kind = -1
    truth.pinned = flags(trace, "preemptible")[rows] == 0
    truth.own_partition, truth.shared_partition = partitions[inverse, 0], partitions[inverse, 1]
    return truth
