"""What kernels of decisions leave open until they are compiled (`rlsched.compile.jit.specialise`).

A cluster without models, without preemption or without reservations compiles none of what these need.
"""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

MODELLED: Final[Any] = compile_time("MODELLED")
"""Whether models of speed and power may be there (`config.modelled`)."""
PREEMPTING: Final[Any] = compile_time("PREEMPTING")
"""Whether running jobs may be preempted (`config.preempts`)."""
RESERVING: Final[Any] = compile_time("RESERVING")
"""Whether jobs that do not fit may have reservations (`config.reserve_after_s`)."""

MIGRATES: Final[Any] = compile_time("MIGRATES")
"""Whether a rule moves running jobs so that a gang finds its GPUs together (`options.migration`)."""

DIALLED: Final[Any] = compile_time("DIALLED")
"""Whether somebody sets dials beside a rule's settings (`rlsched.decide.dials`)."""

begin: Final[Any] = compile_time("begin")
"""The four functions of a rule: see `rlsched.decide.rules`."""
next_move: Final[Any] = compile_time("next_move")
after: Final[Any] = compile_time("after")
next_look_s: Final[Any] = compile_time("next_look_s")
