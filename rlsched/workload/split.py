"""Training, validation and test parts of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from rlsched.errors import TraceError

if TYPE_CHECKING:
    from rlsched.workload.trace import Trace

TRAIN_FRAC: Final = 0.7
VALIDATION_FRAC: Final = 0.1

Window = tuple[float, float]
"""(since, until), seconds from the trace's origin: contains the jobs submitted in [since, until)."""


@dataclass(frozen=True)
class Split:
    """Three windows of a trace by submission time: the first 70 % of its span, the next 10 %, the last 20 %.

    The fractions are of the time, not of the number of jobs. Each job is in exactly one window.
    """

    train: Window
    validation: Window
    test: Window


def time_split(trace: Trace) -> Split:
    """Cut a trace at 70 % and 80 % of the time from its first to its last submission.

    To get the same windows for several virtual clusters, split the whole trace, and select the jobs of each
    virtual cluster afterwards.

    Raises:
        TraceError: the trace has no jobs.
    """
    if len(trace) == 0:
        raise TraceError(f"{trace.name}: cannot split a trace without jobs; expected at least one row")
    first, last = float(trace.submit_s[0]), float(trace.submit_s[-1])
    span_s = last - first
    train_until = first + TRAIN_FRAC * span_s
    validation_until = first + (TRAIN_FRAC + VALIDATION_FRAC) * span_s
    end = float(np.nextafter(last, np.inf))
    return Split(
        train=(first, train_until), validation=(train_until, validation_until), test=(validation_until, end)
    )
