"""Converts submissions to journal entries: checks the sender and the values, and predicts run times."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.profiles import signature_of
from rlsched.broker.machine.orders import JobOrders
from rlsched.broker.machine.submissions import MOST_AT_ONCE, name_of, wrong
from rlsched.broker.outbox import Outbox
from rlsched.broker.queries.never import refused_by_nodes
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.job_requests import demand_asked, types_asked
from rlsched.broker.state.priorities import PriorityRules
from rlsched.broker.state.quotas import PartyKey, owner_of
from rlsched.broker.state.tasks import joined
from rlsched.errors import InputError, RlschedError
from rlsched.transport.roles import Peer, signed
from rlsched.wire.messages import ClientReply, Refused, Submit, SubmitMany, Submitted, SubmittedMany
from rlsched.wire.messages.job_settings import JobSettings
from rlsched.wire.states import REJECTED

_log = logging.getLogger("rlsched.broker")


class Drafts(NamedTuple):
    """For each submission of a batch, its journal entry or the reason for its refusal, by token.

    Attributes:
        entries: Token -> journal entry of a valid submission, not journalled yet.
        refused: Token -> error message for an invalid submission.
    """

    entries: dict[str, JobSubmitted]
    refused: dict[str, str]


class Submitting:
    """Accepts submissions.

    Attributes:
        refusal: Error message with which all new submissions are refused at present; "" if they are accepted.
    """

    def __init__(
        self, state: BrokerState, ranks: PriorityRules, limits: Limits, orders: JobOrders, out: Outbox
    ) -> None:
        self._state, self._ranks, self._orders, self._out = state, ranks, orders, out
        self._limits = limits
        self.refusal = ""

    def signed_by(self, by: Peer, submit: Submit) -> Submit:
        """Return a submission with its key's owner as the user.

        Raises:
            InputError: the submission names another user, or a priority that this key cannot request.
        """
        if by.role != "admin":
            self._ranks.check(submit.priority)
        return signed(by, submit)

    def submit_many(self, many: SubmitMany, by: Peer, now_s: float) -> ClientReply:
        """Journal either all jobs of a message or none, and return the reply.

        Raises:
            InputError: a job is refused, or the message has too many jobs.
        """
        if len(many.jobs) > MOST_AT_ONCE:
            raise InputError(f"expected at most {MOST_AT_ONCE} jobs in a message, got {len(many.jobs)}")
        messages: list[Submit] = []
        for place, one in enumerate(many.jobs, 1):
            try:
                own = msgspec.structs.replace(one, env=many.env | one.env)
                messages.append(self.signed_by(by, own))
                if self.refusal and not self._is_known(own.token):
                    raise InputError(self.refusal)
            except InputError as error:
                raise InputError(f"job {place}: {error}") from error
        drafts, called = self._drafted(messages), Counter[tuple[str, str]]()
        for place, message in enumerate(messages, 1):
            draft = drafts.entries.get(message.token)
            refusal = drafts.refused.get(message.token, "" if draft is None else draft.rejected)
            if draft is not None and not refusal:
                refusal = self._not_alone(draft, called) if message.singleton else ""
                called[draft.user, draft.name] += 1
            if refusal:
                raise InputError(f"job {place}: {refusal}")
        if many.check:
            return SubmittedMany(jobs=[])
        drafts = self._foretold(drafts, now_s)
        found: list[int] = []
        for place, message in enumerate(messages, 1):
            reply = self.submit(message, drafts)
            if not isinstance(reply, Submitted):
                raise InputError(f"job {place}: {reply.message if isinstance(reply, Refused) else reply}")
            found.append(reply.job)
        return SubmittedMany(jobs=found)

    def _not_alone(self, draft: JobSubmitted, called: Counter[tuple[str, str]]) -> str:
        """Return an error message if a singleton job would have too many dependencies, else "".

        `called`: number of jobs that precede this job in the message, by (user, job name).
        """
        try:
            self._orders.alone(draft, called[draft.user, draft.name])
        except InputError as error:
            return str(error)
        return ""

    def drafts(self, messages: Sequence[Submit], now_s: float) -> Drafts:
        """Return the `Drafts` (journal entries or refusals) of consecutive submissions.

        The run times of the submissions are predicted together, or one by one if this fails.
        """
        try:
            return self._predicted(messages, now_s)
        except Exception:
            return self._one_by_one(messages, now_s)

    def submit(self, message: Submit, drafts: Drafts) -> ClientReply:
        """Journal a submission, unless it is refused or already journalled. Return the reply to the client.

        `drafts`: result of the method `drafts` for submissions that include this one.
        """
        array = self._state.arrays.array_of_token(message.token)
        if array is not None:
            return Submitted(job=array.number)
        number = self._state.tokens.get(message.token)
        job = None if number is None else self._state.jobs[number]
        if job is None and message.token not in drafts.entries:  # tokens in `entries` were looked up before
            job = self._state.job_of_token(message.token)
        if job is None:
            refusal = self.refusal or drafts.refused.get(message.token)
            if refusal:
                return Refused(message=refusal)
            entry = drafts.entries.get(message.token)
            if entry is None:
                raise RlschedError("the submission could not be numbered, or its run time not predicted")
            if entry.tasks and entry.rejected:
                return Refused(message=f"rejected: {entry.rejected}")
            self._out.record(self._orders.alone(entry) if message.singleton and not entry.rejected else entry)
            if entry.tasks:
                return Submitted(job=entry.job)
            job = self._state.jobs[entry.job]
        if job.state == REJECTED:
            return Refused(message=f"job {job.called} is rejected: {job.reason}")
        return Submitted(job=job.number)

    def _predicted(
        self,
        messages: Sequence[Submit],
        now_s: float,
        beside: Counter[PartyKey] | None = None,
        numbered: int = 0,
    ) -> Drafts:
        """Return the `Drafts` of submissions, with predicted run times. Arguments are as in `_drafted`."""
        return self._foretold(self._drafted(messages, beside, numbered), now_s)

    def _foretold(self, found: Drafts, now_s: float) -> Drafts:
        """Add predicted run times to the journal entries of the drafts `found`. Return `found`."""
        if found.entries:
            predicted = self._state.predictions.predict(list(found.entries.values()), now_s)
            found.entries.update((entry.token, entry) for entry in predicted)
        return found

    def _drafted(
        self, messages: Sequence[Submit], beside: Counter[PartyKey] | None = None, numbered: int = 0
    ) -> Drafts:
        """Return the `Drafts` of submissions, without predicted run times.

        Submissions that were accepted before are left out.

        Args:
            messages: The submissions.
            `beside`: Number of jobs that will be journalled before these submissions, by party (user, account
                or VC). This method adds the valid submissions to it.
            numbered: Total number of jobs that will be journalled before these submissions.
        """
        found, beside = Drafts({}, {}), Counter() if beside is None else beside
        for message in messages if not self.refusal else ():
            token = message.token
            if token in found.entries or token in found.refused:
                continue
            if refusal := wrong(message) or self._limits.wrong_time(message):
                found.refused[token] = refusal
                continue
            if self._is_known(token):
                continue
            try:
                draft = self._draft(self._state.last_number + 1 + numbered + len(found.entries), message)
                owner = owner_of(draft)
                self._state.quotas.check(owner, draft.num_gpus, beside)
            except InputError as error:
                found.refused[token] = str(error)
                continue
            found.entries[token] = draft
            if not draft.rejected:
                for party in owner.parties():
                    beside[party] += 1
        return found

    def _is_known(self, token: str) -> bool:
        """Return whether a submission with this token was accepted before."""
        return (
            self._state.job_of_token(token) is not None
            or self._state.arrays.array_of_token(token) is not None
        )

    def _one_by_one(self, messages: Sequence[Submit], now_s: float) -> Drafts:
        """Return the `Drafts` of submissions, with run times that are predicted one by one.

        A submission that causes an unexpected error is left out.
        """
        found, beside = Drafts({}, {}), Counter[PartyKey]()
        for message in messages:
            if message.token in found.entries:
                continue
            try:
                drafts = self._predicted([message], now_s, beside, len(found.entries))
            except Exception:
                _log.exception("a submission of %d GPUs cannot be numbered or predicted", message.num_gpus)
                continue
            found.refused.update(drafts.refused)
            found.entries.update(drafts.entries)
        return found

    def _draft(self, number: int, message: Submit) -> JobSubmitted:
        """Return the journal entry for a submission, without a predicted run time.

        Raises:
            InputError: the user is not a member of the job's account, or a dependency can never be met.
        """
        asked = {name: getattr(message, name) for name in JobSettings.__struct_fields__}
        return JobSubmitted(
            job=number,
            counted=True,
            held="user" if message.hold else "",
            profiles=self._state.profiles.profiles_of(signature_of(message.user, message.command)),
            predicted_s=math.nan,
            spread=math.nan,
            rejected=self._refused_by_nodes(message) if self._state.nodes else "",
            **asked
            | {
                "name": name_of(message),
                "gpu_types": types_asked(message.gpu_types),
                "preferred_types": types_asked(message.preferred_types),
                "preemptible": message.preemptible or self._ranks.may_be_preempted(message.priority),
                "lost_after_s": self._limits.lost_after_s
                if message.lost_after_s is None
                else message.lost_after_s,
                "account": self._state.accounts.account_to_charge(message.user, message.account),
                "depends_on": self._orders.waits_for(message),
                "tasks": joined(message.tasks),
            },
        )

    def _refused_by_nodes(self, message: Submit) -> str:
        """Return why the registered nodes can never run the job, in one line; "" if they can."""
        return refused_by_nodes(self._state, message.vc, demand_asked(message))
