"""The state of the broker: the answer to `Stats`."""

import msgspec

from rlsched.wire.messages.forecasts import ForecastReport
from rlsched.wire.messages.predictions import PredictionReport


class JournalReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of the journal's file and its disk."""

    path: str
    size_bytes: int
    last_commit_ms: float | None
    """Duration of the last commit; None before the first."""
    free_bytes: int | None
    """Free space on the journal's disk; None if unknown."""
    low_bytes: int
    """Free space below which the disk counts as low."""


class OutsideReport(msgspec.Struct, frozen=True, kw_only=True):
    """A column whose recent values are outside the range of the policy's training."""

    column: str
    share_frac: float
    """Share of the recent checks that found the column outside its range."""
    value: float
    """Value of the column when it was last outside."""
    low: float
    high: float
    """`low` and `high`: range in training."""
    only_warns: bool = False
    """The column describes the cluster's configuration. Drift needs another column that is outside."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far the observations of a trained policy are outside its training."""

    note: str = ""
    """Why drift is not monitored; "": drift is monitored."""
    active: bool = False
    """Whether the fallback decides because of drift."""
    looks: int = 0
    """Decisions, or dial settings, that were checked since the broker started."""
    outside: list[OutsideReport] = []
    """Columns outside their range, most frequent first; ten at most."""
    settings_refused: int = 0
    """How often a strategy raised an error or returned no numbers; its dials were then set to 0."""
    unlike: list[str] = []
    """Properties of the cluster that are outside the policy's training."""


class GuardReport(msgspec.Struct, frozen=True, kw_only=True):
    """Interventions of the guard, which checks each decision of the policy."""

    decided: dict[str, int]
    """Decisions of the fallback since the journal began, by reason: `late`, `illegal`, `non-finite`,
    `failed` (the policy raised), `dials`, `drift`."""
    now: str
    """Why the fallback decides now; "" while the policy decides."""
    drift: DriftReport | None = None
    """None: the policy is not trained, or the broker does not have this field."""


class QuestionsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Questions of clients, since the broker started."""

    waiting: int
    """Questions that wait for an answer now."""
    askers: int
    """Number of connections that sent these waiting questions."""
    refused: int
    """Questions refused because too many questions from one connection were waiting."""
    failed: int
    """Questions that could not be answered."""


class RecordsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Decision records since the broker started."""

    kept: int
    """Records written to the file."""
    lost: dict[str, int]
    """Lost records by the stage that failed: `made`, `remembered` (for `why`), `packed`, `written`, `drawn`
    (for TensorBoard)."""
    troubles: dict[str, str]
    """Current error of each stage that fails, one line each; empty if none fails."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Histogram of durations. `counts[i]`: number above the previous bound and up to `bounds_s[i]`; the last
    count has no upper bound."""

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class GpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of GPUs of one type."""

    total: int
    free: int
    """Free GPUs on nodes that are up."""
    held: int
    absent: int
    """Free GPUs on nodes that are down, unreachable or drained."""


class StatsReport(msgspec.Struct, frozen=True, kw_only=True, tag="stats_report"):
    """Counts of decisions, and the state of the broker."""

    policy: str
    decisions: dict[str, int]
    """Number of decisions by source: policy, rule, guard, automatic."""
    contested: dict[str, int]
    """Number of these decisions in which more than one row was legal."""
    queued: int
    running: int
    ended: int
    uptime_s: float
    prediction: PredictionReport | None = None
    """None from an older broker."""
    forecasts: ForecastReport | None = None
    """None from a broker without forecasts."""
    speed_energy: float = 0.0
    """Weight of energy against time for jobs that set none."""
    clocked: int = 0
    """Number of running jobs below the highest clock."""
    shares: bool = False
    """Whether the broker shares GPUs."""
    sharing: int = 0
    """Number of running jobs that share their GPUs."""
    slow_sharing: int = 0
    """Number of sharing jobs that have been slower than permitted or predicted for a minute."""
    fixed_clocks: dict[str, str] = {}
    """Nodes whose clocks cannot be set, with the reason; the first 50."""
    version: str = ""
    """Version of rlsched; "" from an older broker, which also leaves the fields below at their defaults."""
    epoch: int = 0
    """Number of brokers that have started on this journal."""
    address: str = ""
    fallback: str = ""
    """The rule that decides if the policy fails; "" if there is none."""
    nodes: dict[str, int] = {}
    """Number of nodes by state."""
    unhealthy_nodes: int = 0
    """Number of nodes with a failing health check now."""
    health_failures: int = 0
    """How often the health checks of a node began to fail, since the journal began."""
    absent_nodes: dict[str, str] = {}
    """Nodes that are down, unreachable or drained, with the reason; the first 50."""
    gpus_out: int = 0
    """GPUs of node daemons that are lost, or in use by a process that rlsched did not start."""
    nodes_with_gpus_out: dict[str, str] = {}
    """Nodes with GPUs counted in `gpus_out`, with the reason; the first 50."""
    nodes_off_clock: int = 0
    """Number of nodes whose clock differs from the broker's by more than `MAX_CLOCK_SKEW_S`."""
    clock_skews_s: dict[str, float] = {}
    """Seconds by which the clocks of these nodes are ahead; the first 50."""
    journal: JournalReport | None = None
    guard: GuardReport | None = None
    questions: QuestionsReport | None = None
    records: RecordsReport | None = None
    gpus: dict[str, GpusReport] = {}
    """Numbers of GPUs, by GPU type."""
    ineligible: dict[str, int] = {}
    """Number of queued jobs that are not eligible to start, by reason."""
    tasks_to_come: int = 0
    """Number of tasks of job arrays that are not jobs yet; not counted as queued."""
    queued_gpus: int = 0
    """Number of GPUs that waiting jobs request."""
    oldest_queued_s: float = 0.0
    """Waiting time of the oldest queued job, seconds."""
    outcomes: dict[str, int] = {}
    """Number of finished jobs by state."""
    timings: dict[str, Timing] = {}
    """Durations since the broker started: `decision`, `commit` (to disk), `turn` (of the broker's loop)."""
    connections: dict[str, int] = {}
    """Numbers of handshakes and of refused or dropped messages, by kind, since the broker started."""
    power_w: float | None = None
    """Power of the GPUs of all nodes that report it, W; None if none does."""
    energy_day_j: float | None = None
    """Energy of these GPUs today, with and without jobs, joules; None if none is reported."""
    used: dict[str, float] = {}
    """Totals for the running jobs that are measured: `gpus` (their GPUs), `gpus_busy`, `gpu_memory_mib`,
    `cores`, `memory_mib`."""
