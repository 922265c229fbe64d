"""What clients ask: submissions and cancels before the decisions of a batch, questions when there is time."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from rlsched.broker.attempts import Attempts
from rlsched.broker.book import Book
from rlsched.broker.ended_table import EndedTable
from rlsched.broker.entries import Entry, JobCancelled, JobSubmitted
from rlsched.broker.events import ClientAsked
from rlsched.broker.explain import explain, never_runs
from rlsched.broker.history import Past
from rlsched.broker.jobs import Job
from rlsched.broker.limits import Limits
from rlsched.broker.log_reads import LogReads, SendNow
from rlsched.broker.members import Members
from rlsched.broker.memory import RecordMemory
from rlsched.broker.pages import Pages
from rlsched.broker.priorities import Ranks
from rlsched.broker.quota_orders import accounts_page, changed_member, changed_quota, quotas_page
from rlsched.broker.quotas import PartyKey, owner_of
from rlsched.broker.report import Reports
from rlsched.broker.roles import Peer, rules_over, signed
from rlsched.broker.submissions import name_of, wrong
from rlsched.errors import InputError, RlschedError
from rlsched.wire.messages import (
    Cancel,
    ClientReply,
    DrainNode,
    ListAccounts,
    ListHistory,
    ListJobs,
    ListNodes,
    ListQuotas,
    ListUsage,
    Ok,
    ReadLog,
    Refused,
    RemoveNode,
    ResumeNode,
    Serving,
    SetMember,
    SetQuota,
    Stats,
    Submit,
    Submitted,
    WhoServes,
    Why,
)

CHANGES = (Submit, Cancel, DrainNode, ResumeNode, RemoveNode, SetQuota, SetMember)
"""What changes something, and is done before the decisions of its batch; all else is a question."""
_log = logging.getLogger("rlsched.broker")
OF_ONE_JOB = Cancel | ReadLog
"""What only the job's user and admins may ask."""


class _Drafts(NamedTuple):
    """What becomes of the submissions of a batch, by token."""

    entries: dict[str, JobSubmitted]
    refused: dict[str, str]


class Requests:
    """Answers clients.

    Args:
        book: What is known.
        attempts: The launch protocol.
        members: The nodes.
        memory: The last record of each job.
        limits: The broker's times.
        ranks: Which jobs go before others, and who may ask for that.
        note: Makes a fact true and journals it.
        send: Tells a node.
        reply: Answers a client.
        reports: How the broker does.
        ended: Jobs that are over.

    Attributes:
        logs: Reads of output that nodes are asked for.
        refusal: What new submissions are answered with, "" where they are taken.
    """

    def __init__(
        self,
        book: Book,
        attempts: Attempts,
        members: Members,
        memory: RecordMemory,
        limits: Limits,
        ranks: Ranks,
        *,
        note: Callable[[Entry], None],
        send: SendNow,
        reply: Callable[[bytes, int, ClientReply], None],
        reports: Reports,
        ended: EndedTable,
    ) -> None:
        self._book, self._attempts, self._members = book, attempts, members
        self._memory, self._limits, self._ranks = memory, limits, ranks
        self._note, self._send, self._reply = note, send, reply
        self._pages = Pages(book, members.seen_s, members.clock_skew_s)
        self._past = Past(book, ended)
        self._reports = reports
        self.logs = LogReads(book, limits.log_timeout_s, send, reply)
        self.refusal = ""

    # ---- changes ----------------------------------------------------------------------------------

    def change(self, asked: Sequence[ClientAsked], now_s: float) -> None:
        """Carry out `CHANGES`, in order; new jobs that follow each other are predicted together."""
        signed = [one for one in map(self._signed, asked) if one is not None]
        for _, run in itertools.groupby(signed, key=lambda one: isinstance(one.message, Submit)):
            self._change_run(list(run), now_s)

    def _change_run(self, asked: Sequence[ClientAsked], now_s: float) -> None:
        submitted = [one.message for one in asked if isinstance(one.message, Submit)]
        try:
            drafts = self._predicted(submitted, now_s)
        except Exception:
            drafts = self._predicted_one_by_one(submitted, now_s)
        for one in asked:
            try:
                reply = self._changed(one, drafts)
            except InputError as error:
                reply = Refused(message=str(error))
            except Exception as error:
                reply = _set_aside(one, error)
            if reply is not None:
                self._reply(one.peer, one.request, reply)

    def _changed(self, one: ClientAsked, drafts: _Drafts) -> ClientReply | None:
        match one.message:
            case Submit() as submit:
                return self._submit(submit, drafts)
            case Cancel(job=job):
                return self._not_theirs(one) or self._cancel(job, one.by)
            case DrainNode() | ResumeNode() | RemoveNode() as order:
                refusal = self._members.order(order)
                return Refused(message=refusal) if refusal else Ok()
            case SetQuota() as order:
                self._note(changed_quota(self._book.quotas, order))
                return Ok()
            case SetMember() as order:
                joined = changed_member(self._book.accounts, order)
                if joined is not None:
                    self._note(joined)
                return Ok()
        return None

    def _signed(self, asked: ClientAsked) -> ClientAsked | None:
        """A submission in the name of its key's person; None where that was refused."""
        if not isinstance(asked.message, Submit):
            return asked
        try:
            if asked.by.role != "admin":
                self._ranks.check(asked.message.priority)
            return msgspec.structs.replace(asked, message=signed(asked.by, asked.message))
        except InputError as error:
            self._reply(asked.peer, asked.request, Refused(message=str(error)))
            return None

    def _not_theirs(self, asked: ClientAsked) -> Refused | None:
        """Why whoever asks may not rule over this job, None if they may."""
        job = self._book.job(asked.message.job) if isinstance(asked.message, OF_ONE_JOB) else None
        if job is None or rules_over(asked.by, job.spec.user):
            return None
        owner = job.spec.user or "nobody"
        return Refused(
            message=f"job {job.number} is {owner}'s, and this key is {asked.by.person}'s: only {owner} and "
            "admins may read its output and cancel it"
        )

    def _submit(self, message: Submit, drafts: _Drafts) -> ClientReply:
        number = self._book.tokens.get(message.token)
        job = None if number is None else self._book.jobs[number]
        if job is None and message.token not in drafts.entries:  # those that are have been looked up
            job = self._book.job_of_token(message.token)
        if job is None:
            refusal = wrong(message) or self.refusal or drafts.refused.get(message.token)
            if refusal:
                return Refused(message=refusal)
            entry = drafts.entries.get(message.token)
            if entry is None:
                raise RlschedError("it cannot be numbered and predicted")
            self._note(entry)
            job = self._book.jobs[entry.job]
        if job.state == "rejected":
            return Refused(message=f"job {job.number} is rejected: {job.reason}")
        return Submitted(job=job.number)

    def _predicted(
        self, messages: Sequence[Submit], now_s: float, beside: Counter[PartyKey] | None = None
    ) -> _Drafts:
        """The submissions among these that are new and make sense, numbered and predicted.

        `beside`: jobs of each party that will be submitted before these.
        """
        found, beside = _Drafts({}, {}), Counter() if beside is None else beside
        for message in messages if not self.refusal else ():
            token = message.token
            if token in found.entries or token in found.refused or wrong(message):
                continue
            if self._book.job_of_token(token) is not None:
                continue
            try:
                draft = self._draft(self._book.last_number + 1 + len(found.entries), message)
                self._book.quotas.check(owner_of(draft), draft.num_gpus, beside)
            except InputError as error:
                found.refused[token] = str(error)
                continue
            found.entries[token] = draft
            if not draft.rejected:
                beside.update(owner_of(draft).parties())
        if found.entries:
            predicted = self._book.predictions.predict(list(found.entries.values()), now_s)
            found.entries.update((entry.token, entry) for entry in predicted)
        return found

    def _predicted_one_by_one(self, messages: Sequence[Submit], now_s: float) -> _Drafts:
        """One of them raises: the others get their predictions all the same."""
        found, beside = _Drafts({}, {}), Counter[PartyKey]()
        for message in messages:
            if message.token in found.entries:
                continue
            try:
                drafts = self._predicted([message], now_s, beside)
            except Exception:
                _log.exception("a submission of %d GPUs cannot be predicted", message.num_gpus)
                continue
            found.refused.update(drafts.refused)
            for token, entry in drafts.entries.items():
                number = self._book.last_number + 1 + len(found.entries)
                found.entries[token] = msgspec.structs.replace(entry, job=number)
        return found

    def _draft(self, number: int, message: Submit) -> JobSubmitted:
        """A submission as it will be journalled, not predicted yet.

        Raises:
            InputError: its user may not charge it to its account.
        """
        return JobSubmitted(
            job=number,
            token=message.token,
            command=message.command,
            num_gpus=message.num_gpus,
            name=name_of(message),
            vc=message.vc,
            user=message.user,
            num_cpus=message.num_cpus,
            time_limit_s=message.time_limit_s,
            env=message.env,
            cwd=message.cwd,
            preemptible=message.preemptible or self._ranks.may_be_preempted(message.priority),
            priority=message.priority,
            workload=message.workload,
            speed_energy=message.speed_energy,
            on_lost=message.on_lost,
            account=self._book.accounts.charged(message.user, message.account),
            notify=message.notify,
            predicted_s=math.nan,
            spread=math.nan,
            rejected=never_runs(self._book, message.vc, message.num_gpus) if self._book.nodes else "",
        )

    def _cancel(self, number: int, by: Peer) -> ClientReply:
        job = self._book.job(number)
        if job is None and by.role == "admin" and self._members.strangers.cancel(number):
            return Ok()
        if job is None:
            return _no_such(number)
        if job.state == "cancelled":
            return Ok()
        if not job.live:
            return Refused(message=f"job {number} is over already: {job.state}")
        if job.state == "queued":
            self._note(JobCancelled(job=number, reason="cancelled by its user"))
        else:
            self._attempts.end(job, "cancelled", "cancelled by its user")
        return Ok()

    # ---- questions --------------------------------------------------------------------------------

    def answer(self, asked: ClientAsked, now_s: float) -> None:
        """Everything that changes nothing. A question that cannot be answered is refused in one line."""
        try:
            self._answer(asked, now_s)
        except Exception as error:
            self._reports.failed_answers += 1
            self._reply(asked.peer, asked.request, _set_aside(asked, error))

    def _answer(self, asked: ClientAsked, now_s: float) -> None:
        match asked.message:
            case ListJobs(job=None) as wanted:
                self._reply(asked.peer, asked.request, self._pages.jobs(wanted))
            case ListJobs(job=int() as number) if number in self._book.numbers:
                self._reply(asked.peer, asked.request, self._pages.job(number))
            case ListHistory() as wanted:
                self._reply(asked.peer, asked.request, self._past.history(wanted, now_s))
            case ListUsage() as wanted:
                self._reply(asked.peer, asked.request, self._past.usage(wanted))
            case ListNodes() as wanted:
                self._reply(asked.peer, asked.request, self._pages.nodes(wanted))
            case ListQuotas(first=first):
                self._reply(asked.peer, asked.request, quotas_page(self._book.quotas, first, now_s))
            case ListAccounts(first=first):
                self._reply(asked.peer, asked.request, accounts_page(self._book.accounts, first))
            case Why(job=number) if (job := self._book.job(number)) is not None:
                record = self._memory.of(job.seq, self._partitions(job) if job.state == "queued" else ())
                self._reply(asked.peer, asked.request, explain(self._book, job, record, now_s))
            case ReadLog(job=number) as wanted if number in self._book.numbers:
                refusal = self._not_theirs(asked)
                if refusal is not None:
                    self._reply(asked.peer, asked.request, refusal)
                else:
                    self.logs.read(asked, wanted, now_s)
            case WhoServes():
                answer = Serving(cluster=self._book.identity, epoch=self._book.epoch)
                self._reply(asked.peer, asked.request, answer)
            case Stats():
                self._reply(asked.peer, asked.request, self._reports.report(now_s))
            case ListJobs(job=int() as number) | Why(job=number) | ReadLog(job=number):
                self._reply(asked.peer, asked.request, _no_such(number))

    def _partitions(self, job: Job) -> list[str]:
        """Names of the partitions that serve a job."""
        cluster = self._book.cluster
        return [cluster.partition_names[p] for p in cluster.partitions_of(job.spec.vc) if p >= 0]


def _set_aside(asked: ClientAsked, error: Exception) -> Refused:
    """A request that nobody foresaw harms nobody but who sent it."""
    kind = type(asked.message).__name__
    what = "" if isinstance(asked.message, Submit) else f": {asked.message!r:.500}"  # commands hold secrets
    _log.error("%s of %s is set aside%s", kind, asked.by.name or "a client", what, exc_info=error)
    return Refused(message=f"the broker could not deal with this {kind}: {error!r:.200}; its log says more")


def _no_such(number: int) -> Refused:
    return Refused(message=f"there is no job {number}; `rlsched queue --all` lists all jobs")
