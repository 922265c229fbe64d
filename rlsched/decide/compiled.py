"""Compiles decision kernels for the needs of a state: models, preemption, reservations."""

from __future__ import annotations

from typing import Any

from rlsched.cluster.shape import Needs
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise

_FOUND: dict[tuple[Any, ...], Any] = {}


def for_state(template: Any, state: ClusterState, **bound: Any) -> Any:
    """Return the kernel of a template that this state needs.

    Args:
        template: Kernel that leaves the constants of `decide.constants` open.
        state: The state that the kernel will be called with.
        **bound: Values of further open constants.
    """
    return for_needs(template, needs=state.needs, **bound)


def for_needs(template: Any, *, needs: Needs, **bound: Any) -> Any:
    """Return the kernel of a template for states with these needs; arguments as in `for_state`."""
    more = needs.preemption or needs.reservations  # a caller that may do either mostly may do both
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
