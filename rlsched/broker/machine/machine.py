"""The broker's state machine. It processes batches of events and returns effects, without I/O or a clock."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import msgspec

from rlsched.broker.base.entries import (
    AttemptOver,
    BillPriced,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    EnergyPriced,
    Entry,
    JobCancelled,
    JobsRanked,
    JobSubmitted,
    NodeAway,
    NodeDrained,
    NodeResumed,
    NodeSlept,
    NodeUp,
    NodeWoken,
    TaskSubmitted,
)
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.soft_errors import SoftErrors
from rlsched.broker.events import (
    ClientAsked,
    Due,
    Effect,
    Event,
    Intake,
    NodeSaid,
    PowerDone,
    PricesRead,
    Records,
    Tick,
)
from rlsched.broker.machine.requests import CHANGES, Requests
from rlsched.broker.machine.store_events import Happened, events_of_fact
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.leases import Leases
from rlsched.broker.nodes.members import Members
from rlsched.broker.nodes.node_orders import NodeOrders
from rlsched.broker.nodes.seen_memory import SeenMemory
from rlsched.broker.nodes.sleepers import Sleepers, SleepPlan
from rlsched.broker.nodes.slow_sharing import SharingRules, SlowSharing
from rlsched.broker.nodes.time_limits import TimeLimits
from rlsched.broker.outbox import Outbox
from rlsched.broker.queries.backlog import TOO_MANY, Backlog
from rlsched.broker.queries.forecasts import NO_FORECASTS, Forecasts
from rlsched.broker.queries.loop_metrics import LoopMetrics
from rlsched.broker.queries.memory import RecordMemory
from rlsched.broker.queries.report import Reports
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_table import EndedTable
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.priorities import PriorityRules, due_ranks, level_of
from rlsched.decide.actions import Preempt, Start
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.energy.limits import EnergyTable
from rlsched.energy.relative import PriceTable
from rlsched.wire.messages import (
    ClockHeld,
    Ended,
    EndedAck,
    GpuMemory,
    Heartbeat,
    Held,
    Hello,
    LaterBroker,
    Launched,
    LaunchRefused,
    Leaving,
    LogData,
    Metered,
    OutputFailed,
    Refused,
    SayHello,
    TimeLimited,
)
from rlsched.wire.states import LAUNCHING, QUEUED, RUNNING

_log = logging.getLogger("rlsched.broker")
LISTENS_EVERY_S = 0.5
"""Time between two batches above which all leases restart, seconds, because the broker read no messages. The
time must also exceed 1/4 of a lease.
"""


class Machine:
    """Applies events to the state, runs the scheduler, and returns journal entries and messages to send.

    Args:
        state: The state as recovered from the journal.
        scheduler: The policy.
        started: The entry that begins this broker's epoch. The first batch records it.
        now_s: Time at which the broker started, Unix seconds; must be later than every time in the state.
        ended: The journal's table of finished jobs.
        ranks: Rules for priorities and fair share.
        memory: Stores the last decision record of each job.
        soft_errors: Counter of errors by kind: decision records that could not be made (`made`) or stored
            (`remembered`), and events for the store of decisions that could not be made (`told`).
        loop_metrics: Function that returns metrics of the broker's loop, for reports.
        sleep: Rules for powering down idle nodes; None: nodes stay on.
        up_since_s: Time at which the process began to serve, Unix seconds; None: `now_s`.
        sharing: Rules for reactions to observed speeds of jobs that share GPUs.
        prices: Prices of electricity and power limits; None if none are known.

    Attributes:
        backlog: Clients' questions that wait for `answer`.
    """

    def __init__(
        self,
        state: BrokerState,
        scheduler: Scheduler,
        started: BrokerStarted,
        now_s: float,
        *,
        ended: EndedTable,
        limits: Limits | None = None,
        ranks: PriorityRules | None = None,
        memory: RecordMemory | None = None,
        soft_errors: SoftErrors | None = None,
        loop_metrics: Callable[[], LoopMetrics] = LoopMetrics,
        forecasts: Forecasts = NO_FORECASTS,
        sleep: SleepPlan | None = None,
        up_since_s: float | None = None,
        sharing: SharingRules | None = None,
        prices: EnergyTable | None = None,
    ) -> None:
        self._prices, self._was_limited = prices, state.models.limits_power
        self.state, self.scheduler = state, scheduler
        permit(state.cluster, scheduler)
        state.price_options = scheduler.price_options
        self.limits, self._ranks = limits or Limits(), ranks or PriorityRules()
        self._ranked_s = -math.inf
        self.memory = memory or RecordMemory()
        self.soft_errors = soft_errors or SoftErrors()
        self.now_s = state.now_s
        self._started_s = now_s
        self.started = started
        self.up_since_s = now_s if up_since_s is None else up_since_s
        self._unrecorded: list[Entry] = [started]
        self._out = Outbox(state, self._recorded)
        self._records: list[DecisionRecord] = []
        self._happened: list[Happened] = []
        self._recorded_decision: DecisionRecord | None = None  # of the decision that is being recorded
        self._dirty = self._forget_due(now_s)
        self._ask_again_s = self._decision_due_s()
        state.seats.emptied.clear()  # these jobs are launched when their nodes register
        self.backlog = Backlog()
        self._killed_s: dict[int, float] = {}
        self._attempts = Launches(state, self.limits, self._out)
        self._time_limits = TimeLimits(state, self._out)
        self._leases = Leases(state, self.limits, now_s)
        self._members = Members(
            state, self._attempts, self._time_limits, self._leases, self.limits, self._out, now_s
        )
        self._sharing = SlowSharing(
            state, self._members.metered.speeds, self._attempts, sharing or SharingRules(), self._out
        )
        self._memory = SeenMemory(state, self._members.metered, self._out)
        self._sleepers = Sleepers(state, sleep, self._leases.alive_s, self._out, now_s)
        node_orders = NodeOrders(
            state,
            self._attempts,
            self._leases,
            self.limits,
            self._out,
            wake=lambda name: self._sleepers.wake(name, self.now_s),
        )
        self._reports = Reports(
            state,
            scheduler,
            started,
            self.up_since_s,
            backlog=self.backlog,
            soft_errors=self.soft_errors,
            loop_metrics=loop_metrics,
            forecasts=forecasts,
            members=self._members,
        )
        self._requests = Requests(
            state,
            self._attempts,
            self._time_limits,
            self._members,
            node_orders,
            self.memory,
            self.limits,
            self._ranks,
            out=self._out,
            reports=self._reports,
            ended=ended,
            forecasts=forecasts,
        )

    def due_s(self) -> float:
        """Return the time of the next batch if no event arrives, Unix seconds; infinite if none is due.

        At this time a decision, a review of the nodes that can sleep, or an order to such a node is due.
        """
        return min(self._decision_due_s(), self._sleepers.due_s)

    def _decision_due_s(self) -> float:
        """Return the time of the next decision if no event arrives, Unix seconds; infinite if none is due."""
        if self.state.arrays.wants_tasks():
            return self.now_s
        due_s = min(self.state.asked_for_s.values(), default=math.inf)
        due_s = min(due_s, self.scheduler.review_s(self.state.cluster), self.state.cluster.rank_due_s)
        return math.ceil(due_s * 1000.0) / 1000.0 if due_s < math.inf else due_s  # whole milliseconds

    def later_epoch(self) -> int:
        """Return the epoch of a later broker of this cluster if most nodes report one, else 0."""
        return self._members.later_epoch()

    def ask_next(self) -> None:
        """Make the next batch run the scheduler, even if no event requires it."""
        self._dirty = True

    # ---- a batch ----------------------------------------------------------------------------------

    def handle_batch(self, events: Sequence[Event], now_s: float) -> list[Effect]:
        """Apply a batch of events, decide, and return the output in order.

        If an entry was recorded, the first effect is a `Commit`. The caller must carry it out before all
        other effects. `now_s` (Unix seconds, whole milliseconds) must increase from batch to batch.

        Raises:
            ValueError: `now_s` is not later than the time of the previous batch.
        """
        self._begin(now_s)
        batch = _Batch(events)
        # 0. The price, if it has changed: reports may end attempts, whose bills have the prices up to now.
        for read in batch.prices:
            self._prices = read.table
        if self.state.energy_price is not None and self.state.energy_price.until_s < now_s:
            self._record_price()
        if self.state.bill_price is not None and self.state.bill_price.until_s < now_s:
            self._record_bill_price()
        # Which nodes sleep and wake, by the state after the decisions of the last batch.
        self._sleepers.begin(now_s)
        # 1. Reports of nodes: ends first, so that their GPUs are free for the decisions of this batch.
        for event in sorted(batch.reports, key=_is_greeting):
            self._node_reported(event)
        # 2. Whether submissions are accepted: the journal's disk may be full.
        for intake in batch.intakes:
            self._requests.submitting.refusal = intake.refusal
        # 3. Changes by clients, in order. Submissions that follow each other are predicted together.
        self._requests.change(batch.changes, now_s)
        # 4. Questions are queued; `answer` answers them after the output of this batch has been sent.
        for question in batch.questions:
            if not self.backlog.add(question):
                self._out.reply(question.peer, question.request, Refused(message=TOO_MANY))
        # 5. Results of the commands that power nodes up and down.
        for done in batch.powered:
            self._sleepers.done(done, now_s)
        # 6. Timers: leases, drains, launch time-outs, and the time that the scheduler asked for.
        if batch.has_tick:
            self._tick()
        elif batch.is_due:
            self._dirty = self._dirty or now_s >= self._ask_again_s
        self._record_price()
        self._record_bill_price()
        # 7. Jobs are launched on GPUs that preempted jobs have left; GPUs that others use are recorded.
        self._launch_seated()
        self._members.record_holdings()
        # 8. Jobs that become eligible or can never run, and tasks of arrays that become jobs.
        self._review_eligibility()
        self._let_tasks_come()
        # 9. Decisions, if anything changed that the scheduler considers.
        decided = self._dirty
        if decided:
            self._decide()
        self._sleepers.end(now_s, decided=decided)
        kept = self._records or self._happened
        return self._out.take() + ([Records(self._records, self._happened)] if kept else [])

    def answer(self, has_time: Callable[[], bool]) -> list[Effect]:
        """Answer at least one question if any waits, and more while `has_time` returns True.

        Clients take turns. The caller must send the output of the last batch before these answers.
        """
        self._out.begin(self.now_s)
        while self.backlog:
            self._requests.answer(self.backlog.pop(), self.now_s)
            if not has_time():
                break
        return self._out.take()

    def _begin(self, now_s: float) -> None:
        """Start a batch. The first batch records that this broker has started."""
        if now_s <= self.now_s:
            raise ValueError(f"time must grow from batch to batch: got {now_s} s after {self.now_s} s")
        if now_s - self.now_s > max(self.limits.lease_s / 4, LISTENS_EVERY_S):
            self._leases.extend(now_s)
        self.now_s = now_s
        self._out.begin(now_s)
        self._records, self._happened = [], []
        for fact in self._unrecorded:
            self._out.record(fact)
        self._unrecorded = []

    def _node_reported(self, event: NodeSaid) -> None:
        """Process a message from a node. An error has consequences only for this node and this attempt."""
        try:
            if self._is_from_member(event):
                self._node_said(event.node, event)
        except Exception as error:
            self._set_aside(event, error)

    def _is_from_member(self, event: NodeSaid) -> bool:
        """Return whether the sender is registered, or registers with this message."""
        node, message = event.node, event.message
        if isinstance(message, Hello | LaterBroker):
            return True
        if self._members.foreign.is_known(node):  # the message is about jobs of another cluster
            if isinstance(message, Heartbeat):
                self._out.send(node, SayHello(cluster=self.state.identity, epoch=self.state.epoch))
            return False
        if node not in self.state.nodes:
            return False  # its `Hello` will repeat this message's content
        self._leases.renew(node, self.now_s)
        return True

    def _node_said(self, node: str, event: NodeSaid) -> None:
        members, attempts = self._members, self._attempts
        match event.message:
            case LaterBroker() as message:
                members.later(node, message.cluster, message.epoch)
            case Launched() as message if members.unknown_attempts.knows(node, message.key):
                pass
            case Launched() as message:
                attempts.launched(node, message)
                self._limited(node, message)
            case TimeLimited() as message:
                self._limited(node, message)
            case LaunchRefused() as message:
                attempts.record_refusal(node, message, held=members.held_gpus(node))
            case Ended() as message:
                attempts.record_rank_end(node, message)
                members.unknown_attempts.remove_ended(node, message.key)
            case ClockHeld() as message:
                attempts.clocked(node, message)
            case OutputFailed() as message:
                attempts.output_failed(node, message)
            case Hello() as message:
                members.hello(node, message, event.request, self.now_s, event.wall_s)
            case LogData() as message:
                self._requests.logs.data(node, event.request, message)
            case Heartbeat() as message:
                members.heartbeat(node, event.request, self.now_s, message)
                if message.wall_s is not None:
                    members.compare_clocks(node, message.wall_s, event.wall_s)
            case Metered() as message:
                members.metered.store_measurements(node, message, self.now_s)
            case Held() as message:
                members.note_holdings(node, message.held)
            case GpuMemory() as message:
                members.record_gpu_memory(node, message.usable_mib)
            case Leaving():
                members.mark_leaving(node)

    def _limited(self, node: str, message: Launched | TimeLimited) -> None:
        """Record the time limit that a node enforces for a rank, as the node reports it in `message`."""
        job = self._attempts.current(node, message.key)
        self._time_limits.note_enforced(job, message.attempt, message.rank, message.limit_s)

    def _set_aside(self, event: NodeSaid, error: Exception) -> None:
        """Log an error in the processing of a node's message, and drain the node for `drain_s`.

        If the message is an `Ended`, record its attempt as lost and count a retry.
        """
        node, message = event.node, event.message
        kind = type(message).__name__
        _log.error(
            "message %s of node %s could not be processed: %r",
            kind,
            node,
            message,
            exc_info=error,
            extra={"node": node},
        )
        known = self.state.nodes.get(node)
        if known is not None and known.up and not known.drained:
            reason = f"its message {kind} could not be processed: {error!r:.200}"
            self._out.record(NodeDrained(name=node, until_s=self.now_s + self.limits.drain_s, reason=reason))
        if isinstance(message, Ended):
            job = self._attempts.current(node, message.key)
            if job is not None:
                why = f"could not process the exit report from node {node}"
                self._attempts.record_loss(node, job, why, charged=True)
            self._out.send(node, EndedAck(job=message.job, attempt=message.attempt, rank=message.rank))

    def _review_eligibility(self) -> None:
        """Update which jobs are eligible, if a quota or a begin time is due for review.

        Also cancel the jobs with dependencies that can never be met.
        """
        if self.now_s >= min(self.state.quotas.due_s, self.state.gates.due_s):
            self._out.record(EligibilityReviewed())
        while self.state.gates.hopeless:
            job, why = next(iter(self.state.gates.hopeless.items()))
            self._out.record(JobCancelled(job=job, reason=why))

    def _tick(self) -> None:
        for name in self._leases.expired_nodes(self.now_s):
            self._out.drop(name)
            self._out.record(NodeAway(name=name, reason=f"no heartbeat for {self.limits.lease_s:g} s"))
        for name, job in self._leases.lost_jobs(self.now_s):
            why = f"node {name} was unreachable for its --lost-after of {job.spec.lost_after_s:g} s"
            self._attempts.record_loss(name, job, why)
        for name in self._members.returning():
            self._out.drop(name)
        self._members.launch_restored(self.now_s)
        for name in self._leases.expired_drains(self.now_s):
            self._out.record(NodeResumed(name=name))
        self._sleepers.step(self.now_s)
        self._sharing.step(self.now_s)
        self._memory.step()
        self._rank()
        active = sorted({job for node in self.state.nodes.values() for job in node.live_jobs})
        self._killed_s = {job: when_s for job, when_s in self._killed_s.items() if job in active}
        self._time_limits.keep(active)
        launching_s = max(self._started_s, self._members.unknown_attempts.settled_s())
        for number in active:
            self._tick_job(self.state.jobs[number], launching_s)
        self._requests.logs.expire(self.now_s)
        self.state.forget(self.now_s, self.limits.ended_s, self.limits.ended_jobs)
        self._dirty = self._dirty or self.now_s >= self._ask_again_s

    def _rank(self) -> None:
        """Update priorities from users' fair shares and jobs' waiting times, if an update is due."""
        if self.now_s - self._ranked_s < self._ranks.every_s:
            return
        self._ranked_s = self.now_s
        state = self.state
        entry = due_ranks(self._ranks, state.priorities, state.usage, state.job_of_seq.values(), self.now_s)
        if entry is not None:
            self._out.record(entry)

    def _rank_again(self, job: Job) -> None:
        """Update the priority level of a requeued job. The level rises if the job's node was stopped."""
        level = level_of(self._ranks, job, self.now_s)
        if level != self.state.priorities.level(job.number):
            self._out.record(JobsRanked(ln_weights={}, levels={job.number: level}))

    def _tick_job(self, job: Job, launching_s: float) -> None:
        """Repeat orders that nodes have not carried out, and end an attempt that was not started in time.

        `launching_s`: time before which no launch time-out begins, Unix seconds: the broker's start, or the
        registration of the last node for which the broker waited after a restore.
        """
        attempt = job.active
        if attempt is None:
            return
        if attempt.ending:
            if self.now_s - self._killed_s.setdefault(job.number, self.now_s) >= self.limits.kill_again_s:
                self._killed_s[job.number] = self.now_s
                self._attempts.kill(job)
        elif job.state == RUNNING:
            self._time_limits.send_limit(job)
        elif job.state == LAUNCHING and not attempt.leaving:
            nodes = {rank.node for rank in attempt.ranks if rank.state == LAUNCHING}
            back_s = max((self._members.engine_back_s(name, self.now_s) for name in nodes), default=0.0)
            waited_s = self.now_s - max(attempt.seated_s, launching_s, back_s)
            if waited_s >= self.limits.launch_timeout_s:
                self._attempts.end(
                    job,
                    QUEUED,
                    f"{', '.join(sorted(nodes))} did not start it within {self.limits.launch_timeout_s:g} s",
                    charged=self._members.are_own(nodes),
                )

    def _record_price(self) -> None:
        """Record the price and the power limit if they have changed, or if deferred jobs are due for review.

        `Scheduler.review_s` is the time of the review.
        """
        known = self.state.energy_price
        asked, found = self.scheduler.abilities.prices_asked, None
        if self._prices is not None:
            explained = self.scheduler.price_options is not None
            found = self._prices.at(self.now_s, asked, explained=explained)
        if found is None and known is None:
            return
        now = EnergyPriced(price=None, ratio=0.0, until_s=math.inf)
        if found is not None:
            now = EnergyPriced(**found._asdict())
            if now.price is not None and self._prices is not None and self._prices.unit is not None:
                now = msgspec.structs.replace(now, **self._prices.unit._asdict())
        before = None if known is None else msgspec.structs.replace(known, mean_before=None)
        is_due = self.scheduler.review_s(self.state.cluster) <= self.now_s
        if now != before or (is_due and self.state.price_sums.at_s < self.now_s):
            prices = None if self._prices is None else self._prices.prices
            mean = self._mean_since(known, self.state.price_sums.at_s, prices)
            self._out.record(msgspec.structs.replace(now, mean_before=mean))

    def _record_bill_price(self) -> None:
        """Record the price or carbon intensity that only bills use, not the policy, if it has changed."""
        known = self.state.bill_price
        billed = None if self._prices is None else self._prices.bill_prices
        found = None if billed is None else billed.prices.at(self.now_s)
        if found is None and known is None:
            return
        now = BillPriced(price=None, until_s=math.inf)
        if found is not None and billed is not None:
            now = BillPriced(price=found.price, until_s=found.until_s, **billed.unit._asdict())
        if known is None or now != msgspec.structs.replace(known, mean_before=None):
            prices = None if billed is None else billed.prices
            mean = self._mean_since(known, self.state.bill_price_sums.at_s, prices)
            self._out.record(msgspec.structs.replace(now, mean_before=mean))

    def _mean_since(
        self, known: EnergyPriced | BillPriced | None, since_s: float, prices: PriceTable | None
    ) -> float | None:
        """Return a series' mean price since its last journal entry; None: the prices are not fully known.

        Args:
            known: The last entry; None: there is none.
            since_s: Time of this entry, Unix seconds.
            prices: Prices of the series over time, as last read from its file; None: unknown.
        """
        if known is None or known.price is None or self.now_s <= known.until_s:
            return None if known is None else known.price
        return None if prices is None else prices.mean(since_s, self.now_s)

    def _let_tasks_come(self) -> None:
        """Record the tasks of arrays that become jobs now, with their predicted run times."""
        drafts = self.state.arrays.drafts(self.state.last_number) if self.state.arrays.live else []
        if not drafts:
            return
        try:
            drafts = self.state.predictions.predict(drafts, self.now_s)
        except Exception as error:  # any error of a predictor
            for array in sorted({draft.array for draft in drafts}):
                _log.error("the run times of array %d's tasks cannot be predicted", array, exc_info=error)
                self._out.record(
                    JobCancelled(job=array, reason=f"its run times cannot be predicted: {error!r:.200}")
                )
            return
        for draft in drafts:
            self._out.record(
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
        cluster = self.state.cluster
        self._forget_due(self.now_s)
        number, started = cluster.decisions, list[Job]()
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
            )
            number = cluster.decisions
            self._recorded_decision = decision.record
            self._out.record(entry, already_decided=True)
            self._recorded_decision = None
            self._keep(decision, entry.number)
            if isinstance(decision.action, Start):
                started.append(self.state.job_of_seq[decision.action.seq])
                if not self.state.models.limits_power:
                    self._attempts.launch(started.pop())
            elif isinstance(decision.action, Preempt):
                self._attempts.kill(self.state.job_of_seq[decision.action.seq])
        for job in started:  # under a power limit, clocks are known only after all decisions
            if job.active is not None and not job.active.ending:
                self._attempts.launch(job)
        for partition, name in enumerate(cluster.partition_names):
            if cluster.arrays.derived.part.queue_len[partition] == 0:  # as in the simulator
                self.state.asked_for_s.pop(name, None)
        if self.state.models.limits_power or self._was_limited:
            self._attempts.follow_limit()
        self._was_limited = self.state.models.limits_power
        self._ask_again_s = self._decision_due_s()

    def _job_name(self, seq: int) -> str:
        if self.state.holdings.is_holding(seq):
            return "of others"
        job = self.state.job_of_seq.get(seq)
        return self.state.called(self.state.number_of_seq[seq]) if job is None else job.called

    def _keep(self, decision: Decision, number: int) -> None:
        """Buffer a decision's record for the store of decisions. An error is only logged and counted."""
        record = decision.record
        if record is None:
            if decision.record_failed:
                what = f"the record of decision {number} could not be made"
                self.soft_errors.count("made", what, decision.record_failed)
            return
        self.soft_errors.mark_recovered("made", "decision records are made")
        self._records.append(record)
        try:
            self.memory.add(record)
        except Exception as error:  # a record may cause any error
            what = f"the record of decision {number} could not be remembered for `why`"
            self.soft_errors.count("remembered", what, error)

    def _launch_seated(self) -> None:
        """Launch the jobs whose GPUs are now free of processes of preempted jobs."""
        for job in self.state.seats.emptied:
            if job.active is not None and not job.active.ending:
                self._attempts.launch(job)
        self.state.seats.emptied.clear()

    def _forget_due(self, now_s: float) -> bool:
        """Remove the times up to `now_s` (Unix seconds) for which the policy requested a decision.

        Return whether there were any.
        """
        asked_for_s = self.state.asked_for_s
        due = [partition for partition, at_s in asked_for_s.items() if at_s <= now_s]
        for partition in due:
            del asked_for_s[partition]
        return bool(due)

    # ---- facts ------------------------------------------------------------------------------------

    def _recorded(self, fact: Entry) -> None:
        """Buffer, for the store of decisions, the events of a fact (journal entry) that was just applied.

        Also note whether the scheduler must be called, and update the priority of a requeued job.
        """
        self._keep_event(fact)
        if isinstance(fact, NodeUp):
            self._sleepers.note_up(fact.name, self.now_s)
        is_rejected = isinstance(fact, JobSubmitted) and bool(fact.rejected)
        asks = fact.asks_scheduler and not is_rejected
        if isinstance(fact, NodeSlept | NodeWoken):
            asks = self.state.models.limits_power
        self._dirty = self._dirty or asks
        if isinstance(fact, AttemptOver) and fact.outcome == QUEUED:
            self._rank_again(self.state.jobs[fact.job])

    def _keep_event(self, fact: Entry) -> None:
        """Buffer a fact's events for the store of decisions. An error is only logged and counted."""
        try:
            self._happened += events_of_fact(fact, self.state, self.now_s, self._recorded_decision)
        except Exception as error:  # a fact may cause any error
            what = f"the event of a fact {type(fact).__name__} could not be recorded"
            self.soft_errors.count("told", what, error)


class _Batch:
    """The events of a batch, grouped by kind and in order within each kind.

    Attributes:
        reports: Messages of nodes.
        intakes: Events that start or end the refusal of submissions.
        changes: Requests of clients that change something.
        questions: All other requests from clients.
        prices: Prices of electricity that were read.
        powered: Results of the commands that power nodes up and down.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.reports: list[NodeSaid] = []
        self.intakes: list[Intake] = []
        self.changes: list[ClientAsked] = []
        self.questions: list[ClientAsked] = []
        self.powered: list[PowerDone] = []
        self.prices: list[PricesRead] = []
        self.has_tick = self.is_due = False
        for event in events:
            match event:
                case ClientAsked():
                    (self.changes if isinstance(event.message, CHANGES) else self.questions).append(event)
                case NodeSaid():
                    self.reports.append(event)
                case Tick():
                    self.has_tick = True
                case Due():
                    self.is_due = True
                case Intake():
                    self.intakes.append(event)
                case PowerDone():
                    self.powered.append(event)
                case PricesRead():
                    self.prices.append(event)


def _is_greeting(event: NodeSaid) -> bool:
    return isinstance(event.message, (Hello, Heartbeat))


def _contested(decision: Decision) -> bool:
    record = decision.record
    if decision.source == "automatic" or record is None:
        return False
    return sum(not plan.verdict for plan in record.plans) > 1
