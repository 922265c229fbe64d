"""What kernels of the simulator leave open, beside those of `rlsched.decide.constants`."""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

LOGGED: Final[Any] = compile_time("LOGGED")
"""Whether attempts are logged, and something other than a policy may interrupt a job (`SimArrays.log`)."""
LOOKS: Final[Any] = compile_time("LOOKS")
"""Whether the rule may ask to be called again at a time."""
SKIPS_QUIET: Final[Any] = compile_time("SKIPS_QUIET")
"""Whether the rule need not be asked where nothing has changed."""
RECORDS: Final[Any] = compile_time("RECORDS")
"""Whether what the run has cost is written down at every instant."""

MOVED: Final = 0
FINISHED: Final = 1
NEED_SLOTS: Final = 2
STOPPED: Final = 3
NEED_ROOM: Final = 4
"""The log of attempts is full: `grown_log`, then go on."""
DIALS_DUE: Final = 6
"""Dials are due that somebody outside sets: observe (`turn_due`), set them, then go on."""
REVIEW_DUE: Final = 5
"""The clock is at `run.review_s`, and what happens now has happened: set the next, then go on."""
