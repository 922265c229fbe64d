"""Compile-time constants of the simulator's kernels, in addition to `rlsched.decide.constants`."""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

LOGGED: Final[Any] = compile_time("LOGGED")
"""Whether the run logs attempts, and jobs can be interrupted by more than a policy (`SimArrays.log`)."""
LOOKS: Final[Any] = compile_time("LOOKS")
"""Whether the rule may request a call at a later time."""
SKIPS_QUIET: Final[Any] = compile_time("SKIPS_QUIET")
"""Whether to skip the rule if nothing has changed."""
RECORDS: Final[Any] = compile_time("RECORDS")
"""Whether the costs of the run are recorded at each instant."""

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3
NEED_ROOM: Final = 4
"""The attempt log is full: call `grown_log`, then continue."""
DIALS_DUE: Final = 6
"""Dials are due that the caller sets: observe (`turn_due`), set the dials, then continue."""
REVIEW_DUE: Final = 5
"""The clock has reached `run.review_s`, and events up to now are done: set the next review, then continue."""
