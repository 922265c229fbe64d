"""Replays a trace on a cluster, with a compiled rule or with any `Scheduler`.

The run logs all attempts if jobs can be interrupted or can become eligible after their submission.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import RUNNING, Records, records
from rlsched.cluster.placement import first_fitting
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.compile.compiling import COMPILING
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rules.steps import CompiledRule
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.energy.relative import NOTHING, PricesAsked
from rlsched.energy.series import DAY_S
from rlsched.errors import InputError
from rlsched.models.learning import Observed
from rlsched.models.slice_name import whole_type
from rlsched.workload.distinct import distinct_rows
from rlsched.workload.load import runnable_mask, trace_demands
from rlsched.workload.predict import causal_predictions, own_spread
from rlsched.workload.predict.kinds import RUNNING_MEAN, hedge_predictions, require
from rlsched.workload.trace import Trace, flags, slack_s
from rlsched_envs.sim import events, loop, moves
from rlsched_envs.sim.attempt_arrays import ENDED, TIMEOUT, AttemptArrays, grown_log
from rlsched_envs.sim.attempt_log import Placements, RunRules, attempts_of, needs_log, new_log
from rlsched_envs.sim.bills import announced_of, bills_of, second_0_of, signals_of
from rlsched_envs.sim.constants import FINISHED, MOVED, NEED_ROOM, NEED_SLOTS, REVIEW_DUE
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import (
    Energy,
    LimitKept,
    Models,
    core_need_milli,
    fair_cores_milli,
    gpu_need_mib,
    open_books,
    power_ratio,
    reference_kinds,
    restart_costs_s,
    set_watts,
    with_fair_cores,
)
from rlsched_envs.sim.physics import settle
from rlsched_envs.sim.seen import Seen, SeenMemory
from rlsched_envs.sim.signals import read_price
from rlsched_envs.sim.sim_arrays import TRUTH, SimArrays, grown_progress, new_progress
from rlsched_envs.sim.sleeping import SleepingNodes
from rlsched_envs.sim.slices import fit_slices

_ROWS_BETWEEN_LOOKS = 256
"""Number of arrivals after which the run checks again whether it can stop early."""
_REFERENCE = Policy("fifo-backfill")
DAYS_AFTER: Final = 366
"""Days after the last submission for which energy and bills are recorded by hour."""


class PredictedTimes(NamedTuple):
    """Predicted run time and spread of each job at its submission."""

    predicted_s: NDArray[np.float64]  # (J,)
    spread: NDArray[np.float64]  # (J,)


def predict_trace(
    trace: Trace,
    spec: ClusterSpec,
    *,
    oracle: bool = False,
    recorded_until_s: float = -math.inf,
    kind: str = RUNNING_MEAN,
    progress: Callable[[float], None] | None = None,
) -> PredictedTimes:
    """Return predicted run times, the same for all policies of a comparison.

    With `oracle`, the predictions are the true run times. Otherwise, predictions in the trace are kept, and a
    predictor predicts the other jobs. The *reference history* is a replay of the trace on this cluster under
    `fifo-backfill`. When a job is submitted, the predictor knows the jobs that have ended by then in this
    history. A missing spread is computed from the errors of the trace's earlier predictions.

    Args:
        trace: J jobs.
        spec: The cluster.
        oracle: Whether to use the true run times.
        recorded_until_s: Jobs submitted before this time end in the reference history at submission +
            recorded queueing delay (0 if unknown) + duration. `fifo-backfill` runs only the later jobs. Set
            this time if the cluster is scaled to the load of a window: the earlier jobs could overload such a
            cluster.
        kind: The predictor, one of `rlsched.workload.predict.kinds`.
        progress: Called with the progress of the predictor.

    Raises:
        InputError: the predictor is needed and not available (`rlsched.workload.predict.kinds.require`).
    """
    if oracle:
        return PredictedTimes(run_time_s(trace), np.zeros(len(trace)))
    known = np.isfinite(trace.predicted_s)
    spread_known = known & np.isfinite(trace.predicted_spread)
    predicted_s, spread = np.fmin(trace.predicted_s, trace.time_limit_s), trace.predicted_spread.copy()
    if not spread_known.all():
        by_hedge = kind != RUNNING_MEAN and not known.all()
        if by_hedge:
            require(kind)
        end_s = reference_end_s(trace, spec, recorded_until_s)
        if not known.all():
            made_s, made = (
                hedge_predictions(trace, end_s, progress=progress)
                if by_hedge
                else causal_predictions(trace, end_s)
            )
            predicted_s, spread = np.where(known, predicted_s, made_s), np.where(known, spread, made)
        if (known & ~spread_known).any():
            spread = np.where(known & ~spread_known, own_spread(trace, end_s), spread)
    return PredictedTimes(predicted_s, spread)


def reference_end_s(
    trace: Trace, spec: ClusterSpec, recorded_until_s: float = -math.inf
) -> NDArray[np.float64]:
    """Return the (J,) time at which each job ends in the reference history; nan: it never ends.

    See `predict_trace` for the reference history and for `recorded_until_s`.
    """
    start = int(np.searchsorted(trace.submit_s, recorded_until_s))
    run = trace.select(slice(start, None))
    truth = predict_trace(run, spec, oracle=True)
    rule = _REFERENCE.rule
    history = Engine(run, spec, order=rule.order, predictions=truth, keep_placements=False)
    recorded_s = np.nan_to_num(np.asarray(trace.extra.get("queue_s", np.zeros(len(trace))), np.float64))
    end_s = trace.submit_s + recorded_s + trace.duration_s
    with COMPILING.during("replaying the trace for the predictions"):
        end_s[start:] = history.run_rule(rule).end_s
    return end_s


class Engine:
    """One run of a trace on a cluster.

    Args:
        trace: The jobs.
        order: Order of the queue (a scheduler's `order`).
        predictions: Predicted run time of each job; default: `predict_trace`.
        oracle: Whether to use true run times if no predictions are given.
        fixed_end_s: (J,) time at which each job ended in a broker's run, to repeat that run; nan: the job
            ends at start + duration. With fixed ends, models only inform decisions, as in the broker, and no
            energy is computed. A job has only the workload in its column `workload`, and only the cores that
            it requests. Nodes can sleep (`Models.power_down`), as in the broker.
        end_order: (J,) jobs that end at the same time end in ascending order of this value. None: in the
            order of the trace.
        keep_placements: Whether to store the GPUs of each job.
        rules: Restart costs, retries and node events.
        models: Models of speed and power; None: jobs run as recorded in the trace, without energy.
        seen: Observations of a broker as (time, observation), ascending: speeds of jobs that shared GPUs, and
            GPU memory of jobs. Decisions at the time of an observation already use it. Requires `models` and
            `fixed_end_s`.

    Attributes:
        trace, spec: The arguments.
        state: State of the cluster.
        arrays: State of the run.
    """

    def __init__(
        self,
        trace: Trace,
        spec: ClusterSpec,
        *,
        order: Order | None = None,
        predictions: PredictedTimes | None = None,
        oracle: bool = False,
        fixed_end_s: NDArray[np.float64] | None = None,
        end_order: NDArray[np.int32] | None = None,
        keep_placements: bool = True,
        rules: RunRules | None = None,
        models: Models | None = None,
        seen: Sequence[tuple[float, Observed | SeenMemory]] = (),
    ) -> None:
        recorded = fixed_end_s is not None
        if seen and models is not None and models.power_down is not None:
            raise ValueError("seen and models.power_down exclude each other; leave out one")
        if seen and (models is None or not recorded):
            raise ValueError("seen: expected models and fixed_end_s too; pass both")
        self.trace, self.spec = trace, spec
        self._rules, self._keep_placements = rules or RunRules(), keep_placements
        made = predict_trace(trace, spec, oracle=oracle) if predictions is None else predictions
        if models is None or not spec.num_slices:
            fitted, self._runnable = trace, runnable_mask(trace, spec)
        else:
            fitted, self._runnable = fit_slices(trace, spec, models)
        self._rows = np.flatnonzero(self._runnable.mask)
        slots = min(1024, max(16, len(self._rows)))
        queue = OrderedQueue(order or Order())
        self.state = ClusterState.from_spec(spec, queue, slots=slots)
        self._models, self._physics = models, models is not None and not recorded
        fair_milli = fair_cores_milli(spec) if self._physics else 0
        truth = truth_records(fitted, self._rows, made, self.state, fixed_end_s, fair_milli)
        truth.end_order = 0 if end_order is None else end_order[self._rows]
        if queue.order.until_declared and spec.preemptible == "declared":
            truth.pinned = flags(trace, "preemptible")[self._rows] != 1
        progress = new_progress(
            self.state.arrays.job.shape[0], truth, self.state.num_gpus, keep_placements=keep_placements
        )
        self.arrays: SimArrays = SimArrays(self.state.arrays, truth, progress)
        if models is not None:
            self._use(models)
        if models is not None or needs_log(trace, self._rules):
            self._begin_log()
        self._reviewed: SleepingNodes | Seen | None = None
        if seen:
            self._reviewed = Seen(self.state, seen, self.now_s)
        elif models is not None and models.power_down is not None:
            if self._rules.node_events:
                raise InputError(
                    "nodes that sleep and nodes that fail cannot be simulated in one run: leave out the node "
                    "events, or the power-down rule"
                )
            self._reviewed = SleepingNodes(
                self.state, models.power_down, models.node_power, self.now_s, physics=self._physics
            )
        if self._reviewed is not None:
            self.arrays.progress.run.review_s = self._reviewed.next_s

    def _use(self, models: Models) -> None:
        """Set up the run with these models of speed and power."""
        catalogue, truth = models.catalogue(), self.arrays.truth
        for group in self.spec.nodes:
            if group.slices:
                self.state.know_kind(whole_type(group.gpu_type))
        self.state.use_models(models.arrays(catalogue, self.state.kind_names))
        if models.lends_cores:
            self.state.lend_cores()
            self.state.arrays.node.lends[:] = 1
            self.state.withdraws_loans = not self._physics
        self.state.weigh_energy(models.energy_weight)
        if self._physics:
            truth.workload = catalogue.draw(self.trace, models.workload_seed)[self._rows]
            demands, which = trace_demands(self.trace)
            reference = reference_kinds(demands, self.spec, self.state.kind_names)
            truth.reference_kind = reference[which[self._rows]]
        else:
            truth.workload = catalogue.named(self.trace)[self._rows]
        is_limited = self.spec.energy is not None and self.spec.energy.is_limited
        if self._physics or is_limited:  # a broker without a power limit does not know the nodes' power
            set_watts(self.state, self.spec, models.node_power)
        self.arrays = self.arrays._replace(state=self.state.arrays)
        self._use_signals()
        if self.spec.energy is not None and is_limited:
            has_signal = self.arrays.progress.signal.shape[1] > 0  # the limit is read from the signal
            constant_w = 1000.0 * self.spec.energy.power_limit_kw
            soft = self.spec.energy.power_limit_kind == "soft"
            self.state.limit_power(math.inf if has_signal else constant_w, soft=soft)
        if self._physics:
            open_books(self.arrays, self.trace, self._rows, models)

    def _use_signals(self, asked: PricesAsked = NOTHING) -> None:
        """Set up the price and carbon intensity of electricity, and the relative price that policies read.

        `asked`: whether the policy also reads ranks of prices, and prices of the next hours.
        """
        submit_s = self.arrays.truth.submit_s
        last_s = float(submit_s[-1]) if len(submit_s) else 0.0
        signals = signals_of(self.spec, self.trace, last_s, asked)
        if signals is not None and self.spec.energy is not None:
            progress = self.arrays.progress
            second_0 = second_0_of(self.spec, self.trace)
            from_s = progress.books.day_from_s[0] = -math.fmod(second_0.timestamp(), DAY_S)
            days = math.ceil((last_s - from_s) / DAY_S) + DAYS_AFTER if self._physics else 0
            progress.books.grid_from_s, progress.books.grid_step_s = signals.from_s, signals.step_s
            table = np.ascontiguousarray(np.vstack([signals.sums[:2], signals.rates]))
            announced = announced_of(self.spec.energy, second_0)
            hours = np.zeros((3, 24 * days))
            progress = progress._replace(signal=table, hours=hours, announced=announced)
            self.arrays = self.arrays._replace(progress=progress)

    def _begin_log(self) -> None:
        """Create the attempt log, before the run starts."""
        models = self._models if self._physics else None
        log = new_log(
            self.trace,
            self._rows,
            self._rules,
            keep_placements=self._keep_placements,
            checkpoint_s=restart_costs_s(self.arrays) if models else None,
            fault_frac=models.spreading_frac if models else 0.0,
        )
        progress = self.arrays.progress._replace(placed_gpu=np.zeros(0, np.int32))  # the log has the GPUs
        self.arrays = self.arrays._replace(progress=progress, log=log)

    @property
    def log(self) -> AttemptArrays | None:
        """The attempt log; None if jobs cannot be interrupted."""
        log: AttemptArrays | None = self.arrays.log
        return log

    @property
    def now_s(self) -> float:
        """Current time of the run, seconds of the trace."""
        return float(self.arrays.progress.run.now_s[0])

    def run_rule(self, rule: CompiledRule, *, until_started: NDArray[np.bool_] | None = None) -> JobTable:
        """Run a compiled rule to the end of the trace.

        Args:
            rule: The rule; its queue order (`order`) must be the order given to the engine.
            until_started: (J,) mask of jobs. The run stops soon after these jobs have started or, if jobs can
                be interrupted, soon after they have ended. None: the run does not stop early.
        """
        run = self.begun_by(rule)
        stop = self._stop(until_started)
        while True:
            moved = self._continue(run, rule, stop.next_look_row)
            if moved == FINISHED:
                break
            if moved == REVIEW_DUE:
                self._review()
            elif stop.now():
                break
        progress = self.arrays.progress.run
        decisions = int(progress.starts[0] + progress.preemptions[0])
        return self._table(decisions, np.empty(0), {"rule": decisions})

    def looks(self, rule: CompiledRule, every_s: float) -> Iterator[int]:
        """Run a compiled rule, and pause at arrivals of jobs that are at least `every_s` seconds apart.

        The first pause is at the first arrival. The decisions of an instant are made before the pause. At
        each pause, yields the number of jobs that have arrived.
        """
        run = self.begun_by(rule)
        submit_s = self.arrays.truth.submit_s
        until_row = 1
        while until_row <= len(submit_s):
            if self._continue(run, rule, until_row) == REVIEW_DUE:
                self._review()
            else:
                yield until_row
                until_row = int(np.searchsorted(submit_s, submit_s[until_row - 1] + every_s)) + 1

    def looks_at(self, rule: CompiledRule, times_s: Sequence[float]) -> Iterator[float]:
        """Run a compiled rule, and pause at each of the times, ascending, before the end of the trace.

        The decisions of a time are made before the pause, which yields the time. The run must log attempts,
        and its nodes must not sleep.
        """
        run = self.begun_by(rule)
        for time_s in times_s:
            self.arrays.progress.run.review_s = time_s
            if self._continue(run, rule, len(self._rows) + 1) != REVIEW_DUE:
                return
            yield time_s

    def _continue(self, run: Any, rule: CompiledRule, until_row: int) -> int:
        """Continue a run (`begun_by`) until `until_row` jobs have arrived; add room for jobs as needed.

        Return the result of `loop.run_rule`.
        """
        while True:
            moved = int(run(self.arrays, rule.options, until_row, loop.NO_CURVE))
            if moved == NEED_SLOTS:
                self._grow()
            elif moved == NEED_ROOM:
                self._grow_log()
            else:
                return moved

    def _begin(
        self,
        order: Order,
        rule: CompiledRule | None,
        *,
        preempts: bool = False,
        asked: PricesAsked = NOTHING,
    ) -> None:
        """Prepare the run for a scheduler, or for a compiled rule."""
        if order != self.state.ordering.order:
            raise ValueError(
                f"expected a scheduler with the engine's order {self.state.ordering.order}, got {order}"
            )
        preempts = preempts or (rule is not None and rule.options.preempts)
        if order.until_declared:
            preempts = preempts and not self.arrays.truth.pinned.all()
        if preempts and self.log is None:
            self._begin_log()
        if any(asked) or (rule is not None and rule.steps.priced and self._models is None):
            self._use_signals(asked)
        if rule is None:
            return
        if rule.strategy is not None:
            plain = rule.plain_without_models
            self.state.set_dials(rule.strategy.arrays(self.state.num_partitions, only_modelled=plain))
            self.state.permit(
                preemption=rule.options.preempts and order.preempts,
                reserve_after_s=rule.options.reserve_after_s,
            )
            self.arrays = self.arrays._replace(state=self.state.arrays)
        if rule.needs_models and self._models is None:
            raise ValueError(
                "the rule shares GPUs or sets clocks: expected an engine with models, got one without; "
                "pass models"
            )
        if self.log is not None:
            profiled = self.arrays.truth.gpus <= rule.profile_max_gpus
            self.log.jobs.profile_s[:] = np.where(profiled, rule.profile_s, 0.0)

    def begun_by(self, rule: CompiledRule) -> Any:
        """Prepare a run with a rule, and return the compiled loop, which continues the run at each call."""
        self._begin(rule.order, rule, asked=rule.options.start.price.asked)
        self.state.sort_queue(rule.sorted_queue)
        return self._compiled(loop.run_rule, rule)

    def _compiled(self, template: Any, rule: CompiledRule | None = None) -> Any:
        """Compile a kernel of the simulator for this run."""
        steps = rule.steps if rule is not None else None
        if steps is not None and self.state.arrays.config.limited[0]:
            steps = steps.with_price()
        logged, modelled = self.log is not None, self._models is not None
        return loop.for_run(template, steps, logged=logged, modelled=modelled, physics=self._physics)

    def _stop(self, wanted: NDArray[np.bool_] | None) -> _Stop:
        outcome = self.arrays.progress.outcome
        done_s = outcome.start_s if self.log is None else outcome.end_s
        return _Stop(self.arrays.progress.run, done_s, None if wanted is None else wanted[self._rows])

    def run(
        self,
        scheduler: Scheduler,
        *,
        until_started: NDArray[np.bool_] | None = None,
        until_s: float = math.inf,
        on_record: Callable[[DecisionRecord], None] | None = None,
        on_instant: Callable[[float], None] | None = None,
    ) -> JobTable:
        """Run any scheduler to the end of the trace, decision by decision.

        Args:
            scheduler: The scheduler; its queue order (`order`) must be the order given to the engine.
            until_started: As in `run_rule`.
            until_s: Stop at this time, before the decisions of this time.
            on_record: Called with the record of each decision; None: no records are made.
            on_instant: Called at each instant, for progress bars.
        """
        can = scheduler.abilities
        self._begin(scheduler.order, scheduler.rule, preempts=can.preempts, asked=can.prices_asked)
        permit(self.state, scheduler)
        self.arrays = self.arrays._replace(state=self.state.arrays)
        stop = self._stop(until_started)
        asked_for_s = np.full(self.state.num_partitions, math.inf)
        sources: Counter[str] = Counter()
        took_us: list[float] = []
        while self.advance() and self.now_s < until_s:
            if on_instant is not None:
                on_instant(self.now_s)
            began = time.perf_counter()
            asked_for_s[asked_for_s <= self.now_s] = math.inf
            read_price(self.arrays)
            for partition, decision in decide_all(
                self.state,
                scheduler,
                self.now_s,
                record=on_record is not None,
                job_name=self._job_name,
            ):
                took_us.append((time.perf_counter() - began) * 1e6)
                if isinstance(decision.action, Wait):
                    asked_s = decision.action.until_s
                    asked_for_s[partition] = math.inf if asked_s is None else asked_s
                else:
                    self._note(decision.action)
                sources[decision.source] += 1
                if on_record is not None and decision.record is not None:
                    on_record(decision.record)
                began = time.perf_counter()
            if self._physics and self.state.arrays.config.limited[0]:
                self._compiled(moves.hold_clocks)(self.arrays)
            if isinstance(self._reviewed, SleepingNodes):
                self._compiled(events.note_need)(self.arrays)
            asked_for_s[self.state.arrays.derived.part.queue_len == 0] = math.inf
            timer_s = math.inf if self._is_stuck() else float(asked_for_s.min(initial=math.inf))
            review_s = min(scheduler.review_s(self.state), self.state.rank_due_s)
            self.arrays.progress.run.timer_s = min(timer_s, until_s, review_s)
            if stop.now():
                break
        return self._table(sum(sources.values()), np.array(took_us), dict(sources))

    def _job_name(self, seq: int) -> str:
        row = self.arrays.progress.ends.row[self.state.slot_of(seq)]
        return str(self.trace.job_id[self._rows[row]])

    def _is_stuck(self) -> bool:
        """Return whether the run cannot continue: no event is planned, and no waiting job fits."""
        run, state = self.arrays.progress.run[0], self.state.arrays
        if run.heap_len > 0 or run.next_row < len(self._rows):
            return False
        if self.log is not None and self.log.counters.next_node_event[0] < len(self.log.node_events):
            return False
        return all(first_fitting(state, p, 0) < 0 for p in range(self.state.num_partitions))

    def advance(self) -> bool:
        """Advance to the next event, or to a review that requires decisions; return False if none is left."""
        next_instant = self._compiled(events.next_instant)
        while (moved := int(next_instant(self.arrays))) not in (MOVED, FINISHED):
            if moved == NEED_SLOTS:
                self._grow()
            elif self._review():
                return True
        return moved == MOVED

    def _review(self) -> bool:
        """Review the nodes that can sleep, or apply a broker's observations. No run has both.

        Return whether scheduling decisions are due now.
        """
        assert self._reviewed is not None
        due = self._reviewed.review(self.arrays)
        self.arrays.progress.run.undecided = due
        return due

    def _note(self, action: Action) -> None:
        """Record in the run's arrays an action that is already applied to the cluster's state."""
        slot = self.state.slot_of(action.seq) if isinstance(action, Start | Preempt) else -1
        if isinstance(action, Start):
            if self.log is not None:
                while not self._compiled(moves.has_room)(self.arrays, 1):
                    self._grow_log()
            self._compiled(moves.note_start)(self.arrays, slot)
        else:
            self._compiled(moves.note_preemption)(self.arrays, slot)

    def _grow_log(self) -> None:
        self.arrays = self.arrays._replace(log=grown_log(self.arrays.log))

    def _grow(self) -> None:
        self.state.grow()
        progress = grown_progress(self.arrays.progress, self.state.arrays.job.shape[0])
        self.arrays = self.arrays._replace(state=self.state.arrays, progress=progress)

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
        if self.log is None:
            late = self.trace.time_limit_s < self.trace.duration_s
            late[self._rows] &= np.isnan(self.arrays.truth.fixed_end_s)
            ended_by[~np.isnan(end_s)] = ENDED
            ended_by[~np.isnan(end_s) & late] = TIMEOUT
            return replace(table, ended_by=ended_by)
        ended_by[self._rows] = self.log.jobs.over_by
        eligible_s = np.full(len(self.trace), math.nan)
        eligible_s[self._rows] = self.log.jobs.eligible_s
        return replace(
            table,
            ended_by=ended_by,
            eligible_s=eligible_s,
            log=attempts_of(self.log, self._rows, modelled=self._physics),
            energy=self._energy(),
            slept=self._reviewed.slept(self.now_s) if isinstance(self._reviewed, SleepingNodes) else None,
        )

    def _energy(self) -> Energy | None:
        """Return the energy results of the run up to now; None if the run has no models of power."""
        if not self._physics:
            return None
        progress, now_s = self.arrays.progress, self.now_s
        for slot in np.flatnonzero(self.state.arrays.job.status == RUNNING).tolist():
            settle(progress, self.state.arrays, slot, now_s)
        job_j = np.zeros(len(self.trace))
        job_j[self._rows] = progress.outcome.energy_j
        span_s = now_s - float(self.arrays.truth.submit_s[0]) if len(self._rows) else 0.0
        books = progress.books[0]
        cost, carbon = bills_of(progress, self.spec, self._rows, len(self.trace))
        idle_j, cluster_j, peak_w = float(books.idle_j), float(books.energy_j), float(books.peak_w)
        hours_j = progress.hours[0].copy() if progress.hours.shape[1] else None
        limit = None
        if self.state.arrays.config.limited[0]:
            limit = LimitKept(float(books.capped_s), float(books.over_s), float(books.over_j))
        return Energy(
            job_j, idle_j, cluster_j, span_s, cost, carbon, peak_w, limit, hours_j, float(books.day_from_s)
        )

    def _ends_s(self) -> NDArray[np.float64]:
        """Return the (T,) ends of the runnable jobs; nan if unknown.

        The end of a running job is known if nothing can interrupt jobs in this run.
        """
        outcome, truth = self.arrays.progress.outcome, self.arrays.truth
        if self.log is not None:
            return outcome.end_s
        will_end_s = np.where(
            np.isnan(truth.fixed_end_s), outcome.start_s + truth.duration_s, truth.fixed_end_s
        )
        return np.where(np.isnan(outcome.start_s) | ~np.isnan(outcome.end_s), outcome.end_s, will_end_s)

    def _gpus(self) -> Sequence[tuple[int, ...]]:
        """Return the GPUs of each job's last attempt."""
        if self.log is not None:
            gpus: list[tuple[int, ...]] = [()] * len(self.trace)
            made = attempts_of(self.log, self._rows)
            for k, job in enumerate(made.job.tolist()):
                gpus[job] = made.gpus(k)
            return gpus
        progress = self.arrays.progress
        started = ~np.isnan(progress.outcome.start_s)
        return Placements.of_rows(
            len(self.trace), self._rows, started, progress.placed_at, progress.placed_gpu
        )


class _Stop:
    """Checks after every `_ROWS_BETWEEN_LOOKS` arrivals whether the run can stop early.

    The run can stop when all jobs of the mask `wanted` have a time in `done_s`. If `wanted` is None, the run
    does not stop early.

    Attributes:
        next_look_row: Number of arrived jobs at which the next check is due.
    """

    def __init__(self, run: Records, done_s: NDArray[np.float64], wanted: NDArray[np.bool_] | None) -> None:
        self._run, self._done_s = run, done_s
        self._wanted = None if wanted is None else np.flatnonzero(wanted)
        self._done = 0  # number of leading wanted jobs that are done
        self.next_look_row = len(done_s) + 1 if wanted is None else _ROWS_BETWEEN_LOOKS

    def now(self) -> bool:
        """Return whether the run can stop at this instant."""
        if self._wanted is None or self._run.next_row[0] < self.next_look_row:
            return False
        self.next_look_row = int(self._run.next_row[0]) + _ROWS_BETWEEN_LOOKS
        while len(some := self._wanted[self._done : self._done + _ROWS_BETWEEN_LOOKS]):
            undone = np.isnan(self._done_s[some])
            if undone.any():
                self._done += int(np.argmax(undone))
                return False
            self._done += len(some)
        return True


def run_time_s(trace: Trace) -> NDArray[np.float64]:
    """Return the (J,) run time of each job without interruptions, at most the job's time limit, seconds."""
    return np.fmin(trace.duration_s, trace.time_limit_s)


def truth_records(
    trace: Trace,
    rows: NDArray[np.intp],
    predictions: PredictedTimes,
    state: ClusterState,
    fixed_end_s: NDArray[np.float64] | None = None,
    fair_milli: int = 0,
) -> Records:
    """Return the (T,) TRUTH records of the runnable jobs, and register their VC names in the state.

    `rows`: (T,) rows of the runnable jobs in the trace. `fair_milli`: CPU cores per GPU, in thousandths, of
    jobs that request no cores; 0: such jobs need no cores.
    """
    first, inverse = distinct_rows([trace.vc[rows]])
    names = [str(name) for name in trace.vc[rows[first]]]
    partitions = np.array([state.partitions_of(name) for name in names], np.int32).reshape(-1, 2)
    vc_numbers = np.array([state.vc_number(name) for name in names], np.int32)
    truth = records(len(rows), TRUTH)
    truth.submit_s, truth.duration_s = trace.submit_s[rows], run_time_s(trace)[rows]
    truth.fixed_end_s = math.nan if fixed_end_s is None else fixed_end_s[rows]
    demands, which = trace_demands(trace)
    first, kind = distinct_rows([which[rows]])
    used = which[rows[first]].tolist()
    asked = [demands[number] for number in used]
    if fair_milli:
        asked = [with_fair_cores(demand, fair_milli) for demand in asked]
    classes = state.reserve_demands(asked)
    truth.demand = np.array(classes, np.int32)[kind]
    truth.gpus, truth.limit_s = state.arrays.demand.gpus[truth.demand], trace.time_limit_s[rows]
    truth.predicted_s, truth.spread = predictions.predicted_s[rows], predictions.spread[rows]
    truth.vc = vc_numbers[inverse]
    truth.reference_kind = -1
    truth.pinned = flags(trace, "preemptible")[rows] == 0
    truth.unshared = flags(trace, "shares")[rows] == 0
    truth.gpu_need_mib = gpu_need_mib(trace)[rows]
    truth.core_need_milli, truth.dynamic_ratio = core_need_milli(trace)[rows], power_ratio(trace)[rows]
    truth.slack_s = slack_s(trace)[rows]
    truth.own_partition, truth.shared_partition = partitions[inverse, 0], partitions[inverse, 1]
    return truth
