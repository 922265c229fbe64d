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
    """A column of the policy's observations that recently had values outside its range in training."""

    column: str
    share_frac: float
    """Fraction of the recent checks in which the values of `column` were outside the range in training."""
    value: float
    """Value of `column` in the latest check in which it was outside the range; the median if a check has
    several values, such as one per job."""
    low: float
    high: float
    """`low` and `high`: range in training."""
    only_warns: bool = False
    """Whether `column` only causes a warning and is not drift, because it describes the cluster's
    configuration."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """Drift of a trained policy: comparison of its observations with their ranges in training."""

    note: str = ""
    """Why drift is not monitored; "": drift is monitored."""
    active: bool = False
    """Whether the fallback decides because of drift."""
    looks: int = 0
    """Number of checks since the broker started: one for each decision. For a rule with dials (numbers
    that adjust the rule): one for each update of the dials."""
    outside: list[OutsideReport] = []
    """Columns with recent values outside their ranges in training, most frequent first; ten at most."""
    settings_refused: int = 0
    """Number of times that all dials were set to 0 because a strategy failed or returned invalid numbers."""
    unlike: list[str] = []
    """Ways in which the cluster differs from the clusters in the policy's training."""


class GuardReport(msgspec.Struct, frozen=True, kw_only=True):
    """Interventions of the guard, which lets the fallback decide if the policy fails."""

    decided: dict[str, int]
    """Number of decisions of the fallback since the journal began, by reason: `late`, `illegal`,
    `non-finite`, `failed` (the policy raised an error), `dials` (a strategy, which sets the dials of a
    rule, failed), `drift`."""
    now: str
    """Why the fallback decides now; "" while the policy decides."""
    drift: DriftReport | None = None
    """Drift of the policy's observations; None if the policy is not trained, or from an older broker."""


class QuestionsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of clients' questions (`Question`) since the broker started."""

    waiting: int
    """Number of questions that wait for an answer now."""
    askers: int
    """Number of connections that sent these waiting questions."""
    refused: int
    """Number of questions refused because too many questions of the same connection were waiting."""
    failed: int
    """Number of questions that could not be answered."""


class RecordsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of decision records since the broker started."""

    kept: int
    """Number of stored records."""
    lost: dict[str, int]
    """Number of lost records, by the stage of recording that failed: `made`, `remembered` (for `why`),
    `packed`, `written`, `drawn` (for TensorBoard)."""
    troubles: dict[str, str]
    """Stage, as in `lost`, -> its current error, in one line; empty if no stage fails."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Histogram of durations.

    `counts[i]` is the number of durations above the previous bound and up to `bounds_s[i]`. The last count
    has no upper bound.
    """

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class GpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of GPUs of one type, such as GPUs that jobs hold (`held`)."""

    total: int
    free: int
    """Number of free GPUs on nodes that are up."""
    held: int
    absent: int
    """Number of free GPUs on nodes that are down, unreachable, drained, asleep or booting."""


class PriceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Price of electricity, and the number of jobs that wait for a lower price.

    Attributes:
        price: Price or carbon intensity now, in the unit of its file.
        ratio: Present price divided by the mean price of about a day.
        until_s: Time of the ratio's next change, Unix seconds; infinite: unknown.
        deferred: Number of jobs that wait for a lower price.
        deferred_gpus: Number of GPUs that these jobs request.
        waiting_since_s: Submission, or end of the last attempt, of the job among them that has waited
            longest, Unix seconds; None: no job waits.
    """

    price: float
    ratio: float
    until_s: float
    deferred: int
    deferred_gpus: int = 0
    waiting_since_s: float | None = None


class PowerLimitReport(msgspec.Struct, frozen=True, kw_only=True):
    """Power limit of the cluster, and how the broker keeps it.

    Attributes:
        limit_w: Limit now, W; infinite: none now.
        until_s: Time of the next change of the limit or the price, Unix seconds; infinite: unknown.
        most_w: Maximum power of nodes and running jobs at the present clocks, according to the models, W.
        urgent_clock_frac: Highest SM clock of jobs without slack, as a fraction of the maximum.
        flexible_clock_frac: Highest SM clock of jobs with slack, as a fraction of the maximum.
        waiting: Number of jobs that wait because the limit would be exceeded if they ran.
        falls: Announced falls of the limit: (time in Unix seconds, limit from then on in W), ascending times.
        soft: Whether jobs without slack may exceed the limit.
    """

    limit_w: float
    until_s: float
    most_w: float
    urgent_clock_frac: float
    flexible_clock_frac: float
    waiting: int
    falls: tuple[tuple[float, float], ...] = ()
    soft: bool = False


class StatsReport(msgspec.Struct, frozen=True, kw_only=True, tag="stats_report"):
    """Counts of decisions, and the state of the broker."""

    policy: str
    decisions: dict[str, int]
    """Number of decisions by source: policy, rule, guard, automatic."""
    contested: dict[str, int]
    """Number of the decisions in which more than one action was legal, by source."""
    queued: int
    running: int
    ended: int
    uptime_s: float
    prediction: PredictionReport | None = None
    """Predictor of run times; None from an older broker."""
    forecasts: ForecastReport | None = None
    """State of the forecaster; None from a broker without forecasts."""
    speed_energy: float = 0.0
    """Weight of energy against time, 0 to 1, for jobs that do not set `speed_energy`."""
    price: PriceReport | None = None
    """Price of electricity; None: unknown."""
    power_limit: PowerLimitReport | None = None
    """Power limit; None: the cluster has none."""
    clocked: int = 0
    """Number of running jobs with an SM clock below the highest."""
    shares: bool = False
    """Whether the broker shares GPUs."""
    sharing: int = 0
    """Number of running jobs that share their GPUs."""
    slow_sharing: int = 0
    """Number of jobs on shared GPUs that have been slower than permitted, or than predicted, for at least a
    minute."""
    lent_cpus: int = 0
    """Number of idle CPU cores that are lent to running jobs."""
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
    """Number of times, since the journal began, that a healthy node became unhealthy; sum over all nodes."""
    absent_nodes: dict[str, str] = {}
    """Nodes that are down, unreachable or drained, with the reason; the first 50."""
    gpus_out: int = 0
    """Number of GPUs, on nodes with a node daemon, that are lost or used by processes outside rlsched."""
    nodes_with_gpus_out: dict[str, str] = {}
    """Node -> why some of its GPUs are counted in `gpus_out`; the first 50 nodes."""
    nodes_off_clock: int = 0
    """Number of nodes whose clock differs from the broker's by more than `MAX_CLOCK_SKEW_S`."""
    clock_skews_s: dict[str, float] = {}
    """Node -> seconds by which its clock is ahead, for the first 50 nodes counted in `nodes_off_clock`."""
    journal: JournalReport | None = None
    guard: GuardReport | None = None
    questions: QuestionsReport | None = None
    records: RecordsReport | None = None
    gpus: dict[str, GpusReport] = {}
    """Counts of GPUs, by GPU type."""
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
    """Counts of handshakes and of refused or dropped messages, by kind, since the broker started."""
    power_w: float | None = None
    """Power of the GPUs of all nodes that report it, W; None if no node reports it."""
    energy_day_j: float | None = None
    """Energy that the GPUs of all reporting nodes used today, with and without jobs, joules; None if no node
    reports it."""
    used: dict[str, float] = {}
    """Totals over the running jobs with measured usage: `gpus` (number of GPUs), `gpus_busy`,
    `gpu_memory_mib`, `cores`, `memory_mib`."""
