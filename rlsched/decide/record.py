"""The decision record: everything needed to understand a decision later. Simulator and broker write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from rlsched.decide.actions import Action, Preempt, Start

RECORD_VERSION = 2
QUEUED = 50
"""Maximum number of queued jobs in a record."""

Source = Literal["policy", "rule", "guard", "engine", "automatic", "search"]
"""Component that made a decision; `search` occurs only in records and journals of earlier versions."""
JobName = Callable[[int], str]
"""Function that returns the display name of a job, given its sequence number in the cluster's state."""


class PlanSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One way to start the job under consideration, and its effects as predicted before the decision.

    Attributes:
        how: `free`: start on free GPUs. `share`: start on GPUs of running jobs. `preempt`: start on GPUs of a
            preempted job. `later`: do not start now.
        verdict: Reason why the plan is not allowed; "" if the plan is allowed.
        chosen: Whether the plan was chosen.
        node: First node; "" if unknown.
        nodes: Number of nodes that the plan uses.
        gpu_type: Type of the GPUs; "" if unknown.
        share_with: Sequence number of the running job whose GPUs the plan shares or takes by preemption; -1:
            none.
        tenants: Number of jobs on the GPUs under this plan, this job included; 0 if not computed.
        sm_clock_frac: SM clock as a fraction of the maximum.
        cpu_milli_each: CPU cores for each GPU, thousandths of a core.
        speed_frac: Predicted speed; 1: the speed on the same GPUs without co-tenants.
        gain_frac: Predicted speed less the speed that the co-tenants lose.
        asked_frac: Least gain required at current prices; None: no gain is required.
        wait_s: Time until the job could start, seconds; None: unknown.
        run_s: Predicted time from the start to the end of the job under this plan, seconds.
        power_w: Power that the job would add while it runs, watts; None without models.
        worth: Value by which plans are compared: the speed that the plan adds (1: the speed of a job without
            co-tenants), multiplied by the worth of the GPU type. None: the queue's order decides.
        rate: Predicted work per second, in seconds of the stated run time. `rate`, `gpu_w` and `cores_w` are
            None without models, for a job without GPUs, and in plans that were not chosen.
        gpu_w: Predicted power of the job's GPUs, including the job's part of the static power, watts.
        cores_w: Predicted power of the CPU cores that the job keeps busy, watts.
    """

    how: Literal["free", "share", "preempt", "later"]
    verdict: str = ""
    chosen: bool = False
    node: str = ""
    nodes: int = 1
    gpu_type: str = ""
    share_with: int = -1
    tenants: int = 0
    sm_clock_frac: float = 1.0
    cpu_milli_each: int = 0
    speed_frac: float = 1.0
    gain_frac: float = 1.0
    asked_frac: float | None = None
    wait_s: float | None = 0.0
    run_s: float = 0.0
    power_w: float | None = None
    worth: float | None = None
    rate: float | None = None
    gpu_w: float | None = None
    cores_w: float | None = None


class Names(msgspec.Struct, frozen=True, omit_defaults=True):
    """Display names of the jobs and nodes that a record mentions, by their numbers in the record.

    Attributes:
        jobs: Names of jobs: job numbers of a broker, or job ids of a trace.
        nodes: Names of nodes.
        queue: Names of the jobs in `DecisionRecord.queue`, separated by line feeds.
    """

    jobs: dict[int, str] = {}
    nodes: dict[int, str] = {}
    queue: str = ""

    def job(self, seq: int) -> str:
        """Return the display name of a job; for a record without names, its internal number."""
        return f"job {self.jobs[seq]}" if seq in self.jobs else f"internal job {seq}"


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of a scheduler. Jobs and nodes are numbered as in the cluster's state; see `names`.

    Attributes:
        version: `RECORD_VERSION`.
        source: Component that made the decision: `policy` (a scheduler that is not a rule), `rule`, `guard`
            (the fallback), `engine` (places jobs itself), or `automatic` (only one action was possible).
        policy_id: Name or content hash of the policy.
        state_digest: `ClusterState.digest()` before the decision, hexadecimal.
        number: Index of the decision in the run; random draws of the decision depend on this index.
        now_s: Seconds from the trace's origin (online: Unix time).
        partition: Name of the partition.
        action: The action chosen.
        took_us: Time from reading the state to choosing the action, microseconds.
        guard: Why the guard intervened, "" if it did not.
        reference: Name of the policy without its dials, for replays that compare both; "" without dials.
        turn: Sequence number of the job under consideration: the job that started, or for which another job
            was preempted; for a *wait*, the first job of the queue; -1: none.
        queue: Sequence numbers (int32) of the first `QUEUED` jobs waiting for the partition, in queue order;
            empty in records of earlier versions.
        plans: Plans of the job under consideration.
        prices: Current prices of GPU time and of GPU types, and the weight of energy, by name
            (`recording.prices_of`).
        plans_failed: Reason why the plans could not be listed; "" if they were listed.
        names: Display names of all jobs and nodes in this record; empty in records of earlier versions.
    """

    version: int = RECORD_VERSION
    source: Source
    policy_id: str
    state_digest: str
    number: int
    now_s: float
    partition: str
    action: Action
    took_us: float
    guard: str = ""
    reference: str = ""
    turn: int = -1
    queue: bytes = b""
    plans: list[PlanSeen] = msgspec.field(default_factory=list)
    prices: dict[str, float] = msgspec.field(default_factory=dict)
    plans_failed: str = ""
    names: Names = Names()


def with_names(record: DecisionRecord, job_name: JobName, node_names: Sequence[str]) -> DecisionRecord:
    """Return the record with display names of its jobs and nodes; unchanged if a name cannot be found."""
    try:
        names = Names(
            jobs={seq: job_name(seq) for seq in sorted({*_jobs(record)} - {-1})},
            nodes={node: node_names[node] for node in sorted({*_nodes(record)} - {-1})},
            queue="\n".join([job_name(seq) for seq in memoryview(record.queue).cast("i").tolist()]),
        )
    except Exception:  # a record without names does not stop a decision
        return record
    return msgspec.structs.replace(record, names=names)


def _jobs(record: DecisionRecord) -> Iterator[int]:
    yield record.turn
    if isinstance(record.action, Start):
        yield from (record.action.seq, record.action.share_with)
    elif isinstance(record.action, Preempt):
        yield from (record.action.seq, record.action.moved_for)
    for plan in record.plans:
        yield plan.share_with


def _nodes(record: DecisionRecord) -> Iterator[int]:
    if isinstance(record.action, Start):
        yield record.action.node
