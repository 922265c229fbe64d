"""Run times predicted from history: a running mean that needs nothing, and a hedge of several predictors.

`RunningMean`, `causal_predictions` and `own_spread` are what a simulator or a broker falls back on.
`Predictor` (module `predictor`, extra `predict`) gives a distribution for every job from all that a broker
knows at that moment; `predict_at_submission` (`at_submission`) drives it over a whole trace.
"""

from rlsched.workload.predict.running_mean import (
    PRIOR_S,
    PRIOR_SPREAD,
    RunningMean,
    causal_predictions,
    own_spread,
)

__all__ = ["PRIOR_S", "PRIOR_SPREAD", "RunningMean", "causal_predictions", "own_spread"]
