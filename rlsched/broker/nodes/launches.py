"""Attempts of jobs: starts and ends them, records nodes' reports as journal entries, and sends orders.

An attempt is never started twice: each start of a job gets a higher attempt number, a node starts a rank of
an attempt at most once, and a node obeys only the highest broker epoch. The broker gives up an attempt only
if none of its ranks can still run. Each rank has then reported its end, was ended by its node after
`--lost-after`, or must have ended because of an operator's order or a reboot.

The ledger (which records the allocated GPUs) reassigns the GPUs of a preempted job at once. The next attempt
on these GPUs is launched when the last process of the preempted job there ends. The preempted job can start
again only when all its ranks have ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec

from rlsched.broker.base.entries import (
    AttemptEnding,
    AttemptOver,
    Decided,
    JoinsLimited,
    NodeDrained,
    RankClocked,
    RankEnded,
    RankLaunched,
    RankOutputFailed,
)
from rlsched.broker.base.ledger_models import lowered_mhz, nearest_mhz
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.output_files import files_of
from rlsched.broker.base.states import PRECEDENCE, PREEMPTED, Ending, Outcome
from rlsched.broker.nodes.sharing import is_limited, may_share
from rlsched.broker.outbox import Outbox
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import memory, needs, on_a_rank
from rlsched.broker.state.jobs import NODE_STOPPED, Attempt, Job, Rank
from rlsched.cluster.arrays import NO_JOINS
from rlsched.decide.actions import Start
from rlsched.errors import AllocationError, WireError
from rlsched.terminal.visible import visible
from rlsched.wire.messages import (
    END_REASONS,
    GPU_OUT_OF_MEMORY,
    MPS_FAULT,
    MPS_NEIGHBOUR_FAULT,
    NOT_STARTED,
    OUT_OF_MEMORY,
    AttemptKey,
    Begin,
    ClockHeld,
    Ended,
    EndedAck,
    HoldClock,
    Kill,
    Launch,
    Launched,
    LaunchRefused,
    OutputFailed,
    encode,
)
from rlsched.wire.states import CANCELLED, COMPLETED, ENDED, FAILED, LAUNCHING, QUEUED, RUNNING, RankState

MAX_RETRIES = 3
MAX_LOSSES = 3
"""Maximum number of consecutive attempts that end because a node was lost, or had no free process or memory
to start a rank (`NOT_STARTED`). After one more, the job fails.
"""
LOCALHOST = "127.0.0.1"
LOST_EXIT_CODE = 255
REFUSED_EXIT_CODE = 126
VANISHED_EXIT_CODE = 137
MAX_RUN_S = 10 * 366 * 86_400.0
"""Longest run time that a node can report, seconds; longer times are ignored."""
REFUSED = "refused"
REFUSED_BESIDE = "refused_beside"
REFUSED_OUT = "refused_out"
_REFUSALS = (REFUSED, REFUSED_BESIDE, REFUSED_OUT)
"""Values of `RankEnded.reason` if a node refused to start a rank. `REFUSED_BESIDE`: a GPU that other jobs use
has too little free memory. `REFUSED_OUT`: a GPU that other jobs use is out of service.
"""
FENCED = "fenced"
TIME_LIMIT = "time_limit"
VANISHED = "vanished"
CANCELLED_THERE = "cancelled"
_NOT_ITS_DOING = {NODE_STOPPED: "was stopped", FENCED: "had no answer from a broker for its --lost-after"}
"""`RankEnded.reason` -> text for users, if the node ended the rank and the job did not cause this. The job is
queued again without counting a retry, unless all its ranks ended with exit code 0.
"""
_BY_MPS_FAULT = {
    MPS_FAULT: "ended with its co-tenants by a GPU fault under MPS, cause unknown: it will not share again",
    MPS_NEIGHBOUR_FAULT: "ended by the GPU fault of a co-tenant, which ends all jobs of a GPU under MPS",
}
"""`RankEnded.reason` -> text for users, if a GPU fault under MPS ended the rank. Such a fault ends all jobs
on the GPU. They are queued again without counting a retry (`_forgive`).
"""
_SHORTAGE = "it had no free process or no memory for the command"
_DONE = "and left exit code 0: the job is done"
MAX_REASON_CHARACTERS = 300


class Launches:
    """Starts, follows and ends attempts of jobs, without I/O.

    Args:
        state: State of the broker. It changes only through facts (journal entries) that `out` records.
    """

    def __init__(
        self,
        state: BrokerState,
        limits: Limits,
        out: Outbox,
    ) -> None:
        self._state, self._limits, self._out = state, limits, out
        self._asked_mhz: dict[tuple[int, int, int], int] = {}  # clocks ordered under a power limit

    def current(self, node: str, key: AttemptKey) -> Job | None:
        """Return the job to which rank `key` belongs.

        The result is None if rank `key` is not part of its job's current attempt, or not on node `node`.
        """
        known = self._state.jobs.get(key.job)
        active = known.active if known else None
        if active is None or active.number != key.attempt or not 0 <= key.rank < len(active.ranks):
            return None
        return known if active.ranks[key.rank].node == node else None

    def _in_state(self, node: str, key: AttemptKey, *states: RankState) -> tuple[Job, Attempt, Rank] | None:
        """Return (job, attempt, rank) of rank `key` of a current attempt on node `node`.

        The result is None if there is no such rank, or if its state is not in `states`.
        """
        known = self.current(node, key)
        if known is None or known.attempt is None or known.attempt.ranks[key.rank].state not in states:
            return None
        return known, known.attempt, known.attempt.ranks[key.rank]

    # ---- starts by an engine itself -----------------------------------------------------------------

    def record_begin(self, job: Job, order: Begin) -> str:
        """Record that an engine has started a job on nodes and GPUs of its own choice.

        Return why the broker refuses the engine's report, in one line; "" if the report is accepted.
        """
        cluster, ranks = self._state.cluster, dict(zip(order.nodes, order.gpus, strict=False))
        if job.active is not None:
            if {rank.node: rank.gpus for rank in job.active.ranks} != ranks:
                return f"job {job.called} runs already, on other nodes or GPUs than reported"
            self.launch(job)
            return ""
        nodes = [self._state.nodes.get(name) for name in ranks]
        gpus: list[int] = []
        for node, numbers in zip(nodes, ranks.values(), strict=True):
            if (
                node is None
                or node.spec.capabilities.places
                or not set(numbers) <= set(range(node.spec.gpus))
            ):
                return (
                    f"job {job.called} on {', '.join(ranks)}: expected existing GPUs on nodes of an engine "
                    "that places jobs itself"
                )
            gpus += [int(cluster.arrays.node.first_gpu[node.number]) + gpu for gpu in numbers]
        if not gpus or nodes[0] is None:
            return f"job {job.called}: expected at least one GPU in the report of its start, got none"
        partition = cluster.partition_names[int(cluster.arrays.node.part_of[nodes[0].number])]
        entry = Decided(
            number=cluster.decisions,
            partition=partition,
            source="engine",
            action=Start(seq=job.seq, gpus=tuple(gpus)),
            contested=False,
            guard="",
        )
        try:
            self._out.record(entry)
        except AllocationError as error:
            return str(error)
        self.launch(job)
        return ""

    # ---- reports of nodes -------------------------------------------------------------------------

    def launched(self, node: str, message: Launched) -> None:
        """Record that a rank's process runs.

        If the broker has given up the rank, order the node to end it.
        """
        if self._in_state(node, message.key, LAUNCHING, RUNNING) is None:
            order = Kill(
                epoch=self._state.epoch,
                job=message.job,
                attempt=message.attempt,
                rank=message.rank,
                grace_s=self.grace_s(self._state.jobs.get(message.job)),
            )
            self._out.send(node, order)
        elif self._in_state(node, message.key, LAUNCHING):
            self._out.record(
                RankLaunched(
                    job=message.job,
                    attempt=message.attempt,
                    rank=message.rank,
                    pid=message.pid,
                    sm_clock_mhz=message.sm_clock_mhz,
                    clock_note=message.clock_note,
                )
            )

    def clocked(self, node: str, message: ClockHeld) -> None:
        """Record that a node has changed the clock of a running rank, or why it could not."""
        if self._in_state(node, message.key, RUNNING):
            self._out.record(
                RankClocked(
                    job=message.job,
                    attempt=message.attempt,
                    rank=message.rank,
                    sm_clock_mhz=message.sm_clock_mhz,
                    clock_note=message.clock_note,
                )
            )

    def output_failed(self, node: str, message: OutputFailed) -> None:
        """Record that a node cannot write a rank's output to the job's output file."""
        found = self._in_state(node, message.key, LAUNCHING, RUNNING, ENDED)
        text = visible(message.message)[:MAX_REASON_CHARACTERS]
        if found is not None and found[2].output_note != text:
            self._out.record(
                RankOutputFailed(job=message.job, attempt=message.attempt, rank=message.rank, message=text)
            )

    def record_refusal(self, node: str, message: LaunchRefused, held: Collection[int] = ()) -> None:
        """Handle a node's refusal to start a rank: end the attempt on all nodes and queue the job again.

        The node is drained for `Limits.drain_s`, because it could otherwise refuse until the job's retries
        are used up. In three cases, the node is not drained, and the attempt does not count as a retry. The
        ledger then prevents another start on the same GPUs:

        - A GPU of the rank is in `held` (GPUs that other jobs use, or that are out of service).
        - `message.is_about_memory`, and the node has reported that jobs can get too little memory of a GPU.
        - `message.is_about_memory`, and the attempt shares its GPUs.

        If the attempt shares its GPUs, `_finish` limits which jobs may join the other jobs on the GPUs
        (`JoinsLimited`). Otherwise, the ledger could allocate the same GPUs to the job again while the other
        jobs run.

        If `message.is_about_owner`, the node cannot run jobs of this user:

        - If no node has ever run a job of the user, the job fails, and the node is not drained.
        - If only other nodes have run jobs of the user, this node lacks the user's account, and the attempt
          counts as a retry.
        - If this node has run jobs of the user, it has lost the account (for example, its directory service
          is down), and the attempt does not count as a retry.
        """
        found = self._in_state(node, message.key, LAUNCHING)
        if found is None:
            return
        job, attempt, rank = found
        why, charged = visible(message.message)[:MAX_REASON_CHARACTERS], not message.is_for_now
        lacks_beside = message.is_about_memory and attempt.was_shared
        has_held = not set(held).isdisjoint(rank.gpus)
        reason = REFUSED_OUT if has_held and attempt.was_shared else REFUSED
        self._out.record(
            RankEnded(
                job=message.job,
                attempt=message.attempt,
                rank=message.rank,
                exit_code=REFUSED_EXIT_CODE,
                reason=REFUSED_BESIDE if lacks_beside else reason,
            )
        )
        if lacks_beside:
            why = f"{node} refused to start it on shared GPUs: {why}"
            self.end(job, QUEUED, why, charged=False)
            return
        if message.is_about_owner:
            ran_on = self._state.ran_on.get(job.spec.user, 0)
            if not ran_on:
                self.end(job, FAILED, f"{node} refused to start it: {why}")
                return
            charged = not ran_on >> self._state.nodes[node].number & 1
        is_known = has_held or (message.is_about_memory and self._is_short(node, job, rank))
        if not is_known:
            self._drain(node, f"it refused to start a rank: {why}")
        why = f"{node} refused to start rank {message.rank}: {why}"
        self.end(job, QUEUED, why, charged=charged and not is_known)

    def _drain(self, node: str, reason: str) -> None:
        """Drain a node for `Limits.drain_s`, unless it is down or drained."""
        found = self._state.nodes[node]
        if found.up and not found.drained:
            until_s = self._state.now_s + self._limits.drain_s
            self._out.record(NodeDrained(name=node, until_s=until_s, reason=reason))

    def _is_short(self, node: str, job: Job, rank: Rank) -> bool:
        """Return whether the node reports less usable memory of a rank's GPU than the job requests."""
        usable_mib = self._state.cluster.usable_gpu_memory(self._state.nodes[node].number)
        return any(usable_mib.get(gpu, math.inf) < job.spec.gpu_memory_mib for gpu in rank.gpus)

    def record_rank_end(self, node: str, message: Ended, *, rebooted: bool = False) -> None:
        """Record the end of a rank, and acknowledge the report even if the attempt is unknown or outdated.

        `rebooted`: whether the node was rebooted after its previous registration.
        """
        found = self._in_state(node, message.key, LAUNCHING, RUNNING)
        if found is not None:
            job, attempt, _ = found
            exit_code, reason = _plausible(message.exit_code, message.reason, job)
            ended_s, ran_s, usage = message.ended_s, message.ran_s, message.usage
            self._out.record(
                RankEnded(
                    job=message.job,
                    attempt=message.attempt,
                    rank=message.rank,
                    exit_code=exit_code,
                    reason=reason,
                    ended_s=ended_s if ended_s is not None and math.isfinite(ended_s) else None,
                    ran_s=ran_s if ran_s is not None and 0.0 <= ran_s <= MAX_RUN_S else None,
                    usage=usage if usage is not None and usage.is_sound() else None,
                )
            )
            self._after_rank(job, attempt, message.rank, rebooted=rebooted)
        self._out.send(node, EndedAck(job=message.job, attempt=message.attempt, rank=message.rank))

    def record_loss(self, node: str, job: Job, why: str, *, charged: bool = False) -> None:
        """Record the ranks of a job on this node as lost, and queue the job again.

        Args:
            node: Name of the node.
            job: The job.
            why: Reason for users, in one line.
            charged: Whether the attempt counts as a retry, because the job may have caused the loss; False:
                the attempt counts only towards `MAX_LOSSES`.
        """
        attempt = job.active
        if attempt is None:
            return
        for rank in attempt.live_ranks():
            if attempt.ranks[rank].node == node:
                self._out.record(
                    RankEnded(
                        job=job.number,
                        attempt=attempt.number,
                        rank=rank,
                        exit_code=LOST_EXIT_CODE,
                        reason="lost",
                    )
                )
        self.end(job, QUEUED, why, charged=charged, lost=not charged)

    def _after_rank(self, job: Job, attempt: Attempt, rank: int, *, rebooted: bool) -> None:
        ended = attempt.ranks[rank]
        if ended.reason == NOT_STARTED:
            self._drain(ended.node, f"it could not start rank {rank} of job {job.called}: {_SHORTAGE}")
        if ended.reason in _BY_MPS_FAULT and _is_forgivable(attempt):
            self._forgive(job, attempt)
        elif rebooted and ended.reason == NODE_STOPPED and ended.exit_code == VANISHED_EXIT_CODE:
            self.end(job, QUEUED, f"node {ended.node} was rebooted", charged=False, lost=True)
        elif ended.reason in _NOT_ITS_DOING and not attempt.ending and not _is_done(attempt):
            self.end(job, QUEUED, _stopped_by(attempt), charged=False)
        elif ended.reason == NOT_STARTED and not attempt.ending:
            why = f"node {ended.node} could not start rank {rank}: {_SHORTAGE}"
            self.end(job, QUEUED, why, charged=False, lost=True)
        elif ended.reason == GPU_OUT_OF_MEMORY and not attempt.ending and self._was_bounded(job, attempt):
            self.end(
                job, QUEUED, "was out of GPU memory on shared GPUs: it will not share again", charged=False
            )
        elif ended.reason == GPU_OUT_OF_MEMORY and not attempt.ending and self._learnt_mib(job, attempt):
            small = memory(self._gpu_memory_mib(ended.node))
            why = f"was out of GPU memory on GPUs of {small}: it is queued once more, for larger GPUs"
            self.end(job, QUEUED, why, charged=False)
        elif ended.reason == CANCELLED_THERE:
            self.end(job, CANCELLED, f"cancelled on {ended.node}, not through rlsched")
        elif ended.exit_code != 0 and not attempt.ending and not attempt.has_ended:
            self.end(job, FAILED, f"rank {rank} on {ended.node} {_how(ended.exit_code, ended.reason, job)}")
        elif attempt.has_ended:
            self._finish(job, attempt)

    # ---- ending -----------------------------------------------------------------------------------

    def end(
        self, job: Job, outcome: Ending, reason: str, *, charged: bool = True, lost: bool = False
    ) -> None:
        """End the remaining ranks of a job's attempt; the job then gets the state `outcome`.

        If the attempt is already being ended, the outcome with the higher `PRECEDENCE` applies.
        """
        attempt = job.active
        if attempt is None:
            return
        if PRECEDENCE[outcome] > PRECEDENCE[attempt.ending]:
            self._out.record(
                AttemptEnding(
                    job=job.number,
                    attempt=attempt.number,
                    outcome=outcome,
                    reason=reason,
                    charged=charged,
                    lost=lost,
                )
            )
            self.kill(job)
        if attempt.has_ended:
            self._finish(job, attempt)

    def _forgive(self, job: Job, attempt: Attempt) -> None:
        """Queue a job again without counting a retry, because a GPU fault under MPS has ended a rank.

        The same fault may have ended other ranks, and a report of such a rank may have set another outcome.
        This method replaces that outcome, so the order of the reports does not matter.
        """
        reasons = {rank.reason for rank in attempt.ranks}
        why = next(why for reason, why in _BY_MPS_FAULT.items() if reason in reasons)
        self._out.record(
            AttemptEnding(
                job=job.number, attempt=attempt.number, outcome=QUEUED, reason=why, charged=False, lost=False
            )
        )
        self.kill(job)
        if attempt.has_ended:
            self._finish(job, attempt)

    def kill(self, job: Job, *, node: str | None = None) -> None:
        """Order nodes to end the ranks of the job's current attempt that have not ended.

        A repeated order does not extend the grace (time between SIGTERM and SIGKILL).

        Args:
            job: The job.
            node: Send the order only to this node; None: to all nodes with such ranks.
        """
        attempt = job.active
        if attempt is None:
            return
        again = attempt.ending in (QUEUED, PREEMPTED)
        order = Kill(
            epoch=self._state.epoch,
            job=job.number,
            attempt=attempt.number,
            rank=0,
            grace_s=self.grace_s(job),
            again=again,
        )
        for rank in attempt.live_ranks():
            if node in (None, attempt.ranks[rank].node):
                self._out.send(attempt.ranks[rank].node, msgspec.structs.replace(order, rank=rank))

    def grace_s(self, job: Job | None) -> float:
        """Return a job's time between SIGTERM and SIGKILL, seconds; the broker's default if `job` is None."""
        return self._limits.grace_of(None if job is None else job.spec.grace_s)

    def _finish(self, job: Job, attempt: Attempt) -> None:
        """Record the new state of a job after all ranks of its attempt have ended."""
        outcome, code, reason = _outcome(job, attempt)
        short = any(rank.reason == GPU_OUT_OF_MEMORY for rank in attempt.ranks)
        faulty = any(rank.reason == MPS_FAULT for rank in attempt.ranks)
        alone = outcome == QUEUED and (faulty or (short and self._was_bounded(job, attempt)))
        learnt_mib = 0
        if outcome == QUEUED:
            learnt_mib = self._had_mib(job, attempt) if alone else self._learnt_mib(job, attempt)
        self._out.record(
            AttemptOver(
                job=job.number,
                attempt=attempt.number,
                outcome=outcome,
                exit_code=code,
                reason=reason,
                gpu_memory_mib=learnt_mib,
                alone=alone,
            )
        )
        if outcome == QUEUED:
            self._limit_joins(job, attempt)

    def _limit_joins(self, job: Job, attempt: Attempt) -> None:
        """After nodes refused to start ranks of an attempt, limit which jobs may join the jobs on these GPUs.

        Call this after the end of the attempt, because the end of a job on a GPU removes the GPU's limit.
        If memory was the reason for the refusal, jobs that need less memory may still join.
        """
        for rank in attempt.ranks:
            if rank.reason not in (REFUSED_BESIDE, REFUSED_OUT) or rank.node not in self._state.nodes:
                continue
            most_mib = NO_JOINS
            if rank.reason == REFUSED_BESIDE:
                most_mib = max(self._beside_mib(job) - 1, 0)
            number = self._state.nodes[rank.node].number
            shared = [gpu for gpu in rank.gpus if self._state.cluster.has_jobs(number, gpu)]
            if shared:
                self._out.record(JoinsLimited(name=rank.node, most_mib=dict.fromkeys(shared, most_mib)))

    def _beside_mib(self, job: Job) -> int:
        """Return the free memory that a job needs on each GPU that other jobs use too, MiB."""
        return max(job.spec.gpu_memory_mib, may_share(self._state, job)[1])

    def _was_bounded(self, job: Job, attempt: Attempt) -> bool:
        """Return whether an attempt could use only part of the GPU memory: it shared GPUs, or had a limit."""
        return attempt.was_shared or is_limited(self._state, job, attempt)

    def _gpu_memory_mib(self, node: str) -> int:
        """Return the memory of a node's smallest GPU, MiB; 0 if not known."""
        return self._state.nodes[node].spec.capabilities.gpu_memory_mib

    def _learnt_mib(self, job: Job, attempt: Attempt) -> int:
        """Return the GPU memory to request for a job after an attempt ran out of GPU memory, MiB per GPU.

        The result is 1 MiB more than the memory of the smallest GPU whose memory ran out, so that the job
        gets larger GPUs. The result is 0, and the job fails, if no larger GPUs are possible, if the job has
        already been queued once for larger GPUs, or if the memory of the GPUs is unknown.
        """
        short = [rank.node for rank in attempt.ranks if rank.reason == GPU_OUT_OF_MEMORY]
        had_mib = min((self._gpu_memory_mib(node) for node in short), default=0)
        return 0 if job.enlarged or not had_mib else self._if_possible(job, had_mib + 1)

    def _had_mib(self, job: Job, attempt: Attempt) -> int:
        """Return the GPU memory to request for a job that ran out of its part of a GPU's memory, MiB per GPU.

        How much memory the job lacked is unknown, so the result is the memory of a whole GPU. If memory ran
        out on several GPU types, the type with the most memory counts. The result is 0 if this memory is
        unknown, or if the job can no longer get such GPUs. Ranks that a node refused to start are ignored.
        """
        of_types = self._state.cluster.gpu_memory_of_types()
        short = [
            self._state.nodes[rank.node].spec.gpu_type
            for rank in attempt.ranks
            if rank.reason == GPU_OUT_OF_MEMORY and rank.exit_code != REFUSED_EXIT_CODE
        ]
        had_mib = max((of_types.get(gpu_type, 0) for gpu_type in short), default=0)
        return self._if_possible(job, had_mib) if had_mib else 0

    def _if_possible(self, job: Job, gpu_memory_mib: int) -> int:
        """Return `gpu_memory_mib` if the job can get GPUs with this memory, else 0."""
        wanted = msgspec.structs.replace(needs(job), gpu_memory_mib=gpu_memory_mib)
        return gpu_memory_mib if self._state.can_ever_run(job.spec.vc, wanted) else 0

    # ---- starting ---------------------------------------------------------------------------------

    def launch(self, job: Job, *, node: str | None = None) -> None:
        """Order nodes to start the ranks of the job's attempt that are not reported as started yet.

        Orders are sent only when no process of a preempted job is left on the GPUs. If an order is too long
        for a message, the job fails.

        Args:
            job: The job.
            node: Send the order only to this node; None: to all nodes with ranks to start.
        """
        attempt = job.active
        if attempt is None or attempt.leaving:
            return
        beside = [self._state.job_of_seq[seq].number for seq in self._state.cluster.beside(job.seq)]
        shares, need_mib = may_share(self._state, job)
        counted_milli, lent_milli = self._state.cluster.cpu_milli_each(job.seq)
        nodes, hosts = [other.node for other in attempt.ranks], self._hosts(attempt)
        for number, rank in enumerate(attempt.ranks):
            if rank.state == LAUNCHING and node in (None, rank.node):
                cores, memory_mib = on_a_rank(needs(job), len(rank.gpus), counted_milli)
                files = files_of(job.spec, attempt.number, number, nodes)
                order = Launch(
                    epoch=self._state.epoch,
                    job=job.number,
                    attempt=attempt.number,
                    rank=number,
                    num_ranks=len(attempt.ranks),
                    nodes=nodes,
                    gpus=rank.gpus,
                    command=job.spec.command,
                    env=job.spec.env,
                    cwd=job.spec.cwd,
                    output=files.output,
                    error=files.error,
                    appends=files.appends,
                    whole_lines=files.whole_lines,
                    person=job.spec.user,
                    time_limit_s=job.spec.time_limit_s,
                    grace_s=self.grace_s(job),
                    sm_clock_mhz=self._ask_clock(rank.node, job, attempt, number),
                    lost_after_s=job.spec.lost_after_s,
                    launcher=job.spec.launcher,
                    gpus_of_ranks=[len(other.gpus) for other in attempt.ranks],
                    master=hosts[0],
                    hosts=hosts if len(hosts) > 1 else [],
                    cores=cores,
                    lent_cores=lent_milli * len(rank.gpus) // 1000,
                    memory_mib=memory_mib,
                    gpu_memory_mib=self._beside_mib(job) if beside else job.spec.gpu_memory_mib,
                    workload=job.spec.workload,
                    beside=beside,
                    shares=shares,
                    gpu_need_mib=need_mib if shares else 0,
                )
                try:
                    encode(order)
                except WireError as error:
                    self.end(job, FAILED, f"it cannot be launched: {error}")
                    return
                self._out.send(rank.node, order)

    def _hosts(self, attempt: Attempt) -> list[str]:
        """Return the host address of each rank's node.

        The address `LOCALHOST` is replaced by the node's name, unless all ranks' nodes have this address.
        """
        hosts = [(rank.node, self._state.nodes[rank.node].spec.host) for rank in attempt.ranks]
        is_local = all(host == LOCALHOST for _, host in hosts)
        return [node if host == LOCALHOST and not is_local else host for node, host in hosts]

    def hold_clock(self, job: Job, *, node: str | None = None) -> None:
        """Send the SM clock of an attempt to the nodes of its unfinished ranks.

        A running rank whose node already reports this clock gets no order. If a node could not set the clock,
        the order is repeated when the node registers again, or when the clock next changes.

        Args:
            job: The job.
            node: Send the order only to this node; None: to all nodes of the job.
        """
        attempt = job.active
        if attempt is None or attempt.leaving or attempt.ending:
            return
        for number in attempt.live_ranks():
            rank = attempt.ranks[number]
            if node not in (None, rank.node):
                continue
            last = self._asked_mhz.get((job.number, attempt.number, number), rank.sm_clock_mhz)
            mhz = self._ask_clock(rank.node, job, attempt, number)
            if mhz != last or mhz != rank.sm_clock_mhz or rank.state == LAUNCHING:
                self._out.send(
                    rank.node,
                    HoldClock(
                        epoch=self._state.epoch,
                        job=job.number,
                        attempt=attempt.number,
                        rank=number,
                        sm_clock_mhz=mhz,
                    ),
                )

    def follow_limit(self) -> None:
        """Order the SM clocks of attempts again if the power limit now requires other clocks than ordered."""
        live = [job for job in self._state.job_of_seq.values() if job.active is not None]
        for job in live:
            attempt = job.active
            assert attempt is not None
            for number in attempt.live_ranks():
                rank = attempt.ranks[number]
                asked = self._asked_mhz.get((job.number, attempt.number, number), rank.sm_clock_mhz)
                if asked != self._clock_mhz(rank.node, job, attempt):
                    self.hold_clock(job, node=rank.node)
        known = {(job.number, job.active.number) for job in live if job.active is not None}
        self._asked_mhz = {key: mhz for key, mhz in self._asked_mhz.items() if key[:2] in known}

    def _ask_clock(self, node: str, job: Job, attempt: Attempt, rank: int) -> int:
        """Return the SM clock to order for a rank, MHz. Under a power limit, store it for `follow_limit`."""
        mhz, key = self._clock_mhz(node, job, attempt), (job.number, attempt.number, rank)
        if self._state.models.limits_power or key in self._asked_mhz:
            self._asked_mhz[key] = mhz
        return mhz

    def _clock_mhz(self, node: str, job: Job, attempt: Attempt) -> int:
        """Return the SM clock to set for an attempt's GPUs on a node, MHz; 0: the clock is not limited."""
        clocks, cap = self._state.nodes[node].spec.sm_clocks_mhz, self._state.models.clock_cap(job.seq)
        if cap < attempt.sm_clock_frac:
            return lowered_mhz(clocks, cap)
        return nearest_mhz(clocks, attempt.sm_clock_frac)


def _is_forgivable(attempt: Attempt) -> bool:
    """Return whether a GPU fault under MPS that is reported now changes the outcome of an attempt.

    The outcome does not change if the job was cancelled or preempted, if a node refused to start the attempt,
    or if the job will be queued again anyway without counting a retry or a loss.
    """
    if attempt.ending == QUEUED:
        return attempt.charged or attempt.lost
    first = "" if attempt.first_failure is None else attempt.first_failure[1]
    return attempt.ending == "" or (attempt.ending == FAILED and first not in (*_REFUSALS, *_BY_MPS_FAULT))


def _is_done(attempt: Attempt) -> bool:
    """Return whether all ranks have ended with exit code 0. Ranks that got SIGTERM count too."""
    return attempt.has_ended and attempt.first_failure is None


def _stopped_by(attempt: Attempt) -> str:
    """Describe why a node ended a rank, such as `node n0 was stopped`; "" if no node ended a rank."""
    found = (
        f"node {one.node} {_NOT_ITS_DOING[one.reason]}"
        for one in attempt.ranks
        if one.reason in _NOT_ITS_DOING
    )
    return next(found, "")


def _has_come_to_its_own_end(attempt: Attempt) -> bool:
    """Return whether every rank exited or reached its time limit before the order to end arrived."""
    return all(rank.reason in ("", TIME_LIMIT) for rank in attempt.ranks)


def _outcome(job: Job, attempt: Attempt) -> tuple[Outcome, int | None, str]:
    """Return a job's new state, exit code and reason after all ranks of an attempt have ended."""
    if attempt.ending == FAILED:
        code = attempt.first_failure[0] if attempt.first_failure else 0
        return FAILED, code, attempt.ending_reason
    if attempt.ending == CANCELLED:
        return CANCELLED, None, attempt.ending_reason
    if attempt.ending == PREEMPTED:
        return _preempted_outcome(job, attempt)
    if attempt.ending == QUEUED:
        return _queued_outcome(job, attempt)
    return _own_end(job, attempt)


def _queued_outcome(job: Job, attempt: Attempt) -> tuple[Outcome, int | None, str]:
    """Return a job's new state, exit code and reason after an attempt that was ended to requeue the job."""
    if _is_done(attempt) and _stopped_by(attempt):
        return COMPLETED, 0, f"{attempt.ending_reason}, {_DONE}"
    if _has_come_to_its_own_end(attempt):
        return _own_end(job, attempt)
    if attempt.lost and job.losses >= MAX_LOSSES:
        lost = f"{job.losses + 1} attempts in a row that ended with a lost node"
        if any(rank.reason == NOT_STARTED for rank in attempt.ranks):
            lost += " or did not start"
        reason = f"given up after {lost}, the last one: {attempt.ending_reason}"
        return FAILED, LOST_EXIT_CODE, reason
    if attempt.charged and job.retries >= MAX_RETRIES:
        reason = f"given up after {job.retries + 1} attempts, the last one: {attempt.ending_reason}"
        return FAILED, LOST_EXIT_CODE, reason
    return QUEUED, None, attempt.ending_reason


def _own_end(job: Job, attempt: Attempt) -> tuple[Outcome, int | None, str]:
    """Return a job's new state, exit code and reason after an attempt that ended by itself."""
    if attempt.first_failure is None:
        stopped = _stopped_by(attempt)
        return COMPLETED, 0, f"{stopped}, {_DONE}" if stopped else ""
    return FAILED, attempt.first_failure[0], _how(*attempt.first_failure, job)


def _preempted_outcome(job: Job, attempt: Attempt) -> tuple[Outcome, int | None, str]:
    """Return a job's new state, exit code and reason after a preempted attempt.

    The job is completed if every rank exited with code 0, even after SIGTERM. It has failed if a rank failed
    and all ranks ended before the order to end arrived. Otherwise it is queued again.
    """
    if attempt.first_failure is None:
        told = any(rank.reason == "killed" for rank in attempt.ranks)
        return COMPLETED, 0, f"it was {attempt.ending_reason}, {_DONE}" if told else ""
    if _has_come_to_its_own_end(attempt):
        return _own_end(job, attempt)
    return QUEUED, None, attempt.ending_reason


def _plausible(exit_code: int, reason: str, job: Job) -> tuple[int, str]:
    """Return the exit code and reason that a node reported.

    An impossible exit code becomes `VANISHED_EXIT_CODE`, an impossible reason "".
    """
    if reason not in END_REASONS or (reason == TIME_LIMIT and job.spec.time_limit_s is None):
        reason = ""
    return exit_code if 0 <= exit_code <= 255 else VANISHED_EXIT_CODE, reason


def _how(exit_code: int | None, reason: str, job: Job) -> str:
    if reason == TIME_LIMIT:
        return f"reached its time limit of {job.spec.time_limit_s:g} s"
    if reason == OUT_OF_MEMORY:
        asked = f"it asked for {memory(job.spec.memory_mib)}" if job.spec.memory_mib else "it asked for none"
        return f"was out of memory: {asked} (rlsched submit --mem)"
    if reason == GPU_OUT_OF_MEMORY:
        return "was out of GPU memory, as its output says (rlsched submit --gpu-memory)"
    if reason == VANISHED:
        return "vanished: the process that watched it was killed"
    if exit_code is not None and exit_code > 128:
        return f"was ended by signal {exit_code - 128}"
    return f"ended with exit code {exit_code}"
