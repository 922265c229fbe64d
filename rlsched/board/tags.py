"""What the curves of decisions are, and which of them are drawn in one chart."""

from __future__ import annotations

from typing import Final

DESCRIPTIONS: Final = {
    "decisions/source_policy_count": "Decisions that the policy's network took.",
    "decisions/source_rule_count": "Decisions that a rule took.",
    "decisions/source_search_count": "Decisions of a look-ahead that found something better.",
    "decisions/source_guard_count": "Decisions that the guard took in the policy's place.",
    "decisions/source_automatic_count": "Decisions where there was one way only, or everything fitted.",
    "decisions/source_engine_count": "Decisions of the batch system below, that the broker followed.",
    "decisions/kind_start_count": "Jobs that were started.",
    "decisions/kind_wait_count": "Times that it was better to wait.",
    "decisions/kind_preempt_count": "Jobs that were preempted for others.",
    "decisions/guard_stepped_in_count": "Times that the guard stepped in: too late, or not allowed.",
    "decisions/start_sm_clock_mean_frac": "Mean SM clock of starts, of the maximum.",
    "decisions/off_reference_frac": "Share of decisions that are not what the static rule would have done.",
    "decisions/legal_candidates_mean_count": "What the network could choose among, mean.",
    "decisions/open_plans_mean_count": "Plans of a job that could be taken, mean.",
    "time/decision_p(50|99)_us": "Time from the state to the action, this percentile, microseconds.",
    "(policy|distribution)/chosen_probability_frac": "Probability that the network gave to what was taken.",
    "(policy|distribution)/entropy_nats": "Entropy of the network's choice of a job: 0 is certain.",
    "(policy|distribution)/value_return": "Return that the critic expects.",
    "distribution/decision_us": "Time from the state to the action, microseconds.",
    "prediction/.*_running_mean": "The same of a running mean of the user's jobs: to be beaten.",
    "prediction/median_abs_ln": "Median of |ln(true / predicted run time)| of the last jobs; 0 is best.",
    "prediction/spearman_mean": "Rank correlation of predicted with true run times; 1 is best.",
    "prediction/longer_than_median_frac": "Share of jobs that ran longer than the median that was predicted.",
    "prediction_weight/.*": "How much this expert counts in the mixture, of jobs of this size.",
    "drift/active": "1: the state has left what the policy was trained on, and its dials rest.",
    "drift/most_outside_frac": "Share of looks at which the worst column was outside of training's range.",
    "drift/outside_.*_frac": "Share of looks at which this column was outside of training's range.",
    "drift/value_.*": "What this column of the state is now.",
}
"""By regular expression of the tag, the first that matches it whole."""

LAYOUT: Final = {
    "Decisions": {
        "who decides, decisions a point": ["decisions/source_.*_count"],
        "what is decided, decisions a point": ["decisions/kind_.*_count"],
        "time of a decision, us": ["time/decision_p(50|99)_us"],
    },
    "Predictions": {
        "rank correlation, and a running mean's": ["prediction/spearman_mean.*"],
        "error of run times, and a running mean's": ["prediction/median_abs_ln.*"],
        "who counts how much": ["prediction_weight/.*"],
    },
}
"""Charts of the tab «Custom scalars»."""
