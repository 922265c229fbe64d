"""Forecasts of the starts and ends of jobs: requests and answers."""

import msgspec

from rlsched.wire.messages.job_settings import JobNeeds


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """10, 50 and 90 % quantiles of a job's start and end, Unix seconds; None for a value: not within 7
    days."""

    said_s: float
    """Time of the forecast."""
    start_s: list[float | None] | None
    """None: the job runs."""
    end_s: list[float | None]


class DryRun(
    JobNeeds, frozen=True, kw_only=True, tag="dry_run", forbid_unknown_fields=True, omit_defaults=True
):
    """Ask when a job and some variants of it would start and end, without queueing anything."""

    tonight_s: float | None = None
    """Time that counts as tonight, Unix seconds; None: no forecast for it."""


class DryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One variant of the request. Times as in `JobForecast`; empty if `note` gives a reason."""

    what: str
    num_gpus: int
    predicted_s: float
    """Median run time."""
    start_s: list[float | None] = []
    end_s: list[float | None] = []
    note: str = ""


class DryRunAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="dry_run_answer"):
    """The request unchanged, then its variants."""

    said_s: float
    rows: list[DryRow]


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """Forecasts of the last week against the outcomes."""

    what: str
    """`start`; `end`, forecast while the job waited; `end-running`, forecast while it ran."""
    size: str
    """GPUs: `1`, `2-3`, `4-7`, `8+`, or `all`."""
    jobs: int
    covered_frac: float
    """Share of outcomes within 10 to 90 %."""
    loss_s: float
    """Mean pinball loss of the three quantiles."""
    rules: dict[str, float | None]
    """The same loss of simple rules: `last`, the last time of this size; `week`, 10, 50, 90 % of the last
    week; `list`, list scheduling by predicted run times."""


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of the forecaster."""

    note: str
    """Why there are no forecasts, or no new ones; "" if there are."""
    said_s: float | None = None
    """Time of the last forecast; None: none yet."""
    jobs: int = 0
    futures: int = 0
    cpu_s: float | None = None
    """CPU time of the last refresh."""
    by: str = ""
    """The policy that decides in the simulated futures."""
    scores: list[ForecastScore] = []
