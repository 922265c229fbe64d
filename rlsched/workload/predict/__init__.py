"""Run times predicted from history: a running mean without dependencies, and a hedge of several predictors.

`RunningMean`, `causal_predictions` and `own_spread` are the fallback of simulators and brokers. `Predictor`
(module `predictor`, extra `predict`) gives a distribution for every job from all data that a broker has at
that moment; `predict_at_submission` (`at_submission`) runs it on a whole trace.
"""

from rlsched.workload.predict.running_mean import (
    PRIOR_S,
    PRIOR_SPREAD,
    RunningMean,
    causal_predictions,
    own_spread,
)

__all__ = ["PRIOR_S", "PRIOR_SPREAD", "RunningMean", "causal_predictions", "own_spread"]
