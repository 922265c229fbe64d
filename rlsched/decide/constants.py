"""Constants of decision kernels. They get their values at compile time (`rlsched.compile.jit.specialise`).

A flag is true if a feature can be in use. Otherwise, the code for this feature is not compiled.
"""

from __future__ import annotations

from typing import Any, Final

from rlsched.compile.jit import compile_time

MODELLED: Final[Any] = compile_time("MODELLED")
"""Flag: the cluster can have models of speed and power (`config.modelled`)."""
PREEMPTING: Final[Any] = compile_time("PREEMPTING")
"""Flag: running jobs can be preempted (`config.preempts`)."""
RESERVING: Final[Any] = compile_time("RESERVING")
"""Flag: jobs that do not fit can get reservations (`config.reserve_after_s`)."""


DIALLED: Final[Any] = compile_time("DIALLED")
"""Flag: dials adjust the settings of the rule (`rlsched.decide.dials`)."""

PRICED: Final[Any] = compile_time("PRICED")
"""Flag: decisions depend on the price of electricity or a power limit (`rlsched.decide.price`, `.limit`)."""

begin: Final[Any] = compile_time("begin")
"""The four functions of a rule: see `rlsched.decide.rules`."""
next_move: Final[Any] = compile_time("next_move")
after: Final[Any] = compile_time("after")
next_look_s: Final[Any] = compile_time("next_look_s")
