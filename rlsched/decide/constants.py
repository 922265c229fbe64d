"""Constants of decision kernels. They get their values at compile time (`rlsched.compile.jit.specialise`).

For a cluster without models, preemption or reservations, the code for these features is not compiled.
"""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

MODELLED: Final[Any] = compile_time("MODELLED")
"""Whether models of speed and power may exist (`config.modelled`)."""
PREEMPTING: Final[Any] = compile_time("PREEMPTING")
"""Whether running jobs may be preempted (`config.preempts`)."""
RESERVING: Final[Any] = compile_time("RESERVING")
"""Whether jobs that do not fit may get reservations (`config.reserve_after_s`)."""


DIALLED: Final[Any] = compile_time("DIALLED")
"""Whether dials adjust the settings of a rule (`rlsched.decide.dials`)."""

PRICED: Final[Any] = compile_time("PRICED")
"""Whether decisions follow the price of electricity or a power limit (`rlsched.decide.price`, `.limit`)."""

begin: Final[Any] = compile_time("begin")
"""The four functions of a rule: see `rlsched.decide.rules`."""
next_move: Final[Any] = compile_time("next_move")
after: Final[Any] = compile_time("after")
next_look_s: Final[Any] = compile_time("next_look_s")
