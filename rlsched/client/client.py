"""The Python client: submit jobs, look at them, read their output. One socket, plain calls, no threads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from rlsched.broker.access.keys import KeyHome
from rlsched.broker.starting import is_starting, starting_at
from rlsched.client.asked import Changes, JobAsked
from rlsched.client.connection import Connection, nobody_answers
from rlsched.client.epochs import Epochs
from rlsched.client.submitting import as_submit, submit_many
from rlsched.errors import BrokerUnavailableError, InputError, WireError
from rlsched.wire import messages
from rlsched.wire.dealer import broker_addresses
from rlsched.wire.messages import Refused, Submitted

if TYPE_CHECKING:
    from rlsched.decide.policy import Policy

DRY_RUN_S = 70.0
"""A dry run may take so long: the forecaster may have to be started first."""
LATEST_JOBS = 2_000
"""Jobs that are listed where those that are over were asked for, and no number of jobs was."""
KEY_LOOK_S = 0.1
"""Whoever waits for the first broker of a home looks for its key so often."""
R = TypeVar("R", bound="messages.ClientReply")


class Client:
    """A connection to a broker. Use as a context manager, or call `close`.

    Args:
        address: The broker's, with commas between also those of its standbys; default: `RLSCHED_BROKER`,
            else `tcp://127.0.0.1:7461`.
        home: Key directory; default: `RLSCHED_HOME`, else `~/.config/rlsched`.
        timeout_s: How long to try before the broker is taken to be unavailable.
        waits: Called while a call waits, as of `Connection`.
        is_patient: Wait on while a broker is starting there, however long it takes.

    Raises:
        InputError: the address or the keys are malformed.
        BrokerUnavailableError: there is no broker's key yet, so there has never been a broker.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        timeout_s: float = 5.0,
        waits: Callable[[str, float, float], object] | None = None,
        is_patient: bool = False,
    ) -> None:
        addresses = broker_addresses(address)
        self.address = ",".join(addresses)
        self.timeout_s = timeout_s
        keys = KeyHome(home)
        public = _broker_public(keys, addresses, waits or (lambda *_: None), timeout_s, is_patient=is_patient)
        self._connection = Connection(
            self.address,
            keys.client(),
            public,
            keys.text,
            Epochs(keys.text),
            waits,
            partial(starting_at, keys.text),
            is_patient=is_patient,
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

    def submit(self, command: Sequence[str], **asked: Unpack[JobAsked]) -> int:
        """Queue a job; once this returns, the job is on disk. Returns its number.

        Args:
            command: Program and arguments.
            num_gpus: GPUs of the gang.
            name: For people; default: the program's name.
            vc: Virtual cluster.
            user: In whose name; default: the person of this key. Another one's takes an admin's key.
            num_cpus: CPU cores of the whole job, which are its own; 0: it shares those that nobody asked for.
            memory_mib: Host memory of the whole job; 0: it may have what goes with its GPUs.
            gpu_memory_mib: What each of its GPUs has at least, and has free when it starts; 0: any will do.
            gpu_types: GPU types that will do, such as `["A100", "H100"]`: a job's GPUs may be of several of
                them; empty: any.
            time_limit_s: The job is ended after so long.
            env: Environment variables of its own.
            cwd: Directory to run in; default: this process's own; "": the home directory on the node.
            preemptible: It may be stopped for another job's sake, and is started again later: SIGTERM, then
                SIGKILL after the seconds in its variable RLSCHED_GRACE_S. Exit code 0 says that it is done.
            grace_s: Between SIGTERM and SIGKILL, seconds, at its time limit and when it is cancelled,
                preempted or queued again; at most what the broker allows; None: the broker's.
            speed_energy: What energy counts against time for it, 0 (speed alone) to 1 (energy alone): the SM
                clock of its GPUs is chosen by that, where its nodes may set it; None: as the broker does.
            workload: What it computes, a name that `rlsched models` lists; "": its clock is chosen as for an
                average of these.
            share: Whether it may share its GPUs, where the broker lets jobs do that: `yes`, `no`, or `auto`:
                where its workload is named, or jobs of its command have been measured.
            lost_after_s: When the broker and a node of the job have not heard from each other for so long, at
                least the broker's `--lease-s`: the node ends the job, and the broker queues it again. 0: the
                job goes on until the node is back; None: the broker's `--lost-after`, by default 0.
            priority: `low`, `normal`, `high` or `urgent`: jobs of a higher one go first. What somebody who is
                no admin may ask for, the broker says.
            account: What it is charged to beside its user; "": the user's first account, if any.
            notify: What is told of it, some of start, requeue, end, fail, where the operator runs
                `rlsched notify`.
            hold: It waits until `release`.
            begin_s: It waits until then, Unix seconds.
            depends_on: It waits for all of these, such as `DependsOn("afterok", 17)`; a job that can never
                run for that is cancelled.
            singleton: It waits until all earlier jobs of its name and user are over.
            array: It is an array of these tasks, such as `0-99%8` or `1,3,5-9:2`: each runs as a job like it,
                with RLSCHED_ARRAY_TASK in its environment, and no more than 8 at once.
            launcher: How its command is started: once on each node (`none`), under `torchrun`, or once for
                each GPU (`per-gpu`), with RANK, WORLD_SIZE and LOCAL_RANK.
            token: Makes a repeated call harmless; default: random, one a call.

        Raises:
            InputError: the broker refuses it, in one line.
        """
        return self._ask(as_submit(command, **asked), Submitted).job

    def submit_many(
        self, jobs: Sequence[messages.Submit], *, seen: Callable[[int], object] | None = None
    ) -> list[int]:
        """Queue all of these jobs, or none of them, in a message or a few; their numbers.

        Args:
            jobs: Made by `as_submit`.
            seen: Called with how many have been queued so far.

        Raises:
            JobRefusedError: the broker refuses one of them, which it names.
        """
        return submit_many(self._ask, jobs, seen)

    def update(self, job: int, *, tasks: Sequence[messages.Tasks] = (), **changes: Unpack[Changes]) -> None:
        """Change what was submitted: of a waiting job all of this, of a running one some.

        Of a job that has GPUs change name, priority, `share`, and time limit, which an admin alone may raise.

        Args:
            job: Its number, or that of an array: of that all that is still to come.
            tasks: Of an array, these tasks alone, also those that are no jobs yet.
            changes: `name`, `priority`, `time_limit_s` (infinite: none), `begin_s` (in the past: at once),
                `depends_on` and `singleton` (in place of what it waited for), `lost_after_s`, `array_limit`,
                `gpu_types` (empty: any), `share`, `grace_s`.

        Raises:
            InputError: there is no such job, it is over, or something of it cannot change now.
        """
        self._ask(messages.Update(job=job, tasks=list(tasks), **changes), messages.Ok)

    def cancel(self, job: int, *, tasks: Sequence[messages.Tasks] = (), waiting: bool = False) -> None:
        """Take a job out of the queue, or end its processes.

        Args:
            job: Its number.
            tasks: Of an array, these tasks alone, also those that are no jobs yet; likewise below.
            waiting: What has no GPUs alone; of an array, the tasks that run go on.

        Raises:
            InputError: there is no such job, it is over, or has GPUs though `waiting` was said.
        """
        self._ask(messages.Cancel(job=job, tasks=list(tasks), waiting=waiting), messages.Ok)

    def hold(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """Keep a waiting job out of the queue until `release`.

        Raises:
            InputError: there is no such job, or it waits no longer.
        """
        self._ask(messages.Hold(job=job, tasks=list(tasks)), messages.Ok)

    def release(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """Let a held job into the queue.

        Raises:
            InputError: there is no such job, it is over, or an admin holds it.
        """
        self._ask(messages.Release(job=job, tasks=list(tasks)), messages.Ok)

    def requeue(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """End a running job's processes, and queue it again.

        Raises:
            InputError: there is no such job, or it is over.
        """
        self._ask(messages.Requeue(job=job, tasks=list(tasks)), messages.Ok)

    def jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> list[messages.JobInfo]:
        """Waiting and running jobs by number, and with `finished` those that are over.

        Args:
            finished: Also those that are over.
            limit: So many at most, the latest; None: the latest 2,000 with `finished`, all otherwise.
            before: Only jobs with a lower number.
        """
        return self.list_jobs(finished=finished, limit=limit, before=before).jobs

    def list_jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> messages.Jobs:
        """`jobs`, and how many older ones were left out. The broker is asked page by page."""
        left = (LATEST_JOBS if finished else sys.maxsize) if limit is None else limit
        found: list[messages.JobInfo] = []
        while True:
            asked = left if limit is not None else None
            page = self._ask(messages.ListJobs(finished=finished, before=before, limit=asked), messages.Jobs)
            rows = page.jobs[-left:]
            found[:0] = rows
            omitted, left = page.omitted + len(page.jobs) - len(rows), left - len(rows)
            if not rows or not omitted or not left:
                return messages.Jobs(jobs=found, omitted=omitted)
            before = rows[0].job

    def me(self) -> str:
        """Whom this key belongs to, as its jobs name their user."""
        return self._ask(messages.WhoServes(), messages.Serving).person

    def job(self, number: int, task: int | None = None) -> messages.JobInfo:
        """One job, or a task of the array `number`; an array is told as a job."""
        return self._ask(messages.ListJobs(job=number, task=task), messages.Jobs).jobs[0]

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
    ) -> list[messages.PastJob]:
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
        asked = messages.ListHistory(
            since_s=since_s,
            until_s=until_s,
            user=user,
            vc=vc,
            account=account,
            states=list(states),
            name=name,
        )
        found: list[messages.PastJob] = []
        while True:
            left = None if limit is None else limit - len(found)
            page = self._ask(msgspec.structs.replace(asked, limit=left), messages.History)
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
    ) -> Iterator[messages.JobUsage]:
        """What each job adds to sums, of those that were over at `since_s` or later and before `until_s`."""
        asked = messages.ListUsage(since_s=since_s, until_s=until_s, user=user, vc=vc, account=account)
        while True:
            page = self._ask(asked, messages.Usage)
            yield from page.jobs
            if page.next is None:
                return
            asked = msgspec.structs.replace(asked, before=page.next)

    def nodes(self) -> list[messages.NodeInfo]:
        """All nodes that have registered."""
        found: list[messages.NodeInfo] = []
        while True:
            page = self._ask(messages.ListNodes(after=found[-1].name if found else ""), messages.Nodes)
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
        self._ask(messages.DrainNode(node=node, reason=reason, requeue=requeue), messages.Ok)

    def resume_node(self, node: str) -> None:
        """Let a drained node get jobs again."""
        self._ask(messages.ResumeNode(node=node), messages.Ok)

    def down_node(self, node: str, *, reason: str = "") -> None:
        """Declare an unreachable node dead: its jobs are queued again, and it may come back.

        Raises:
            InputError: there is no such node, or its daemon answers.
        """
        self._ask(messages.DownNode(node=node, reason=reason), messages.Ok)

    def remove_node(self, node: str, *, reason: str = "") -> None:
        """Forget a node that is gone for good; its jobs are queued again.

        Raises:
            InputError: there is no such node, or its daemon is there.
        """
        self._ask(messages.RemoveNode(node=node, reason=reason), messages.Ok)

    def set_quota(
        self,
        kind: messages.PartyKind,
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
        self._ask(
            messages.SetQuota(kind=kind, name=name, gpus=gpus, jobs=jobs, gpu_hours=gpu_hours), messages.Ok
        )

    def quotas(self) -> list[messages.QuotaInfo]:
        """All limits, with what is had and used beside each."""
        found: list[messages.QuotaInfo] = []
        while True:
            page = self._ask(messages.ListQuotas(first=len(found)), messages.Quotas)
            found += page.quotas
            if not page.quotas or not page.omitted:
                return found

    def set_member(self, account: str, person: str, *, member: bool = True) -> None:
        """Let a person charge jobs to an account, or no longer. Takes an admin's key."""
        self._ask(messages.SetMember(account=account, person=person, member=member), messages.Ok)

    def members(self) -> list[messages.Member]:
        """Who may charge jobs to which accounts."""
        found: list[messages.Member] = []
        while True:
            page = self._ask(messages.ListAccounts(first=len(found)), messages.Accounts)
            found += page.members
            if not page.members or not page.omitted:
                return found

    def set_policy(self, policy: Policy, *, fallback: Policy | None = None) -> None:
        """Let another policy decide from now on, also after restarts of the broker.

        The strategy and the checkpoint that a policy names are sent along. A Python file is not: it has to be
        where the broker runs, under the same path.

        Args:
            policy: What decides.
            fallback: The rule behind it; None: the one that it follows.

        Raises:
            InputError: a file cannot be read, the policy is too large to send, or the broker cannot serve it,
                in one line; the one before goes on.
        """
        from rlsched.decide.files import to_send

        policy, fallback = to_send(policy), None if fallback is None else to_send(fallback)
        behind, name = ("", "") if fallback is None else (fallback.toml, fallback.name)
        asked = messages.SetPolicy(policy=policy.toml, name=policy.name, fallback=behind, fallback_name=name)
        if refusal := asked.too_large():
            raise InputError(refusal)
        self._ask(asked, messages.Ok)

    def why(self, job: int) -> messages.Explanation:
        """Why a job waits, or runs where it does."""
        return self._ask(messages.Why(job=job), messages.Explanation)

    def dry_run(
        self,
        num_gpus: int = 1,
        *,
        num_cpus: int = 0,
        memory_mib: int = 0,
        gpu_memory_mib: int = 0,
        gpu_types: Sequence[str] = (),
        vc: str = "",
        time_limit_s: float | None = None,
        preemptible: bool = False,
        workload: str = "",
        tonight_s: float | None = None,
    ) -> messages.DryRunAnswer:
        """When a job would start and end, and some like it; nothing is queued. Takes seconds.

        Args:
            num_gpus: As of `submit`, like the next ones.
            num_cpus: CPU cores of the whole job.
            memory_mib: Host memory of the whole job.
            gpu_memory_mib: Memory of each of its GPUs.
            gpu_types: GPU types that will do.
            vc: Its virtual cluster.
            time_limit_s: Its time limit.
            preemptible: Whether it may be stopped for another job's sake.
            workload: What it computes.
            tonight_s: A later time of submission to tell beside, Unix seconds.

        Raises:
            InputError: the broker makes no forecasts, or cannot now, or the job can never run.
        """
        asked = messages.DryRun(
            num_gpus=num_gpus,
            num_cpus=num_cpus,
            memory_mib=memory_mib,
            gpu_memory_mib=gpu_memory_mib,
            gpu_types=list(gpu_types),
            vc=vc,
            time_limit_s=time_limit_s,
            preemptible=preemptible,
            workload=workload,
            tonight_s=tonight_s,
        )
        reply = self._connection.ask(asked, messages.DryRunAnswer, max(self.timeout_s, DRY_RUN_S))
        if isinstance(reply, Refused):
            raise InputError(reply.message)
        if not isinstance(reply, messages.DryRunAnswer):
            raise WireError(f"expected DryRunAnswer from the broker, got {type(reply).__name__}")
        return reply

    def stats(self) -> messages.StatsReport:
        """Who decided what."""
        return self._ask(messages.Stats(), messages.StatsReport)

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> messages.LogChunk:
        """A piece of a job's output; a negative offset counts from its end."""
        return self._ask(messages.ReadLog(job=job, rank=rank, offset=offset), messages.LogChunk)

    def log(self, job: int, *, rank: int = 0, follow: bool = False) -> Iterator[bytes]:
        """A job's output, piece by piece: what there is, or with `follow` until the job is over."""
        from rlsched.client.following import POLL_S

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

    def output(self, job: int, *, to_its_end: bool = True) -> Iterator[messages.JobInfo | bytes]:
        """A job as it goes, until it is over: its states, and what all its ranks write.

        Args:
            job: Its number; it need not have started.
            to_its_end: Else what there is now.
        """
        from rlsched.client.following import follow

        return follow(self, job, to_its_end=to_its_end)

    def wait(
        self, job: int, *, patience_s: float = 60.0, seen: Callable[[messages.JobInfo], object] | None = None
    ) -> messages.JobInfo:
        """Wait until a job is over.

        Args:
            job: Its number.
            patience_s: A broker that is away for less is waited for too.
            seen: Called with the job each time that it is looked at.
        """
        from rlsched.client.following import OVER, POLL_S

        away_since: float | None = None
        while True:
            try:
                info = self.job(job)
                away_since = None
                if seen is not None:
                    seen(info)
                if info.state in OVER:
                    return info
            except BrokerUnavailableError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > patience_s:
                    raise
            time.sleep(POLL_S)

    # ---- asking -----------------------------------------------------------------------------------

    def _ask(self, message: messages.ClientRequest, kind: type[R]) -> R:
        """Send until answered or out of time; every request may safely arrive twice."""
        reply = self._connection.ask(message, kind, self.timeout_s)
        if isinstance(reply, Refused):
            raise InputError(reply.message)
        if not isinstance(reply, kind):
            raise WireError(
                f"expected {kind.__name__} from the broker, got {type(reply).__name__}: "
                "install the same rlsched on both sides"
            )
        return reply


def _broker_public(
    keys: KeyHome,
    addresses: Sequence[str],
    waits: Callable[[str, float, float], object],
    timeout_s: float,
    *,
    is_patient: bool,
) -> bytes:
    """The broker's public key; a patient one waits for a first broker that is about to make it.

    Raises:
        BrokerUnavailableError: there is none yet.
    """
    began_s = time.monotonic()
    try:
        while True:
            try:
                return keys.broker_public()
            except InputError as error:
                starts = starting_at(keys.text, addresses)
                if starts and not is_patient:
                    raise BrokerUnavailableError(f"{is_starting(starts)}; try again in a moment") from error
                if not starts:
                    why = nobody_answers(",".join(addresses))
                    raise BrokerUnavailableError(f"{why} ({error})") from error
            waits(addresses[0], time.monotonic() - began_s, timeout_s)
            time.sleep(KEY_LOOK_S)
    finally:
        waits(addresses[0], 0.0, timeout_s)
