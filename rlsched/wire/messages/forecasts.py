"""When jobs will start and end, as it is asked and told."""

import msgspec


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """10, 50 and 90 % of a job's start and end, Unix seconds; None in place of one: not within 7 days."""

    said_s: float
    """When it was said; how long ago that is, is its age."""
    start_s: list[float | None] | None
    """None: it runs."""
    end_s: list[float | None]


class DryRun(
    msgspec.Struct, frozen=True, kw_only=True, tag="dry_run", forbid_unknown_fields=True, omit_defaults=True
):
    """Ask when a job would start and end, and some like it, without queueing anything."""

    num_gpus: int
    num_cpus: int = 0
    """As of `Submit`, like the next three."""
    memory_mib: int = 0
    gpu_memory_mib: int = 0
    gpu_types: list[str] = []
    vc: str = ""
    time_limit_s: float | None = None
    preemptible: bool = False
    workload: str = ""
    tonight_s: float | None = None
    """When «tonight» is, Unix seconds; None: it is not asked for."""


class DryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask for it. Times as of `JobForecast`; empty where `note` says why there are none."""

    what: str
    num_gpus: int
    predicted_s: float
    """Median run time."""
    start_s: list[float | None] = []
    end_s: list[float | None] = []
    note: str = ""


class DryRunAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="dry_run_answer"):
    """The request as it is, then its neighbours."""

    said_s: float
    rows: list[DryRow]


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of the last week against what came."""

    what: str
    """`start`; `end`, said while it waited; `end-running`, said while it ran."""
    size: str
    """GPUs: `1`, `2-3`, `4-7`, `8+`, or `all`."""
    jobs: int
    covered_frac: float
    """Share of what came within 10 to 90 %."""
    loss_s: float
    """Mean pinball loss of the three."""
    rules: dict[str, float | None]
    """The same of simple rules: `last`, the last time of this size; `week`, 10, 50, 90 % of the last week;
    `list`, list scheduling by predicted run times."""


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the forecaster does."""

    note: str
    """Why there is nothing, or nothing new; "": all is well."""
    said_s: float | None = None
    """When it said something last; None: it has not."""
    jobs: int = 0
    futures: int = 0
    cpu_s: float | None = None
    """CPU time of the last refresh."""
    by: str = ""
    """The policy that decides in the futures."""
    scores: list[ForecastScore] = []
