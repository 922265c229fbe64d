"""`Recording`: a decision in progress, which becomes a `Decision`, with a record if requested.

A record lists the plans (ways to start) of the waiting job under consideration, each with its predicted
outcome.
"""

from __future__ import annotations

import math
import time
from typing import Any, Final, NamedTuple, get_type_hints

import numpy as np

from rlsched.cluster.arrays import CLOCKS_ALONE, MAX_TENANTS, StateArrays, columns, records
from rlsched.cluster.choose import choose
from rlsched.cluster.kernels import tenants_of
from rlsched.cluster.placement import BY_RULE, NO_PREFERENCE, class_to_place, fits_slot
from rlsched.cluster.speed import (
    at_clock_w,
    busy_frac,
    chosen_clock,
    fed_rate,
    fewest_nodes,
    gpu_rate,
    shared_on,
    shared_with,
    speed_alone,
    use_of_gpus,
)
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import array_kernel, kernel
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.clocks import clock_for, clock_on, cores_for, join_cores
from rlsched.decide.compiled import for_state
from rlsched.decide.constants import MODELLED
from rlsched.decide.options import LUCID, NEVER, StartOptions, may_share
from rlsched.decide.plans.plan import (
    NO_ROOM,
    NOT_THE_FIRST,
    TAKEN_OR_OPEN,
    VERDICT_TEXT,
    Plan,
    chooses_type,
    ends_by_gpu,
    free_plan,
    later_worth,
    on_free,
    refused,
)
from rlsched.decide.plans.shared import shared_plan
from rlsched.decide.record import QUEUED, DecisionRecord, PlanSeen, Source
from rlsched.decide.rules.reservation import copy_nodes, let_end_until_fits
from rlsched.decide.scheduler import Decision
from rlsched.decide.start import policy_start
from rlsched.models.clocks import job_part_w, relative_time


class Recording:
    """A decision in progress, created before a scheduler reads the state.

    The record contains the digest of the state when this object is created, and the time from its creation
    to the decision.

    Args:
        state: The state.
        partition: The partition of the decision.
        now_s: Current time, seconds.
        wanted: Whether a record will be made.
        start: Start options of jobs; None: the default options (`policy_start`).

    Attributes:
        wanted: Whether a record will be made; data that only a record needs can be skipped otherwise.
    """

    def __init__(
        self,
        state: ClusterState,
        partition: int,
        now_s: float,
        *,
        wanted: bool,
        start: StartOptions | None = None,
    ) -> None:
        self.wanted, self._start = wanted, start
        self._began = time.perf_counter()
        self._state, self._partition, self._now_s = state, partition, now_s
        self._digest = self._failed = ""
        try:
            self._digest = state.digest() if wanted else ""
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"

    def decision(
        self,
        action: Action,
        source: Source,
        policy_id: str,
        *,
        made_room_for: int = -1,
        reference: str = "",
    ) -> Decision:
        """Return the decision, with a record if one is wanted.

        `made_room_for`: sequence number of the job for which another job is preempted; -1: unknown. The other
        arguments are as in `Decision` and `DecisionRecord`.
        """
        record, failed = None, self._failed
        if self.wanted and not failed:
            took_us = (time.perf_counter() - self._began) * 1e6
            try:
                turn = self._turn(action, made_room_for)
                plans, prices, plans_failed = self._plans(turn, action)
                record = DecisionRecord(
                    source=source,
                    policy_id=policy_id,
                    state_digest=self._digest,
                    number=self._state.decisions,
                    now_s=self._now_s,
                    partition=self._state.partition_names[self._partition],
                    action=action,
                    took_us=took_us,
                    reference=reference,
                    turn=turn,
                    queue=self._queue(),
                    plans=plans,
                    prices=prices,
                    plans_failed=plans_failed,
                )
            except Exception as error:  # a failed record does not stop a decision
                failed = f"{type(error).__name__}: {error}"
        return Decision(action=action, source=source, record=record, record_failed=failed)

    def _plans(self, turn: int, action: Action) -> tuple[list[PlanSeen], dict[str, float], str]:
        """Return (plans of the job with the sequence number `turn`, current prices, error).

        The error is the reason why the plans could not be listed; "" if they were listed.
        """
        plans, prices = list[PlanSeen](), dict[str, float]()
        try:
            start = self._start or policy_start(self._state)
            prices = prices_of(self._state, self._partition, start)
            if turn >= 0:
                plans = plans_of(self._state, self._partition, turn, start, self._now_s, action)
        except Exception as error:  # a record without plans is still a record
            return plans, prices, f"{type(error).__name__}: {error}"
        return plans, prices, ""

    def _turn(self, action: Action, made_room_for: int) -> int:
        """Return the sequence number of the job under consideration, -1 for none."""
        if isinstance(action, Start):
            return action.seq
        if isinstance(action, Wait):
            first = self._state.queue(self._partition)[:1]
            return int(columns(self._state.arrays.job)["seq"][first[0]]) if len(first) else -1
        return made_room_for

    def _queue(self) -> bytes:
        """Return the sequence numbers of the first `QUEUED` waiting jobs, in queue order, as int32 bytes."""
        arrays = self._state.arrays
        waiting = min(int(columns(arrays.derived.part)["queue_len"][self._partition]), QUEUED)
        first = arrays.derived.queue[self._partition, :waiting]
        return columns(arrays.job)["seq"][first].astype(np.int32).tobytes()


MOST_SHARED: Final = 6
"""Maximum number of plans with co-tenants in a record; allowed plans of high worth have precedence."""
_FREE, _SHARED, _LATER = range(3)
_HOW: Final = ("free", "share", "later")


class _Found(NamedTuple):
    """A plan and its predicted outcome."""

    how: int
    verdict: int
    node: int
    nodes: int
    share_with: int
    kind: int
    tenants: int
    cpu_milli_each: int
    own: float
    gain: float
    asked: float
    worth: float
    clock: float
    wait_s: float
    run_s: float
    power_w: float
    rate: float
    gpu_w: float
    cores_w: float


FOUND: Final = np.dtype([(name, kind) for name, kind in get_type_hints(_Found).items()])


@array_kernel
def _note(s: StateArrays, p: int, slot: int, o: StartOptions, how: int, plan: Plan, row: Any) -> None:
    """Write a plan and its predicted outcome to `row`, a record of type FOUND."""
    job, gpus = s.job, np.empty(s.job.gpus[slot], np.int32)
    row.how, row.verdict, row.share_with, row.tenants = how, plan.verdict, plan.share_with, plan.tenants
    row.own, row.gain, row.asked, row.worth = plan.own, plan.gain, plan.asked, plan.worth
    row.node, row.kind, row.clock, row.wait_s, row.power_w = plan.node, plan.kind, 1.0, 0.0, 0.0
    row.nodes, row.rate, row.gpu_w, row.cores_w = 1, math.nan, math.nan, 0.0
    row.cpu_milli_each = s.demand.cpu_milli_each[job.demand[slot]]
    row.run_s = max(job.predicted_s[slot] - job.saved_s[slot], 0.0) + job.overhead_left_s[slot]
    if plan.verdict != TAKEN_OR_OPEN:
        return
    if how == _FREE:
        row.node = choose(s, p, slot, plan.node, gpus)
        row.kind = s.node.kind[row.node]
        for at in range(1, gpus.shape[0]):
            row.nodes += s.gpu.node[gpus[at]] != s.gpu.node[gpus[at - 1]]
    if not MODELLED or s.config[0].modelled == 0 or gpus.shape[0] == 0:
        return
    if how == _FREE:
        row.clock = clock_on(s, p, slot, gpus, o)
        row.cpu_milli_each = cores_for(s, slot, gpus, o)
        _predict(s, p, slot, how, row.own, gpus[0], row)
    else:
        row.clock = clock_for(s, p, slot, row.kind, o)
        row.cpu_milli_each = join_cores(s, slot, plan.share_with, row.kind)
        g = job.head[plan.share_with] // MAX_TENANTS
        if o.share == LUCID:  # the rule predicts no speeds
            row.own = shared_on(s, slot, g)
            row.gain = row.own + shared_with(s, plan.share_with, slot, g) - 1.0
        _predict(s, p, slot, how, row.own, g, row)


@kernel
def _predict(s: StateArrays, p: int, slot: int, how: int, own: float, g: int, row: Any) -> None:
    """Write the predicted rate, run time and power of a job under a plan to the plan's `row`.

    Assumes that the GPUs do not reach their power limit, and are all of the type of `g`.

    Args:
        s: The state.
        p: The partition.
        slot: The job.
        how: _FREE or _SHARED.
        own: Predicted speed with co-tenants; read only if `how` is _SHARED.
        g: First GPU of the plan.
        row: Record of type FOUND, with node, GPU type, clock and cores.
    """
    kind, gpus, workload, t = row.kind, s.job.gpus[slot], s.job.workload[slot], s.models.trait
    clock = max(row.clock, chosen_clock(s, g))
    rate, busy = 1.0 / relative_time(t.clock_bound[workload, kind], clock), 1.0
    if s.config[0].modelled != CLOCKS_ALONE:
        cores_each = np.inf if how == _SHARED else row.cpu_milli_each / 1000.0  # co-tenants pool their cores
        if how == _FREE:
            fewest = fewest_nodes(s, p, slot, row.nodes)
            allowed = gpu_rate(s, slot, kind, clock, shared_on(s, slot, g), row.nodes, fewest)
            rate = fed_rate(s, slot, kind, allowed, cores_each)
        else:
            rate *= speed_alone(s, slot, kind) * own
        busy = busy_frac(s, slot, kind, clock, rate)
        if s.demand.cpu_milli_each[s.job.demand[slot]] > 0:
            used = t.cores_each[workload, kind] * min(use_of_gpus(s, slot, kind, rate), 1.0)
            row.cores_w = s.node.core_w[s.gpu.node[g]] * min(cores_each, used) * gpus
    added_w = at_clock_w(s, slot, kind, clock, busy)
    row.rate, row.power_w = rate, added_w * gpus
    row.run_s /= rate
    row.gpu_w = job_part_w(s.models.gpu, kind, tenants_of(s, g) + 1, added_w, added_w) * gpus


@kernel
def _rank(verdict: int, worth: float) -> float:
    """Return the rank of a plan: its worth, or -inf if the plan is not allowed."""
    return worth if verdict == TAKEN_OR_OPEN else -math.inf


@kernel
def _least(rows: Any, first: int, count: int) -> int:
    """Return the index of the plan with the lowest `_rank` in `rows[first:count]`; of equals, the last."""
    least = first
    for at in range(first, count):
        if _rank(rows[at].verdict, rows[at].worth) <= _rank(rows[least].verdict, rows[least].worth):
            least = at
    return least


@kernel
def _class_on(s: StateArrays, slot: int, kind: int, c: int) -> int:
    """Return a job's demand class on GPUs of type `kind`: `c` if `c` accepts this type, else the job's class.

    `c`: result of `class_to_place` for the job.
    """
    return c if (s.demand.kinds[c] >> kind) & 1 == 1 else s.job.demand[slot]


@array_kernel
def list_plans(s: StateArrays, p: int, slot: int, o: StartOptions, now_s: float, out: Any) -> int:
    """Write the plans of a waiting job to `out`, (N,) records of type FOUND, and return their count.

    Of the plans with co-tenants, writes at most MOST_SHARED. Allowed plans have precedence, and among them
    the plans of highest worth.
    """
    count, best = 0, 0.0
    if fits_slot(s, p, slot):
        typed, c = chooses_type(s, slot, o), class_to_place(s, p, slot, BY_RULE)
        for kind in range(s.models.gpu.shape[0] if typed else 1):
            plan = free_plan(s, p, slot, o, kind if typed else -1, _class_on(s, slot, kind, c))
            if plan.verdict == TAKEN_OR_OPEN:
                _note(s, p, slot, o, _FREE, plan, out[count])
                best = max(best, plan.worth)
                count += 1
        if count == 0:
            plan = free_plan(s, p, slot, o, -1, c)
            _note(s, p, slot, o, _FREE, plan, out[count])
            best, count = plan.worth, count + 1
        if not typed and c != s.job.demand[slot]:
            _note(s, p, slot, o, _FREE, on_free(NO_PREFERENCE, -1, best), out[count])
            count += out[count].node != out[count - 1].node
    else:
        _note(s, p, slot, o, _FREE, refused(NO_ROOM, -1, -1), out[count])
        count += 1
    first = count
    if MODELLED and o.share != NEVER and s.job.gpus[slot] > 0 and may_share(s):
        for position in range(s.derived.running_len[0]):
            other = s.derived.slot.running[position]
            if s.job.placed_in[other] == p and s.job.gpus[other] == s.job.gpus[slot]:
                plan = shared_plan(s, slot, other, o, now_s, -math.inf)
                if plan.verdict == NOT_THE_FIRST:
                    continue
                at = count if count < first + MOST_SHARED else _least(out, first, count)
                if at == count or _rank(plan.verdict, plan.worth) > _rank(out[at].verdict, out[at].worth):
                    _note(s, p, slot, o, _SHARED, plan, out[at])
                    count = max(count, at + 1)
    row = out[count]
    _note(s, p, slot, o, _LATER, refused(NO_ROOM, -1, -1), row)
    row.verdict, row.worth = TAKEN_OR_OPEN, 0.0
    if best == 0.0:
        row.wait_s = let_end_until_fits(s, copy_nodes(s), p, slot, now_s) - now_s
    elif o.later < math.inf and class_to_place(s, p, slot, BY_RULE) == s.job.demand[slot]:
        row.worth = later_worth(s, p, slot, o, ends_by_gpu(s, p, now_s, o), best)
    return count + 1


def plans_of(
    state: ClusterState, partition: int, seq: int, start: StartOptions, now_s: float, action: Action | None
) -> list[PlanSeen]:
    """Return the plans of a waiting job in a partition; the plan that the action chooses is marked.

    Args:
        state: The state before the action.
        partition: The partition.
        seq: Sequence number of the job.
        start: Start options of the job.
        now_s: Current time, seconds.
        action: The action chosen; None if no action has been chosen yet.
    """
    arrays, slot = state.arrays, state.slot_of(seq)
    found = records(len(state.kind_names) + MOST_SHARED + 2, FOUND)
    count = int(for_state(list_plans, state)(arrays, partition, slot, start, now_s, found))
    rows = [_Found(*row) for row in columns(found)[:count].tolist()]
    rows.sort(key=lambda one: (one.how, one.verdict != TAKEN_OR_OPEN, -one.worth))
    seqs = columns(arrays.job)["seq"]
    plans = [
        _seen(state, one, int(seqs[one.share_with]) if one.share_with >= 0 else -1, action, seq)
        for one in rows
    ]
    if isinstance(action, Preempt):
        return [_giving_way(action), *plans]
    return plans


def _seen(state: ClusterState, row: _Found, other: int, action: Action | None, seq: int) -> PlanSeen:
    """Convert a plan to the form in a decision record.

    `other`: sequence number of the running job whose GPUs the plan shares.
    """
    chosen = isinstance(action, Start) and action.seq == seq and row.verdict == TAKEN_OR_OPEN
    if chosen and isinstance(action, Start):
        node = action.node if not action.gpus else int(columns(state.arrays.gpu)["node"][action.gpus[0]])
        chosen = row.how == _SHARED if action.share_with >= 0 else row.how == _FREE
        chosen = chosen and (other == action.share_with if action.share_with >= 0 else row.node == node)
    modelled, known = state.needs.models, bool(chosen) and math.isfinite(row.rate)
    return PlanSeen(
        how=_HOW[row.how],
        verdict=VERDICT_TEXT[row.verdict],
        chosen=bool(chosen),
        node=state.node_names[row.node] if row.node >= 0 else "",
        nodes=row.nodes,
        gpu_type=state.kind_names[row.kind] if row.kind >= 0 else "",
        share_with=other,
        tenants=row.tenants,
        sm_clock_frac=row.clock,
        cpu_milli_each=row.cpu_milli_each,
        speed_frac=row.own,
        gain_frac=row.gain,
        asked_frac=row.asked if row.asked > -1.0 else None,
        wait_s=row.wait_s if math.isfinite(row.wait_s) else None,
        run_s=row.run_s,
        power_w=row.power_w if modelled else None,
        worth=row.worth,
        rate=row.rate if known else None,
        gpu_w=row.gpu_w if known else None,
        cores_w=row.cores_w if known else None,
    )


def _giving_way(action: Preempt) -> PlanSeen:
    return PlanSeen(how="preempt", chosen=True, share_with=action.seq)


def prices_of(state: ClusterState, partition: int, start: StartOptions) -> dict[str, float]:
    """Return the current prices in a partition, by name; empty without models.

    `gpu_types`: exponent in the worth of a GPU type (`StartOptions.type_price`). `gpu_time`: factor of the
    price of time when a clock is chosen by weighted cost. `energy`: weight of energy against time.
    """
    if not state.needs.models:
        return {}
    dial = state.arrays.dials.dial[partition]
    return {
        "gpu_types": float(start.type_price + dial.type_price),
        "gpu_time": math.exp(float(dial.gpu_price)),
        "energy": state.energy_weight,
    }
