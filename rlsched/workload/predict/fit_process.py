"""One fit in a separate process: reads pickled `TrainingSet.arguments()`, writes a `HazardModel`.

The argument LIMIT_S is the longest duration of the process, seconds. If started by `background_command`, the
process yields the processor to all other processes, and ends with its parent.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

from rlsched.workload.predict.boosting import HazardModel


def main(limit_s: int) -> int:
    """Read the training set, fit, write the model; return the exit code."""
    signal.alarm(limit_s)
    result = os.dup(1)
    os.dup2(2, 1)  # output printed by libraries must not end up in the result
    fitted = HazardModel(*pickle.load(sys.stdin.buffer))
    with open(result, "wb") as out:
        pickle.dump(fitted, out, protocol=pickle.HIGHEST_PROTOCOL)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
