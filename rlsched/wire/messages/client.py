"""Requests of a client to the broker."""

from typing import Literal

import msgspec

from rlsched.wire.messages.basic import Submit, SubmitMany, WhoServes
from rlsched.wire.messages.forecasts import DryRun
from rlsched.wire.messages.history import ListHistory, ListUsage
from rlsched.wire.messages.job_settings import JobChanges, Tasks

PartyKind = Literal["user", "account", "vc"]
"""Kinds of names for which quotas are set."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin", forbid_unknown_fields=True):
    """Report that an engine has started a queued job on nodes that the engine chose.

    The report can be repeated. Engine: the system that runs the jobs, such as Slurm.
    """

    job: int
    nodes: list[str]
    gpus: list[list[int]]
    """Indices of the job's GPUs on each of `nodes`."""


class Cancel(
    msgspec.Struct, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True, omit_defaults=True
):
    """Remove a waiting job from the queue, or end the processes of a job that has GPUs."""

    job: int
    tasks: list[Tasks] = []
    """Cancel only these tasks of an array, including tasks that are not jobs yet; empty: the whole job.
    `Hold`, `Release` and `Requeue` have the same field."""
    waiting: bool = False
    """Whether to cancel only jobs without GPUs; running tasks of an array continue."""


class Hold(
    msgspec.Struct, frozen=True, kw_only=True, tag="hold", forbid_unknown_fields=True, omit_defaults=True
):
    """Keep a waiting job out of the queue until its release. Only an admin can release an admin's hold."""

    job: int
    tasks: list[Tasks] = []


class Release(
    msgspec.Struct, frozen=True, kw_only=True, tag="release", forbid_unknown_fields=True, omit_defaults=True
):
    """Release a held job, so that it enters the queue."""

    job: int
    tasks: list[Tasks] = []


class Requeue(
    msgspec.Struct, frozen=True, kw_only=True, tag="requeue", forbid_unknown_fields=True, omit_defaults=True
):
    """End a running job (SIGTERM, then SIGKILL after the job's grace time), and queue the job again."""

    job: int
    tasks: list[Tasks] = []


class Update(
    JobChanges, frozen=True, kw_only=True, tag="update", forbid_unknown_fields=True, omit_defaults=True
):
    """Change a submitted job."""

    singleton: bool = False


class ListJobs(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_jobs",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for a page of the list of jobs. By default, the list contains waiting and running jobs."""

    finished: bool = False
    """Whether the list also contains finished jobs."""
    job: int | None = None
    """Only the job with this ID; None: all jobs."""
    task: int | None = None
    """Task of the array `job`."""
    before: int | None = None
    """Only jobs with a lower ID than this; None: the latest jobs."""
    limit: int | None = None
    """Maximum number of jobs; None: a full page."""


class ListNodes(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_nodes",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for the page of nodes that follow the node `after`. Nodes are in natural order (n2, n10)."""

    after: str = ""


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag="drain_node", forbid_unknown_fields=True):
    """Give a node no new jobs until `ResumeNode`; with `requeue`, also end its jobs and queue them again."""

    node: str
    reason: str = ""
    requeue: bool = False


class ResumeNode(msgspec.Struct, frozen=True, kw_only=True, tag="resume_node", forbid_unknown_fields=True):
    """Allow new jobs on a drained node."""

    node: str


class DownNode(msgspec.Struct, frozen=True, kw_only=True, tag="down_node", forbid_unknown_fields=True):
    """Mark an unreachable node as down. Nothing runs on the node any more, so its jobs are queued again."""

    node: str
    reason: str = ""


class RemoveNode(msgspec.Struct, frozen=True, kw_only=True, tag="remove_node", forbid_unknown_fields=True):
    """Remove a node that has no running daemon. Its jobs are queued again."""

    node: str
    reason: str = ""


class Why(msgspec.Struct, frozen=True, kw_only=True, tag="why", forbid_unknown_fields=True):
    """Ask why a job waits, or why it was placed where it runs."""

    job: int


class ReadLog(msgspec.Struct, frozen=True, kw_only=True, tag="read_log", forbid_unknown_fields=True):
    """Ask for a piece of a rank's output from byte `offset` on; a negative offset counts from the end."""

    job: int
    rank: int = 0
    offset: int = 0
    max_bytes: int = 65536


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats", forbid_unknown_fields=True):
    """Ask for the counts of decisions since the journal began, and for the state of the broker."""


class SetQuota(msgspec.Struct, frozen=True, kw_only=True, tag="set_quota", forbid_unknown_fields=True):
    """Set limits for a user, an account or a VC. UNSET leaves a limit unchanged; None removes the limit."""

    kind: PartyKind
    name: str
    """Name of the user, account or VC. `default`: these limits apply to each user, account or VC (as given by
    `kind`) that has no limits of its own."""
    gpus: int | msgspec.UnsetType | None = msgspec.UNSET
    """Maximum number of GPUs in use at the same time."""
    jobs: int | msgspec.UnsetType | None = msgspec.UNSET
    """Maximum number of waiting and running jobs."""
    gpu_hours: float | msgspec.UnsetType | None = msgspec.UNSET
    """Maximum number of GPU-hours in a calendar month, UTC."""


class ListQuotas(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_quotas",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for a page of the quotas that begins at position `first`."""

    first: int = 0


class SetMember(msgspec.Struct, frozen=True, kw_only=True, tag="set_member", forbid_unknown_fields=True):
    """Allow a person to charge jobs to an account, or end that permission."""

    account: str
    person: str
    member: bool = True


class ListAccounts(
    msgspec.Struct, frozen=True, kw_only=True, tag="list_accounts", forbid_unknown_fields=True
):
    """Ask for a page of the members of accounts."""

    first: int = 0
    """Position of the first member in the page."""


MAX_POLICY_BYTES = 960 << 10
"""Maximum size of a policy and its fallback together, as TOML. The journal stores both in one entry, and an
entry must fit in a message to a standby."""


class SetPolicy(msgspec.Struct, frozen=True, kw_only=True, tag="set_policy", forbid_unknown_fields=True):
    """Replace the broker's policy. The new policy stays in use after restarts of the broker."""

    policy: str
    """The policy as TOML, with the files that its settings name (`rlsched.decide.policies.files.to_send`)."""
    name: str
    fallback: str = ""
    """The fallback rule, as TOML; "": the rule on which the policy is based."""
    fallback_name: str = ""

    def too_large(self) -> str:
        """Return the error if policy and fallback together are too large to send, else ""."""
        size = len(self.policy.encode()) + len(self.fallback.encode())
        if size <= MAX_POLICY_BYTES:
            return ""
        return (
            f"policy {self.name!r}: {size / 1024:,.0f} KiB with the files that it names; expected at most "
            f"{MAX_POLICY_BYTES >> 10:,} KiB; copy the files to the broker's machine, and start the broker "
            "with --policy"
        )


class ReadJournal(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="read_journal",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for the journal entries after the last entry of a standby's copy.

    If there are no such entries, the broker waits a short time for a new entry before it answers.
    """

    after: int
    """Number of the last entry in the standby's copy; 0: the copy is empty."""
    checksum: int
    """Checksum of that entry; 0: the copy is empty."""
    access: int = 0
    """Checksum of the standby's access list, see `JournalRows.access`; 0: the standby has no access list."""
    ended_after: int = -1
    """Also send the stored rows of ended jobs whose ID is higher than this; -1: send no rows. Journal entries
    do not contain these rows."""


class LaterBroker(msgspec.Struct, frozen=True, kw_only=True, tag="later_broker", forbid_unknown_fields=True):
    """Order a broker to stop, because its cluster has a later broker: a broker with a higher epoch.

    Admins and nodes send this. The broker obeys nodes only if a majority of them report a later broker.
    """

    cluster: str
    epoch: int


NodeOrder = DrainNode | ResumeNode | DownNode | RemoveNode
AdminOrder = NodeOrder | SetPolicy | SetQuota | SetMember | ReadJournal | LaterBroker
OfJobs = ListJobs | ListHistory | ListUsage | Why | ReadLog | DryRun
Question = OfJobs | ListNodes | ListQuotas | ListAccounts | Stats | WhoServes
JobOrder = Cancel | Hold | Release | Requeue | Update
ClientRequest = Submit | SubmitMany | JobOrder | Begin | AdminOrder | Question
