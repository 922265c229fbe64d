"""Processes clients' requests: changes before the decisions of a batch, questions after the batch."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import msgspec

from rlsched.broker.base.limits import Limits
from rlsched.broker.base.shortened import MAX_NAME_CHARS, shortened
from rlsched.broker.events import ClientAsked
from rlsched.broker.machine.log_reads import LogReads
from rlsched.broker.machine.orders import JobOrders
from rlsched.broker.machine.quota_orders import accounts_page, changed_member, changed_quota, quotas_page
from rlsched.broker.machine.submissions import wrong_tasks
from rlsched.broker.machine.submitting import Drafts, Submitting
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.members import Members
from rlsched.broker.nodes.node_orders import NodeOrders
from rlsched.broker.nodes.time_limits import TimeLimits
from rlsched.broker.outbox import Outbox
from rlsched.broker.queries.explain import explain
from rlsched.broker.queries.forecasts import Forecasts
from rlsched.broker.queries.history_pages import HistoryPages
from rlsched.broker.queries.memory import RecordMemory
from rlsched.broker.queries.pages import Pages
from rlsched.broker.queries.profile import PairSpeeds
from rlsched.broker.queries.report import Reports
from rlsched.broker.queries.views import array_info
from rlsched.broker.queries.waiting import kept_out
from rlsched.broker.state.arrays import JobArray
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_table import EndedTable
from rlsched.broker.state.jobs import Job, called
from rlsched.broker.state.priorities import PriorityRules
from rlsched.broker.state.tasks import in_words, includes_task
from rlsched.errors import InputError
from rlsched.transport.roles import Peer, rules_over
from rlsched.wire.messages import (
    Begin,
    Cancel,
    ClientReply,
    DownNode,
    DrainNode,
    DryRun,
    Explanation,
    Hold,
    JobOrder,
    Jobs,
    ListAccounts,
    ListHistory,
    ListJobs,
    ListNodes,
    ListQuotas,
    ListUsage,
    Ok,
    ReadLog,
    Refused,
    Release,
    RemoveNode,
    Requeue,
    ResumeNode,
    Serving,
    SetMember,
    SetQuota,
    Stats,
    Submit,
    SubmitMany,
    Update,
    WhoServes,
    Why,
)
from rlsched.wire.states import QUEUED

CHANGES = (
    *(Submit, SubmitMany, *JobOrder.__args__, Begin),
    *(DrainNode, ResumeNode, DownNode, RemoveNode, SetQuota, SetMember),
)
"""Requests that change something, processed before the decisions of a batch. Other requests are questions."""
_log = logging.getLogger("rlsched.broker")
OF_ONE_JOB = JobOrder | ReadLog | Begin
"""Requests about one job that only the job's user and admins can make."""


class Requests:
    """Carries out clients' orders, and answers clients' questions.

    Args:
        node_orders: Carries out orders about nodes.
        memory: The last decision record of each job.
        ranks: Rules for priorities, such as the highest priority that a user can request.
        reports: Status reports of the broker.
        ended: The journal's table of finished jobs.

    Attributes:
        logs: Requests to read job output that wait for a node's answer.
        submitting: Accepts submissions.
    """

    def __init__(
        self,
        state: BrokerState,
        attempts: Launches,
        time_limits: TimeLimits,
        members: Members,
        node_orders: NodeOrders,
        memory: RecordMemory,
        limits: Limits,
        ranks: PriorityRules,
        *,
        out: Outbox,
        reports: Reports,
        ended: EndedTable,
        forecasts: Forecasts,
    ) -> None:
        self._state, self._attempts, self._members = state, attempts, members
        self._node_orders = node_orders
        self._memory, self._limits, self._ranks = memory, limits, ranks
        self._out = out
        self._forecasts, self._time_limits = forecasts, time_limits
        self._pages = Pages(state, members, limits, forecasts.latest_forecast)
        self._past = HistoryPages(state, ended, members.metered)
        self._reports = reports
        self._orders = JobOrders(state, attempts, time_limits, limits, out)
        self.logs = LogReads(state, limits.log_timeout_s, out)
        self.submitting = Submitting(state, ranks, limits, self._orders, out)

    # ---- changes ----------------------------------------------------------------------------------

    def change(self, asked: Sequence[ClientAsked], now_s: float) -> None:
        """Carry out requests that change something, in order; predict consecutive submissions together."""
        signed = [one for one in map(self._signed, asked) if one is not None]
        for _, run in itertools.groupby(signed, key=lambda one: isinstance(one.message, Submit)):
            self._change_run(list(run), now_s)

    def _change_run(self, asked: Sequence[ClientAsked], now_s: float) -> None:
        submitted = [one.message for one in asked if isinstance(one.message, Submit)]
        drafts = self.submitting.drafts(submitted, now_s)
        for one in asked:
            try:
                reply = self._change(one, drafts, now_s)
            except InputError as error:
                reply = Refused(message=str(error))
            except Exception as error:
                reply = _set_aside(one, error)
            if reply is not None:
                self._out.reply(one.peer, one.request, reply)

    def _change(self, one: ClientAsked, drafts: Drafts, now_s: float) -> ClientReply | None:
        match one.message:
            case Submit() as submit:
                return self.submitting.submit(submit, drafts)
            case SubmitMany() as many:
                return self.submitting.submit_many(many, one.by, now_s)
            case Cancel() | Hold() | Release() | Requeue() | Update() as order:
                if isinstance(order, Update) and order.priority is not None and one.by.role != "admin":
                    self._ranks.check(order.priority)
                return self._not_theirs(one) or self._order_jobs(order, one.by)
            case Begin() as begin:
                return self._not_theirs(one) or self._begin(begin)
            case DrainNode() | ResumeNode() | DownNode() | RemoveNode() as order:
                refusal = self._node_orders.obey(order)
                return Refused(message=refusal) if refusal else Ok()
            case SetQuota() as order:
                self._out.record(changed_quota(self._state.quotas, order))
                return Ok()
            case SetMember() as order:
                joined = changed_member(self._state.accounts, order)
                if joined is not None:
                    self._out.record(joined)
                return Ok()
        return None

    def _signed(self, asked: ClientAsked) -> ClientAsked | None:
        """Return a request, with the key's owner as the user if the request is a submission.

        If the submission is refused, reply to the client and return None.
        """
        if not isinstance(asked.message, Submit):
            return asked
        try:
            return msgspec.structs.replace(asked, message=self.submitting.signed_by(asked.by, asked.message))
        except InputError as error:
            self._out.reply(asked.peer, asked.request, Refused(message=str(error)))
            return None

    def _not_theirs(self, asked: ClientAsked) -> Refused | None:
        """Return a refusal if the sender has no permission for this request about a job, else None."""
        spec = self._state.spec(asked.message.job) if isinstance(asked.message, OF_ONE_JOB) else None
        if spec is None or rules_over(asked.by, spec.user, spec.token):
            return None
        owner = spec.user or "nobody"
        return Refused(
            message=f"job {called(spec)} is {owner}'s, and this key is {asked.by.person}'s: only {owner} and "
            "admins may read its output, cancel and change it"
        )

    def _order_jobs(self, order: JobOrder, by: Peer) -> ClientReply:
        refusal = wrong_tasks(order.tasks)
        if refusal:
            return Refused(message=refusal)
        array = self._state.arrays.known.get(order.job)
        if array is not None:
            obey = self._orders.obey_some if order.tasks else self._orders.obey_all
            obey(order, array, by)
            return Ok()
        if order.tasks and self._state.job(order.job) is not None:
            return _no_array(order.job)
        job = self._state.job(order.job)
        is_stray = job is None and isinstance(order, Cancel) and by.role == "admin"
        if is_stray and self._members.unknown_attempts.cancel(order.job):
            return Ok()
        if job is None:
            return _no_such(order.job)
        self._orders.obey(order, job, by)
        return Ok()

    def _begin(self, order: Begin) -> ClientReply:
        job = self._state.job(order.job)
        if job is None or not job.live:
            return _no_such(order.job)
        refusal = self._attempts.record_begin(job, order)
        return Refused(message=refusal) if refusal else Ok()

    # ---- questions --------------------------------------------------------------------------------

    def answer(self, asked: ClientAsked, now_s: float) -> None:
        """Answer a question. If an error occurs, refuse the question with a message of one line."""
        try:
            self._answer(asked, now_s)
        except Exception as error:
            self._reports.failed_answers += 1
            self._out.reply(asked.peer, asked.request, _set_aside(asked, error))

    def _answer(self, asked: ClientAsked, now_s: float) -> None:
        match asked.message:
            case ListJobs(job=None) as wanted:
                self._out.reply(asked.peer, asked.request, self._pages.jobs(wanted, now_s))
            case ListJobs(job=int() as number) | Why(job=number) | ReadLog(job=number) if (
                array := self._state.arrays.known.get(number)
            ) is not None:
                self._out.reply(asked.peer, asked.request, self._of_array(asked.message, array, now_s))
            case ListJobs(job=int() as number, task=int()) if number in self._state.numbers:
                self._out.reply(asked.peer, asked.request, _no_array(number))
            case ListJobs(job=int() as number) if number in self._state.numbers:
                self._out.reply(asked.peer, asked.request, self._pages.job(number, now_s))
            case ListHistory() as wanted:
                self._out.reply(asked.peer, asked.request, self._past.history(wanted, now_s))
            case ListUsage() as wanted:
                self._out.reply(asked.peer, asked.request, self._past.usage(wanted, now_s))
            case ListNodes() as wanted:
                self._out.reply(asked.peer, asked.request, self._pages.nodes(wanted))
            case ListQuotas(first=first):
                self._out.reply(asked.peer, asked.request, quotas_page(self._state.quotas, first, now_s))
            case ListAccounts(first=first):
                self._out.reply(asked.peer, asked.request, accounts_page(self._state.accounts, first))
            case Why(job=number) if (job := self._state.job(number)) is not None:
                record = self._memory.last_record(
                    job.seq, self._partitions(job) if job.state == QUEUED else ()
                )
                late = self._time_limits.late(job)
                metered = self._members.metered
                said = explain(
                    self._state,
                    job,
                    record,
                    now_s,
                    self._forecasts.latest_forecast(job),
                    late,
                    usage=metered.job(job, now_s),
                    energy_j=metered.energy_j(job, now_s),
                    bill=metered.bill(job, now_s),
                    grace_s=self._limits.grace_of(job.spec.grace_s),
                    outside_mps=metered.outside_mps(job, now_s),
                    seen=metered.speeds.of(job, now_s),
                    pair=PairSpeeds.of(self._state, metered.speeds, job, now_s),
                    made_room=self._memory.made_room(job.seq, job.attempt.decision) if job.attempt else (),
                )
                self._out.reply(asked.peer, asked.request, said)
            case ReadLog(job=number) as wanted if number in self._state.numbers:
                refusal = self._not_theirs(asked)
                if refusal is not None:
                    self._out.reply(asked.peer, asked.request, refusal)
                else:
                    self.logs.read(asked, wanted, now_s)
            case WhoServes():
                answer = Serving(
                    cluster=self._state.identity, epoch=self._state.epoch, person=asked.by.person
                )
                self._out.reply(asked.peer, asked.request, answer)
            case DryRun() as question:
                why_not = self._forecasts.ask(asked, question)
                if why_not:
                    self._out.reply(asked.peer, asked.request, Refused(message=why_not))
            case Stats():
                self._out.reply(asked.peer, asked.request, self._reports.report(now_s))
            case ListJobs(job=int() as number) | Why(job=number) | ReadLog(job=number):
                self._out.reply(asked.peer, asked.request, _no_such(number))

    def _of_array(self, asked: ListJobs | Why | ReadLog, array: JobArray, now_s: float) -> ClientReply:
        match asked:
            case ListJobs(task=None):
                return Jobs(jobs=[array_info(self._state, array)])
            case ListJobs(task=int() as task):
                found = self._state.task(array, task)
                if found is not None:
                    return self._pages.job(found, now_s)
                if not includes_task(array.spec.tasks, task):
                    own = shortened(in_words(array.spec.tasks, MAX_NAME_CHARS))
                    return Refused(message=f"array {array.number} has no task {task}: it has {own}")
                return Refused(
                    message=f"task {task} of array {array.number} is no job yet, or was cancelled before; "
                    f"`rlsched why {array.number}` shows the progress of the array"
                )
            case Why():
                how_far = self._state.arrays.progress_line(array.number, self._state.jobs)
                lines = kept_out(self._state, array.spec)
                return Explanation(job=array.number, summary=f"an array: {how_far}", details=lines)
        return Refused(
            message=f"{array.number} is an array: name a task of it, such as {array.number}_"
            f"{array.spec.tasks[0].first}"
        )

    def _partitions(self, job: Job) -> list[str]:
        """Return the names of the partitions that can run a job."""
        cluster = self._state.cluster
        return [cluster.partition_names[p] for p in cluster.partitions_of(job.spec.vc) if p >= 0]


def _set_aside(asked: ClientAsked, error: Exception) -> Refused:
    """Log an unexpected error in the processing of a request, and return a refusal for the client."""
    kind = type(asked.message).__name__
    what = (
        "" if isinstance(asked.message, Submit | SubmitMany) else f": {asked.message!r:.500}"
    )  # commands can contain secrets
    _log.error(
        "request %s of %s could not be processed%s", kind, asked.by.name or "a client", what, exc_info=error
    )
    return Refused(message=f"the broker could not handle this {kind}: {error!r:.200}; see the broker's log")


def _no_array(number: int) -> Refused:
    return Refused(message=f"job {number} is not an array: it has no tasks")


def _no_such(number: int) -> Refused:
    return Refused(message=f"there is no job {number}; `rlsched queue --all` lists all jobs")
