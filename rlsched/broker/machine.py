"""The broker's state machine: a batch of events and the time in, effects out. No socket, file or clock."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from rlsched.broker.answers.backlog import TOO_MANY, Backlog
from rlsched.broker.answers.memory import RecordMemory
from rlsched.broker.answers.report import Reports
from rlsched.broker.book import Book
from rlsched.broker.events import (
    ClientAsked,
    DropNode,
    Due,
    Effect,
    Event,
    Intake,
    Journal,
    NodeSaid,
    PowerDone,
    PowerNode,
    Records,
    Reply,
    SendNode,
    Tick,
)
from rlsched.broker.forecasts.forecasts import NO_FORECASTS, Forecasts
from rlsched.broker.happenings import Happened, happened
from rlsched.broker.jobs.attempts import Attempts
from rlsched.broker.jobs.jobs import Job
from rlsched.broker.jobs.time_limits import TimeLimits
from rlsched.broker.journal.ended import EndedJob, ended_job
from rlsched.broker.journal.ended_table import EndedTable
from rlsched.broker.journal.entries import (
    AttemptOver,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    Entry,
    GpusHeld,
    JobCancelled,
    JobHeld,
    JobsRanked,
    JobSubmitted,
    JobUpdated,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeHealth,
    NodeRemoved,
    NodeResumed,
    NodeSlept,
    NodeUp,
    NodeWoken,
    QuotaSet,
    TasksCancelled,
    TasksHeld,
    TaskSubmitted,
)
from rlsched.broker.limits import Limits
from rlsched.broker.nodes.members import Members
from rlsched.broker.nodes.sleepers import Sleepers, SleepPlan
from rlsched.broker.requests import CHANGES, Requests
from rlsched.broker.troubles import Troubles
from rlsched.broker.users.priorities import Ranks, level_of, ranked
from rlsched.broker.vitals import Vitals
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rows.candidates import next_hold_end_s
from rlsched.decide.rows.schema import HOLD_S
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.wire.messages import (
    BrokerToNode,
    ClientReply,
    ClockHeld,
    Ended,
    EndedAck,
    Heartbeat,
    Held,
    Hello,
    LaterBroker,
    Launched,
    LaunchRefused,
    Leaving,
    LogData,
    Metered,
    Refused,
    SayHello,
    TimeLimited,
)

_log = logging.getLogger("rlsched.broker")
LISTENS_EVERY_S = 0.5
"""A broker that listens hands in a batch at least so often; a longer gap says that it did not."""


class Machine:
    """Applies events to the book, decides once a batch, and says what is to be journalled and sent.

    Args:
        book: As the journal made it.
        scheduler: The policy.
        started: The fact that begins this broker's epoch; journalled with the first batch.
        now_s: When it started, Unix seconds; later than everything in the book.
        ended: Jobs that are over, as the journal has them.
        limits: Its times.
        ranks: Which jobs go before others.
        memory: The last record of each job.
        troubles: Counts records that could not be `made`, or `remembered`.
        vitals: What reports tell of the loop around it.
        forecasts: What is said of starts and ends to come.
        sleep: How idle nodes sleep; None: they do not.
        up_since_s: When the process began to serve, Unix seconds; None: now.

    Attributes:
        started: The fact that began its epoch.
        up_since_s: When the process began to serve, Unix seconds.
        backlog: Questions that wait for `answer`.
    """

    def __init__(
        self,
        book: Book,
        scheduler: Scheduler,
        started: BrokerStarted,
        now_s: float,
        *,
        ended: EndedTable,
        limits: Limits | None = None,
        ranks: Ranks | None = None,
        memory: RecordMemory | None = None,
        troubles: Troubles | None = None,
        vitals: Callable[[], Vitals] = Vitals,
        forecasts: Forecasts = NO_FORECASTS,
        sleep: SleepPlan | None = None,
        up_since_s: float | None = None,
    ) -> None:
        self.book, self.scheduler = book, scheduler
        permit(book.cluster, scheduler)
        self.limits, self._ranks = limits or Limits(), ranks or Ranks()
        self._ranked_s = -math.inf
        self.memory = memory or RecordMemory()
        self.troubles = troubles or Troubles()
        self.now_s = book.now_s
        self._started_s = now_s
        self.started = started
        self.up_since_s = now_s if up_since_s is None else up_since_s
        self._first: list[Entry] = [started]
        self._entries: list[Entry] = []
        self._effects: list[Effect] = []
        self._records: list[DecisionRecord] = []
        self._happened: list[Happened] = []
        self._over: list[EndedJob] = []
        book.over = lambda job: self._over.append(ended_job(job, book.nodes))
        self._dirty = self._forget_due(now_s)
        self._held_until_s = float(book.cluster.arrays.job.held_until_s.max(initial=-math.inf))
        self._ask_again_s = min(next_hold_end_s(book.cluster, book.now_s), self.due_s())
        book.seats.emptied.clear()  # launched when their nodes say hello
        self.backlog = Backlog()
        self._killed_s: dict[int, float] = {}
        self._attempts = Attempts(book, self.limits, self._note, self._send)
        self._time_limits = TimeLimits(book, self._send)
        self._members = Members(
            book, self._attempts, self._time_limits, self.limits, self._note, self._send, now_s
        )
        self._sleepers = Sleepers(book, sleep, self._members.heard_s, self._note, self._effects_of_power)
        self._members.wakes = lambda name: self._sleepers.wake(name, self.now_s)
        self._reports = Reports(
            book,
            scheduler,
            started,
            self.up_since_s,
            backlog=self.backlog,
            troubles=self.troubles,
            vitals=vitals,
            forecasts=forecasts,
            members=self._members,
        )
        self._requests = Requests(
            book,
            self._attempts,
            self._time_limits,
            self._members,
            self.memory,
            self.limits,
            self._ranks,
            note=self._note,
            send=self._send,
            reply=self._reply,
            reports=self._reports,
            ended=ended,
            forecasts=forecasts,
        )

    def due_s(self) -> float:
        """When the scheduler asked to be asked again, Unix seconds; infinite where it did not."""
        if self.book.arrays.hungry():
            return self.now_s
        due_s = min(self.book.asked_for_s.values(), default=math.inf)
        return math.ceil(due_s * 1000.0) / 1000.0 if due_s < math.inf else due_s  # time goes by milliseconds

    def later_epoch(self) -> int:
        """The epoch of a later broker of this cluster that most nodes know, 0 where they know none."""
        return self._members.later_epoch()

    def ask_next(self) -> None:
        """Let the scheduler be asked in the next batch, whatever happens in it."""
        self._dirty = True

    # ---- the one entrance -------------------------------------------------------------------------

    def handle_batch(self, events: Sequence[Event], now_s: float) -> list[Effect]:
        """Apply a batch in canonical order, decide, and return what is to be done, in order.

        The first effect is the `Journal`, if anything happened; nothing after it may be done before its
        commit. `now_s` (Unix seconds, whole milliseconds) is later than that of the batch before.
        """
        if now_s <= self.now_s:
            raise ValueError(f"time must grow from batch to batch: {now_s} after {self.now_s}")
        if now_s - self.now_s > max(self.limits.lease_s / 4, LISTENS_EVERY_S):
            self._members.pardon(now_s)
        self.now_s = now_s
        self._effects, self._entries, self._records, self._happened = [], [], [], []
        self._over = []
        for entry in self._first:
            self._note(entry)
        self._first = []
        for event in sorted((event for event in events if isinstance(event, NodeSaid)), key=_rank):
            try:
                self._node_said(event)
            except Exception as error:
                self._set_aside(event, error)
        for intake in (event for event in events if isinstance(event, Intake)):
            self._requests.submitting.refusal = intake.refusal
        asked = [event for event in events if isinstance(event, ClientAsked)]
        self._requests.change([event for event in asked if isinstance(event.message, CHANGES)], now_s)
        for question in asked:
            if not isinstance(question.message, CHANGES) and not self.backlog.add(question):
                self._reply(question.peer, question.request, Refused(message=TOO_MANY))
        for done in (event for event in events if isinstance(event, PowerDone)):
            self._sleepers.done(done, now_s)
        if any(isinstance(event, Tick) for event in events):
            self._tick()
        elif any(isinstance(event, Due) for event in events):
            self._dirty = self._dirty or now_s >= self._ask_again_s
        self._launch_seated()
        self._members.hold()
        if now_s >= min(self.book.quotas.due_s, self.book.gates.due_s):
            self._note(EligibilityReviewed())
        while self.book.gates.hopeless:
            job, why = next(iter(self.book.gates.hopeless.items()))
            self._note(JobCancelled(job=job, reason=why))
        self._let_tasks_come()
        if self._dirty:
            self._decide()
        head: list[Effect] = [Journal(self._entries, self._over)] if self._entries else []
        kept = self._records or self._happened
        tail: list[Effect] = [Records(self._records, self._happened)] if kept else []
        return head + self._effects + tail

    def answer(self, has_time: Callable[[], bool]) -> list[Effect]:
        """Answer questions, one of each asker in turn: one at least, then more while there is time.

        What is returned may leave once the effects of the last batch have.
        """
        self._effects = []
        while self.backlog:
            self._requests.answer(self.backlog.pop(), self.now_s)
            if not has_time():
                break
        return self._effects

    def _node_said(self, event: NodeSaid) -> None:
        node, message = event.node, event.message
        if isinstance(message, LaterBroker):
            self._members.later(node, message.cluster, message.epoch)
            return
        if not isinstance(message, Hello):
            if self._members.foreign.is_known(node):  # its job numbers mean other jobs
                if isinstance(message, Heartbeat):
                    self._send(node, SayHello(cluster=self.book.identity, epoch=self.book.epoch))
                return
            if node not in self.book.nodes:
                return  # it has not registered; its Hello will say all of this again
            self._members.seen(node, self.now_s)
        match message:
            case Launched() if self._members.strangers.knows(
                node, message.job, message.attempt, message.rank
            ):
                pass
            case Launched():
                self._attempts.launched(
                    node,
                    message.job,
                    message.attempt,
                    message.rank,
                    message.pid,
                    message.sm_clock_mhz,
                    message.clock_note,
                )
                self._limited(node, message)
            case TimeLimited():
                self._limited(node, message)
            case LaunchRefused():
                self._attempts.refused(
                    node,
                    message.job,
                    message.attempt,
                    message.rank,
                    message.message,
                    charged=not message.is_for_now,
                    is_about_owner=message.is_about_owner,
                    held=self._members.held_gpus(node),
                )
            case Ended():
                self._attempts.ended(
                    node,
                    message.job,
                    message.attempt,
                    message.rank,
                    message.exit_code,
                    message.reason,
                    message.ended_s,
                    message.ran_s,
                    message.usage,
                )
                self._members.strangers.ended(node, message.job, message.attempt, message.rank)
            case ClockHeld():
                self._attempts.clocked(
                    node, message.job, message.attempt, message.rank, message.sm_clock_mhz, message.clock_note
                )
            case Hello():
                self._members.hello(node, message, event.request, self.now_s, event.wall_s)
            case LogData():
                self._requests.logs.data(node, event.request, message)
            case Heartbeat():
                self._members.heartbeat(
                    node,
                    event.request,
                    self.now_s,
                    message.unhealthy,
                    engine_away=message.engine_away,
                    power_w=message.power_w,
                )
                if message.wall_s is not None:
                    self._members.compare_clocks(node, message.wall_s, event.wall_s)
            case Metered():
                self._members.metered.told(node, message, self.now_s)
            case Held():
                self._members.held(node, message.held)
            case Leaving():
                self._members.leaving(node)

    def _limited(self, node: str, message: Launched | TimeLimited) -> None:
        """A node says what time limit a rank goes by."""
        job = self._attempts.current(message.job, message.attempt, message.rank, node)
        self._time_limits.told(job, message.attempt, message.rank, message.limit_s)

    def _set_aside(self, event: NodeSaid, error: Exception) -> None:
        """A node's message that nobody foresaw ends nothing but what it is about, and its sender rests."""
        node, message = event.node, event.message
        kind = type(message).__name__
        _log.error(
            "%s of node %s is set aside: %r", kind, node, message, exc_info=error, extra={"node": node}
        )
        known = self.book.nodes.get(node)
        if known is not None and known.up and not known.drained:
            reason = f"its message {kind} could not be dealt with: {error!r:.200}"
            self._note(NodeDrained(name=node, until_s=self.now_s + self.limits.drain_s, reason=reason))
        if isinstance(message, Ended):
            job = self._attempts.current(message.job, message.attempt, message.rank, node)
            if job is not None:
                self._attempts.lost(
                    node, job, f"node {node} told its end in a way that nobody understands", charged=True
                )
            self._send(node, EndedAck(job=message.job, attempt=message.attempt, rank=message.rank))

    def _tick(self) -> None:
        for name in self._members.silent(self.now_s):
            self._effects.append(DropNode(name))
            self._note(NodeAway(name=name, reason=f"no heartbeat for {self.limits.lease_s:g} s"))
        for name, job in self._members.lost(self.now_s):
            why = f"node {name} was unreachable for its --lost-after of {job.spec.lost_after_s:g} s"
            self._attempts.lost(name, job, why)
        self._effects += [DropNode(name) for name in self._members.returning()]
        self._members.settle(self.now_s)
        for name in self._members.rested(self.now_s):
            self._note(NodeResumed(name=name))
        self._sleepers.step(self.now_s)
        self._rank()
        active = sorted({job for node in self.book.nodes.values() for job in node.live_jobs})
        self._killed_s = {job: when_s for job, when_s in self._killed_s.items() if job in active}
        self._time_limits.keep(active)
        launching_s = max(self._started_s, self._members.strangers.settled_s())
        for number in active:
            self._tick_job(self.book.jobs[number], launching_s)
        self._requests.logs.expire(self.now_s)
        self.book.forget(self.now_s, self.limits.ended_s, self.limits.ended_jobs)
        self._dirty = self._dirty or self.now_s >= self._ask_again_s

    def _rank(self) -> None:
        """Look at shares and ages, where it is time to."""
        if self.now_s - self._ranked_s < self._ranks.every_s:
            return
        self._ranked_s = self.now_s
        book = self.book
        entry = ranked(self._ranks, book.priorities, book.usage, book.job_of_seq.values(), self.now_s)
        if entry is not None:
            self._note(entry)

    def _rank_again(self, job: Job) -> None:
        """A job has been queued again; what ended its attempt may have changed its place in the queue."""
        level = level_of(self._ranks, job, self.now_s)
        if level != self.book.priorities.level(job.number):
            self._note(JobsRanked(ln_weights={}, levels={job.number: level}))

    def _tick_job(self, job: Job, launching_s: float) -> None:
        """`launching_s`: since then nodes may start it at least, Unix seconds."""
        attempt = job.active
        if attempt is None:
            return
        if attempt.ending:
            if self.now_s - self._killed_s.setdefault(job.number, self.now_s) >= self.limits.kill_again_s:
                self._killed_s[job.number] = self.now_s
                self._attempts.kill(job)
        elif job.state == "running":
            self._time_limits.tell(job)
        elif job.state == "launching" and not attempt.leaving:
            nodes = {rank.node for rank in attempt.ranks if rank.state == "launching"}
            back_s = max((self._members.engine_back_s(name, self.now_s) for name in nodes), default=0.0)
            waited_s = self.now_s - max(attempt.seated_s, launching_s, back_s)
            if waited_s >= self.limits.launch_timeout_s:
                self._attempts.end(
                    job,
                    "queued",
                    f"{', '.join(sorted(nodes))} did not start it within {self.limits.launch_timeout_s:g} s",
                    charged=self._members.are_own(nodes),
                )

    def _let_tasks_come(self) -> None:
        """Tasks of arrays that are to come now become jobs."""
        drafts = self.book.arrays.drafts(self.book.last_number) if self.book.arrays.live else []
        if not drafts:
            return
        try:
            drafts = self.book.predictions.predict(drafts, self.now_s)
        except Exception as error:  # whatever a predictor makes of it
            for array in sorted({draft.array for draft in drafts}):
                _log.error("the tasks of array %d cannot be predicted", array, exc_info=error)
                self._note(JobCancelled(job=array, reason=f"its tasks cannot be predicted: {error!r:.200}"))
            return
        for draft in drafts:
            self._note(
                TaskSubmitted(
                    job=draft.job,
                    array=draft.array,
                    task=draft.task,
                    predicted_s=draft.predicted_s,
                    spread=draft.spread,
                    predicted_by=draft.predicted_by,
                    said=draft.said,
                )
            )

    # ---- deciding ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._dirty = False
        cluster = self.book.cluster
        self._forget_due(self.now_s)
        number = cluster.decisions
        for partition, decision in decide_all(
            cluster, self.scheduler, self.now_s, record=True, job_name=self._job_name
        ):
            entry = Decided(
                number=number,
                partition=cluster.partition_names[partition],
                source=decision.source,
                action=decision.action,
                contested=_contested(decision),
                guard=decision.guard,
                marks_hold=decision.marks_hold,
            )
            if decision.marks_hold:
                self._held_until_s = self.now_s + HOLD_S
            number = cluster.decisions
            self._entries.append(entry)
            self.book.apply(entry, self.now_s, already_decided=True)
            self._tell(entry)
            self._keep(decision, entry.number)
            if isinstance(decision.action, Start):
                self._attempts.launch(self.book.job_of_seq[decision.action.seq])
            elif isinstance(decision.action, Preempt):
                self._attempts.kill(self.book.job_of_seq[decision.action.seq])
        self._ask_again_s = self.due_s()
        if self.now_s < self._held_until_s:  # else nothing is kept back, in a queue that may be long
            self._ask_again_s = min(self._ask_again_s, next_hold_end_s(cluster, self.now_s))

    def _job_name(self, seq: int) -> str:
        if self.book.held.stands_for(seq):
            return "of others"
        job = self.book.job_of_seq.get(seq)
        return self.book.called(self.book.number_of_seq[seq]) if job is None else job.called

    def _keep(self, decision: Decision, number: int) -> None:
        """Keep a decision's record; one that cannot be made or remembered changes nothing else."""
        record = decision.record
        if record is None:
            if decision.record_failed:
                what = f"the record of decision {number} could not be made"
                self.troubles.count("made", what, decision.record_failed)
            return
        self.troubles.over("made", "decision records are made")
        self._records.append(record)
        try:
            self.memory.add(record)
            self._reports.decided(record)
        except Exception as error:  # whatever a record holds
            what = f"the record of decision {number} could not be remembered for `why`"
            self.troubles.count("remembered", what, error)

    def _launch_seated(self) -> None:
        """Launch the jobs whose GPUs have just become empty."""
        for job in self.book.seats.emptied:
            if job.active is not None and not job.active.ending:
                self._attempts.launch(job)
        self.book.seats.emptied.clear()

    def _forget_due(self, now_s: float) -> bool:
        """Forget the times to ask again at that have come; whether there were any."""
        asked_for_s = self.book.asked_for_s
        due = [partition for partition, at_s in asked_for_s.items() if at_s <= now_s]
        for partition in due:
            del asked_for_s[partition]
        return bool(due)

    # ---- what the parts call ----------------------------------------------------------------------

    def _note(self, entry: Entry) -> None:
        self.book.apply(entry, self.now_s)
        self._entries.append(entry)  # what cannot be applied must not be in the journal
        self._tell(entry)
        self._dirty = self._dirty or (isinstance(entry, _CHANGES) and not getattr(entry, "rejected", ""))
        if isinstance(entry, AttemptOver) and entry.outcome == "queued":
            self._rank_again(self.book.jobs[entry.job])

    def _tell(self, entry: Entry) -> None:
        """Let the store of decisions know of a fact; what it cannot say changes nothing else."""
        try:
            self._happened += happened(entry, self.book, self.now_s)
        except Exception as error:  # whatever a fact holds
            self.troubles.count("told", f"a fact {type(entry).__name__} could not be told", error)

    def _send(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        self._effects.append(SendNode(node, message, request))

    def _effects_of_power(self, order: PowerNode) -> None:
        self._effects.append(order)

    def _reply(self, peer: bytes, request: int, message: ClientReply) -> None:
        self._effects.append(Reply(peer, request, message))


_CHANGES = (
    NodeUp,
    NodeAway,
    NodeDown,
    NodeDrained,
    NodeResumed,
    NodeSlept,
    NodeWoken,
    NodeHealth,
    NodeRemoved,
    GpusHeld,
    JobSubmitted,
    TaskSubmitted,
    JobHeld,
    TasksHeld,
    TasksCancelled,
    JobUpdated,
    JobCancelled,
    JobsRanked,
    AttemptOver,
    QuotaSet,
    EligibilityReviewed,
)
"""Facts after which the scheduler is asked: arrivals, ends, nodes as in the simulator; who is eligible."""


def _rank(event: NodeSaid) -> int:
    """Order among what nodes say in a batch: ends first. Arrivals and cancels come after, timers last."""
    return int(isinstance(event.message, Hello | Heartbeat))


def _contested(decision: Decision) -> bool:
    record = decision.record
    if decision.source == "automatic" or record is None:
        return False
    open_ways = record.halves[0].legal if record.halves else [not plan.verdict for plan in record.plans]
    return sum(open_ways) > 1
