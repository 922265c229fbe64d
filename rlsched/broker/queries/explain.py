"""Explains why a job waits, or why it was started on its GPUs: ranked reasons, and the decision record."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec

from rlsched.broker.base.ledger_models import workload_name
from rlsched.broker.base.profiles import signature_of
from rlsched.broker.base.shortened import shortened
from rlsched.broker.base.usage_words import carbon, energy, money, share
from rlsched.broker.base.usage_words import in_words as usage_in_words
from rlsched.broker.nodes.seen_speed import SLOW_AFTER_S, SeenSpeed
from rlsched.broker.nodes.sharing import isolation_lines
from rlsched.broker.queries.never import never_runs
from rlsched.broker.queries.profile import NO_SPEEDS, PairSpeeds, figures_of, learnt_lines, without_attempts
from rlsched.broker.queries.profile import in_words as expected_in_words
from rlsched.broker.queries.views import co_tenants, lent_cpus, out_of_service, seat_reason
from rlsched.broker.queries.waiting import (
    Room,
    absent_of_types,
    asked_again_s,
    fits_now,
    gpus_fit_now,
    ineligible,
    places,
    rooms,
    short_of_memory,
    sleeping_for,
    utc_minute,
    whole_nodes,
)
from rlsched.broker.state.bills import NO_BILL, JobBill
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import beside_count, beside_gpus, needs, runs_as
from rlsched.broker.state.jobs import Attempt, Job, Stopped, place_of
from rlsched.broker.state.learning import LEAST_MEASURED_S, clock_time
from rlsched.broker.state.priorities import LEVELS
from rlsched.cluster.demand import Demand
from rlsched.cluster.spec import SHARED_PARTITION
from rlsched.decide.actions import Start
from rlsched.decide.order.slack import next_slack_change_s, slack_ln_weight
from rlsched.decide.plans.plan_text import in_words, outcome, span
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.recording import plans_of
from rlsched.decide.start import policy_start
from rlsched.decisions.decision_text import decided_by, done
from rlsched.forecast.forecast_text import in_words as forecast_in_words
from rlsched.models.gpu_types import GPU_FIGURES, canonical_kind
from rlsched.models.power import power_at_clock
from rlsched.wire.messages import Explanation, JobForecast, SeenUsage
from rlsched.wire.states import QUEUED, RUNNING
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN

NAMED_JOBS = 5
NAMED_NODES = 20
MAX_LINE_CHARS = 2_000
MAX_RECORD_BYTES = 1 << 19
_WHO = {
    "automatic": "with no alternative",
    "engine": "by the engine itself, which follows the order of the queue",
}


def explain(
    state: BrokerState,
    job: Job,
    record: DecisionRecord | None,
    now_s: float,
    said: JobForecast | None = None,
    late: Sequence[str] = (),
    *,
    usage: SeenUsage | None = None,
    energy_j: float | None = None,
    bill: JobBill = NO_BILL,
    grace_s: float | None = None,
    outside_mps: Sequence[str] = (),
    seen: SeenSpeed | None = None,
    pair: PairSpeeds = NO_SPEEDS,
    made_room: Sequence[DecisionRecord] = (),
) -> Explanation:
    """Return the explanation of a job's state.

    Args:
        state: State of the broker.
        job: The job.
        record: Record of the last decision that considered the job, or of the decision that started it.
        now_s: Current time, Unix seconds.
        said: The latest forecast of the job's start and end; None: no forecast.
        late: Nodes that have not confirmed a change of the job's time limit yet.
        usage: Resources that the job uses, or has used.
        energy_j: Energy of all attempts, joules; None: not measured.
        bill: Cost or carbon of this energy.
        grace_s: Time between SIGTERM and SIGKILL, seconds; None: the explanation omits it.
        outside_mps: Nodes on which the job should use its GPUs through MPS, but does not.
        seen: Observed speed of the job with its co-tenants.
        pair: Observed speeds of the job and of its only co-tenant.
        made_room: Decisions that preempted other jobs for the job's last start.
    """
    if job.state == QUEUED:
        lines = _waiting(state, job, record, now_s)
    else:
        lines = _started(state, job, record, now_s, seen, made_room)
        lines += _seen_clock(state, job, usage, now_s)
        lines[1:1] = _limit(job, now_s, late)
    if outside_mps:
        lines.append(
            f"on {', '.join(outside_mps)} it runs without MPS, by time slicing and without a memory limit: "
            "no control daemon could be reached (see the node's log)"
        )
    if grace_s is not None and job.live:
        lines += _grace(state, job, grace_s)
    if job.state != QUEUED and usage is not None:
        lines += usage_in_words(usage)
    ran_on = {state.nodes[rank.node].spec.gpu_type for rank in job.attempt.ranks} if job.attempt else set()
    gpu_type = ran_on.pop() if job.state != QUEUED and len(ran_on) == 1 else ""
    expected = expected_in_words(
        job.spec.profiles,
        gpu_type,
        usage if job.state != QUEUED else None,
        job.spec.num_gpus,
        _drawn_w(job, usage, now_s),
    )
    figures = figures_of(state, job, usage, pair)
    lines += [expected] if expected else without_attempts(state, job, figures)
    lines += learnt_lines(figures)
    if energy_j is not None:
        lines.append(f"its GPUs have drawn {energy(energy_j)} for it")
    if bill.cost is not None:
        lines.append(f"this energy costs {money(bill.cost, bill.currency)} at the prices during its attempts")
    if bill.carbon_kg is not None:
        lines.append(
            f"this energy causes {carbon(bill.carbon_kg)} CO2e at the carbon intensities during its attempts"
        )
    if said is not None:
        lines.insert(1, forecast_in_words(said, now_s))
    lines = [shortened(line, MAX_LINE_CHARS) for line in lines]
    packed = msgspec.msgpack.encode(record) if record is not None else None
    if packed is not None and len(packed) > MAX_RECORD_BYTES:
        lines.append(f"its record, {len(packed):,} bytes, is too long to send; the broker's records have it")
        packed = None
    return Explanation(
        job=job.number,
        summary=lines[0],
        details=lines[1:],
        record=packed,
        forecast=said,
        array=job.spec.array,
        task=job.spec.task,
        profile=figures,
    )


def _waiting(state: BrokerState, job: Job, record: DecisionRecord | None, now_s: float) -> list[str]:
    need = needs(job)
    ahead_of = f"it has waited {span(now_s - job.submit_s)}"
    tail = [f"its last attempt: {job.reason}"] if job.reason else []
    if job.stopped is not None:
        tail = [_stopped(job.stopped)]
        ahead_of = f"it has waited {span(now_s - job.stopped.end_s)} since then"
    tail.append(f"predicted to run {span(job.spec.predicted_s)} by {_predictor(job)}; {ahead_of}")
    revised_s = float(state.cluster.arrays.job.predicted_s[state.cluster.slot_of(job.seq)])
    if revised_s != job.spec.predicted_s:
        tail.append(f"revised since, from similar jobs: predicted to run {span(revised_s)}")
    tail += _preference(state, job) + _rank(state, job, now_s)
    barred = ineligible(state, job)
    if barred:
        more = ["it is in no queue until then"]
        if "Quota" in state.eligibility.barring_reasons(job.seq):
            more.append("`rlsched quota list` shows limits, and what is used of them")
        return [*barred, *more, *tail]
    if not state.nodes:
        return ["no node has registered yet", *tail]
    never = never_runs(state, job.spec.vc, need)
    if never:
        return [f"it cannot run on the nodes that have registered so far: {never}", *tail]
    open_rooms = rooms(state, job.spec.vc)
    if not places(state, job.spec.vc):
        largest = max(open_rooms, key=lambda room: room.gpus)
        return [
            "the engine starts it on nodes that the engine chooses, in the order of the queue",
            _ahead(state, job, largest),
            *tail,
        ]
    fitting = [room for room in open_rooms if fits_now(state, need, room)]
    if fitting:
        lines = _passed_over(job, record)
    else:
        sleeping = sleeping_for(state, need, open_rooms)
        lines = [sleeping] if sleeping else []
        lines += [_no_room(state, room, need) for room in open_rooms]
    best = max(open_rooms, key=lambda room: room.gpus)
    lines.append(_ahead(state, job, best))
    lines += _plans_now(state, job, best, now_s)
    lines += _kept_apart(state, job)
    again_s = asked_again_s(state, open_rooms)
    if again_s > now_s:
        latest = f"in {span(again_s - now_s)} at the latest"
        lines.append(f"the policy decides again when a job or a node changes, and {latest}")
    lines += _absent(state, now_s)
    if record is not None and not fitting:
        lines.append(_last_decision(record))
    return lines + tail


def _rank(state: BrokerState, job: Job, now_s: float) -> list[str]:
    """Describe how priority, fair share and slack affect a job's place in the queue; empty if they do not."""
    lines, level, was = [], state.priorities.level(job.number), job.spec.priority
    named = {number: name for name, number in LEVELS.items()}
    if level != LEVELS[was] and job.stopped is not None and job.stopped.with_node:
        lines.append(f"submitted with priority {was}, and goes as {named[level]}: it was ended with its node")
    elif level != LEVELS[was]:
        lines.append(f"submitted with priority {was}, and has waited itself up to {named[level]}")
    elif level != 0:
        lines.append(f"priority {was}")
    ln_weight = state.priorities.ln_weights.get(job.spec.user, 0.0)
    if ln_weight != 0.0:
        owner, factor = job.spec.user or "its user", math.exp(ln_weight)
        lines.append(f"fair share: by the usage of {owner}, its jobs count {factor:.2g} of others'")
    return lines + _rank_by_slack(state, job, now_s)


def _rank_by_slack(state: BrokerState, job: Job, now_s: float) -> list[str]:
    """Describe how the job's slack affects its place in the queue; empty if it does not."""
    s, slot = state.cluster.arrays, state.cluster.slot_of(job.seq)
    factor = math.exp(slack_ln_weight(s, slot, now_s))
    if factor == 1.0:
        return []
    weight = f"slack: counts {factor:.2g} times a job without slack"
    change_s = float(next_slack_change_s(s, slot, now_s))
    if change_s < math.inf:
        return [f"{weight} until {utc_minute(change_s)}"]
    return [f"{weight}, because it has used most of its slack"]


def _absent(state: BrokerState, now_s: float) -> list[str]:
    """Describe nodes that get no new jobs, and GPUs out of service; at most `NAMED_NODES` nodes by name."""
    nodes = {name: node for name, node in state.nodes.items() if not node.removed}
    lines = []
    for absent in ("down", "unreachable", "asleep", "waking"):
        names = [name for name, node in nodes.items() if node.state == absent]
        more = f" and {len(names) - NAMED_NODES} more" if len(names) > NAMED_NODES else ""
        if names:
            lines.append(f"nodes {absent}: {', '.join(names[:NAMED_NODES])}{more}")
    drained = [(name, node) for name, node in nodes.items() if node.state == "drained"]
    for name, node in drained[:NAMED_NODES]:
        until = "until its own checks pass"
        if node.drained:
            ends = node.drained_until_s < math.inf
            until = f"for {span(node.drained_until_s - now_s)}" if ends else "until it is resumed"
        lines.append(f"node {name} gets no new jobs {until}: {node.reason}")
    if len(drained) > NAMED_NODES:
        lines.append(f"{len(drained) - NAMED_NODES} more nodes get no new jobs")
    out = [f"node {name}, {line}" for name in nodes for line in out_of_service(state, name)]
    if len(out) > NAMED_NODES:
        out[NAMED_NODES:] = [f"more GPUs are out of service: {len(out) - NAMED_NODES} more reasons"]
    return lines + out


def _no_room(state: BrokerState, room: Room, demand: Demand) -> str:
    where, need, beside = _on(state, room.partition), demand.gpus, beside_count(demand)
    if demand.exclusive:
        counts = whole_nodes(state, demand, room)
        if counts is None:
            return f"it can never get whole nodes {where}"
        nodes, able, empty, away = counts
        more = f", and {away} are absent" if away else ""
        return (
            f"it needs {nodes} whole node{'' if nodes == 1 else 's'} {where}, without other jobs: of the "
            f"{able} nodes that it can use, {empty} are up and have no job{more}"
        )
    short = short_of_memory(state, demand, room)
    if short:
        return f"not enough free GPU memory {where}: it {short}"
    if beside and gpus_fit_now(state, need, room):
        absent = absent_of_types(state, demand, [room])
        waits = f"; it waits for {', '.join(absent[:NAMED_NODES])}" if absent else ""
        return f"nodes with enough free GPUs {where} cannot fit the whole request: it needs {beside}{waits}"
    if room.free_gpus < need:
        return (
            f"not enough free GPUs: it needs {need}, {room.free_gpus} of {room.gpus} are free {where} "
            f"(most on one node: {room.largest_hole})"
        )
    return (
        f"no hole is large enough: {room.free_gpus} of {room.gpus} GPUs are free {where}, but the "
        f"gang of {need} needs them together and the largest hole on one node is {room.largest_hole}"
    )


def _on(state: BrokerState, partition: int) -> str:
    names = state.cluster.partition_names
    if len(names) == 1:
        return "on the cluster"
    name = names[partition]
    return "on the nodes that serve every VC" if name == SHARED_PARTITION else f"on the nodes of VC {name}"


def _ahead(state: BrokerState, job: Job, room: Room) -> str:
    order = state.cluster.waiting(room.partition)
    place = order.index(job.seq)
    words = state.order.in_words
    if place == 0:
        return f"first of {len(order)} in the queue order ({words})"
    named = ", ".join(state.job_of_seq[seq].called for seq in order[: min(place, NAMED_JOBS)])
    more = ", ..." if place > NAMED_JOBS else ""
    return f"{place} of {len(order)} waiting jobs are ahead in the queue order ({words}): {named}{more}"


def _plans_now(state: BrokerState, job: Job, room: Room, now_s: float) -> list[str]:
    """Describe the possible placements (plans) of a job in a partition now; empty if the job does not fit."""
    if not fits_now(state, needs(job), room) and not state.models.shares:
        return []
    start = policy_start(state.cluster)
    plans = plans_of(state.cluster, room.partition, job.seq, start, now_s, None)
    return _plans(state, "its plans now", [plan for plan in plans if plan.how != "later"])


def _plans(state: BrokerState, lead: str, plans: list[PlanSeen]) -> list[str]:
    """Describe plans (possible placements) in one line that begins with `lead`; empty without plans."""

    def called(seq: int) -> str:
        return f"job {_called(state, seq)}"

    compared = sum(not plan.verdict for plan in plans) > 1
    said = [f"{in_words(plan, called)} ({outcome(plan, compared)})" for plan in plans]
    return [f"{lead}: {'; '.join(said)}"] if said else []


def _called(state: BrokerState, seq: int) -> str:
    number = state.number_of_seq.get(seq)
    return "?" if not number else state.called(number)


def _passed_over(job: Job, record: DecisionRecord | None) -> list[str]:
    if record is None:
        return ["it would fit, but has not been among the candidates yet: others come first"]
    if isinstance(record.action, Start) and record.action.seq == job.seq:
        return ["it fits again, and is about to be decided"]
    return [f"it would fit, but {_last_decision(record)}"]


def _last_decision(record: DecisionRecord) -> str:
    return (
        f"the last decision (decision {record.number}) was: {done(record)}, by {decided_by(record)}, "
        f"at {_clock_text(record.now_s)}"
    )


def _clock_text(at_s: float) -> str:
    """Format a time (Unix seconds) as date and time in the time zone of the broker's machine."""
    return time.strftime("%F %T %Z", time.localtime(at_s))


def _limit(job: Job, now_s: float, late: Sequence[str]) -> list[str]:
    """Describe when the time limit will end a running job."""
    attempt, limit_s = job.active, job.spec.time_limit_s
    if attempt is None or job.state != RUNNING or (limit_s is None and not late):
        return []
    if limit_s is None:
        line = "it has no time limit any more"
    else:
        left_s = attempt.seated_s + limit_s - now_s
        when = f"in {span(left_s)}" if left_s > 0.0 else "now"
        line = f"its time limit of {span(limit_s)} ends it {when}"
    return [
        f"{line}; {', '.join(late)} {'has' if len(late) == 1 else 'have'} not answered to that yet"
        if late
        else line
    ]


def _grace(state: BrokerState, job: Job, grace_s: float) -> list[str]:
    """Describe a job's grace, the time between SIGTERM and SIGKILL.

    The result is empty for a job that another engine than rlsched's own runs, and for a queued job that did
    not request a grace.
    """
    ranks = job.attempt.ranks if job.attempt is not None else []
    own = all(state.nodes[rank.node].spec.capabilities.is_own for rank in ranks if rank.node in state.nodes)
    if not own or not places(state, job.spec.vc) or (job.state == QUEUED and job.spec.grace_s is None):
        return []
    by = "the broker's default" if job.spec.grace_s is None else "as submitted"
    return [f"when it is ended, SIGKILL follows SIGTERM after {span(grace_s)}, {by}"]


def _preference(state: BrokerState, job: Job) -> list[str]:
    """Describe a job's preferred GPU types, and whether the job has such GPUs; empty without a preference."""
    preferred = " or ".join(job.spec.preferred_types)
    if not preferred:
        return []
    if job.state == QUEUED or job.attempt is None:
        return [f"it prefers GPUs of type {preferred}, and does not wait for them"]
    demand = needs(job).on_preferred
    types = {state.nodes[rank.node].spec.gpu_type for rank in job.attempt.ranks}
    if demand is not None and all(map(demand.names, types)):
        return [f"it has GPUs of the type that it prefers, {preferred}"]
    return [f"it prefers GPUs of type {preferred}, on which it could not start then"]


def _started(
    state: BrokerState,
    job: Job,
    record: DecisionRecord | None,
    now_s: float,
    seen: SeenSpeed | None,
    made_room: Sequence[DecisionRecord],
) -> list[str]:
    attempt = job.attempt
    if attempt is None:
        return [f"{job.state}: {job.reason}" if job.reason else job.state]
    if job.end_s is None:
        lead = f"{job.state} on {place_of(job)} for {span(now_s - attempt.start_s)}"
    else:
        code = "" if job.exit_code is None else f", exit code {job.exit_code}"
        lead = f"{job.state}{code} after {span(job.end_s - attempt.start_s)} on {place_of(job)}"
    lines = [lead + (f": {job.reason}" if job.reason else "")]
    if attempt.ending and job.live:
        lines.append(f"it is being ended: {attempt.ending_reason}")
    elif attempt.leaving and job.live:
        lines.append(f"it {seat_reason(state, attempt)}")
    who = _WHO.get(attempt.source, f"decided by {attempt.source}")
    after = span(attempt.start_s - job.submit_s)
    is_first = job.stopped is None and not job.preemptions
    lines.append(
        f"started {f'after {after} in the queue' if is_first else f'{after} after its submission'} "
        f"as attempt {attempt.number}, {who} (decision {attempt.decision}) at "
        f"{_clock_text(attempt.start_s)}"
    )
    lines += [
        f"decision {one.number} made room for it: {done(one)}, by {decided_by(one)}" for one in made_room
    ]
    if job.stopped is not None:
        waited = span(attempt.start_s - job.stopped.end_s)
        lines.append(f"{_stopped(job.stopped)}; it then waited {waited} in the queue")
    if job.spec.exclusive and job.live:
        lines.append("no other job starts on its nodes: it was submitted with --exclusive")
    lines += _preference(state, job)
    lines += _beside(state, job, seen)
    lines += _loan(state, job)
    lines += isolation_lines(state, job)
    lines += _clock(state, job, attempt)
    lines += [
        f"node {rank.node} does not write its output to a file: {rank.output_note}"
        for rank in attempt.ranks
        if rank.output_note
    ]
    lines += _not_held(state, job, attempt) if job.live else []
    if job.preemptions:
        lines.append(f"it was preempted before: {job.preemptions} of its {attempt.number} attempts")
    if job.moves:
        lines.append(f"{job.moves} of these times it was moved, to go on elsewhere; last {job.last_move}")
    if record is not None and record.number == attempt.decision:
        lines += _plans(state, "its plans then", [plan for plan in record.plans if plan.how != "later"])
        if record.guard:
            lines.append(f"the guard stepped in: {record.guard}")
    return lines


def _stopped(stopped: Stopped) -> str:
    """Describe how the last attempt before the present one ended."""
    after = span(stopped.end_s - stopped.start_s)
    return f"attempt {stopped.number} ended after {after}: {stopped.reason}"


def _not_held(state: BrokerState, job: Job, attempt: Attempt) -> list[str]:
    """Describe the nodes that do not limit the job to its requested cores or memory."""
    asked = [
        (name, words)
        for name, words, amount in (
            ("cores", "its cores", job.spec.num_cpus),
            ("memory", "its memory", job.spec.memory_mib),
        )
        if amount and job.spec.counted
    ]
    lines = []
    for name, words in asked:
        loose = [
            rank.node
            for rank in attempt.ranks
            if rank.node in state.nodes
            and name not in (state.nodes[rank.node].spec.capabilities.holds_to or ())
        ]
        if loose:
            more = f" and {len(loose) - NAMED_NODES} more" if len(loose) > NAMED_NODES else ""
            lines.append(
                f"not held as a whole to {words}, {beside_gpus(needs(job))}, by "
                f"{', '.join(loose[:NAMED_NODES])}{more}: `rlsched nodes` says why"
            )
    return lines


def _kept_apart(state: BrokerState, job: Job) -> list[str]:
    """Describe why the job shares no GPUs although the broker allows sharing."""
    if not state.models.shares or not state.cluster.arrays.job.unshared[state.cluster.slot_of(job.seq)]:
        return []
    why = "its workload is unknown; `rlsched update --share yes` permits sharing"
    if job.alone:
        why = job.alone_reason or (
            "it was out of GPU memory on shared GPUs, or ended with co-tenants by a GPU fault"
        )
    elif job.spec.exclusive:
        why = "it gets whole nodes"
    elif job.spec.share == "no":
        why = "as it was submitted"
    return [f"it shares no GPUs: {why}"]


def _beside(state: BrokerState, job: Job, seen: SeenSpeed | None) -> list[str]:
    """Describe the job's co-tenants, with predicted speeds, and the observed speed of the job itself."""
    others = co_tenants(state, job)
    if not others:
        return []
    speeds = [state.models.shared_frac(seq) for seq in state.cluster.beside(job.seq)]
    told = ", ".join(
        f"job {name} ({frac:.2f} of its unshared speed)" for name, frac in zip(others, speeds, strict=True)
    )
    mine = state.models.shared_frac(job.seq)
    line = f"shares its GPUs with {told}, and is predicted to run at {mine:.2f} of its unshared speed"
    if seen is None:
        return [line]
    slow_s = seen.slow_s
    line += f"; seen {seen.speed_frac:.2f} for {span(slow_s if slow_s > 0.0 else seen.seen_s)}"
    if slow_s < SLOW_AFTER_S:
        return [line]
    advice = "`rlsched update --share no` and `rlsched requeue` let it run unshared"
    return [line, f"slower than predicted, or than the policy permits: {advice}"]


def _loan(state: BrokerState, job: Job) -> list[str]:
    """Describe the CPU cores that are lent to the job."""
    lent = lent_cpus(state, job)
    if not lent:
        return []
    what = f"{lent} idle core{'' if lent == 1 else 's'}"
    return [f"has {what} in addition to its {job.spec.num_cpus} requested, until another job requests them"]


def _clock(state: BrokerState, job: Job, attempt: Attempt) -> list[str]:
    """Describe the job's SM clock, the reasons for this clock, and nodes that cannot set clocks."""
    own = job.spec.speed_energy
    weight = state.cluster.energy_counts if own is None else own
    cap = state.models.clock_cap(job.seq) if job.active is attempt else 1.0
    capped = []
    if cap < attempt.sm_clock_frac:
        limit_kw = float(state.cluster.arrays.config[0].limit_w) / 1e3
        capped = [f"the power limit of {limit_kw:g} kW lowers its SM clock to {cap:.2f} of the highest"]
    limited = state.models.limits_power
    if weight == 0.0 and attempt.sm_clock_frac == 1.0 and not limited:
        return []
    whose = "" if own is None else " (set for this job)"
    weighed = f"with {weight:g} as the weight of energy against speed{whose}"
    lines: list[str] = []
    if attempt.sm_clock_frac == 1.0:
        lines = [f"at the highest SM clock, {weighed}"] if weight else []
    else:
        set_mhz = "/".join(map(str, sorted({rank.sm_clock_mhz for rank in attempt.ranks} - {0})))
        in_mhz = f", {set_mhz} MHz" if set_mhz else ""
        lines = [f"at {attempt.sm_clock_frac:.2f} of the highest SM clock{in_mhz}, {weighed}"]
    lines += capped
    lines += [
        f"node {rank.node} did not set its clocks: {rank.clock_note}"
        for rank in attempt.ranks
        if rank.clock_note
    ]
    if attempt.sm_clock_frac == 1.0 or limited:
        lines += [
            f"node {name} cannot set clocks: {state.nodes[name].spec.clocks_note or 'it did not say why'}"
            for name in dict.fromkeys(rank.node for rank in attempt.ranks)
            if not state.nodes[name].spec.sm_clocks_mhz
        ]
    return lines


def _drawn_w(job: Job, usage: SeenUsage | None, now_s: float) -> float | None:
    """Return the mean power of a job per GPU, W; None if it cannot be compared with learnt power.

    Power is learnt at the highest clock, without co-tenants and without lent cores.
    """
    attempt = job.attempt
    if attempt is None or usage is None or usage.energy_j is None or job.state == QUEUED:
        return None
    until_s = usage.at_s if job.live else job.end_s
    ran_s = (until_s or now_s) - attempt.seated_s
    if attempt.was_shared or attempt.was_capped or attempt.was_lent or attempt.sm_clock_frac < 1.0:
        return None
    if ran_s < LEAST_MEASURED_S:
        return None
    return usage.energy_j / ran_s / max(job.spec.num_gpus, 1)


def _seen_clock(state: BrokerState, job: Job, usage: SeenUsage | None, now_s: float) -> list[str]:
    """Describe the predicted and observed effects of a lower clock on a running job without co-tenants.

    The effects are the lost speed, computed from the job's GPU time (`learning.clock_time`), and the saved
    energy per unit of work, both relative to earlier attempts at the highest clock.
    """
    attempt = job.active
    if attempt is None or attempt.sm_clock_frac == 1.0 or usage is None:
        return []
    if attempt.was_shared or attempt.was_capped or attempt.was_lent:
        return []
    types = {state.nodes[rank.node].spec.gpu_type for rank in attempt.ranks}
    ran_s = (usage.at_s or now_s) - attempt.seated_s
    if len(types) != 1 or usage.gpu_frac is None or ran_s < LEAST_MEASURED_S:
        return []
    (gpu_type,) = types
    signature = signature_of(job.spec.user, job.spec.command)
    full = state.profiles.figure(signature, gpu_type, "full_util_frac")
    time = clock_time(full, usage.gpu_frac)
    if time is None:
        return []
    workload = workload_name(runs_as(job.spec))
    predicted = state.models.speed_frac(workload, gpu_type, attempt.sm_clock_frac)
    lost = share(1.0 - 1.0 / time)
    line = f"its clock is predicted to cost {share(1.0 - predicted)} of its speed, seen {lost}"
    dynamic_w = state.profiles.figure(signature, gpu_type, "dynamic_w")
    if dynamic_w is None or usage.energy_j is None:
        return [line]
    full_w = GPU_FIGURES[canonical_kind(gpu_type)]["static_w"].value + dynamic_w.value
    expected_w = power_at_clock(gpu_type, dynamic_w.value, 1.0 / predicted, attempt.sm_clock_frac)
    drawn_w = usage.energy_j / ran_s / max(job.spec.num_gpus, 1)
    return [
        f"{line}; and to save {share(1.0 - expected_w / predicted / full_w)} of the energy for its work, "
        f"seen {share(1.0 - drawn_w * time / full_w)}"
    ]


def _predictor(job: Job) -> str:
    return {RUNNING_MEAN: "the running mean", HEDGE: "the hedge of predictors"}[job.spec.predicted_by]
