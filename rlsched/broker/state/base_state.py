"""Conversion between a broker's state and a base (the state that begins a compacted journal)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from rlsched.broker.base.profiles import Profiles
from rlsched.broker.state.arrays import JobArray
from rlsched.broker.state.base import Base, BaseArray, BaseJob, Charged, HeldNode, Learned
from rlsched.broker.state.base_learned import Noting, replay_learned
from rlsched.broker.state.base_ledger import fill, ledger_of
from rlsched.broker.state.finished_job import plain
from rlsched.broker.state.job_requests import learnt_use, runs_as, sharing_of
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.known import Known
from rlsched.broker.state.nodes import Node
from rlsched.broker.state.quotas import owner_of
from rlsched.broker.state.tasks import minus, numbers
from rlsched.broker.state.updates import difference, updated
from rlsched.cluster.arrays import LEAVING, RUNNING, WAITING
from rlsched.errors import JournalError
from rlsched.wire.messages import Tasks


def base_of(
    state: Known, noting: Noting, before: Learned | None, policy_id: str, *, preemptible: bool
) -> Base:
    """Return the base that replaces all journal entries from which this state was replayed.

    Args:
        state: State of the broker.
        noting: The run-time predictions, which have recorded the live jobs and the latest ended jobs.
        before: Observations for predictors in the base that begins the journal; None: it has no base.
        policy_id: ID of the policy that decided.
        preemptible: Whether a preemptible job was ever submitted.
    """
    usage, usage_at_s = state.usage.sums
    jobs = sorted(state.job_of_seq.values(), key=lambda job: job.seq)
    barred = state.eligibility.barred_by("Quota")
    factors, pairs = state.models.pairs.kept()
    return Base(
        now_s=state.now_s,
        epoch=state.epoch,
        identity=state.identity,
        last_number=state.last_number,
        last_attempt=state.last_attempt,
        highest_attempt=state.highest_attempt,
        restored_s=state.restored_s,
        taken_over=state.taken_over,
        speed_energy=state.cluster.energy_counts,
        numbers=state.numbers.runs,
        decided=state.decisions,
        contested=state.contested,
        interventions=state.interventions,
        outcomes=state.outcomes,
        asked_for_s=state.asked_for_s,
        health_failures=state.health_failures,
        ran_on={person: _bits(nodes) for person, nodes in state.ran_on.items()},
        nodes=[plain(node) for node in state.nodes.values()],
        jobs=[
            BaseJob(
                submitted=noting.live[job.number].entry,
                job={name: value for name, value in plain(job).items() if name != "spec"},
                level=state.priorities.level(job.number),
                barred=job.seq in barred,
                moves=noting.live[job.number].moves,
                held=state.gates.holder(job.number),
                depends_on=state.gates.open_dependencies(job.number),
                changed=difference(noting.live[job.number].entry, job.spec),
            )
            for job in jobs
        ],
        ledger=ledger_of(state.cluster, policy_id, preemptible=preemptible),
        charged=Charged(
            half_life_s=state.usage.half_life_s,
            usage=usage,
            usage_at_s=usage_at_s,
            month=state.quotas.party_charges(),
            weights=state.priorities.ln_weights,
            quotas=state.quotas.entries(),
            members=state.accounts.entries(),
        ),
        learned=noting.learned(before or Learned()),
        arrays=[
            BaseArray(
                submitted=array.spec,
                array={name: value for name, value in plain(array).items() if name not in ("spec", "fresh")}
                | {"fresh": sorted(array.fresh)},
                held=state.gates.holder(array.number),
                depends_on=state.gates.open_dependencies(array.number),
            )
            for array in state.arrays.known.values()
        ],
        held=[HeldNode(node=name, held=held) for name, held in state.holdings.by_node.items()],
        profiles=state.profiles.kept_profiles(),
        shares=state.models.shares,
        awaited=sorted(state.awaited),
        chosen=state.chosen,
        factors=factors,
        pairs=pairs,
        energy_price=state.energy_price,
        price_sums=state.price_sums,
        bill_price=state.bill_price,
        bill_price_sums=state.bill_price_sums,
    )


def restore_base(state: Known, base: Base, policy_id: str) -> None:
    """Fill an empty state with the content of a base.

    Raises:
        JournalError: the state is not empty, or the base is damaged.
    """
    if state.epoch or state.nodes or state.jobs:
        raise JournalError("expected a base only at the beginning of a journal, got it after entries")
    try:
        nodes = [msgspec.convert(node, Node) for node in base.nodes]
        jobs = [_job(one) for one in base.jobs]
    except (msgspec.ValidationError, TypeError, KeyError) as error:
        raise JournalError(f"the journal's base is damaged: {error}") from error
    state.now_s, state.epoch, state.identity = base.now_s, base.epoch, base.identity
    state.chosen = base.chosen
    state.last_number, state.last_attempt = base.last_number, base.last_attempt
    state.highest_attempt, state.health_failures = base.highest_attempt, base.health_failures
    state.restored_s, state.taken_over = base.restored_s, base.taken_over
    state.awaited = set(base.awaited)
    state.decisions, state.contested = dict(base.decided), dict(base.contested)
    state.interventions, state.outcomes = dict(base.interventions), dict(base.outcomes)
    state.asked_for_s = dict(base.asked_for_s)
    state.ran_on = {person: sum(1 << node for node in found) for person, found in base.ran_on.items()}
    for first, count in base.numbers:
        state.numbers.append_run(first, count)
    if base.energy_price is not None:  # before the dials are restored, because a new price makes them due
        state.set_price(base.energy_price, base.now_s)
    state.price_sums = base.price_sums
    state.bill_price, state.bill_price_sums = base.bill_price, base.bill_price_sums
    workloads = {one.job["seq"]: runs_as(one.submitted) for one in base.jobs}
    workloads |= {seq: 0 for one in base.held for _, seq in one.held}
    fill(state.cluster, base.ledger, workloads, policy_id, base.now_s)
    for holder in base.held:
        for _, seq in holder.held:
            state.cluster.share_job(seq, shares=False, gpu_need_mib=-1)  # GPUs of others are never shared
    state.models.pairs.take_up(base.factors, base.pairs)
    state.models.weigh(base.speed_energy)
    state.models.share(base.shares)
    for node in nodes:
        state.nodes[node.spec.name] = node
        can = node.spec.capabilities
        state.models.node(node.number, node.spec.sm_clocks_mhz, shares=can.shares, lends=can.lends)
    state.profiles = Profiles.from_kept(base.profiles)
    state.holdings.restore_holdings({one.node: one.held for one in base.held})
    replay_learned(state.predictions, base.learned, base.jobs)
    for job, one in zip(jobs, base.jobs, strict=True):
        _live(state, job)
        waits: dict[str, Any] = {"held": one.held, "depends_on": one.depends_on}
        if int(state.cluster.arrays.job.status[state.cluster.slot_of(job.seq)]) == WAITING:
            state.gates.add_gates(job.seq, msgspec.structs.replace(job.spec, **waits), base.now_s)
    for kept in base.arrays:
        array = msgspec.convert({**_with_coming(kept), "spec": kept.submitted}, JobArray)
        state.arrays.restore_array(array, kept.held, kept.depends_on, base.now_s)
    levels = {one.submitted.job: one.level for one in base.jobs}
    _charge(state, base, [one.job["seq"] for one in base.jobs if one.barred], levels)


def _live(state: Known, job: Job) -> None:
    """Add a live job to the state's tables. The ledger (`ClusterState`) must already have the job."""
    entry, status = job.spec, int(state.cluster.arrays.job.status[state.cluster.slot_of(job.seq)])
    state.jobs[job.number] = state.job_of_seq[job.seq] = job
    state.tokens[entry.token] = job.number
    state.number_of_seq.add(job.seq, job.number)
    state.models.add_energy_weight(job.number, entry.speed_energy)
    state.cluster.share_job(job.seq, **sharing_of(entry, job.learnt_gpu_mib, alone=job.alone))
    state.cluster.set_use(job.seq, learnt_use(entry.profiles, runs_as(entry)))
    state.priorities.add_ranked(entry, job.seq)
    state.quotas.add_waiting(job.seq, owner_of(entry), entry.num_gpus, state.now_s)
    if status in (RUNNING, LEAVING):
        state.quotas.charge_start(job.seq, state.now_s)
    if status == LEAVING:
        state.quotas.stop_charge(job.seq, state.now_s)
        state.seats.leaves(job)


def _charge(state: Known, base: Base, barred: list[int], levels: Mapping[int, int]) -> None:
    charged = base.charged
    state.usage.restore_usage(charged.usage, charged.usage_at_s)
    state.priorities.restore_priorities(charged.weights, dict(levels))
    state.quotas.restore_quotas(charged.quotas, charged.month, barred, base.now_s)
    for member in charged.members:
        state.accounts.set(member)


def _job(one: BaseJob) -> Job:
    spec = msgspec.structs.replace(one.submitted, said=b"")
    spec = spec if one.changed is None else updated(spec, one.changed)
    found: dict[str, Any] = {**one.job, "spec": spec}
    job: Job = msgspec.convert(found, Job)
    return job


def _with_coming(kept: BaseArray) -> dict[str, Any]:
    """Return the fields of an array, including `coming` (the tasks that are not jobs yet).

    Bases older than version 3 store `come` instead: the number of tasks that have become jobs, from the first
    task on.
    """
    fields = dict(kept.array)
    if "come" in fields:
        come = list(islice(numbers(kept.submitted.tasks), fields.pop("come")))
        fields["coming"] = minus(kept.submitted.tasks, [Tasks(task, task) for task in come])
    return fields


def _bits(mask: int) -> list[int]:
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
