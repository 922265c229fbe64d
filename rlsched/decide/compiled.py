"""Kernels of decisions compiled for what a state needs: models or none, preemption, reservations."""

from __future__ import annotations

from typing import Any

from rlsched.cluster.state import ClusterState
from rlsched.jit import specialise

_FOUND: dict[tuple[Any, ...], Any] = {}


def for_state(template: Any, state: ClusterState, **bound: Any) -> Any:
    """The kernel of a template that this state needs.

    Args:
        template: It leaves open what `decide.constants` names.
        state: The state that it will be called with.
        **bound: What else it leaves open.
    """
    key = (template, state.needs, *bound.values())
    found = _FOUND.get(key)
    if found is None:
        needs = state.needs
        found = _FOUND[key] = specialise(
            template,
            MODELLED=needs.models,
            PREEMPTING=needs.preemption,
            RESERVING=needs.reservations,
            **bound,
        )
    return found
