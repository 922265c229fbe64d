"""Program that does one fit: reads pickled `TrainingSet.arguments()`, writes a pickled `HazardModel`.

It reads standard input and writes standard output. The argument LIMIT_S is the longest duration of the
process, seconds. The process ends with its parent.
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
