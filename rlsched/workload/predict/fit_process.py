"""One fit in a separate process: reads pickled `TrainingSet.arguments()`, writes a `HazardModel`.

Its argument: LIMIT_S. Started by `background_command`, it yields to all other processes on the machine, and
never outlives its parent, nor its limit.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys

from rlsched.workload.predict.boosting import HazardModel


def main(limit_s: int) -> int:
    """Read, fit, write; returns the exit code."""
    signal.alarm(limit_s)
    result = os.dup(1)
    os.dup2(2, 1)  # output printed by libraries must not end up in the result
    fitted = HazardModel(*pickle.load(sys.stdin.buffer))
    with open(result, "wb") as out:
        pickle.dump(fitted, out, protocol=pickle.HIGHEST_PROTOCOL)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
