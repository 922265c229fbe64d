"""Compile-time constants of the simulator's kernels, in addition to `rlsched.decide.constants`."""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

LOGGED: Final[Any] = compile_time("LOGGED")
"""Whether the run logs attempts (`SimArrays.log`). Without a log, only the policy can interrupt jobs."""
LOOKS: Final[Any] = compile_time("LOOKS")
"""Whether the rule can request a call at a time without an event (a *look*)."""
SKIPS_QUIET: Final[Any] = compile_time("SKIPS_QUIET")
"""Whether to skip the rule in a partition that has not changed since the rule's last call there."""
RECORDS: Final[Any] = compile_time("RECORDS")
"""Whether the costs of the run are recorded at each instant (`loop.Curve`)."""

PHYSICS: Final[Any] = compile_time("PHYSICS")
"""Whether models give the speed and power of jobs. If not, jobs run as recorded; decisions may use models."""

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3
NEED_ROOM: Final = 4
"""Result: the attempt log is full. Call `grown_log`, then continue."""
DIALS_DUE: Final = 6
"""Result: the caller must set the dials (numbers that adjust the rule). Call `turn_due`, set, continue."""
REVIEW_DUE: Final = 5
"""Result: the clock has reached `run.review_s`. Review the nodes, set the next review, then continue."""
