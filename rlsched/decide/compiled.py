"""Compiles decision kernels for the features that a state needs: models, preemption, reservations."""

from __future__ import annotations

from typing import Any

from rlsched.cluster.shape import Needs
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise

_FOUND: dict[tuple[Any, ...], Any] = {}


def for_state(template: Any, state: ClusterState, **bound: Any) -> Any:
    """Compile a kernel template for the features that this state needs, and return the kernel.

    Args:
        template: Kernel template: the constants of `decide.constants` that it uses have no values yet.
        state: The state that the kernel will be called with.
        **bound: Values of further constants that the template uses.
    """
    return for_needs(template, needs=state.needs, **bound)


def for_needs(template: Any, *, needs: Needs, **bound: Any) -> Any:
    """Compile a kernel template for states that need the features `needs`, and return the kernel.

    `template` and `bound` are as in `for_state`.
    """
    more = needs.preemption or needs.reservations  # one kernel for both: most callers need both
    key = (template, needs.models, more, *bound.values())
    found = _FOUND.get(key)
    if found is None:
        found = _FOUND[key] = specialise(
            template,
            MODELLED=needs.models,
            PREEMPTING=more,
            RESERVING=more,
            **bound,
        )
    return found
