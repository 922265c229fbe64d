"""Compile-time constants of the simulator's kernels, in addition to `rlsched.decide.constants`."""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

LOGGED: Final[Any] = compile_time("LOGGED")
"""Whether the run logs attempts (`SimArrays.log`), because not only the policy can interrupt jobs."""
LOOKS: Final[Any] = compile_time("LOOKS")
"""Whether the rule can request a call at a later time."""
SKIPS_QUIET: Final[Any] = compile_time("SKIPS_QUIET")
"""Whether to skip the call of the rule if nothing has changed since its last call."""
RECORDS: Final[Any] = compile_time("RECORDS")
"""Whether the costs of the run are recorded at each instant."""

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3
NEED_ROOM: Final = 4
"""Result: the attempt log is full. Call `grown_log`, then continue."""
DIALS_DUE: Final = 6
"""Result: dials that the caller sets are due. Observe (`turn_due`), set the dials, then continue."""
REVIEW_DUE: Final = 5
"""Result: the clock is at `run.review_s`, after all earlier events. Set the next review, then continue."""
