"""Forecasts of the starts and ends of jobs: requests and answers."""

import msgspec

from rlsched.wire.messages.job_settings import JobNeeds


class JobForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a job's start and end (10, 50 and 90 %), Unix seconds.

    A quantile is None if it is not within the next 7 days.
    """

    said_s: float
    """Time of the forecast."""
    start_s: list[float | None] | None
    """Start quantiles; None: the job runs already."""
    end_s: list[float | None]


class DryRun(
    JobNeeds, frozen=True, kw_only=True, tag="dry_run", forbid_unknown_fields=True, omit_defaults=True
):
    """Ask when a job would start and end, also with variants of its settings. Nothing is queued."""

    tonight_s: float | None = None
    """Submission time of the job in the variant `tonight`, Unix seconds; None: not forecast."""
    command: tuple[str, ...] = ()
    """Command of the job; empty: not given. The run time with fewer GPUs is estimated from completed jobs
    with the same command."""


class DryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast for one variant of the job. Times are quantiles as in `JobForecast`.

    `note`: the assumption behind this variant, or why its times are missing.
    """

    what: str
    num_gpus: int
    predicted_s: float
    """Predicted run time, median, seconds."""
    start_s: list[float | None] = []
    end_s: list[float | None] = []
    note: str = ""


class DryRunAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="dry_run_answer"):
    """The answer to `DryRun`: a row for the job as requested, then a row for each variant."""

    said_s: float
    rows: list[DryRow]


class ForecastScore(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of the last week's forecasts, for one kind of forecast and one size of jobs."""

    what: str
    """Event that was forecast. `start`: the start; `end`: the end, forecast while the job waited;
    `end-running`: the end, forecast while the job ran."""
    size: str
    """Number of GPUs of the jobs: `1`, `2-3`, `4-7`, `8+`, or `all`."""
    jobs: int
    covered_frac: float
    """Fraction of true times between the 10 % and the 90 % quantile; 0.8 if calibrated."""
    loss_s: float
    """Mean pinball loss of the three quantiles."""
    rules: dict[str, float | None]
    """`loss_s` of three simple forecasts for the same jobs. `last`: the job waits or runs as long as the
    latest job of this size did. `week`: the 10, 50 and 90 % quantiles of the waits or run times of jobs of
    this size in the last week. `list`: list scheduling with predicted run times.
    """


class ForecastReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of the forecaster, with its accuracy in the last week. Times are Unix seconds."""

    note: str
    """Why there are no forecasts, or no new forecasts; "" if there are new forecasts."""
    said_s: float | None = None
    """Time of the last forecast; None before the first."""
    jobs: int = 0
    futures: int = 0
    cpu_s: float | None = None
    """CPU time used to compute the last forecasts, seconds."""
    by: str = ""
    """The policy that decides in the simulated futures."""
    scores: list[ForecastScore] = []
