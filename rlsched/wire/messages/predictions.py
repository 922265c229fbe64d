"""Quality of the broker's run-time predictions: a part of `StatsReport`."""

import msgspec


class LongerScore(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the predicted probability that a job runs for at least `than_s`, seconds.

    `true_frac` is the fraction of jobs that ran at least this long, `predicted_frac` the mean predicted
    probability, and `brier` the Brier score. `auc` (area under the ROC curve) is None if all jobs, or no job,
    ran for at least this time.
    """

    than_s: float
    true_frac: float
    predicted_frac: float
    auc: float | None
    brier: float


class PredictionScore(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of run-time predictions, with the figures of `rlsched.workload.predict.quality`."""

    median_abs_ln: float
    """Median of |ln(true / predicted median)|."""
    spearman_mean: float | None
    """Rank correlation of the expected run time with the true run time."""
    spearman_ln: float | None
    """Rank correlation of the expected logarithm of the run time with the true run time."""
    longer_than_median_frac: float
    """Fraction of jobs that ran longer than their predicted median; 0.5 if calibrated."""
    covered_frac: float
    """Fraction of jobs that ran within their predicted 10 to 90 % interval; 0.8 if calibrated."""
    ks: float
    longer: list[LongerScore]


class RecentPredictions(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of two predictors on the same recently ended jobs.

    `predicted`: quality of the predictions that the broker used. `running_mean`: quality of the predictor
    `running-mean`. Both are None if there are fewer than 20 jobs.
    """

    jobs: int
    since_s: float | None
    """Earliest end time of these jobs, Unix seconds."""
    predicted: PredictionScore | None
    running_mean: PredictionScore | None


class PredictionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The predictor of run times, and its recent quality.

    Times are Unix seconds, and None if the event has not happened yet.
    """

    model: str
    """Predictor used for the next job, `running-mean` or `hedge`."""
    note: str
    """Predictors that are not in use (yet), and why; "" if all are in use."""
    ended: int
    """Number of ended jobs on which the predictor is trained."""
    last_jobs: RecentPredictions
    """Scores for the last 200 jobs."""
    last_week: RecentPredictions
    """Scores for the jobs of the last seven days."""
    fits: int | None
    """Number of boosting models fitted since this broker started. This field and the fields below are None
    without boosting."""
    fitted_s: float | None
    fitted_jobs: int | None
    """Number of jobs that had ended when the fit of the models in use began."""
    next_fit_jobs: int | None
    """Number of ended jobs at which the next fit starts."""
    fitting: bool | None
    fit_error: str | None
    """Why the last fit failed; None if it succeeded."""
    weights: dict[str, dict[str, float]] | None
    """Weight of each predictor in the predictor `hedge`, by job size (1, 2-7, 8+ GPUs)."""
