"""How the broker does: the answer to `Stats`."""

import msgspec

from rlsched.wire.messages.forecasts import ForecastReport
from rlsched.wire.messages.predictions import PredictionReport


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


class OutsideReport(msgspec.Struct, frozen=True, kw_only=True):
    """A column that is lately outside what the policy saw in training."""

    column: str
    share_frac: float
    """Share of the last looks in which it was."""
    value: float
    """What it was when it was last."""
    low: float
    high: float
    """Least and most in training."""
    only_warns: bool = False
    """It says how the cluster was set up, and is no drift by itself."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """How far what a trained policy sees is from its training."""

    note: str = ""
    """Why nothing is watched; "": it is."""
    active: bool = False
    """Whether the fallback decides because of it."""
    looks: int = 0
    """Decisions, or settings of dials, that were looked at since the broker started."""
    outside: list[OutsideReport] = []
    """Those that are most often outside first; ten at most."""
    settings_refused: int = 0
    """Times that a strategy gave no numbers, or raised, and its dials were put at 0."""
    unlike: list[str] = []
    """In which ways the cluster is none that the policy met in training."""


class GuardReport(msgspec.Struct, frozen=True, kw_only=True):
    """How often the guard stepped in."""

    decided: dict[str, int]
    """Decisions of the fallback since the journal began, by why the policy did not decide: `late`, `illegal`,
    `non-finite`, `failed` (it raised), `dials`, `drift`."""
    masked: dict[str, int]
    """Decisions since the broker started in which it forbade something: `age bound` (a job was held back for
    too long for another one to pass), `half free` (no waiting while half of the GPUs are free)."""
    now: str
    """Why the fallback decides now, "" while the policy does."""
    drift: DriftReport | None = None
    """None: the policy has learned nothing, or the broker does not tell yet."""


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


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times in buckets: `counts[i]` at most `bounds_s[i]`, and above the bound before; the last has none."""

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class GpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one type."""

    total: int
    free: int
    """On nodes that are up."""
    held: int
    absent: int
    """Held by nobody, on nodes that are down, away or drained."""


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
    forecasts: ForecastReport | None = None
    """None from a broker that makes none."""
    speed_energy: float = 0.0
    """What energy counts against time for jobs that do not say it themselves."""
    clocked: int = 0
    """Running jobs at a lower clock than the highest."""
    shares: bool = False
    """Jobs that may share GPUs do."""
    sharing: int = 0
    """Running jobs that share theirs."""
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
    unhealthy_nodes: int = 0
    """Nodes whose own checks fail now."""
    health_failures: int = 0
    """How often a node's checks began to fail, since the journal began."""
    absent_nodes: dict[str, str] = {}
    """Nodes that are down, away or drained, and why; the first 50."""
    gpus_out: int = 0
    """GPUs that are lost, or in use by a process that rlsched did not start, on nodes of rlsched's own."""
    nodes_with_gpus_out: dict[str, str] = {}
    """Nodes with such GPUs, and why; the first 50."""
    nodes_off_clock: int = 0
    """Nodes whose clock differs from the broker's by more than `MAX_CLOCK_SKEW_S`."""
    clock_skews_s: dict[str, float] = {}
    """Such nodes, and how far their clock is ahead, seconds; the first 50."""
    journal: JournalReport | None = None
    guard: GuardReport | None = None
    questions: QuestionsReport | None = None
    records: RecordsReport | None = None
    gpus: dict[str, GpusReport] = {}
    """By GPU type."""
    ineligible: dict[str, int] = {}
    """Those among the queued that are kept out of the queue, by reason."""
    tasks_to_come: int = 0
    """Tasks of job arrays that are no jobs yet; they are not among the queued."""
    queued_gpus: int = 0
    """What the waiting jobs ask for."""
    oldest_queued_s: float = 0.0
    """How long the first of them has waited."""
    outcomes: dict[str, int] = {}
    """Jobs that are over, by state."""
    timings: dict[str, Timing] = {}
    """Since the broker started: `decision`, `commit` (to disk), `turn` (of the broker's loop)."""
    connections: dict[str, int] = {}
    """Since the broker started: handshakes, and what was refused or dropped, by kind."""
    power_w: float | None = None
    """What the GPUs of all nodes draw that say so; None where none does."""
    energy_day_j: float | None = None
    """What they have drawn today, with jobs and without, joules; likewise."""
    used: dict[str, float] = {}
    """Of running jobs that are measured: `gpus` (their GPUs), `gpus_busy`, `gpu_memory_mib`, `cores`,
    `memory_mib`."""
