"""Run times predicted from history: by a running mean, or by a hedge (a weighted mixture of predictors).

`RunningMean`, `causal_predictions` and `own_spread` need no extra packages. `Predictor` (module `predictor`,
extra `predict`) predicts a distribution for every job from the data that a broker has at the submission.
`predict_at_submission` (module `at_submission`) runs `Predictor` on a whole trace.
"""

from rlsched.workload.predict.running_mean import (
    PRIOR_S,
    PRIOR_SPREAD,
    RunningMean,
    causal_predictions,
    own_spread,
)

__all__ = ["PRIOR_S", "PRIOR_SPREAD", "RunningMean", "causal_predictions", "own_spread"]
