"""What a client asks of the broker."""

from typing import Final, Literal

import msgspec

from rlsched.wire.messages.basic import (
    DependsOn,
    Priority,
    Share,
    Submit,
    SubmitMany,
    Tasks,
    WhoServes,
)
from rlsched.wire.messages.forecasts import DryRun
from rlsched.wire.messages.history import ListHistory, ListUsage

NOTIFY_EVENTS: Final = ("start", "requeue", "end", "fail")
"""What a job may ask to be told of: its first process runs; it is queued again; it is over; it has failed."""
PartyKind = Literal["user", "account", "vc"]
"""Whom jobs are charged to."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin", forbid_unknown_fields=True):
    """An engine that places jobs itself has started a queued one. May be said again."""

    job: int
    nodes: list[str]
    gpus: list[list[int]]
    """GPU numbers on each of `nodes`."""


class Cancel(
    msgspec.Struct, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True, omit_defaults=True
):
    """Take a job out of the queue, or end its processes."""

    job: int
    tasks: list[Tasks] = []
    """Of an array, these tasks alone, also those that are no jobs yet; here as in the orders below."""
    waiting: bool = False
    """What has no GPUs alone; of an array, tasks that wait or are no jobs yet, and those that run go on."""


class Hold(
    msgspec.Struct, frozen=True, kw_only=True, tag="hold", forbid_unknown_fields=True, omit_defaults=True
):
    """Keep a waiting job out of the queue until it is released. What an admin holds, an admin releases."""

    job: int
    tasks: list[Tasks] = []


class Release(
    msgspec.Struct, frozen=True, kw_only=True, tag="release", forbid_unknown_fields=True, omit_defaults=True
):
    """Let a held job into the queue."""

    job: int
    tasks: list[Tasks] = []


class Requeue(
    msgspec.Struct, frozen=True, kw_only=True, tag="requeue", forbid_unknown_fields=True, omit_defaults=True
):
    """End a running job's processes, with the grace of a preemption, and queue it again."""

    job: int
    tasks: list[Tasks] = []


class Update(
    msgspec.Struct, frozen=True, kw_only=True, tag="update", forbid_unknown_fields=True, omit_defaults=True
):
    """Change what was submitted; None: as it was. Fields as in `Submit`."""

    job: int
    tasks: list[Tasks] = []
    name: str | None = None
    priority: Priority | None = None
    time_limit_s: float | None = None
    """Infinite: it has none."""
    begin_s: float | None = None
    """In the past: it may begin at once."""
    depends_on: list[DependsOn] | None = None
    """It waits for these in place of what it waited for."""
    singleton: bool = False
    lost_after_s: float | None = None
    """0: never."""
    share: Share | None = None
    array_limit: int | None = None
    gpu_types: list[str] | None = None
    """Empty: any."""
    grace_s: float | None = None


class ListJobs(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_jobs",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for a page of jobs; `finished` includes those that have ended, `job` asks for one."""

    finished: bool = False
    job: int | None = None
    task: int | None = None
    """Of the array `job`, this task."""
    before: int | None = None
    """Jobs with a lower number than this; None: the latest."""
    limit: int | None = None
    """So many at most; None: as many as a page holds."""


class ListNodes(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_nodes",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for a page of the nodes: those after a name, in the order of the numbers in their names."""

    after: str = ""


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag="drain_node", forbid_unknown_fields=True):
    """Let a node get no new jobs until `ResumeNode`; with `requeue` end those there and queue them again."""

    node: str
    reason: str = ""
    requeue: bool = False


class ResumeNode(msgspec.Struct, frozen=True, kw_only=True, tag="resume_node", forbid_unknown_fields=True):
    """Let a drained node get jobs again."""

    node: str


class DownNode(msgspec.Struct, frozen=True, kw_only=True, tag="down_node", forbid_unknown_fields=True):
    """An unreachable node is dead, and nothing runs there: its jobs are queued again. Only an admin may."""

    node: str
    reason: str = ""


class RemoveNode(msgspec.Struct, frozen=True, kw_only=True, tag="remove_node", forbid_unknown_fields=True):
    """Forget a node whose daemon is not there; its jobs are queued again."""

    node: str
    reason: str = ""


class Why(msgspec.Struct, frozen=True, kw_only=True, tag="why", forbid_unknown_fields=True):
    """Ask why a job waits, or why it was started where it was."""

    job: int


class ReadLog(msgspec.Struct, frozen=True, kw_only=True, tag="read_log", forbid_unknown_fields=True):
    """Ask for a piece of a job's output, from byte `offset` of rank `rank`; a negative one: from the end."""

    job: int
    rank: int = 0
    offset: int = 0
    max_bytes: int = 65536


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats", forbid_unknown_fields=True):
    """Ask who decided what since the journal began, and the broker's own state."""


class SetQuota(msgspec.Struct, frozen=True, kw_only=True, tag="set_quota", forbid_unknown_fields=True):
    """Limit what a user, an account or a VC has; what is not sent stays as it is, None lifts a limit."""

    kind: PartyKind
    name: str
    """`default`: all that have no limit of their own."""
    gpus: int | msgspec.UnsetType | None = msgspec.UNSET
    """GPUs at once."""
    jobs: int | msgspec.UnsetType | None = msgspec.UNSET
    """Waiting and running jobs."""
    gpu_hours: float | msgspec.UnsetType | None = msgspec.UNSET
    """In a calendar month, UTC."""


class ListQuotas(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="list_quotas",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for a page of the quotas, from this place in their order on."""

    first: int = 0


class SetMember(msgspec.Struct, frozen=True, kw_only=True, tag="set_member", forbid_unknown_fields=True):
    """Let a person charge jobs to an account, or no longer."""

    account: str
    person: str
    member: bool = True


class ListAccounts(
    msgspec.Struct, frozen=True, kw_only=True, tag="list_accounts", forbid_unknown_fields=True
):
    """Ask who may charge what."""

    first: int = 0
    """The place in the order from which on they are told."""


MAX_POLICY_BYTES = 960 << 10
"""Most that a policy and its fallback are as TOML together. The journal keeps them in one entry, which has to
fit a message to a standby."""


class SetPolicy(msgspec.Struct, frozen=True, kw_only=True, tag="set_policy", forbid_unknown_fields=True):
    """Let another policy decide from now on, also after restarts of the broker."""

    policy: str
    """As TOML; the content of files in its settings, see `rlsched.decide.files.to_send`."""
    name: str
    fallback: str = ""
    """The rule behind it, likewise; "": the one that it follows."""
    fallback_name: str = ""

    def too_large(self) -> str:
        """Why it is not sent, and not taken; "" where it fits."""
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
    """A standby asks for the entries that follow its copy. Answered when there are some, or soon anyway."""

    after: int
    """Number of the last entry that it has, 0 for none."""
    checksum: int
    """Of that entry; 0 for none."""
    access: int = 0
    """Checksum of the access list that it has, see `JournalRows.access`; 0 for none."""
    ended_after: int = -1
    """Rows of ended jobs with a higher number are wanted, which its entries do not tell of; -1: none are."""


class LaterBroker(msgspec.Struct, frozen=True, kw_only=True, tag="later_broker", forbid_unknown_fields=True):
    """A broker of your cluster serves at a higher epoch: stop. Admins and nodes may say so."""

    cluster: str
    epoch: int


NodeOrder = DrainNode | ResumeNode | DownNode | RemoveNode
AdminOrder = NodeOrder | SetPolicy | SetQuota | SetMember | ReadJournal | LaterBroker
OfJobs = ListJobs | ListHistory | ListUsage | Why | ReadLog | DryRun
Question = OfJobs | ListNodes | ListQuotas | ListAccounts | Stats | WhoServes
JobOrder = Cancel | Hold | Release | Requeue | Update
ClientRequest = Submit | SubmitMany | JobOrder | Begin | AdminOrder | Question
