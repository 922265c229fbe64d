"""Rows of the lists of jobs and nodes: the row of a job, of an array, or of a node."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlsched.broker.base.shortened import MAX_NAME_CHARS, MAX_REASON_CHARS, shortened
from rlsched.broker.nodes.metered import NodeUse
from rlsched.broker.nodes.seen_speed import SeenSpeed
from rlsched.broker.queries.waiting import WaitingReasons, kept_out
from rlsched.broker.state.arrays import JobArray
from rlsched.broker.state.bills import NO_BILL, JobBill
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import memory
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.nodes import Node
from rlsched.broker.state.tasks import count, in_words, joined
from rlsched.wire.messages import MPS, TIME_SLICING, JobForecast, JobInfo, NodeInfo, SeenUsage, Tasks
from rlsched.wire.states import COMPLETED, QUEUED


def seat_reason(state: BrokerState, attempt: Attempt) -> str:
    """Return why an attempt is not launched yet although the ledger has allocated GPUs to it."""
    numbers = sorted({number for number, _ in attempt.leaving})
    others = ", ".join(f"job {state.called(number)}" for number in numbers)
    return f"waits until {others}, preempted, {'has' if len(numbers) == 1 else 'have'} left its GPUs"


def co_tenants(state: BrokerState, job: Job) -> list[str]:
    """Return the IDs of the jobs that share GPUs with a job at present."""
    if job.active is None or job.active.tenants < 2:
        return []
    return [state.job_of_seq[seq].called for seq in state.cluster.beside(job.seq)]


def lent_cpus(state: BrokerState, job: Job) -> int:
    """Return the number of CPU cores that are lent to a job (`rlsched.cluster.loans`)."""
    if job.active is None:
        return 0
    return state.cluster.cpu_milli_each(job.seq)[1] * job.spec.num_gpus // 1000


def job_info(
    job: Job,
    reasons: WaitingReasons,
    max_nodes: int,
    *,
    queue_key: float | None = None,
    forecast: JobForecast | None = None,
    speed_frac: float | None = None,
    beside: Sequence[str] = (),
    usage: SeenUsage | None = None,
    energy_j: float | None = None,
    bill: JobBill = NO_BILL,
    grace_s: float | None = None,
    shared_by: Sequence[str] = (),
    seen: SeenSpeed | None = None,
    lent_cpus: int = 0,
) -> JobInfo:
    """Return the row of a job. Long texts are shortened.

    Args:
        job: The job.
        reasons: Reasons why queued jobs wait.
        max_nodes: Maximum number of nodes named in the row, so that the row of a large gang fits a frame.
        forecast: Forecast of the job's start and end.
        queue_key: Sort key of the job in the queue; None: the job is not queued.
        speed_frac: Predicted speed, relative to the speed without co-tenants at the highest clock; None: the
            job has no GPUs.
        `beside`: IDs of the jobs that share GPUs with the job.
        usage: Resources that the job uses; None: not measured.
        energy_j: Energy of all attempts, joules; None: not measured.
        bill: Cost and carbon of this energy.
        grace_s: Time between SIGTERM and SIGKILL, seconds; None: the job has ended.
        shared_by: Ways in which the job can share its GPUs on its nodes (`MPS`, `TIME_SLICING`).
        seen: Observed speed of the job with its co-tenants.
        lent_cpus: Number of CPU cores that are lent to the job.
    """
    attempt = job.attempt
    reason = job.reason
    if job.state == QUEUED:
        reason = reasons.waiting_reason(job)
    elif job.active is not None and job.active.ending:
        reason = f"being ended: {job.active.ending_reason}"
    elif job.active is not None and job.active.leaving:
        reason = seat_reason(reasons.state, job.active)
    ranks = attempt.ranks[:max_nodes] if attempt is not None else []
    return JobInfo(
        job=job.number,
        name=shortened(job.spec.name),
        user=shortened(job.spec.user),
        account=shortened(job.spec.account),
        vc=shortened(job.spec.vc),
        state=job.state,
        num_gpus=job.spec.num_gpus,
        attempt=attempt.number if attempt else 0,
        submit_s=job.submit_s,
        predicted_s=job.spec.predicted_s,
        predicted_by=job.spec.predicted_by,
        start_s=attempt.start_s if attempt else None,
        end_s=job.end_s,
        exit_code=job.exit_code,
        nodes=[rank.node for rank in ranks],
        gpus=[rank.gpus for rank in ranks],
        nodes_omitted=len(attempt.ranks) - len(ranks) if attempt else 0,
        decided_by=attempt.source if attempt else "",
        reason=shortened(reason, MAX_REASON_CHARS),
        preemptible=job.spec.preemptible,
        priority=job.spec.priority,
        preemptions=job.preemptions,
        num_cpus=job.spec.num_cpus,
        lent_cpus=lent_cpus,
        memory_mib=job.spec.memory_mib,
        gpu_memory_mib=max(job.spec.gpu_memory_mib, job.gpu_memory_mib),
        gpu_types=job.spec.gpu_types,
        preferred_types=job.spec.preferred_types,
        exclusive=job.spec.exclusive,
        workload=job.spec.workload,
        share=job.spec.share,
        beside=list(beside),
        speed_energy=job.spec.speed_energy,
        sm_clock_frac=attempt.sm_clock_frac if attempt else None,
        forecast=forecast,
        queue_key=queue_key,
        speed_frac=speed_frac,
        sm_clocks_mhz=[rank.sm_clock_mhz for rank in ranks],
        array=job.spec.array,
        task=job.spec.task,
        usage=usage,
        energy_j=energy_j,
        cost=bill.cost,
        carbon_kg=bill.carbon_kg,
        currency=shortened(bill.currency),
        grace_s=grace_s,
        shared_by=list(shared_by),
        seen_speed_frac=None if seen is None else round(seen.speed_frac, 4),
        slow_sharing_s=0.0 if seen is None else round(seen.slow_s, 1),
    )


def array_info(state: BrokerState, array: JobArray) -> JobInfo:
    """Return the row of an array, with the settings of the tasks that are not jobs yet."""
    spec, jobs = array.spec, state.jobs
    limit = f"%{spec.array_limit}" if spec.array_limit else ""
    fresh = joined([Tasks(task, task) for task in sorted(array.fresh)])
    waiting = array.coming if array.coming and not array.stopped else fresh
    coming = in_words(waiting, MAX_NAME_CHARS) + limit if waiting else ""
    reasons = [*kept_out(state, spec), state.arrays.progress_line(array.number, jobs)]
    return JobInfo(
        job=array.number,
        name=shortened(spec.name),
        user=shortened(spec.user),
        account=shortened(spec.account),
        vc=shortened(spec.vc),
        state=array.state,
        num_gpus=spec.num_gpus,
        attempt=0,
        submit_s=array.submit_s,
        predicted_s=spec.predicted_s,
        predicted_by=spec.predicted_by,
        start_s=array.start_s,
        end_s=array.end_s,
        exit_code=None if array.end_s is None else int(array.state != COMPLETED),
        nodes=[],
        gpus=[],
        decided_by="",
        reason=shortened("; ".join(reasons), MAX_REASON_CHARS),
        preemptible=spec.preemptible,
        priority=spec.priority,
        gpu_types=spec.gpu_types,
        preferred_types=spec.preferred_types,
        exclusive=spec.exclusive,
        workload=spec.workload,
        share=spec.share,
        speed_energy=spec.speed_energy,
        tasks=shortened(coming),
        num_tasks=count(spec.tasks),
    )


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for a name, which orders n2 before n10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def out_of_service(state: BrokerState, name: str) -> list[str]:
    """Describe the GPUs of a node that are lost or used by a foreign process, one line for each reason.

    The result is empty for nodes of other engines: jobs that are not the broker's may use GPUs there.
    """
    return state.holdings.holding_lines(name) if state.nodes[name].spec.capabilities.is_own else []


def node_notes(node: Node) -> list[str]:
    """Return a node's notes for users, with a note if its rlsched is too old to limit cores and memory.

    Other engines limit the cores and memory of jobs themselves.
    """
    spec = node.spec
    if spec.capabilities.holds_to is not None or not spec.memory_mib:
        return spec.notes
    return [*spec.notes, "its rlsched is too old to limit the cores and memory of jobs: update the node"]


def _sharing_notes(node: Node, outside_mps: Sequence[str]) -> list[str]:
    """Describe sharing by MPS on a node, and name jobs that run without MPS; empty for nodes without MPS."""
    if node.spec.capabilities.sharing != MPS:
        return []
    notes = ["GPUs shared by MPS"]
    if outside_mps:
        jobs = f"job{'s' if len(outside_mps) > 1 else ''} {', '.join(outside_mps)}"
        notes.append(shortened(f"{jobs} without MPS: no memory limit (rlsched why)", MAX_REASON_CHARS))
    return notes


def _memory_notes(state: BrokerState, node: Node) -> list[str]:
    """Describe how much memory jobs can get on GPUs that other processes use too."""
    usable_mib = state.cluster.usable_gpu_memory(node.number)
    found = [f"GPU {gpu}: {memory(mib)} free for jobs" for gpu, mib in usable_mib.items()]
    return [shortened(", ".join(found), MAX_REASON_CHARS)] if found else []


def node_info(
    state: BrokerState,
    name: str,
    seen_s: float,
    clock_skew_s: float | None = None,
    power_w: float | None = None,
    use: NodeUse | None = None,
    outside_mps: Sequence[str] = (),
) -> NodeInfo:
    """Return the row of a node."""
    node, use = state.nodes[name], use or NodeUse()
    jobs = sorted(node.live_jobs)
    free = int(state.cluster.arrays.node.free[node.number]) if node.state in ("up", "drained") else 0
    return NodeInfo(
        name=name,
        state=node.state,
        reason=shortened(node.reason, MAX_REASON_CHARS),
        gpus=node.spec.gpus,
        free_gpus=free,
        gpu_type=shortened(node.spec.gpu_type),
        vc=shortened(node.spec.vc),
        jobs=jobs,
        called=[state.called(number) for number in jobs],
        last_seen_s=seen_s,
        clock_skew_s=clock_skew_s,
        power_w=power_w,
        notes=[
            *(shortened(line, MAX_REASON_CHARS) for line in out_of_service(state, name)),
            *node_notes(node),
            *_sharing_notes(node, outside_mps),
            *_memory_notes(state, node),
        ],
        sharing=(node.spec.capabilities.sharing or TIME_SLICING) if node.spec.capabilities.shares else "",
        energy_day_j=use.energy_day_j,
        gpu_frac=use.gpu_frac,
        cores=use.cores,
        memory_mib=use.memory_mib,
        max_sm_clock_mhz=max(node.spec.sm_clocks_mhz, default=0),
        clocks_note=shortened(node.spec.clocks_note, MAX_REASON_CHARS),
    )
