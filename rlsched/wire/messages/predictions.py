"""How good the broker's predictions were: part of `StatsReport`."""

import msgspec


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
