"""Quality of the broker's predictions: part of `StatsReport`."""

import msgspec


class LongerScore(msgspec.Struct, frozen=True, kw_only=True):
    """P(longer than `than_s`) against the outcomes; `auc` is None if all jobs were on one side."""

    than_s: float
    true_frac: float
    predicted_frac: float
    auc: float | None
    brier: float


class PredictionScore(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of predictions: the figures of `rlsched.workload.predict.quality`."""

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
    """Predictions for jobs that ended recently, and the running mean's for the same; None below 20 jobs."""

    jobs: int
    since_s: float | None
    """End of the first of them, Unix seconds."""
    predicted: PredictionScore | None
    running_mean: PredictionScore | None


class PredictionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The predictor of run times, and its recent quality. Times are Unix seconds, None if there is none
    yet."""

    model: str
    """Predictor of the next job, `running-mean` or `hedge`."""
    note: str
    """Predictors that do not serve (yet), and why; "" if all do."""
    ended: int
    """Jobs learnt from."""
    last_jobs: RecentPredictions
    """The last 200."""
    last_week: RecentPredictions
    """The last seven days."""
    fits: int | None
    """Fits of boosting since this broker started; this and the following fields are None without boosting."""
    fitted_s: float | None
    fitted_jobs: int | None
    """Jobs that had ended when the fit in use began."""
    next_fit_jobs: int | None
    """Number of ended jobs at which the next fit starts."""
    fitting: bool | None
    fit_error: str | None
    """Why the last fit failed; None if it did not."""
    weights: dict[str, dict[str, float]] | None
    """By size of jobs (1, 2-7, 8+ GPUs): the weight of each predictor in the hedge."""
