"""Conversion between a `ClusterState` and the ledger in a base (the state that begins a journal)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rlsched.broker.state.base import Counted, DemandClass, Ledger, LedgerJob, LedgerNode
from rlsched.cluster import kernels
from rlsched.cluster.arrays import (
    DEFERRED,
    INELIGIBLE,
    LEAVING,
    MAX_TENANTS,
    NODE_ASLEEP,
    NODE_BOOTING,
    NODE_DOWN,
    NODE_DRAINED,
    NODE_UP,
    RUNNING,
    SLOT_EMPTY,
    WAITING,
)
from rlsched.cluster.dials import COUNTED, DIAL, NO_CONTROLLER
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.queue import _let_preempt

_NODE_STATUS: Final = {
    NODE_UP: "up",
    NODE_DRAINED: "drained",
    NODE_DOWN: "down",
    NODE_ASLEEP: "asleep",
    NODE_BOOTING: "booting",
}
_STATUS: Final = {
    WAITING: "waiting",
    INELIGIBLE: "waiting",
    DEFERRED: "waiting",
    RUNNING: "running",
    LEAVING: "leaving",
}
_IN_JOURNALS: Final = {
    "log_predicted": "said",
    "log_ran": "took",
    "log_predicted_square": "said_square",
    "log_ran_square": "took_square",
    "log_product": "said_took",
}
"""Present name of a field of `COUNTED` -> its name in journals."""
_COUNTED: Final = {field: _IN_JOURNALS.get(field, field) for field in COUNTED.names or ()}
JOB_FIELDS: Final = (
    "slack_s",
    "moved_for",
    "moved_attempt",
    "submit_s",
    "predicted_s",
    "spread",
    "limit_s",
    "start_s",
    "attained_gpu_s",
    "overhead_left_s",
    "saved_s",
    "ln_weight",
    "sm_clock_frac",
    "cpu_milli_each",
    "rate",
    "rate_since_s",
    "share_milli",
    "attempt",
    "preemptions",
    "pinned",
    "energy_ppm",
    "reference_kind",
    "generation",
    "level",
)
"""Fields of a live job that a base stores because they cannot be derived from other fields."""
BURST_FIELDS: Final = (
    "first_predicted_s",
    "burst",
    "burst_ended",
    "burst_ln_sum",
    "burst_spread",
    "look_s",
)
"""Further fields of a live job that a base stores if bursts (similar jobs in a row) revise predictions
(`Ledger.revises`).
"""
JOB_DERIVED: Final = (
    "seq",
    "key",
    "status",
    "vc",
    "own_partition",
    "shared_partition",
    "placed_in",
    "gpus",
    "demand",
    "host",
    "workload",
    "unshared",
    "gpu_need_mib",
    "core_need_milli",
    "dynamic_ratio",
    "head",
)
"""Fields of a live job that a base does not store: `LedgerJob` or the submission determines them."""
DEMAND_FIELDS: Final = (
    "arrived",
    "error_square",
    "error_count",
    "own_square",
    "own_count",
    "burst_last_s",
    "burst_spread",
    "burst_ln_sum",
    "burst_ended",
    "burst",
)


def ledger_of(state: ClusterState, policy_id: str, *, preemptible: bool) -> Ledger:
    """Return the state of a cluster as the part `Ledger` of a base.

    Args:
        state: The cluster.
        policy_id: ID of the policy that decided.
        preemptible: Whether a preemptible job was ever submitted.
    """
    s, job = state.arrays, state.arrays.job
    revises = bool(s.order.code[0].revises)
    live = np.flatnonzero(job.status != SLOT_EMPTY)
    names = (*JOB_FIELDS, *(BURST_FIELDS if revises else ()))
    vcs, asked = state.vc_names, state.demands
    return Ledger(
        nodes=[
            LedgerNode(
                spec=spec,
                status=_NODE_STATUS[int(node.status)],
                fixed_clock=bool(node.fixed_clock),
                usable_mib=state.usable_gpu_memory(n),
                joinable_mib=state.join_limits(n),
            )
            for n, (spec, node) in enumerate(zip(state.nodes, s.node, strict=True))
        ],
        jobs=[
            LedgerJob(
                seq=int(job.seq[slot]),
                num_gpus=int(job.gpus[slot]),
                cpu_milli=asked[int(job.demand[slot])].cpu_milli,
                memory_mib=asked[int(job.demand[slot])].memory_mib,
                gpu_memory_mib=asked[int(job.demand[slot])].gpu_memory_mib,
                gpu_free_mib=asked[int(job.demand[slot])].gpu_free_mib,
                gpu_types=list(asked[int(job.demand[slot])].gpu_types),
                exclusive=asked[int(job.demand[slot])].exclusive,
                preferred_types=list(asked[int(job.demand[slot])].preferred_types),
                vc=vcs[job.vc[slot]] if job.vc[slot] >= 0 else "",
                status=_STATUS[int(job.status[slot])],
                gpus=state.gpus_of(int(job.seq[slot])),
                fields={name: job[name][slot].item() for name in names},
                tenant=max(int(job.head[slot]), 0) % MAX_TENANTS,
            )
            for slot in live[np.argsort(job.seq[live])].tolist()
        ],
        demands=[
            DemandClass(
                num_gpus=demand.gpus,
                cpu_milli=demand.cpu_milli,
                memory_mib=demand.memory_mib,
                gpu_memory_mib=demand.gpu_memory_mib,
                gpu_free_mib=demand.gpu_free_mib,
                gpu_types=list(demand.gpu_types),
                exclusive=demand.exclusive,
                preferred_types=list(demand.preferred_types),
                burst_vc=vcs[row.burst_vc] if row.burst_vc >= 0 and vcs else "",
                fields={name: row[name].item() for name in DEMAND_FIELDS},
            )
            for demand, row in zip(asked, s.demand, strict=False)
            if not demand.only_preferred  # follows from the class with the preference
        ],
        vcs=list(vcs),
        gpu_types=list(state.kind_names),
        next_seq=int(s.counters[0].next_seq),
        decisions=state.decisions,
        preemptible=preemptible,
        revises=revises,
        policy_id=policy_id,
        partitions={}
        if s.dials.controller[0] == NO_CONTROLLER
        else {
            name: Counted(
                counted={key: s.dials.counted[field][p].tolist() for field, key in _COUNTED.items()},
                dial={field: s.dials.dial[field][p].item() for field in DIAL.names or ()},
            )
            for p, name in enumerate(state.partition_names)
        },
    )


def fill(
    state: ClusterState, ledger: Ledger, workloads: dict[int, int], policy_id: str, now_s: float
) -> None:
    """Fill an empty cluster with the nodes and live jobs that a base stores.

    All waiting jobs enter the queues. The caller must then call `Gates.add_gates` and
    `QuotaTable.restore_quotas`, which remove ineligible jobs.

    Args:
        state: The cluster. `permit` must have set the permissions of its scheduler already.
        ledger: The ledger of the base.
        workloads: Catalogue index of each job's workload, by sequence number of the job in the ledger.
        policy_id: ID of the policy that decides.
        now_s: Time of the base, Unix seconds.
    """
    for name in ledger.gpu_types:
        state.know_kind(name)
    for name in ledger.vcs:
        state.vc_number(name)
    state.add_nodes([node.spec for node in ledger.nodes])
    state.reserve_demands([one.demand for one in ledger.demands])
    while state.arrays.job.shape[0] < len(ledger.jobs):
        state.grow()
    for number, node in enumerate(ledger.nodes):
        state.fix_clocks(number, node.fixed_clock)
        if node.status == "down":
            state.fail_node(number)
        elif node.status == "drained":
            state.drain_node(number)
        elif node.status == "asleep":
            state.sleep_node(number)
        elif node.status == "booting":
            state.boot_node(number)
    slots = {one.seq: _enter(state, one, ledger.revises) for one in ledger.jobs}
    _seat(state, [(slots[one.seq], one) for one in ledger.jobs if one.status == "running"])
    state.check_parts()
    for number, node in enumerate(ledger.nodes):
        if node.usable_mib:
            state.limit_gpu_memory(number, node.usable_mib)
        state.limit_joins(number, node.joinable_mib)
    s, job = state.arrays, state.arrays.job
    for seq, slot in slots.items():
        job.workload[slot] = workloads[seq]
    for one in ledger.demands:
        number = state.demand_number(one.demand)
        s.demand.burst_vc[number] = state.vc_number(one.burst_vc)
        _set(s.demand, number, one.fields, DEMAND_FIELDS)
    s.scratch[0].look_s = -np.inf  # jobs are reviewed when they are due
    s.counters[0].next_seq, s.counters[0].decisions = ledger.next_seq, ledger.decisions
    if ledger.preemptible and s.order.may_change and not s.config[0].preempts:
        _let_preempt(s, now_s)
    if s.dials.controller[0] != NO_CONTROLLER:
        _fill_dials(state, ledger, policy_id)


def _enter(state: ClusterState, one: LedgerJob, revised: bool) -> int:
    """Add a live job to the ledger, with its GPUs if it runs. Return its slot (index in `state.arrays.job`).

    `revised`: whether the base stores `BURST_FIELDS`, because bursts revised predictions.
    """
    s, fields = state.arrays, one.fields
    s.counters[0].next_seq = one.seq
    slot: int = kernels.add_job(
        s,
        state.demand_number(one.demand),
        state.vc_number(one.vc),
        *state.partitions_of(one.vc),
        fields["submit_s"],
        fields["predicted_s"],
        fields["spread"],
        fields["limit_s"],
        bool(fields["pinned"]),
    )
    job = s.job
    if one.status == "running":
        gpus = np.array(one.gpus, np.int32)
        host = int(s.gpu.node[gpus[0]])
        share_milli, clock = int(fields["share_milli"]), fields["sm_clock_frac"]
        job.cpu_milli_each[slot] = int(fields["cpu_milli_each"])
        kernels.enqueue(s, slot, 0.0)
        partition = int(s.node.part_of[host])
        kernels.allocate(s, slot, gpus, host, partition, share_milli, clock, fields["start_s"])
    _set(job, slot, fields, (*JOB_FIELDS, *BURST_FIELDS))
    if not revised:
        job.first_predicted_s[slot], job.burst[slot] = fields["predicted_s"], one.seq
        job.burst_ended[slot], job.burst_ln_sum[slot], job.look_s[slot] = 0, 0.0, np.inf
        job.burst_spread[slot] = fields["spread"]
    elif not s.order.code[0].revises:
        job.predicted_s[slot] = fields["first_predicted_s"]
    if one.status == "leaving":
        job.status[slot] = LEAVING
    elif one.status == "waiting":
        kernels.enqueue(s, slot, 0.0)
        state.rank_job(one.seq, int(fields["level"]), fields["ln_weight"], fields["submit_s"])
    return slot


def _seat(state: ClusterState, running: list[tuple[int, LedgerJob]]) -> None:
    """Give each running job its stored position (`tenant`) among the jobs on its GPUs.

    `running`: (slot, job) of each running job.
    """
    gpu, job = state.arrays.gpu, state.arrays.job
    for _, one in running:
        for g in one.gpus:
            gpu.tenant[g], gpu.link[g] = -1, -1
    for slot, one in running:
        places = [g * MAX_TENANTS + one.tenant for g in one.gpus]
        for g, after in zip(one.gpus, [*places[1:], -1], strict=True):
            gpu.tenant[g, one.tenant], gpu.link[g, one.tenant] = slot, after
        job.head[slot] = places[0]


def _fill_dials(state: ClusterState, ledger: Ledger, policy_id: str) -> None:
    """Restore the counters of all partitions, and the positions of the dials (numbers that adjust a rule).

    The dials are restored only if the policy has not changed.
    """
    dials = state.arrays.dials
    for p, name in enumerate(state.partition_names):
        known = ledger.partitions.get(name)
        if known is None:
            continue
        for field, key in _COUNTED.items():
            if key in known.counted:
                dials.counted[field][p] = known.counted[key]
        if policy_id == ledger.policy_id:
            _set(dials.dial, p, known.dial, DIAL.names or ())
        else:
            dials.dial.due[p] = 1


def _set(records: Any, at: int, values: dict[str, float], names: tuple[str, ...]) -> None:
    for name in names:
        if name in values:
            records[name][at] = values[name]
