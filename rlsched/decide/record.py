"""The decision record: everything needed to read one decision afterwards. Written by simulator and broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from rlsched.decide.actions import Action, Preempt, Start

RECORD_VERSION = 1
QUEUED = 50
"""Jobs of the queue that a record keeps."""

Source = Literal["policy", "rule", "guard", "automatic", "search", "engine"]
JobName = Callable[[int], str]
"""What people call a job, by its number in the cluster's state."""


class Half(msgspec.Struct, frozen=True, kw_only=True):
    """One half of a decision: the rows that were offered, and what was taken.

    K is the number of rows; lists run in row order.

    Attributes:
        kind: `job` (which job, or wait) or `how` (which variant of that job).
        seqs: Job of each row, -1 for *wait*.
        nodes: First node of each row's placement, -1 for *wait* and for jobs that do not fit.
        features: (K, F) actor features, row-major, the very float32 values the network saw.
        legal: Whether each row may be taken.
        reasons: A reason code a row (of `rlsched.decide.rows.arrays`), 0 where legal.
        logits: Masked rows included; empty when no network was asked.
        choice: Row taken; -1 where a rule took a job that the window does not show. What the policy takes is
            legal; a rule follows its own order, and in the policy's place may take a job that is held back.
        reference: Row that the reference rule would have taken.
    """

    kind: Literal["job", "how"]
    seqs: list[int]
    nodes: list[int]
    features: bytes
    legal: list[bool]
    reasons: list[int]
    logits: list[float]
    choice: int
    reference: int


class PlanSeen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One whole way to start the job whose turn it was, as it looked before the decision.

    Attributes:
        how: On `free` GPUs, on those of others (`share`), on those of a job that gives way (`preempt`), or
            not now (`later`).
        verdict: Why it may not be taken; "": it may.
        chosen: Whether it was taken.
        node: First node; "" where nothing says it.
        nodes: How many nodes it takes.
        gpu_type: Type of its GPUs; "" likewise.
        share_with: Number of the job whose GPUs it shares or gets, -1: of none.
        tenants: Jobs on its GPUs then, itself included; 0 where that was not worked out.
        sm_clock_frac: SM clock, of the maximum.
        cpu_milli_each: CPU cores with each GPU, thousandths.
        speed_frac: Predicted speed, alone on the same GPUs = 1.
        gain_frac: That, less what its co-tenants lose.
        asked_frac: The gain that is asked for at today's prices; None: none.
        wait_s: When it could start, from now; None: nobody knows.
        run_s: Predicted time from start to end.
        power_w: Power that it would add while it runs; None without models.
        worth: What plans are compared by: GPUs at work that it adds, by type. None: by the queue's order.
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


class Names(msgspec.Struct, frozen=True, omit_defaults=True):
    """What people call the jobs and nodes of a record: those that it mentions, by their numbers in it.

    Attributes:
        jobs: A broker's job numbers, a trace's job ids.
        nodes: Names of nodes.
        queue: Jobs of `DecisionRecord.queue`, a line each.
    """

    jobs: dict[int, str] = {}
    nodes: dict[int, str] = {}
    queue: str = ""

    def job(self, seq: int) -> str:
        """A job in words; records from before there were names have the internal number alone."""
        return f"job {self.jobs[seq]}" if seq in self.jobs else f"internal job {seq}"

    def node(self, number: int) -> str:
        """A node in words, likewise."""
        return f"node {self.nodes[number]}" if number in self.nodes else f"internal node {number}"


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of a scheduler. Jobs and nodes have their numbers in the cluster's state; see `names`.

    Attributes:
        version: `RECORD_VERSION`.
        source: Who decided: the policy, a rule, the guard in the policy's place, a look-ahead that found
            something better than the policy would have done (`search`), or nobody (`automatic`: there was one
            way only, or everything waiting fits at once).
        policy_id: Name or content hash of the policy.
        schema_hash: Hash of the feature schema.
        state_digest: `ClusterState.digest()` before the decision, hexadecimal.
        number: Decision number within the run; action draws are keyed by it.
        now_s: Seconds from the trace's origin (online: Unix time).
        partition: Name of the partition.
        halves: The first half, and the second where more than one variant was legal. Empty if automatic.
        temperature: 0 for arg max, else the softmax temperature of the draw.
        value: The critic's estimate, None where no critic ran.
        action: What was done.
        took_us: Time from state to action, microseconds.
        guard: Why the guard stepped in, "" if it did not.
        samples: Futures that a policy's search played, 0 for none.
        overruled: Row of the first half that the policy would have taken where its search took another,
            else -1.
        turn: Number of the job whose turn it was: the one that started, or for which another gave way; of a
            *wait* the first of the queue. -1: of none.
        queue: int32 numbers of the first `QUEUED` jobs that waited for the partition, in the queue's order;
            empty in records from before they were kept.
        plans: Its plans; of what it chose among.
        prices: Today's prices, by name: of GPU time, of GPU types, what energy counts.
        plans_failed: Why the plans could not be listed; "": they could.
        names: What people call the jobs and nodes that everything above has by number; empty in records from
            before there were names.
    """

    version: int = RECORD_VERSION
    source: Source
    policy_id: str
    schema_hash: str
    state_digest: str
    number: int
    now_s: float
    partition: str
    halves: list[Half]
    temperature: float
    value: float | None
    action: Action
    took_us: float
    guard: str = ""
    samples: int = 0
    overruled: int = -1
    turn: int = -1
    queue: bytes = b""
    plans: list[PlanSeen] = msgspec.field(default_factory=list)
    prices: dict[str, float] = msgspec.field(default_factory=dict)
    plans_failed: str = ""
    names: Names = Names()


def with_names(record: DecisionRecord, job_name: JobName, node_names: Sequence[str]) -> DecisionRecord:
    """The record with its jobs and nodes named; as it is where a name cannot be found."""
    try:
        names = Names(
            jobs={seq: job_name(seq) for seq in sorted({*_jobs(record)} - {-1})},
            nodes={node: node_names[node] for node in sorted({*_nodes(record)} - {-1})},
            queue="\n".join([job_name(seq) for seq in memoryview(record.queue).cast("i").tolist()]),
        )
    except Exception:  # what a record cannot say does not stop a decision
        return record
    return msgspec.structs.replace(record, names=names)


def _jobs(record: DecisionRecord) -> Iterator[int]:
    yield record.turn
    if isinstance(record.action, Start):
        yield from (record.action.seq, record.action.share_with)
    elif isinstance(record.action, Preempt):
        yield from (record.action.seq, record.action.moved_for)
    for half in record.halves:
        yield from half.seqs
    for plan in record.plans:
        yield plan.share_with


def _nodes(record: DecisionRecord) -> Iterator[int]:
    if isinstance(record.action, Start):
        yield record.action.node
    for half in record.halves:
        yield from half.nodes
