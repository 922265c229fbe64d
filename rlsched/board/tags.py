"""Descriptions of the curves of decisions and clusters, and the charts that group the curves."""

from __future__ import annotations

from typing import Final

CLUSTER_TAGS: Final = (
    "cluster/waiting_1_gpu_jobs",
    "cluster/waiting_2_to_8_gpus_jobs",
    "cluster/waiting_over_8_gpus_jobs",
    "cluster/busy_frac",
    "cluster/wait_mean_s",
    "cluster/power_w",
)
"""Tags of the cluster's curves. The first three are counts of waiting jobs by size, small jobs first."""

DESCRIPTIONS: Final = {
    "cluster/waiting_1_gpu_jobs": "Waiting jobs of up to 1 GPU.",
    "cluster/waiting_2_to_8_gpus_jobs": "Waiting jobs of 2 to 8 GPUs.",
    "cluster/waiting_over_8_gpus_jobs": "Waiting jobs of more than 8 GPUs.",
    "cluster/busy_frac": "GPUs in use, as a share of the cluster's GPUs.",
    "cluster/wait_mean_s": "Mean queueing time of the jobs that started since the preceding point, seconds.",
    "cluster/power_w": "Power of all jobs, watts; no point while the power of a job is unknown.",
    "decisions/source_policy_count": "Decisions of a user's scheduler.",
    "decisions/source_rule_count": "Decisions of a rule.",
    "decisions/source_guard_count": "Decisions of the guard instead of the policy.",
    "decisions/source_automatic_count": "Decisions with one option only, or in which everything fitted.",
    "decisions/source_engine_count": "Decisions of the batch system, which the broker followed.",
    "decisions/kind_start_count": "Jobs that were started.",
    "decisions/kind_wait_count": "Decisions to wait.",
    "decisions/kind_preempt_count": "Jobs that were preempted for others.",
    "decisions/guard_stepped_in_count": "Interventions of the guard: decision too late, or not allowed.",
    "decisions/start_sm_clock_mean_frac": "Mean SM clock of starts, relative to the maximum.",
    "decisions/open_plans_mean_count": "Mean number of open plans of a job.",
    "time/decision_p(50|99)_us": "This percentile of the time of a decision, microseconds.",
    "distribution/decision_us": "Time of a decision, from reading the state to the action, microseconds.",
    "forecast/.*_inside_frac": "Share of outcomes of the last 7 days between the 10 % and 90 % forecasts.",
    "forecast/.*_loss_s_(last|week|list)": "Mean pinball loss of a simple rule, as a baseline, seconds.",
    "forecast/.*_loss_s": "Mean pinball loss of the forecasts of the last 7 days, seconds.",
    "prediction/.*_running_mean": "The same figure for a running mean of the user's jobs, as a baseline.",
    "prediction/median_abs_ln": "Median of |ln(true / predicted run time)| of the last jobs; 0 is best.",
    "prediction/spearman_mean": "Rank correlation of predicted with true run times; 1 is best.",
    "prediction/longer_than_median_frac": "Share of jobs that ran longer than the predicted median.",
    "prediction_weight/.*": "Weight of this predictor in the weighted average, for jobs of this size.",
    "drift/active": "1: the state is outside the policy's training range, and the policy's dials are off.",
    "drift/most_outside_frac": "Share of checks in which the worst column was outside the training range.",
    "drift/outside_.*_frac": "Share of checks in which this column was outside the training range.",
    "drift/value_.*": "Present value of this column of the state.",
}
"""Regular expression for a whole tag -> description of the tag. The first expression that matches is used."""

LAYOUT: Final = {
    "Cluster": {
        "waiting jobs, by size": ["cluster/waiting_.*_jobs"],
        "time in the queue, s": ["cluster/wait_mean_s"],
        "GPUs in use, share": ["cluster/busy_frac"],
        "power of jobs, W": ["cluster/power_w"],
    },
    "Decisions": {
        "decisions per point, by source": ["decisions/source_.*_count"],
        "decisions per point, by kind": ["decisions/kind_.*_count"],
        "time of a decision, us": ["time/decision_p(50|99)_us"],
    },
    "Forecasts": {
        "outcomes within 10 to 90 %, share": ["forecast/.*_inside_frac"],
        "loss of starts, and simple rules', s": ["forecast/start_loss_s.*"],
        "loss of ends, and simple rules', s": ["forecast/end_loss_s.*"],
    },
    "Predictions": {
        "rank correlation, and a running mean's": ["prediction/spearman_mean.*"],
        "error of run times, and a running mean's": ["prediction/median_abs_ln.*"],
        "weights of the experts": ["prediction_weight/.*"],
    },
}
"""Charts of the tab «Custom scalars» for decisions."""
