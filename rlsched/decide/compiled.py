"""Kernels of decisions compiled for what a state needs: models or none, preemption, reservations."""

from __future__ import annotations

from typing import Any

from rlsched.cluster.shape import Needs
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise

_FOUND: dict[tuple[Any, ...], Any] = {}


def for_state(template: Any, state: ClusterState, **bound: Any) -> Any:
    """The kernel of a template that this state needs.

    Args:
        template: It leaves open what `decide.constants` names.
        state: The state that it will be called with.
        **bound: What else it leaves open.
    """
    return for_needs(template, needs=state.needs, **bound)


def for_needs(template: Any, *, needs: Needs, **bound: Any) -> Any:
    """As `for_state`, for states of these needs."""
    more = needs.preemption or needs.reservations  # what may do one is mostly served where it may do both
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
