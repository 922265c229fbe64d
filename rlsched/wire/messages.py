"""Messages between client, broker and node: msgpack, tagged, one closed union a direction.

Every frame is an `Envelope`: the protocol version, a request number that the reply repeats (0: not a
request), and the message. The pair (job, attempt) is in every message about a started job, and rank and
node of a gang's member with it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rlsched.errors import WireError

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
OnLost = Literal["requeue", "wait"]


# ---- client -> broker -------------------------------------------------------------------------------


class Submit(
    msgspec.Struct, frozen=True, kw_only=True, tag="submit", forbid_unknown_fields=True, omit_defaults=True
):
    """Queue a job. `token` makes a repeated request harmless: the same token gets the same job.

    What is left at its default is not sent: a broker that does not know a field refuses those who use it.
    """

    token: str
    command: list[str]
    num_gpus: int
    name: str = ""
    vc: str = ""
    user: str = ""
    num_cpus: int = 0
    time_limit_s: float | None = None
    env: dict[str, str] = {}
    cwd: str = ""
    preemptible: bool = False
    """It may be stopped for another job's sake, and started again later."""
    workload: str = ""
    """Its workload, a name of the catalogue; "" where unknown."""
    speed_energy: float | None = None
    """What energy counts against time for it, 0 to 1; None: what the broker says."""
    on_lost: OnLost = "requeue"
    """When a node of its is silent for too long: queue it again, or wait until the node is back."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True):
    """Take a job out of the queue, or end its processes."""

    job: int


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


class RemoveNode(msgspec.Struct, frozen=True, kw_only=True, tag="remove_node", forbid_unknown_fields=True):
    """Forget a node whose daemon is not there; its jobs are queued again."""

    node: str
    reason: str = ""


class Why(msgspec.Struct, frozen=True, kw_only=True, tag="why", forbid_unknown_fields=True):
    """Ask why a job waits, or why it was started where it was."""

    job: int


class ReadLog(msgspec.Struct, frozen=True, kw_only=True, tag="read_log", forbid_unknown_fields=True):
    """Ask for a piece of a job's output, from byte `offset` of rank `rank`."""

    job: int
    rank: int = 0
    offset: int = 0
    max_bytes: int = 65536


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag="stats", forbid_unknown_fields=True):
    """Ask who decided what since the journal began, and the broker's own state."""


# ---- broker -> client -------------------------------------------------------------------------------


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as people see it. Times are Unix seconds, None where not yet."""

    job: int
    name: str
    user: str
    vc: str
    state: str
    """queued | launching | running | completed | failed | cancelled | rejected"""
    num_gpus: int
    attempt: int
    submit_s: float
    predicted_s: float | None
    """What the queue goes by, predicted at submission."""
    start_s: float | None
    end_s: float | None
    exit_code: int | None
    nodes: list[str]
    gpus: list[list[int]]
    """GPU numbers on each of `nodes`."""
    nodes_omitted: int = 0
    """Nodes that were left out of `nodes` and `gpus`, where there are thousands."""
    decided_by: str
    reason: str
    """One line: why it waits, or how it ended."""
    predicted_by: str = ""
    """`running-mean` or `hedge`."""
    preemptible: bool = False
    preemptions: int = 0
    """Attempts that were ended for another job's sake."""
    workload: str = ""
    speed_energy: float | None = None
    """As submitted; None: the broker's."""
    sm_clock_frac: float | None = None
    """SM clock of the current or last attempt, of the highest; None before the first."""
    sm_clocks_mhz: list[int] = []
    """... and as each of `nodes` has set it; 0 where it has set none."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as people see it."""

    name: str
    state: str
    """up | drained | away | down"""
    gpus: int
    free_gpus: int
    gpu_type: str
    vc: str
    jobs: list[int]
    last_seen_s: float
    max_sm_clock_mhz: int = 0
    """The highest SM clock that all of its GPUs can be set to; 0: they cannot be set, or nobody said."""
    clocks_note: str = ""
    """Why they cannot."""
    reason: str = ""
    """Why it is in this state; "" where it is up."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """The job is in the journal on disk."""

    job: int


class Ok(msgspec.Struct, frozen=True, kw_only=True, tag="ok"):
    """Done."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True, tag="jobs"):
    """A page of jobs by number, the latest that were asked for."""

    jobs: list[JobInfo]
    omitted: int = 0
    """Older jobs that were left out; ask for those before the first of `jobs`."""


class Nodes(msgspec.Struct, frozen=True, kw_only=True, tag="nodes"):
    """A page of the nodes that have ever registered."""

    nodes: list[NodeInfo]
    omitted: int = 0
    """Nodes that were left out; ask for those after the last of `nodes`."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, tag="explanation"):
    """Why, in words and in data."""

    job: int
    summary: str
    details: list[str]
    record: bytes | None = None
    """The last `DecisionRecord` (msgpack) in which this job was a candidate."""

    def __str__(self) -> str:
        """As `rlsched why` says it."""
        return "\n".join([f"job {self.job}: {self.summary}", *(f"  {line}" for line in self.details)])


class LogChunk(msgspec.Struct, frozen=True, kw_only=True, tag="log_chunk"):
    """A piece of output. `eof`: the attempt has ended and nothing follows."""

    data: bytes
    offset: int
    eof: bool
    attempt: int = 0
    """The attempt whose output this is; a higher one than before starts again at offset 0."""


class LongerScore(msgspec.Struct, frozen=True, kw_only=True):
    """P(longer than `than_s`) against what happened; `auc` is None where all jobs were on one side."""

    than_s: float
    true_frac: float
    predicted_frac: float
    auc: float | None
    brier: float


class PredictionScore(msgspec.Struct, frozen=True, kw_only=True):
    """How good predictions were: the figures of `rlsched.workload.predict.quality`."""

    median_abs_ln: float
    """Median of |ln(true / predicted median)|."""
    spearman_mean: float | None
    """Rank correlation of the expected run time with the true one."""
    spearman_ln: float | None
    """The same of the expected logarithm."""
    longer_than_median_frac: float
    """Jobs that lasted longer than their predicted median; 0.5 if calibrated."""
    covered_frac: float
    """Jobs inside their 10 to 90 % interval; 0.8 if calibrated."""
    ks: float
    longer: list[LongerScore]


class RecentPredictions(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions of jobs that ended lately, and the running mean's of the same; None for fewer than 20."""

    jobs: int
    since_s: float | None
    """When the first of them ended."""
    predicted: PredictionScore | None
    running_mean: PredictionScore | None


class PredictionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Who predicts run times, and how well that went lately. Times are Unix seconds, None where not yet."""

    model: str
    """`running-mean` or `hedge`: what the next job is predicted by."""
    note: str
    """What does not serve yet, or not at all, and why; "" where everything does."""
    ended: int
    """Jobs learnt from."""
    last_jobs: RecentPredictions
    """The last 200."""
    last_week: RecentPredictions
    """The last seven days."""
    fits: int | None
    """Fits of boosting since this broker started; this and what follows is None without boosting."""
    fitted_s: float | None
    fitted_jobs: int | None
    """Jobs that had ended when the fit in use began."""
    next_fit_jobs: int | None
    """So many must have ended for the next."""
    fitting: bool | None
    fit_error: str | None
    """Why the last fit came to nothing; None where it did not."""
    weights: dict[str, dict[str, float]] | None
    """By size of jobs (1, 2-7, 8+ GPUs): the weight of each predictor in the hedge."""


class JournalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's file, and the disk that it is on."""

    path: str
    size_bytes: int
    last_commit_ms: float | None
    """How long the last commit took; None before the first."""
    free_bytes: int | None
    """Free on its disk; None where nobody knows."""
    low_bytes: int
    """Less free than this is too little."""


class GuardReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often the guard stepped in."""

    decided: dict[str, int]
    """Decisions of the fallback since the journal began, by why the policy did not decide: `late`, `illegal`,
    `non-finite`, `failed` (it raised), `dials`."""
    masked: dict[str, int]
    """Decisions since the broker started in which it forbade something: `age bound` (a job was held back for
    too long for another one to pass), `half free` (no waiting while half of the GPUs are free)."""
    now: str
    """Why the fallback decides now, "" while the policy does."""


class QuestionsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Questions, since the broker started."""

    waiting: int
    """Those that wait for an answer now."""
    askers: int
    """Connections that they are of."""
    refused: int
    """Too many of one connection waited."""
    failed: int
    """They could not be answered."""


class RecordsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of decision records since the broker started."""

    kept: int
    """Records written to the file."""
    lost: dict[str, int]
    """By kind: `made`, `remembered` (for `why`), `packed`, `written`, `drawn` (for TensorBoard)."""
    troubles: dict[str, str]
    """By kind, the line of what goes wrong now; empty where nothing does."""


class StatsReport(msgspec.Struct, frozen=True, kw_only=True, tag="stats_report"):
    """Who decided what, and how much there is."""

    policy: str
    decisions: dict[str, int]
    """Decisions by source: policy, rule, guard, automatic."""
    contested: dict[str, int]
    """Those among them in which more than one row was legal."""
    queued: int
    running: int
    ended: int
    uptime_s: float
    prediction: PredictionReport | None = None
    """None from a broker that does not tell yet."""
    speed_energy: float = 0.0
    """What energy counts against time for jobs that do not say it themselves."""
    clocked: int = 0
    """Running jobs at a lower clock than the highest."""
    fixed_clocks: dict[str, str] = {}
    """Nodes whose clocks cannot be set, and why; the first 50."""
    version: str = ""
    """Of rlsched; "" from a broker that does not tell, as is None below."""
    epoch: int = 0
    """So many brokers have started on this journal."""
    address: str = ""
    fallback: str = ""
    """The rule that decides where the policy fails, "" where there is none."""
    nodes: dict[str, int] = {}
    """Nodes by state."""
    absent_nodes: dict[str, str] = {}
    """Nodes that are down, away or drained, and why; the first 50."""
    journal: JournalReport | None = None
    guard: GuardReport | None = None
    questions: QuestionsReport | None = None
    records: RecordsReport | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request was understood and refused, or not understood: one line says why."""

    message: str


# ---- node -> broker ---------------------------------------------------------------------------------


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of one attempt: `running`, or `ended` with its exit code and reason (see `Ended`)."""

    job: int
    attempt: int
    rank: int
    state: str
    exit_code: int | None = None
    reason: str = ""
    ended_s: float | None = None
    sm_clock_mhz: int = 0
    """See `Launched`."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", forbid_unknown_fields=True):
    """A node registers or comes back, with everything that it still runs or has ended unacknowledged."""

    name: str
    gpus: int
    gpu_type: str = "generic"
    gpu_uuids: list[str] = []
    cpus: int = 0
    memory_mib: int = 0
    vc: str = ""
    boot_id: str = ""
    epoch: int = 0
    """Highest broker epoch that this node has obeyed."""
    cluster: str = ""
    """The `Welcome.cluster` that it has obeyed last."""
    attempts: list[AttemptReport] = []
    sm_clocks_mhz: list[int] = []
    """SM clocks that all of its GPUs can be set to, highest first; empty where they cannot be set."""
    clocks_note: str = ""
    """Why they cannot."""
    directory_id: str = ""
    """Random, of the directory in which it keeps its attempts."""
    lost_after_s: float = 0.0
    """The `Welcome.lost_after_s` that its ranks go by still."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", forbid_unknown_fields=True):
    """The node is alive. Answered by `HeartbeatAck` where it has a request number."""

    name: str


class Leaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving", forbid_unknown_fields=True):
    """This daemon is being stopped: no new jobs. What runs goes on, or is being ended and will be told."""

    name: str


class Launched(msgspec.Struct, frozen=True, kw_only=True, tag="launched", forbid_unknown_fields=True):
    """This rank's process runs."""

    job: int
    attempt: int
    rank: int
    pid: int
    sm_clock_mhz: int = 0
    """Highest SM clock that its GPUs are held to; 0: nobody has set one."""
    clock_note: str = ""
    """Why not the one of the `Launch`."""


class LaunchRefused(
    msgspec.Struct, frozen=True, kw_only=True, tag="launch_refused", forbid_unknown_fields=True
):
    """This rank could not be started."""

    job: int
    attempt: int
    rank: int
    message: str
    is_for_now: bool = False
    """No fault of the job's (the node's disk is full, say): this attempt does not count."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended", forbid_unknown_fields=True):
    """This rank is over, or (after a `Kill`) will never start. Repeated until `EndedAck`."""

    job: int
    attempt: int
    rank: int
    exit_code: int
    """The process's own; 128 + signal number where a signal ended it; 143 where it never started."""
    reason: str = ""
    """"" by itself | killed | time_limit | node_stopped | fenced | vanished"""
    ended_s: float | None = None
    """When it was over, Unix seconds by the node's clock; None where nobody knows."""


class ClockHeld(msgspec.Struct, frozen=True, kw_only=True, tag="clock_held", forbid_unknown_fields=True):
    """The answer to `HoldClock`, of a rank that runs."""

    job: int
    attempt: int
    rank: int
    sm_clock_mhz: int
    """See `Launched`."""
    clock_note: str = ""


class LogData(msgspec.Struct, frozen=True, kw_only=True, tag="log_data", forbid_unknown_fields=True):
    """The answer to `FetchLog`."""

    data: bytes
    offset: int
    eof: bool


# ---- broker -> node ---------------------------------------------------------------------------------


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag="welcome"):
    """The node is registered. Attempts in `forget` are not the broker's: end them and forget them."""

    epoch: int
    cluster: str
    """Identity of the broker's journal; under another one than before, a node ends and forgets everything."""
    heartbeat_s: float
    forget: list[tuple[int, int]] = []
    """(job, attempt)"""
    lost_after_s: float = 0.0
    """See `HeartbeatAck`; 0: this broker queues nothing again that may still run."""


class HeartbeatAck(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The broker has heard the heartbeat of this request number.

    From when that was sent, it takes the node for alive for `Welcome.lost_after_s` at least. A node that gets
    no younger answer ends its ranks by then, since the broker may start them elsewhere.
    """


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag="launch"):
    """Start one rank of an attempt. A node that knows (job, attempt, rank) does not start it twice."""

    epoch: int
    job: int
    attempt: int
    rank: int
    num_ranks: int
    nodes: list[str]
    """Node of each rank; rank 0's is the gang's master."""
    gpus: list[int]
    """GPU numbers on this node."""
    command: list[str]
    env: dict[str, str]
    cwd: str
    time_limit_s: float | None = None
    grace_s: float | None = None
    """Between SIGTERM and SIGKILL when the job is preempted; None where it is not."""
    sm_clock_mhz: int = 0
    """Highest SM clock for its GPUs until the rank is over; 0: leave them alone."""
    fenced: bool = False
    """End it when no heartbeat is answered for too long (see `HeartbeatAck`)."""


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag="kill"):
    """End this rank on this node: SIGTERM, then SIGKILL after `grace_s`.

    Always answered by `Ended`, also where the node has never heard of the attempt; it then remembers the
    attempt as ended, so that a `Launch` that comes later is not obeyed.
    """

    epoch: int
    job: int
    attempt: int
    rank: int
    grace_s: float = 5.0


class HoldClock(msgspec.Struct, frozen=True, kw_only=True, tag="hold_clock"):
    """Another highest SM clock for the GPUs of a rank that runs; answered by `ClockHeld`."""

    epoch: int
    job: int
    attempt: int
    rank: int
    sm_clock_mhz: int
    """0: let them choose their clocks."""


class SayHello(msgspec.Struct, frozen=True, kw_only=True, tag="say_hello"):
    """The broker does not know this connection (it was restarted, say): send `Hello` again."""


class EndedAck(msgspec.Struct, frozen=True, kw_only=True, tag="ended_ack"):
    """The end is in the journal; the node need not repeat it."""

    job: int
    attempt: int
    rank: int


class FetchLog(msgspec.Struct, frozen=True, kw_only=True, tag="fetch_log"):
    """Read a piece of output; answered by `LogData` with the same request number."""

    job: int
    attempt: int
    rank: int
    offset: int
    max_bytes: int


NodeOrder = DrainNode | ResumeNode | RemoveNode
ClientRequest = Submit | Cancel | NodeOrder | ListJobs | ListNodes | Why | ReadLog | Stats
ClientReply = Submitted | Ok | Jobs | Nodes | Explanation | LogChunk | StatsReport | Refused
NodeMessage = Hello | Heartbeat | Leaving | Launched | LaunchRefused | ClockHeld | Ended | LogData
BrokerToNode = Welcome | HeartbeatAck | SayHello | Launch | HoldClock | Kill | EndedAck | FetchLog | Refused
Message = ClientRequest | ClientReply | NodeMessage | BrokerToNode


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One frame on the wire."""

    version: int
    request: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_MAX_ERROR = 300
_UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, RecursionError)
"""What msgspec raises on hostile bytes: ValueError where text is not UTF-8, RecursionError if too deep."""


def encode(message: Message, request: int = 0) -> bytes:
    """One frame."""
    return _encoder.encode(Envelope(PROTOCOL_VERSION, request, message))


def decode(frame: bytes) -> Envelope:
    """The envelope of a frame.

    Raises:
        WireError: not msgpack, not one of the messages, or of another protocol version.
    """
    try:
        version = msgspec.msgpack.decode(frame)[0]
    except (*_UNREADABLE, TypeError, LookupError) as error:
        raise WireError(
            f"malformed message of {len(frame)} bytes: expected [version, request, message]"
        ) from error
    if not isinstance(version, int):
        raise WireError(f"malformed message of {len(frame)} bytes: expected a version number first")
    if version != PROTOCOL_VERSION:
        raise WireError(
            f"protocol version {version}; this side speaks {PROTOCOL_VERSION}: "
            "install the same rlsched on both sides"
        )
    try:
        return _decoder.decode(frame)
    except _UNREADABLE as error:
        raise WireError(f"malformed message: {' '.join(str(error).split())[:_MAX_ERROR]}") from error
