"""Compile-time constants of the simulator's kernels, in addition to `rlsched.decide.constants`."""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

LOGGED: Final[Any] = compile_time("LOGGED")
"""Whether the run logs attempts (`SimArrays.log`). Without a log, only the policy can interrupt jobs."""
LOOKS: Final[Any] = compile_time("LOOKS")
"""Whether the rule can request to be called at a later time, even if no event happens then (a *look*)."""
SKIPS_QUIET: Final[Any] = compile_time("SKIPS_QUIET")
"""Whether to skip a partition that has not changed since the rule was last called for it."""
RECORDS: Final[Any] = compile_time("RECORDS")
"""Whether the run records its costs at each instant (`loop.Curve`)."""

PHYSICS: Final[Any] = compile_time("PHYSICS")
"""Whether models determine the speed and power of jobs. If not, jobs run as recorded in the trace."""

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3
NEED_ROOM: Final = 4
"""Result: the attempt log is full. Replace it by `grown_log(log)`, then continue the run."""
DIALS_DUE: Final = 6
"""Result: the caller must set the dials (numbers that adjust the rule). Call `turn_due`, set the dials, then
continue the run.
"""
REVIEW_DUE: Final = 5
"""Result: the clock has reached `run.review_s` or `run.need_s`. The caller must review sleeping nodes or
apply observations (`Engine._review`), set the next times of both, and continue the run.
"""
