"""How attempts begin, go on and end: facts from what nodes report, and what nodes are told.

A started attempt is never started twice: its number grows with every start, a node starts (job, attempt,
rank) at most once and obeys the highest broker epoch alone, and an attempt is given up only when every rank
has ended, its node has ended it for `--lost-after`, or an operator or a reboot says that it is dead.

A preempted job's GPUs are given away in the ledger at once, and in truth when its ranks are over: an attempt
that has got such a GPU is launched, all its ranks together, once the last of them is empty. The job itself
is no candidate before all its ranks are over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from rlsched.broker.book import Book
from rlsched.broker.jobs.asked import memory, needs, on_a_rank
from rlsched.broker.jobs.jobs import NODE_STOPPED, Attempt, Job
from rlsched.broker.journal.entries import (
    AttemptEnding,
    AttemptOver,
    Decided,
    Entry,
    NodeDrained,
    RankClocked,
    RankEnded,
    RankLaunched,
)
from rlsched.broker.ledger_models import nearest_mhz
from rlsched.broker.limits import Limits
from rlsched.broker.nodes.seats import PREEMPTED
from rlsched.decide.actions import Start
from rlsched.errors import AllocationError, WireError
from rlsched.terminal import visible
from rlsched.wire.messages import (
    END_REASONS,
    Begin,
    BrokerToNode,
    EndedAck,
    HoldClock,
    Kill,
    Launch,
    RankUsage,
    encode,
)

MAX_RETRIES = 3
MAX_LOSSES = 3
"""A job whose attempts end with a lost node more often than this in a row has failed: it may crash nodes."""
LOCALHOST = "127.0.0.1"
LOST_EXIT_CODE = 255
REFUSED_EXIT_CODE = 126
VANISHED_EXIT_CODE = 137
MAX_RUN_S = 10 * 366 * 86_400.0
"""A rank that says that it ran for longer says nothing."""
FENCED = "fenced"
TIME_LIMIT = "time_limit"
VANISHED = "vanished"
OUT_OF_MEMORY = "out_of_memory"
GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
CANCELLED = "cancelled"
_NOT_ITS_DOING = {NODE_STOPPED: "was stopped", FENCED: "had no answer from a broker for its --lost-after"}
"""Reasons for which a rank ended and its job is queued again, uncharged, unless it is done: in words."""
_DONE = "and left exit code 0, which says that it is done"
MAX_REASON_CHARACTERS = 300
_WEIGHT = {"": 0, "queued": 1, PREEMPTED: 1, "failed": 2, "cancelled": 3}


class Attempts:
    """The launch protocol, without I/O.

    Args:
        book: What is known; read here, changed through `note` alone.
        limits: The broker's times.
        note: Makes a fact true and journals it.
        send: Tells a node.
    """

    def __init__(
        self,
        book: Book,
        limits: Limits,
        note: Callable[[Entry], None],
        send: Callable[[str, BrokerToNode], None],
    ) -> None:
        self._book, self._limits, self._note, self._send = book, limits, note, send

    def current(self, job: int, attempt: int, rank: int, node: str) -> Job | None:
        """The job, if this rank of this attempt on this node is under way."""
        known = self._book.jobs.get(job)
        active = known.active if known else None
        if active is None or active.number != attempt or not 0 <= rank < len(active.ranks):
            return None
        return known if active.ranks[rank].node == node else None

    # ---- what an engine begins itself ---------------------------------------------------------------

    def begun(self, job: Job, order: Begin) -> str:
        """An engine that places jobs itself has started a job. Returns why that cannot be, "" where it is."""
        cluster, ranks = self._book.cluster, dict(zip(order.nodes, order.gpus, strict=False))
        if job.active is not None:
            if {rank.node: rank.gpus for rank in job.active.ranks} != ranks:
                return f"job {job.called} runs elsewhere"
            self.launch(job)
            return ""
        nodes = [self._book.nodes.get(name) for name in ranks]
        gpus: list[int] = []
        for node, numbers in zip(nodes, ranks.values(), strict=True):
            if (
                node is None
                or node.spec.capabilities.places
                or not set(numbers) <= set(range(node.spec.gpus))
            ):
                return (
                    f"job {job.called}: {', '.join(ranks)}: no such GPUs of an engine that places jobs itself"
                )
            gpus += [int(cluster.arrays.node.first_gpu[node.number]) + gpu for gpu in numbers]
        if not gpus or nodes[0] is None:
            return f"job {job.called}: on no GPU"
        partition = cluster.partition_names[int(cluster.arrays.node.part_of[nodes[0].number])]
        entry = Decided(
            number=cluster.decisions,
            partition=partition,
            source="engine",
            action=Start(seq=job.seq, gpus=tuple(gpus)),
            contested=False,
            guard="",
            marks_hold=False,
        )
        try:
            self._note(entry)
        except AllocationError as error:
            return str(error)
        self.launch(job)
        return ""

    # ---- what nodes report ------------------------------------------------------------------------

    def launched(
        self,
        node: str,
        job: int,
        attempt: int,
        rank: int,
        pid: int,
        sm_clock_mhz: int = 0,
        clock_note: str = "",
    ) -> None:
        """A rank's process runs, its GPUs held to this clock. One that the broker has given up is ended."""
        known = self.current(job, attempt, rank, node)
        if known is None or known.attempt is None or known.attempt.ranks[rank].state == "ended":
            self._send(
                node,
                Kill(
                    epoch=self._book.epoch,
                    job=job,
                    attempt=attempt,
                    rank=rank,
                    grace_s=self.grace_s(self._book.jobs.get(job)),
                ),
            )
        elif known.attempt.ranks[rank].state == "launching":
            self._note(
                RankLaunched(
                    job=job,
                    attempt=attempt,
                    rank=rank,
                    pid=pid,
                    sm_clock_mhz=sm_clock_mhz,
                    clock_note=clock_note,
                )
            )

    def clocked(
        self, node: str, job: int, attempt: int, rank: int, sm_clock_mhz: int, clock_note: str
    ) -> None:
        """A node has changed a running rank's clock, or could not."""
        known = self.current(job, attempt, rank, node)
        if known is not None and known.attempt is not None and known.attempt.ranks[rank].state == "running":
            self._note(
                RankClocked(
                    job=job,
                    attempt=attempt,
                    rank=rank,
                    sm_clock_mhz=sm_clock_mhz,
                    clock_note=clock_note,
                )
            )

    def refused(
        self,
        node: str,
        job: int,
        attempt: int,
        rank: int,
        message: str,
        *,
        charged: bool = True,
        is_about_owner: bool = False,
        held: Collection[int] = (),
    ) -> None:
        """A rank could not be started: the attempt is over everywhere, the job is queued again.

        The node rests: tried again at once, it would refuse until the job's retries are used up. Where the
        rank's own GPUs are `held`, they are out of service instead: the node goes on with the others, and the
        job is not charged.

        `is_about_owner`: the node runs no jobs of this person. If no node ever did, that is no node's fault:
        the job has failed, and the node goes on. If another one did, this one lacks the account. If this very
        one did, it has lost it (its directory service is away, say), and the job waits without being charged.
        """
        known = self.current(job, attempt, rank, node)
        if known is None or known.attempt is None or known.attempt.ranks[rank].state != "launching":
            return
        message = visible(message)[:MAX_REASON_CHARACTERS]
        self._note(
            RankEnded(job=job, attempt=attempt, rank=rank, exit_code=REFUSED_EXIT_CODE, reason="refused")
        )
        if is_about_owner:
            ran_on = self._book.ran_on.get(known.spec.user, 0)
            if not ran_on:
                self.end(known, "failed", f"{node} refused to start it: {message}")
                return
            charged = not ran_on >> self._book.nodes[node].number & 1
        refusing, has_held = self._book.nodes[node], not set(held).isdisjoint(known.attempt.ranks[rank].gpus)
        charged = charged and not has_held
        if refusing.up and not refusing.drained and not has_held:
            until_s = self._book.now_s + self._limits.drain_s
            self._note(
                NodeDrained(name=node, until_s=until_s, reason=f"it refused to start a rank: {message}")
            )
        self.end(known, "queued", f"{node} refused to start rank {rank}: {message}", charged=charged)

    def ended(
        self,
        node: str,
        job: int,
        attempt: int,
        rank: int,
        exit_code: int,
        reason: str,
        ended_s: float | None = None,
        ran_s: float | None = None,
        usage: RankUsage | None = None,
        *,
        rebooted: bool = False,
    ) -> None:
        """A rank is over. Acknowledged even where it is news from the past.

        `ended_s`: when, by the node's clock, Unix seconds; the broker may have been away since.
        `ran_s`: how long it ran, seconds.
        `usage`: what it used.
        `rebooted`: the node has been rebooted since it registered.
        """
        known = self.current(job, attempt, rank, node)
        if known is not None and known.attempt is not None and known.attempt.ranks[rank].state != "ended":
            when_s = ended_s if ended_s is not None and math.isfinite(ended_s) else None
            exit_code, reason = _plausible(exit_code, reason, known)
            self._note(
                RankEnded(
                    job=job,
                    attempt=attempt,
                    rank=rank,
                    exit_code=exit_code,
                    reason=reason,
                    ended_s=when_s,
                    ran_s=ran_s if ran_s is not None and 0.0 <= ran_s <= MAX_RUN_S else None,
                    usage=usage if usage is not None and usage.is_sound() else None,
                )
            )
            self._after_rank(known, known.attempt, rank, rebooted=rebooted)
        self._send(node, EndedAck(job=job, attempt=attempt, rank=rank))

    def lost(self, node: str, job: Job, why: str, *, charged: bool = False) -> None:
        """The ranks of a job on this node are gone, and the job is queued again.

        `charged`: that is the job's doing. Else the node was lost, which costs no retry; see `MAX_LOSSES`.
        """
        attempt = job.active
        if attempt is None:
            return
        for rank in attempt.live_ranks():
            if attempt.ranks[rank].node == node:
                self._note(
                    RankEnded(
                        job=job.number,
                        attempt=attempt.number,
                        rank=rank,
                        exit_code=LOST_EXIT_CODE,
                        reason="lost",
                    )
                )
        self.end(job, "queued", why, charged=charged, lost=not charged)

    def _after_rank(self, job: Job, attempt: Attempt, rank: int, *, rebooted: bool) -> None:
        ended = attempt.ranks[rank]
        if rebooted and ended.reason == NODE_STOPPED and ended.exit_code == VANISHED_EXIT_CODE:
            self.end(job, "queued", f"node {ended.node} was rebooted", charged=False, lost=True)
        elif ended.reason in _NOT_ITS_DOING and not attempt.ending and not _is_done(attempt):
            self.end(job, "queued", _stopped_by(attempt), charged=False)
        elif ended.reason == GPU_OUT_OF_MEMORY and not attempt.ending and attempt.was_shared:
            self.end(job, "queued", "was out of GPU memory beside others: it goes back alone", charged=False)
        elif ended.reason == GPU_OUT_OF_MEMORY and not attempt.ending and self._learnt_mib(job, attempt):
            small = memory(self._gpu_memory_mib(ended.node))
            why = f"was out of GPU memory on GPUs of {small}: it goes back once, to larger ones"
            self.end(job, "queued", why, charged=False)
        elif ended.reason == CANCELLED:
            self.end(job, "cancelled", f"cancelled on {ended.node}, past rlsched")
        elif ended.exit_code != 0 and not attempt.ending and not attempt.over:
            self.end(job, "failed", f"rank {rank} on {ended.node} {_how(ended.exit_code, ended.reason, job)}")
        elif attempt.over:
            self._finish(job, attempt)

    # ---- ending -----------------------------------------------------------------------------------

    def end(self, job: Job, outcome: str, reason: str, *, charged: bool = True, lost: bool = False) -> None:
        """End what is left of a job's attempt; the job then becomes `outcome`.

        A user's cancel stands above everything, and a failure above another attempt.
        """
        attempt = job.active
        if attempt is None:
            return
        if _WEIGHT[outcome] > _WEIGHT[attempt.ending]:
            self._note(
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
        if attempt.over:
            self._finish(job, attempt)

    def kill(self, job: Job, *, node: str | None = None) -> None:
        """Tell every node (or one) that still has a rank of the current attempt to end it.

        Said again, that makes no grace longer.
        """
        attempt = job.active
        if attempt is None:
            return
        again = attempt.ending in ("queued", PREEMPTED)
        order = Kill(
            epoch=self._book.epoch,
            job=job.number,
            attempt=attempt.number,
            rank=0,
            grace_s=self.grace_s(job),
            again=again,
        )
        for rank in attempt.live_ranks():
            if node in (None, attempt.ranks[rank].node):
                self._send(attempt.ranks[rank].node, msgspec.structs.replace(order, rank=rank))

    def grace_s(self, job: Job | None) -> float:
        """Between SIGTERM and SIGKILL of a job, seconds; None: of one that the journal does not know."""
        return self._limits.grace_of(None if job is None else job.spec.grace_s)

    def _finish(self, job: Job, attempt: Attempt) -> None:
        outcome, reason = attempt.ending, attempt.ending_reason
        code: int | None = attempt.first_failure[0] if attempt.first_failure else 0
        if not outcome:
            outcome = "completed" if code == 0 else "failed"
            if attempt.first_failure:
                reason = _how(*attempt.first_failure, job)
            elif stopped := _stopped_by(attempt):
                reason = f"{stopped}, {_DONE}"
        elif outcome == "queued" and _is_done(attempt) and _stopped_by(attempt):
            outcome, reason = "completed", f"{reason}, {_DONE}"
        elif outcome == "queued" and _has_come_to_its_own_end(attempt):
            outcome = "completed" if code == 0 else "failed"
            reason = _how(*attempt.first_failure, job) if attempt.first_failure else ""
        elif outcome == "queued":
            code = None
            if attempt.charged and job.retries >= MAX_RETRIES:
                outcome, code = "failed", LOST_EXIT_CODE
                reason = f"given up after {job.retries + 1} attempts, the last one: {reason}"
            elif attempt.lost and job.losses >= MAX_LOSSES:
                outcome, code = "failed", LOST_EXIT_CODE
                lost = f"{job.losses + 1} attempts in a row that ended with a lost node"
                reason = f"given up after {lost}, the last one: {reason}"
        elif outcome == "cancelled":
            code = None
        elif outcome == PREEMPTED:
            outcome, reason = _preempted_outcome(job, attempt)
            code = None if outcome == "queued" else code
        short = any(rank.reason == GPU_OUT_OF_MEMORY for rank in attempt.ranks)
        alone = outcome == "queued" and attempt.was_shared and short
        self._note(
            AttemptOver(
                job=job.number,
                attempt=attempt.number,
                outcome=outcome,
                exit_code=code,
                reason=reason,
                gpu_memory_mib=0 if alone or outcome != "queued" else self._learnt_mib(job, attempt),
                alone=alone,
            )
        )

    def _gpu_memory_mib(self, node: str) -> int:
        """What the smallest GPU of a node has; 0: nobody knows."""
        return self._book.nodes[node].spec.capabilities.gpu_memory_mib

    def _learnt_mib(self, job: Job, attempt: Attempt) -> int:
        """GPU memory that a job needs whose attempt was out of it: more than it had. 0: nothing was learnt.

        Once a job: what fails again on a larger GPU has failed. 0 too where no larger GPU could be given.
        """
        short = [rank.node for rank in attempt.ranks if rank.reason == GPU_OUT_OF_MEMORY]
        had_mib = min((self._gpu_memory_mib(node) for node in short), default=0)
        if job.gpu_memory_mib or not had_mib:
            return 0
        wanted = msgspec.structs.replace(needs(job), gpu_memory_mib=had_mib + 1)
        return had_mib + 1 if self._book.can_ever_run(job.spec.vc, wanted) else 0

    # ---- starting ---------------------------------------------------------------------------------

    def launch(self, job: Job, *, node: str | None = None) -> None:
        """Tell the nodes (or one of them) to start the ranks that have not acknowledged.

        Nobody is told while preempted jobs have not left the GPUs. A job whose order is too long fails.
        """
        attempt = job.active
        if attempt is None or attempt.leaving:
            return
        beside = [self._book.job_of_seq[seq].number for seq in self._book.cluster.beside(job.seq)]
        for number, rank in enumerate(attempt.ranks):
            if rank.state == "launching" and node in (None, rank.node):
                cores, memory_mib = on_a_rank(needs(job), len(rank.gpus), attempt.cpu_milli_each)
                order = Launch(
                    epoch=self._book.epoch,
                    job=job.number,
                    attempt=attempt.number,
                    rank=number,
                    num_ranks=len(attempt.ranks),
                    nodes=[other.node for other in attempt.ranks],
                    gpus=rank.gpus,
                    command=job.spec.command,
                    env=job.spec.env,
                    cwd=job.spec.cwd,
                    person=job.spec.user,
                    time_limit_s=job.spec.time_limit_s,
                    grace_s=self.grace_s(job),
                    sm_clock_mhz=self._clock_mhz(rank.node, attempt),
                    lost_after_s=job.spec.lost_after_s,
                    launcher=job.spec.launcher,
                    gpus_of_ranks=[len(other.gpus) for other in attempt.ranks],
                    master=self._master(attempt),
                    cores=cores,
                    memory_mib=memory_mib,
                    gpu_memory_mib=job.spec.gpu_memory_mib,
                    workload=job.spec.workload,
                    beside=beside,
                )
                try:
                    encode(order)
                except WireError as error:
                    self.end(job, "failed", f"it cannot be launched: {error}")
                    return
                self._send(rank.node, order)

    def _master(self, attempt: Attempt) -> str:
        """Where the ranks reach the first one's node: by its name, where only its own machine would."""
        hosts = [self._book.nodes[rank.node].spec.host for rank in attempt.ranks]
        if hosts[0] == LOCALHOST and any(host != LOCALHOST for host in hosts):
            return attempt.ranks[0].node
        return hosts[0]

    def hold_clock(self, job: Job, *, node: str | None = None) -> None:
        """Tell the nodes (or one of them) of a launched attempt's ranks the clock that it is to have.

        Those that report this clock already are not told; one that could not set it is told again when it
        registers again, or at the next change.
        """
        attempt = job.active
        if attempt is None or attempt.leaving or attempt.ending:
            return
        for number in attempt.live_ranks():
            rank = attempt.ranks[number]
            mhz = self._clock_mhz(rank.node, attempt)
            if node in (None, rank.node) and (mhz != rank.sm_clock_mhz or rank.state == "launching"):
                self._send(
                    rank.node,
                    HoldClock(
                        epoch=self._book.epoch,
                        job=job.number,
                        attempt=attempt.number,
                        rank=number,
                        sm_clock_mhz=mhz,
                    ),
                )

    def _clock_mhz(self, node: str, attempt: Attempt) -> int:
        """SM clock that a node is told to hold an attempt's GPUs to, 0 for none."""
        return nearest_mhz(self._book.nodes[node].spec.sm_clocks_mhz, attempt.sm_clock_frac)


def _is_done(attempt: Attempt) -> bool:
    """Whether every rank has left exit code 0, in its grace too."""
    return attempt.over and attempt.first_failure is None


def _stopped_by(attempt: Attempt) -> str:
    """What ended a rank that is not the job's doing: `node n0 was stopped`; "" where nothing did."""
    found = (
        f"node {one.node} {_NOT_ITS_DOING[one.reason]}"
        for one in attempt.ranks
        if one.reason in _NOT_ITS_DOING
    )
    return next(found, "")


def _has_come_to_its_own_end(attempt: Attempt) -> bool:
    """Whether an attempt was over before the order to end it arrived, on every node."""
    return all(rank.reason in ("", TIME_LIMIT) for rank in attempt.ranks)


def _preempted_outcome(job: Job, attempt: Attempt) -> tuple[str, str]:
    """(what a job becomes whose preempted attempt is over, why).

    It has come to its own end where every rank left exit code 0, in its grace too, or where no rank was ended
    by the order, nor lost: it failed before that arrived. Else it has been stopped.
    """
    if attempt.first_failure is None:
        told = any(rank.reason == "killed" for rank in attempt.ranks)
        return "completed", f"it was {attempt.ending_reason}, {_DONE}" if told else ""
    if _has_come_to_its_own_end(attempt):
        return "failed", _how(*attempt.first_failure, job)
    return "queued", attempt.ending_reason


def _plausible(exit_code: int, reason: str, job: Job) -> tuple[int, str]:
    """(exit code, reason) as a rank can have ended; a node's word is checked where it enters."""
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
