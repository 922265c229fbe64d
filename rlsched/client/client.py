"""The Python client: submit jobs, look at them, read their output. One socket, plain calls, no threads."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from rlsched.broker.keys import KeyHome
from rlsched.client.connection import Connection, nobody_answers
from rlsched.client.epochs import Epochs
from rlsched.errors import BrokerUnavailableError, InputError, WireError
from rlsched.wire.dealer import broker_addresses
from rlsched.wire.messages import (
    Accounts,
    Cancel,
    ClientReply,
    ClientRequest,
    DrainNode,
    Explanation,
    History,
    JobInfo,
    Jobs,
    JobUsage,
    ListAccounts,
    ListHistory,
    ListJobs,
    ListNodes,
    ListQuotas,
    ListUsage,
    LogChunk,
    Member,
    NodeInfo,
    Nodes,
    Ok,
    OnLost,
    PartyKind,
    PastJob,
    Priority,
    QuotaInfo,
    Quotas,
    ReadLog,
    Refused,
    RemoveNode,
    ResumeNode,
    SetMember,
    SetPolicy,
    SetQuota,
    Stats,
    StatsReport,
    Submit,
    Submitted,
    Usage,
    Why,
)

if TYPE_CHECKING:
    from rlsched.decide.policy import Policy

POLL_S = 0.25
LATEST_JOBS = 2_000
"""Jobs that are listed where those that are over were asked for, and no number of jobs was."""
OVER = ("completed", "failed", "cancelled", "rejected")
R = TypeVar("R", bound=ClientReply)


class Client:
    """A connection to a broker. Use as a context manager, or call `close`.

    Args:
        address: The broker's, with commas between also those of its standbys; default: `RLSCHED_BROKER`,
            else `tcp://127.0.0.1:7461`.
        home: Key directory; default: `RLSCHED_HOME`, else `~/.config/rlsched`.
        timeout_s: How long to try before the broker is taken to be unavailable.

    Raises:
        InputError: the address or the keys are malformed.
        BrokerUnavailableError: there is no broker's key yet, so there has never been a broker.
    """

    def __init__(
        self, address: str | None = None, *, home: str | Path | None = None, timeout_s: float = 5.0
    ) -> None:
        self.address = ",".join(broker_addresses(address))
        self.timeout_s = timeout_s
        keys = KeyHome(home)
        try:
            public = keys.broker_public()
        except InputError as error:
            raise BrokerUnavailableError(f"{nobody_answers(self.address)} ({error})") from error
        self._connection = Connection(
            self.address, keys.client(), public, str(keys.directory), Epochs(keys.directory)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    # ---- verbs ------------------------------------------------------------------------------------

    def submit(
        self,
        command: Sequence[str],
        *,
        num_gpus: int = 1,
        name: str = "",
        vc: str = "",
        user: str = "",
        num_cpus: int = 0,
        time_limit_s: float | None = None,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        preemptible: bool = False,
        speed_energy: float | None = None,
        workload: str = "",
        on_lost: OnLost = "requeue",
        priority: Priority = "normal",
        account: str = "",
        notify: Sequence[str] = (),
        token: str | None = None,
    ) -> int:
        """Queue a job; once this returns, the job is on disk. Returns its number.

        Args:
            command: Program and arguments.
            num_gpus: GPUs of the gang.
            name: For people; default: the program's name.
            vc: Virtual cluster.
            user: In whose name; default: the person of this key. Another one's takes an admin's key.
            num_cpus: CPU cores.
            time_limit_s: The job is ended after so long.
            env: Environment variables of its own.
            cwd: Directory to run in; default: this process's own; "": the home directory on the node.
            preemptible: It may be stopped for another job's sake, and is started again later: SIGTERM, then
                SIGKILL after the seconds in its variable RLSCHED_GRACE_S. Exit code 0 says that it is done.
            speed_energy: What energy counts against time for it, 0 (speed alone) to 1 (energy alone): the SM
                clock of its GPUs is chosen by that, where its nodes may set it; None: as the broker does.
            workload: What it computes, a name that `rlsched models` lists; "": its clock is chosen as for an
                average of these.
            on_lost: When a node of its, or the broker, is away for too long: `requeue` ends it there and
                queues it again; `wait` lets it go on, and waits for the node.
            priority: `low`, `normal`, `high` or `urgent`: jobs of a higher one go first. What somebody who is
                no admin may ask for, the broker says.
            account: What it is charged to beside its user; "": the user's first account, if any.
            notify: What is told of it, some of start, requeue, end, fail, where the operator runs
                `rlsched notify`.
            token: Makes a repeated call harmless; default: random, one a call.

        Raises:
            InputError: the broker refuses it, in one line.
        """
        submit = Submit(
            token=token or secrets.token_hex(16),
            command=list(command),
            num_gpus=num_gpus,
            name=name,
            vc=vc,
            user=user,
            num_cpus=num_cpus,
            time_limit_s=time_limit_s,
            env=env or {},
            cwd=os.getcwd() if cwd is None else cwd,
            preemptible=preemptible,
            speed_energy=speed_energy,
            workload=workload,
            on_lost=on_lost,
            priority=priority,
            account=account,
            notify=",".join(dict.fromkeys(notify)),
        )
        return self._ask(submit, Submitted).job

    def cancel(self, job: int) -> None:
        """Take a job out of the queue, or end its processes.

        Raises:
            InputError: there is no such job, or it is over.
        """
        self._ask(Cancel(job=job), Ok)

    def jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> list[JobInfo]:
        """Waiting and running jobs by number, and with `finished` those that are over.

        Args:
            finished: Also those that are over.
            limit: So many at most, the latest; None: the latest 2,000 with `finished`, all otherwise.
            before: Only jobs with a lower number.
        """
        return self.list_jobs(finished=finished, limit=limit, before=before).jobs

    def list_jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> Jobs:
        """`jobs`, and how many older ones were left out. The broker is asked page by page."""
        left = (LATEST_JOBS if finished else sys.maxsize) if limit is None else limit
        found: list[JobInfo] = []
        while True:
            asked = left if limit is not None else None
            page = self._ask(ListJobs(finished=finished, before=before, limit=asked), Jobs)
            rows = page.jobs[-left:]
            found[:0] = rows
            omitted, left = page.omitted + len(page.jobs) - len(rows), left - len(rows)
            if not rows or not omitted or not left:
                return Jobs(jobs=found, omitted=omitted)
            before = rows[0].job

    def job(self, number: int) -> JobInfo:
        """One job."""
        return self._ask(ListJobs(job=number), Jobs).jobs[0]

    def history(
        self,
        *,
        limit: int | None = None,
        since_s: float | None = None,
        until_s: float | None = None,
        user: str | None = None,
        vc: str | None = None,
        account: str | None = None,
        states: Sequence[str] = (),
        name: str = "",
    ) -> list[PastJob]:
        """Jobs that are over by their end, then those that run by number. The broker is asked page by page.

        Args:
            limit: So many at most, the newest; None: all.
            since_s: Over at this time or later, Unix seconds; those that run always are.
            until_s: Over before this time; those that run have begun before it.
            user: Whose.
            vc: Of which virtual cluster.
            account: Of which account.
            states: completed, failed, cancelled, rejected, running; none: all.
            name: A pattern with `*`, `?` and `[...]`, as in a shell.
        """
        asked = ListHistory(
            since_s=since_s,
            until_s=until_s,
            user=user,
            vc=vc,
            account=account,
            states=list(states),
            name=name,
        )
        found: list[PastJob] = []
        while True:
            left = None if limit is None else limit - len(found)
            page = self._ask(msgspec.structs.replace(asked, limit=left), History)
            known = {job.job for job in found if job.end_s is None}  # one of them may be over by now
            found += [job for job in page.jobs if job.job not in known][:left]
            if page.next is None or len(found) == limit:
                return found[::-1]
            asked = msgspec.structs.replace(asked, before=page.next)

    def usage(
        self,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        user: str | None = None,
        vc: str | None = None,
        account: str | None = None,
    ) -> Iterator[JobUsage]:
        """What each job adds to sums, of those that were over at `since_s` or later and before `until_s`."""
        asked = ListUsage(since_s=since_s, until_s=until_s, user=user, vc=vc, account=account)
        while True:
            page = self._ask(asked, Usage)
            yield from page.jobs
            if page.next is None:
                return
            asked = msgspec.structs.replace(asked, before=page.next)

    def nodes(self) -> list[NodeInfo]:
        """All nodes that have registered."""
        found: list[NodeInfo] = []
        while True:
            page = self._ask(ListNodes(after=found[-1].name if found else ""), Nodes)
            found += page.nodes
            if not page.nodes or not page.omitted:
                return found

    def drain_node(self, node: str, *, reason: str = "", requeue: bool = False) -> None:
        """Let a node get no new jobs, until it is resumed.

        Args:
            node: Its name.
            reason: For those who list the nodes.
            requeue: End the jobs there, with the grace of a preemption, and queue them again.

        Raises:
            InputError: there is no such node.
        """
        self._ask(DrainNode(node=node, reason=reason, requeue=requeue), Ok)

    def resume_node(self, node: str) -> None:
        """Let a drained node get jobs again."""
        self._ask(ResumeNode(node=node), Ok)

    def remove_node(self, node: str, *, reason: str = "") -> None:
        """Forget a node that is gone for good; its jobs are queued again.

        Raises:
            InputError: there is no such node, or its daemon is there.
        """
        self._ask(RemoveNode(node=node, reason=reason), Ok)

    def set_quota(
        self,
        kind: PartyKind,
        name: str,
        *,
        gpus: int | UnsetType | None = UNSET,
        jobs: int | UnsetType | None = UNSET,
        gpu_hours: float | UnsetType | None = UNSET,
    ) -> None:
        """Limit what a user, an account or a VC has. Takes an admin's key; no running job is ended.

        What is not given stays as it is; None lifts a limit.

        Args:
            kind: `user`, `account` or `vc`.
            name: Of which; `default`: all of this kind that have no limit of their own.
            gpus: GPUs at once.
            jobs: Waiting and running jobs.
            gpu_hours: GPU-hours in a calendar month, UTC.

        Raises:
            InputError: the name cannot be, a limit is out of range, or none is given.
        """
        self._ask(SetQuota(kind=kind, name=name, gpus=gpus, jobs=jobs, gpu_hours=gpu_hours), Ok)

    def quotas(self) -> list[QuotaInfo]:
        """All limits, with what is had and used beside each."""
        found: list[QuotaInfo] = []
        while True:
            page = self._ask(ListQuotas(first=len(found)), Quotas)
            found += page.quotas
            if not page.quotas or not page.omitted:
                return found

    def set_member(self, account: str, person: str, *, member: bool = True) -> None:
        """Let a person charge jobs to an account, or no longer. Takes an admin's key."""
        self._ask(SetMember(account=account, person=person, member=member), Ok)

    def members(self) -> list[Member]:
        """Who may charge jobs to which accounts."""
        found: list[Member] = []
        while True:
            page = self._ask(ListAccounts(first=len(found)), Accounts)
            found += page.members
            if not page.members or not page.omitted:
                return found

    def set_policy(self, policy: Policy, *, fallback: Policy | None = None) -> None:
        """Let another policy decide from now on, until the broker is started again.

        Args:
            policy: Who decides.
            fallback: The rule behind it; None: the one that it follows.

        Raises:
            InputError: the broker cannot serve it, in one line; the one before goes on.
        """
        behind, name = ("", "") if fallback is None else (fallback.toml, fallback.name)
        self._ask(SetPolicy(policy=policy.toml, name=policy.name, fallback=behind, fallback_name=name), Ok)

    def why(self, job: int) -> Explanation:
        """Why a job waits, or runs where it does."""
        return self._ask(Why(job=job), Explanation)

    def stats(self) -> StatsReport:
        """Who decided what."""
        return self._ask(Stats(), StatsReport)

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> LogChunk:
        """A piece of a job's output."""
        return self._ask(ReadLog(job=job, rank=rank, offset=offset), LogChunk)

    def log(self, job: int, *, rank: int = 0, follow: bool = False) -> Iterator[bytes]:
        """A job's output, piece by piece: what there is, or with `follow` until the job is over."""
        offset, attempt = 0, 0
        while True:
            chunk = self.read_log(job, rank=rank, offset=offset)
            if chunk.attempt != attempt:
                attempt = chunk.attempt
                if offset:
                    offset = 0
                    continue
            if chunk.data:
                offset = chunk.offset + len(chunk.data)
                yield chunk.data
            elif chunk.eof or not follow:
                return
            else:
                time.sleep(POLL_S)

    def wait(self, job: int, *, patience_s: float = 60.0) -> JobInfo:
        """Wait until a job is over; a broker that is away for less than `patience_s` is waited for too."""
        away_since: float | None = None
        while True:
            try:
                info = self.job(job)
                away_since = None
                if info.state in OVER:
                    return info
            except BrokerUnavailableError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > patience_s:
                    raise
            time.sleep(POLL_S)

    # ---- asking -----------------------------------------------------------------------------------

    def _ask(self, message: ClientRequest, kind: type[R]) -> R:
        """Send until answered or out of time; every request may safely arrive twice."""
        reply = self._connection.ask(message, self.timeout_s)
        if isinstance(reply, Refused):
            raise InputError(reply.message)
        if not isinstance(reply, kind):
            raise WireError(
                f"expected {kind.__name__} from the broker, got {type(reply).__name__}: "
                "install the same rlsched on both sides"
            )
        return reply
