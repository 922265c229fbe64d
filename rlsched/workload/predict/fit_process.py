"""One fit in a separate process: reads pickled `TrainingSet.arguments()`, writes a `HazardModel`.

Its arguments: PARENT_PID LIMIT_S. Started by `background_command`, it yields to all other processes on the
machine, and never outlives its parent by more than a second, nor its limit.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time

from rlsched.workload.predict.boosting import HazardModel

_LOOK_S = 0.5


def main(parent: int, limit_s: int) -> int:
    """Read, fit, write; returns the exit code."""
    signal.alarm(limit_s)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    result = os.dup(1)
    os.dup2(2, 1)  # output printed by libraries must not end up in the result
    fitted = HazardModel(*pickle.load(sys.stdin.buffer))
    with open(result, "wb") as out:
        pickle.dump(fitted, out, protocol=pickle.HIGHEST_PROTOCOL)
    return 0


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
