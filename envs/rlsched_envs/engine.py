"""Replay of a trace on a cluster: one engine, driven by a compiled rule or by any `Scheduler`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import Records, records
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.candidates import next_hold_end_s
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rules import Rule
from rlsched.decide.scheduler import Information, Order, Scheduler
from rlsched.workload.load import runnable_mask, trace_demands
from rlsched.workload.predict import causal_predictions, own_spread
from rlsched.workload.trace import Trace
from rlsched_envs import simulation as sim

_ROWS_BETWEEN_LOOKS = 256
"""Arrivals between two looks at whether a run may stop, the same for rules and schedulers."""
_REFERENCE = Rule(name="fifo-backfill", order="submit", blocks=False)


class Predictions(NamedTuple):
    """What each job was stamped with at its arrival."""

    predicted_s: NDArray[np.float64]  # (J,)
    spread: NDArray[np.float64]  # (J,)


@dataclass(frozen=True)
class JobTable:
    """What became of every job of a trace; J rows in its order.

    Attributes:
        trace: The jobs.
        spec: The cluster.
        start_s: (J,) first start, nan if it never started.
        end_s: (J,) end, nan if it never ended.
        rejected: (J,) whether it can never run on this cluster.
        reject_reason: (J,) why, "" where it can.
        gpus: Global GPU numbers of each job, empty if it never started.
        gpu_node: (G,) node number of each GPU.
        decisions: Decisions taken.
        decision_us: (decisions,) time of each, microseconds; empty for a compiled rule.
        by_source: Decisions by who took them.
    """

    trace: Trace
    spec: ClusterSpec
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    rejected: NDArray[np.bool_]
    reject_reason: NDArray[np.str_]
    gpus: list[tuple[int, ...]]
    gpu_node: NDArray[np.int32]
    decisions: int
    decision_us: NDArray[np.float64]
    by_source: dict[str, int] = field(default_factory=dict)


def predict_trace(
    trace: Trace,
    spec: ClusterSpec,
    information: Information = "causal",
    *,
    recorded_until_s: float = -math.inf,
) -> Predictions:
    """The stamps that every policy under comparison gets.

    `oracle`: the true durations. `causal`: the trace's own predictions where it has them, elsewhere a
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
        return Predictions(trace.duration_s.copy(), np.zeros(len(trace)))
    known = np.isfinite(trace.predicted_s)
    spread_known = known & np.isfinite(trace.predicted_spread)
    predicted_s, spread = np.fmin(trace.predicted_s, trace.time_limit_s), trace.predicted_spread.copy()
    if not spread_known.all():
        end_s = reference_end_s(trace, spec, recorded_until_s)
        mean_s, mean_spread = causal_predictions(trace, end_s)
        own = own_spread(trace, end_s)
        predicted_s = np.where(known, predicted_s, mean_s)
        spread = np.where(spread_known, spread, np.where(known, own, mean_spread))
    return Predictions(predicted_s, spread)


def reference_end_s(
    trace: Trace, spec: ClusterSpec, recorded_until_s: float = -math.inf
) -> NDArray[np.float64]:
    """(J,) when each job ended in the reference history, nan where it never did.

    The trace is run by `fifo-backfill`; jobs submitted before `recorded_until_s` ended as recorded.
    """
    start = int(np.searchsorted(trace.submit_s, recorded_until_s))
    run = trace.select(slice(start, None))
    truth = Predictions(run.duration_s, np.zeros(len(run)))
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
    ) -> None:
        self.trace, self.spec = trace, spec
        stamps = predict_trace(trace, spec, information) if predictions is None else predictions
        self._runnable = runnable_mask(trace, spec)
        self._rows = np.flatnonzero(self._runnable.mask)
        slots = min(1024, max(16, len(self._rows)))
        self.state = ClusterState.from_spec(spec, order=order, slots=slots, placement=placement)
        truth = truth_records(trace, self._rows, stamps, self.state, fixed_end_s)
        progress = sim.new_progress(
            self.state.arrays.job.shape[0], truth, self.state.num_gpus, keep_placements=keep_placements
        )
        self.arrays = sim.SimArrays(self.state.arrays, truth, progress)

    @property
    def now_s(self) -> float:
        """The current instant."""
        return float(self.arrays.progress.clock[sim.NOW])

    def run_rule(self, rule: Rule, *, until_started: NDArray[np.bool_] | None = None) -> JobTable:
        """Run a compiled rule to the end of the trace. The engine must keep the rule's order.

        Args:
            rule: The rule.
            until_started: (J,) stop soon after these jobs have started; their ends follow from that.
        """
        if rule.order != self.state.order:
            raise ValueError(f"rule {rule.name} orders by {rule.order}, this engine by {self.state.order}")
        self.state.sort_queue(False)
        stop = _Stop(self.arrays.progress, self._rows, until_started)
        while (moved := sim.run_rule(self.arrays, rule.blocks, stop.next_look_row)) != sim.FINISHED:
            if moved == sim.NEED_SLOTS:
                self._grow()
            elif stop.now():
                break
        starts = int(self.arrays.progress.tally[sim.STARTS])
        return self._table(starts, np.empty(0), {"rule": starts})

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
            until_started: (J,) stop soon after these jobs have started; their ends follow from that.
            on_record: Called with every decision's record; None: no records are made.
            on_instant: Called with every instant, for progress bars.
        """
        import time

        if scheduler.order != self.state.order:
            raise ValueError(
                f"{scheduler.name} orders by {scheduler.order}, this engine by {self.state.order}"
            )
        stop = _Stop(self.arrays.progress, self._rows, until_started)
        sources: Counter[str] = Counter()
        took_us: list[float] = []
        while self.advance():
            if on_instant is not None:
                on_instant(self.now_s)
            began = time.perf_counter()
            for _, decision in decide_all(self.state, scheduler, self.now_s, record=on_record is not None):
                took_us.append((time.perf_counter() - began) * 1e6)
                if isinstance(decision.action, Start):
                    sim.note_start(self.arrays, self.state.slot_of(decision.action.seq))
                sources[decision.source] += 1
                if on_record is not None and decision.record is not None:
                    on_record(decision.record)
                began = time.perf_counter()
            self.arrays.progress.clock[sim.TIMER] = next_hold_end_s(self.state, self.now_s)
            if stop.now():
                break
        return self._table(sum(sources.values()), np.array(took_us), dict(sources))

    def advance(self) -> bool:
        """Go to the next instant at which something happens; False when nothing is left to happen."""
        moved = sim.next_instant(self.arrays)
        while moved == sim.NEED_SLOTS:
            self._grow()
            moved = sim.next_instant(self.arrays)
        return bool(moved == sim.MOVED)

    def _grow(self) -> None:
        self.state.grow()
        slots = self.state.arrays.job.shape[0]
        self.arrays = sim.SimArrays(
            self.state.arrays, self.arrays.truth, sim.grown_progress(self.arrays.progress, slots)
        )

    def _table(self, decisions: int, decision_us: NDArray[np.float64], by_source: dict[str, int]) -> JobTable:
        progress = self.arrays.progress
        truth, started_s, ended_s = self.arrays.truth, progress.outcome.start_s, progress.outcome.end_s
        will_end_s = np.where(np.isnan(truth.fixed_end_s), started_s + truth.duration_s, truth.fixed_end_s)
        start_s, end_s = np.full(len(self.trace), math.nan), np.full(len(self.trace), math.nan)
        start_s[self._rows] = started_s
        end_s[self._rows] = np.where(np.isnan(started_s) | ~np.isnan(ended_s), ended_s, will_end_s)
        gpus: list[tuple[int, ...]] = [()] * len(self.trace)
        if progress.placed_gpu.size:
            places = progress.placed_gpu.tolist()
            for k, row in enumerate(self._rows.tolist()):
                if not math.isnan(progress.outcome.start_s[k]):
                    gpus[row] = tuple(places[progress.placed_at[k] : progress.placed_at[k + 1]])
        return JobTable(
            self.trace,
            self.spec,
            start_s,
            end_s,
            ~self._runnable.mask,
            self._runnable.reasons,
            gpus,
            self.state.arrays.gpu.node.copy(),
            decisions,
            decision_us,
            by_source,
        )


class _Stop:
    """Looks, every so many arrivals, whether all wanted jobs have started; never stops where none are named.

    Attributes:
        next_look_row: The next look is due when so many rows have arrived.
    """

    def __init__(
        self, progress: sim.ProgressArrays, rows: NDArray[np.intp], until_started: NDArray[np.bool_] | None
    ) -> None:
        self._tally, self._start_s = progress.tally, progress.outcome.start_s
        self._wanted = None if until_started is None else until_started[rows]
        self.next_look_row = len(rows) + 1 if until_started is None else _ROWS_BETWEEN_LOOKS

    def now(self) -> bool:
        """Whether the run may stop at this instant."""
        if self._wanted is None or self._tally[sim.NEXT_ROW] < self.next_look_row:
            return False
        self.next_look_row = int(self._tally[sim.NEXT_ROW]) + _ROWS_BETWEEN_LOOKS
        return not np.isnan(self._start_s[self._wanted]).any()


def truth_records(
    trace: Trace,
    rows: NDArray[np.intp],
    stamps: Predictions,
    state: ClusterState,
    fixed_end_s: NDArray[np.float64] | None = None,
) -> Records:
    """The runnable rows of a trace as the compiled loop wants them; VC names are made known to the state."""
    names, inverse = np.unique(trace.vc[rows], return_inverse=True)
    partitions = np.array([state.partitions_of(str(name)) for name in names], np.int32).reshape(-1, 2)
    numbers = np.array([state.vc_number(str(name)) for name in names], np.int32)
    truth = records(len(rows), sim.TRUTH)
    truth.submit_s, truth.duration_s = trace.submit_s[rows], trace.duration_s[rows]
    truth.fixed_end_s = math.nan if fixed_end_s is None else fixed_end_s[rows]
    demands, which = trace_demands(trace, rows)
    truth.demand = np.array(state.reserve_demands(demands), np.int32)[which]
    truth.gpus, truth.limit_s = state.arrays.demand.gpus[truth.demand], trace.time_limit_s[rows]
    truth.predicted_s, truth.spread = stamps.predicted_s[rows], stamps.spread[rows]
    truth.vc = numbers[inverse]
    truth.own_partition, truth.shared_partition = partitions[inverse, 0], partitions[inverse, 1]
    return truth
