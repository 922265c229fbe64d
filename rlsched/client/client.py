"""The Python client: submits jobs, lists jobs, reads their output. It has one socket and no threads."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from rlsched.client.submission_types import Changes, JobAsked
from rlsched.client.submitting import as_submit, submit_many
from rlsched.errors import BrokerUnavailableError, InputError, WireError
from rlsched.transport.connection import Connection, nobody_answers
from rlsched.transport.dealer import broker_addresses
from rlsched.transport.epochs import Epochs
from rlsched.transport.keys import KeyHome
from rlsched.transport.starting import is_starting, starting_at
from rlsched.wire import messages
from rlsched.wire.messages import Refused, Submitted
from rlsched.wire.states import FINISHED, RUNNING

if TYPE_CHECKING:
    from rlsched.decide.policies.policy import Policy

DRY_RUN_S = 70.0
"""Time-out for a dry run, seconds. It includes the time in which the broker starts the forecaster."""
LATEST_JOBS = 2_000
"""Maximum number of jobs that are listed if finished jobs are requested without a limit."""
KEY_LOOK_S = 0.1
"""Interval, seconds, at which a client checks whether a broker that is starting has created its key."""
R = TypeVar("R", bound="messages.ClientReply")


class Client:
    """A connection to a broker. Use it as a context manager, or call `close`.

    Args:
        address: Addresses of the broker and of its standbys, separated by commas; default:
            `RLSCHED_BROKER`, else `tcp://127.0.0.1:7461`.
        home: Key directory; default: `RLSCHED_HOME`, else `~/.config/rlsched`.
        timeout_s: Time without an answer, seconds, after which the broker counts as unavailable.
        waits: Function that is called a few times per second while a method waits for the broker; its
            arguments are as in `Connection`.
        is_patient: Whether to wait without a time limit for a broker that is starting.

    Raises:
        InputError: the address or the keys are malformed.
        BrokerUnavailableError: the key directory has no key of a broker yet.
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
        """Close the connection."""
        self._connection.close()

    # ---- verbs ------------------------------------------------------------------------------------

    def submit(self, command: Sequence[str], **asked: Unpack[JobAsked]) -> int:
        """Queue a job, and return its number as soon as the broker has stored the job on disk.

        Args:
            command: Program and arguments.
            num_gpus: Number of GPUs of the whole job.
            name: Name of the job; default: the program's name.
            vc: Virtual cluster in which the job runs; "": no virtual cluster.
            user: User to submit as; default: the user of this key. Only an admin's key can name another user.
            num_cpus: Dedicated CPU cores of the whole job. With 0, the job shares the cores of its nodes that
                no job has requested.
            memory_mib: Host memory of the whole job, MiB. With 0, nodes with control groups give the job
                memory in proportion to its GPUs.
            gpu_memory_mib: Memory that must be free on each GPU when the job starts, MiB. 0 allows any GPU.
            gpu_types: Accepted GPU types, such as `["A100", "H100"]`; a job can get GPUs of several of these
                types. An empty list allows any type.
            preferred_types: Preferred GPU types: the job gets GPUs of these types if it can start on them at
                once, else other accepted types. It does not wait for them.
            exclusive: Whether the job gets whole nodes: it starts on nodes without other jobs, and no other
                job starts there while it runs. The job still uses only the GPUs that it requested.
            time_limit_s: Time limit, seconds, after which the job is ended. None sets no limit.
            env: Environment variables of the job.
            cwd: Working directory; default: the current directory. "" selects the home directory on the node.
            output: File to which the node copies the job's output. The name can contain the patterns of
                `sbatch`, such as `%j` for the job number; a relative name is below `cwd`. With "", no file is
                written.
            error: File to which the node copies standard error, named as in `output`; the file of `output`
                then has only standard output. With "", standard error goes to the file of `output`.
            open_mode: When the node empties the files of `output` and `error`: at the first start of the job
                (`auto`), at each start (`truncate`), or never (`append`).
            preemptible: Whether the job can be preempted for another job. The node then sends SIGTERM, and
                SIGKILL after `grace_s`. The job is started again later, unless it exits with code 0.
            slack_s: Delay that the user accepts, seconds. Other jobs may go first until half of it is used. A
                policy that follows the price of electricity can also start the job later, and pause it if it
                is preemptible.
            grace_s: Time between SIGTERM and SIGKILL, seconds, when the job reaches its time limit, or is
                cancelled, preempted or requeued; at most the broker's `--max-grace-s`. None selects the
                broker's `--grace-s`.
            speed_energy: Weight of energy against speed, from 0 (only speed counts) to 1 (only energy
                counts). It determines the SM clock of the job's GPUs, on nodes that can set clocks. None
                selects the broker's `--speed-energy`.
            workload: Workload of the job, a name that `rlsched models` lists; the SM clock depends on it.
                With "", the clock is chosen as for an average of these workloads.
            share: Whether the job may share its GPUs with other jobs (`yes` or `no`), if the broker runs with
                `--share`. `auto` means `yes` if `workload` is given, or if jobs with this command have been
                measured.
            lost_after_s: Time without contact between the broker and a node of the job, seconds, after which
                the node ends the job and the broker requeues it: 0, or at least the broker's `--lease-s`.
                With 0, the node never ends the job for this reason: it continues, and the broker waits until
                the node returns. None selects the broker's `--lost-after`.
            priority: `low`, `normal`, `high` or `urgent`; jobs of a higher priority start first. The broker's
                `--user-priority` limits the priority that users can request.
            account: Account to charge in addition to the user. "" selects the user's first account, if the
                user has an account.
            notify: Events about which a notification is sent: `start`, `requeue`, `end`, `fail`. They are
                sent by `rlsched notify`, which the operator must run.
            hold: Whether the job is held: it waits until `release` is called.
            begin_s: Earliest start, Unix seconds. None permits an immediate start.
            depends_on: Jobs to wait for, such as `DependsOn("afterok", 17)`. A job whose dependency can never
                be met is cancelled.
            singleton: Whether the job waits until all earlier jobs of the same name and user have finished.
            array: Tasks of an array, such as `0-99%8` or `1,3,5-9:2` (step 2). Each task runs as a separate
                job with its number in the variable RLSCHED_ARRAY_TASK; with `%8`, at most 8 run at once. ""
                submits a single job.
            launcher: How the command is started: once on each node (`none`), under `torchrun`, or once per
                GPU (`per-gpu`), with RANK, WORLD_SIZE and LOCAL_RANK.
            token: Identifier of the submission: if a call is repeated with the same token, only one job is
                queued. Default: a new random token for each call.

        Raises:
            InputError: the broker rejects the job, with the reason in one line.
        """
        return self._ask(as_submit(command, **asked), Submitted).job

    def submit_many(
        self, jobs: Sequence[messages.Submit], *, seen: Callable[[int], object] | None = None
    ) -> list[int]:
        """Queue all of these jobs, in one or several messages, and return their job numbers.

        If the broker rejects a job, usually no job is queued. See `submitting.submit_many` for the exception.

        Args:
            jobs: Submissions from `as_submit`.
            seen: Function that is called after each message with the number of jobs queued so far.

        Raises:
            JobRefusedError: the broker rejects a job. The error names this job, and the jobs already queued.
        """
        return submit_many(self._ask, jobs, seen)

    def update(self, job: int, *, tasks: Sequence[messages.Tasks] = (), **changes: Unpack[Changes]) -> None:
        """Change a submitted job.

        While the job waits, all settings below can change. While it has GPUs, only name, priority, `share`,
        `slack_s` and time limit can change, and only an admin can raise the time limit.

        Args:
            job: Number of a job or an array. For an array, all tasks that have not started are changed, also
                tasks that do not have their own job number yet.
            tasks: Tasks of the array to change, instead of all.
            changes: `name`, `priority`, `time_limit_s` (infinity removes the limit), `begin_s` (a past time
                permits an immediate start), `depends_on` and `singleton` (replace the current dependencies),
                `lost_after_s`, `array_limit` (0 removes the limit), `gpu_types` (an empty list allows any
                type), `preferred_types`, `share`, `grace_s`, `slack_s`.

        Raises:
            InputError: there is no such job, it has finished, or a change is not possible now.
        """
        self._ask(messages.Update(job=job, tasks=list(tasks), **changes), messages.Ok)

    def cancel(self, job: int, *, tasks: Sequence[messages.Tasks] = (), waiting: bool = False) -> None:
        """Remove a waiting job from the queue, or end the processes of a running job.

        Args:
            job: Number of a job or an array.
            tasks: Only these tasks of the array, also tasks that do not have their own job number yet.
                `hold`, `release` and `requeue` have the same argument.
            waiting: Cancel only if the job has no GPUs; running tasks of an array continue.

        Raises:
            InputError: there is no such job, it has finished, or it has GPUs and `waiting` is set.
        """
        self._ask(messages.Cancel(job=job, tasks=list(tasks), waiting=waiting), messages.Ok)

    def hold(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """Hold a waiting job until `release`.

        Raises:
            InputError: there is no such job, or it no longer waits.
        """
        self._ask(messages.Hold(job=job, tasks=list(tasks)), messages.Ok)

    def release(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """Release a held job.

        Raises:
            InputError: there is no such job, it has finished, or an admin holds it.
        """
        self._ask(messages.Release(job=job, tasks=list(tasks)), messages.Ok)

    def requeue(self, job: int, *, tasks: Sequence[messages.Tasks] = ()) -> None:
        """End a running job's processes, and requeue the job.

        Raises:
            InputError: there is no such job, or it has finished.
        """
        self._ask(messages.Requeue(job=job, tasks=list(tasks)), messages.Ok)

    def jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> list[messages.JobInfo]:
        """Return the waiting and running jobs in the order of their numbers.

        Args:
            finished: Whether to include finished jobs.
            limit: Maximum number of jobs; the jobs with the highest numbers are returned. None: at most 2,000
                jobs with `finished`, otherwise all jobs.
            before: Only jobs with a number lower than this.
        """
        return self.list_jobs(finished=finished, limit=limit, before=before).jobs

    def list_jobs(
        self, *, finished: bool = False, limit: int | None = None, before: int | None = None
    ) -> messages.Jobs:
        """Return the same jobs as `jobs`, and the number of older jobs that `limit` omits."""
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
        """Return the user of this key, as in the field `user` of `JobInfo`."""
        return self._ask(messages.WhoServes(), messages.Serving).person

    def job(self, number: int, task: int | None = None) -> messages.JobInfo:
        """Return a job, or a task of the array `number`. An array is returned as one job."""
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
        """Return finished jobs in the order of their ends, then running jobs in the order of their numbers.

        Args:
            limit: Maximum number of jobs; the newest jobs are returned. None: all jobs.
            since_s: Only jobs that ended at this time or later, Unix seconds, and all running jobs.
            until_s: Only jobs that ended before this time, and running jobs that started before it.
            user: Only jobs of this user.
            vc: Only jobs of this virtual cluster.
            account: Only jobs of this account.
            states: Only jobs in these states: completed, failed, cancelled, rejected or running. An empty
                list selects all states.
            name: Only jobs with a name that matches this pattern, with `*`, `?` and `[...]` as in a shell.
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
            known = {job.job for job in found if job.end_s is None}  # may be listed again as finished
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
        unfinished: bool = False,
    ) -> Iterator[messages.JobUsage]:
        """Yield the usage of each job that ended at `since_s` or later and before `until_s`.

        `unfinished`: also yield the jobs that have used GPUs, but have not finished.
        """
        asked = messages.ListUsage(since_s=since_s, until_s=until_s, user=user, vc=vc, account=account)
        if unfinished:
            asked = msgspec.structs.replace(asked, states=[*FINISHED, RUNNING])
        known = set[int]()  # jobs that were unfinished, and may be listed again as finished
        while True:
            page = self._ask(asked, messages.Usage)
            for job in page.jobs:
                if job.end_s == math.inf:
                    known.add(job.job)
                    yield job
                elif job.job not in known:
                    yield job
            if page.next is None:
                return
            asked = msgspec.structs.replace(asked, before=page.next)

    def nodes(self) -> list[messages.NodeInfo]:
        """Return all nodes that have registered."""
        found: list[messages.NodeInfo] = []
        while True:
            page = self._ask(messages.ListNodes(after=found[-1].name if found else ""), messages.Nodes)
            found += page.nodes
            if not page.nodes or not page.omitted:
                return found

    def drain_node(self, node: str, *, reason: str = "", requeue: bool = False) -> None:
        """Drain a node: it gets no new jobs until it is resumed.

        Args:
            node: Node name.
            reason: Text shown in lists of nodes.
            requeue: End the jobs on the node, with the grace time of a preemption, and requeue them.

        Raises:
            InputError: there is no such node.
        """
        self._ask(messages.DrainNode(node=node, reason=reason, requeue=requeue), messages.Ok)

    def resume_node(self, node: str) -> None:
        """Resume a drained node, so that it gets new jobs."""
        self._ask(messages.ResumeNode(node=node), messages.Ok)

    def down_node(self, node: str, *, reason: str = "") -> None:
        """Declare an unreachable node down. Its jobs are requeued; the node can register again later.

        Raises:
            InputError: there is no such node, or its daemon answers.
        """
        self._ask(messages.DownNode(node=node, reason=reason), messages.Ok)

    def remove_node(self, node: str, *, reason: str = "") -> None:
        """Remove a node from the list permanently. Its jobs are requeued.

        Raises:
            InputError: there is no such node, or its daemon is running.
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
        """Set limits for a user, an account or a VC. Needs an admin's key. Running jobs are not ended.

        Limits that are not given stay unchanged; None removes a limit.

        Args:
            kind: `user`, `account` or `vc`.
            name: Name of the user, account or VC; `default`: all of this kind without a limit of their own.
            gpus: Maximum number of GPUs in use at the same time.
            jobs: Maximum number of waiting and running jobs.
            gpu_hours: Maximum number of GPU-hours in a calendar month, UTC.

        Raises:
            InputError: the name is invalid, a limit is out of range, or no limit is given.
        """
        self._ask(
            messages.SetQuota(kind=kind, name=name, gpus=gpus, jobs=jobs, gpu_hours=gpu_hours), messages.Ok
        )

    def quotas(self) -> list[messages.QuotaInfo]:
        """Return all quotas: the limits of each user, account and VC, and its current usage."""
        found: list[messages.QuotaInfo] = []
        while True:
            page = self._ask(messages.ListQuotas(first=len(found)), messages.Quotas)
            found += page.quotas
            if not page.quotas or not page.omitted:
                return found

    def set_member(self, account: str, person: str, *, member: bool = True) -> None:
        """Allow a user to charge jobs to an account, or end that permission. Needs an admin's key."""
        self._ask(messages.SetMember(account=account, person=person, member=member), messages.Ok)

    def members(self) -> list[messages.Member]:
        """Return the members of all accounts: the users who can charge jobs to them."""
        found: list[messages.Member] = []
        while True:
            page = self._ask(messages.ListAccounts(first=len(found)), messages.Accounts)
            found += page.members
            if not page.members or not page.omitted:
                return found

    def set_policy(self, policy: Policy, *, fallback: Policy | None = None) -> None:
        """Replace the broker's policy now. The new policy stays in use after restarts of the broker.

        The strategy and the checkpoint that a policy names are sent with it. A Python file is not sent: it
        must exist under the same path where the broker runs.

        Args:
            policy: Policy that decides.
            fallback: Policy that decides if `policy` fails. None: the rule on which `policy` is based.

        Raises:
            InputError: a file cannot be read, the policy is too large to send, or the broker cannot use it.
                The current policy then stays in use.
        """
        from rlsched.decide.policies.files import to_send

        policy, fallback = to_send(policy), None if fallback is None else to_send(fallback)
        behind, name = ("", "") if fallback is None else (fallback.toml, fallback.name)
        asked = messages.SetPolicy(policy=policy.toml, name=policy.name, fallback=behind, fallback_name=name)
        if refusal := asked.too_large():
            raise InputError(refusal)
        self._ask(asked, messages.Ok)

    def why(self, job: int) -> messages.Explanation:
        """Return why a job waits, or why it was placed where it runs."""
        return self._ask(messages.Why(job=job), messages.Explanation)

    def dry_run(
        self,
        num_gpus: int = 1,
        *,
        num_cpus: int = 0,
        memory_mib: int = 0,
        gpu_memory_mib: int = 0,
        gpu_types: Sequence[str] = (),
        preferred_types: Sequence[str] = (),
        exclusive: bool = False,
        vc: str = "",
        time_limit_s: float | None = None,
        preemptible: bool = False,
        workload: str = "",
        tonight_s: float | None = None,
        command: Sequence[str] = (),
    ) -> messages.DryRunAnswer:
        """Return forecasts of the start and end of a job and of similar jobs. No job is queued.

        The forecasts take seconds. All arguments except `tonight_s` are as in `submit`.

        Args:
            num_gpus: GPUs of the whole job.
            num_cpus: CPU cores of the whole job.
            memory_mib: Host memory of the whole job, MiB.
            gpu_memory_mib: Memory of each GPU, MiB.
            gpu_types: Accepted GPU types.
            preferred_types: Preferred GPU types.
            exclusive: Whether the job gets whole nodes.
            vc: Virtual cluster.
            time_limit_s: Time limit, seconds.
            preemptible: Whether the job may be preempted for another job.
            workload: Workload of the job.
            tonight_s: Time, Unix seconds. An additional forecast assumes that the job is submitted then.
            command: Command of the job. The run time on fewer GPUs is predicted from your completed jobs with
                this command, if they had different numbers of GPUs.

        Raises:
            InputError: the broker makes no forecasts, has no forecast now, or the job can never run.
        """
        self.stats()  # a forecast can take a minute; a broker that does not answer at all is noticed earlier
        asked = messages.DryRun(
            num_gpus=num_gpus,
            num_cpus=num_cpus,
            memory_mib=memory_mib,
            gpu_memory_mib=gpu_memory_mib,
            gpu_types=list(gpu_types),
            preferred_types=list(preferred_types),
            exclusive=exclusive,
            vc=vc,
            time_limit_s=time_limit_s,
            preemptible=preemptible,
            workload=workload,
            tonight_s=tonight_s,
            command=tuple(command),
        )
        reply = self._connection.ask(asked, messages.DryRunAnswer, max(self.timeout_s, DRY_RUN_S))
        if isinstance(reply, Refused):
            raise InputError(reply.message)
        if not isinstance(reply, messages.DryRunAnswer):
            raise WireError(
                f"expected DryRunAnswer from the broker, got {type(reply).__name__}: "
                "install the same rlsched on both sides"
            )
        return reply

    def stats(self) -> messages.StatsReport:
        """Return statistics of the broker, such as decisions by source."""
        return self._ask(messages.Stats(), messages.StatsReport)

    def read_log(self, job: int, *, rank: int = 0, offset: int = 0) -> messages.LogChunk:
        """Return up to 64 KiB of a rank's output from byte `offset`; negative: counted from its end."""
        return self._ask(messages.ReadLog(job=job, rank=rank, offset=offset), messages.LogChunk)

    def log(self, job: int, *, rank: int = 0, follow: bool = False) -> Iterator[bytes]:
        """Yield a rank's output in pieces: the output so far; with `follow`, until the job has finished."""
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

    def output(
        self, job: int, *, to_its_end: bool = True, labelled: bool | None = None
    ) -> Iterator[messages.JobInfo | bytes]:
        """Yield a job's states and the output of all its ranks, until the job has finished.

        Args:
            job: Job number; the job need not have started.
            to_its_end: Whether to follow the job until it has finished; False: stop after the current output.
            labelled: Whether lines begin with `RANK: `; None: they do if the job has several ranks.
        """
        from rlsched.client.following import follow

        return follow(self, job, to_its_end=to_its_end, labelled=labelled)

    def wait(
        self, job: int, *, patience_s: float = 60.0, seen: Callable[[messages.JobInfo], object] | None = None
    ) -> messages.JobInfo:
        """Wait until a job has finished, and return it.

        Args:
            job: Job number.
            patience_s: Time for which the broker can be unavailable, seconds; after it,
                `BrokerUnavailableError` is raised.
            seen: Function that is called with the job after each query.
        """
        from rlsched.client.following import POLL_S

        away_since: float | None = None
        while True:
            try:
                info = self.job(job)
                away_since = None
                if seen is not None:
                    seen(info)
                if info.state in FINISHED:
                    return info
            except BrokerUnavailableError:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > patience_s:
                    raise
            time.sleep(POLL_S)

    # ---- asking -----------------------------------------------------------------------------------

    def _ask(self, message: messages.ClientRequest, kind: type[R]) -> R:
        """Send a request, and repeat it until the broker answers or the time-out ends.

        All requests can be repeated safely.
        """
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
    """Return the public key of the broker. If `is_patient`, wait for it while a new broker is starting.

    Raises:
        BrokerUnavailableError: the broker has not created its key yet.
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
