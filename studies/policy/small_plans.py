"""The best plans of a small instance: `tuned` with true run times, with a search over prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched_envs.sim.engine import Engine
from studies.policy.small_instances import Instance, Tables, cost, engine_of

PRICES: Final[dict[str, tuple[Any, ...]]] = {
    "types.price": (0.3, 0.0, 1.0),
    "types.later": (2.0, 0.5, 1.0, inf),
    "share.min_gain": (0.15, -1.0, 0.0, 0.3, 0.6),
    "share.min_gain_more": (None, -1.0, 0.15, 0.6),
    "share.by_hold": (5.0, 0.0),
    "share.min_speed": (0.5, 0.0),
    "share.when": ("better", "blocked"),
    "share.max_jobs": (4, 2),
    "order": ("area^0.7", "predicted", "area"),
    "reserve_after": (3600.0, 0.0, None),
    "preempt.margin": (0.5, 0.0, 1.0, 2.0),
    "preempt.gpus_power": (0.7, 0.4, 1.0),
    "clock.energy_weight": (None, 0.0, 0.1, 0.6),
}
"""Searched settings, the shipped value of each first."""
SHIPPED: Final = (0,) * len(PRICES)
DRAWN: Final = 120
"""Number of random points of `PRICES` at which every instance is run. A search from the best point then
changes one price at a time."""
ROUNDS: Final = 2


def points() -> list[tuple[int, ...]]:
    """Return the points of all instances: the shipped settings, then random settings.

    A point has, for each of `PRICES`, the index of a value.
    """
    rng = np.random.default_rng(0)
    drawn = [tuple(int(rng.integers(len(each))) for each in PRICES.values()) for _ in range(DRAWN)]
    return [SHIPPED, *drawn]


def settings_at(point: Sequence[int]) -> list[str]:
    """The settings of a point that are not as shipped."""
    return [f"{name}={each[k]}" for (name, each), k in zip(PRICES.items(), point, strict=True) if k]


def _asked_of(one: Instance) -> tuple[int, ...]:
    """Return the positions in `PRICES` of the prices that have an effect in an instance."""
    silent = {"order", "reserve_after"} if one.preempts else {"preempt.margin", "preempt.gpus_power"}
    if one.energy_weight == 0.0:
        silent = silent | {"clock.energy_weight"}
    return tuple(k for k, name in enumerate(PRICES) if name not in silent)


@cache
def scheduler_at(point: tuple[int, ...], preempts: bool) -> RuleScheduler:
    """`tuned` at a point, with the true run times."""
    values = {name: each[k] for (name, each), k in zip(PRICES.items(), point, strict=True)}
    said: dict[str, Any] = {"predictions": "oracle", "cores": False}
    for name, value in values.items():
        table, _, key = name.partition(".")
        if key:
            said.setdefault(table, {})[key] = value
        else:
            said[name] = value
    if preempts:
        said |= {"order": None, "reserve_after": None}
        said["preempt"] |= {"by": "gittins", "declared": False, "tick": "1s"}
    else:
        said["preempt"] = None
    return RuleScheduler(Policy("tuned", **said))


def rule_costs(one: Instance, tables: Tables) -> Callable[[RuleScheduler], float]:
    """Return a function that runs a rule in the engine and returns its cost.

    A run is prepared once for all rules with the same queue order, because a copy takes a fifth of the time.
    """
    laid_out = dict[Order, Engine]()

    def cost_of(scheduler: RuleScheduler) -> float:
        if scheduler.order not in laid_out:
            laid_out[scheduler.order] = engine_of(one, scheduler.order)
        return cost(tables, deepcopy(laid_out[scheduler.order]).run_rule(scheduler.rule))

    return cost_of


def costs_at(one: Instance, tables: Tables) -> tuple[NDArray[np.float64], float]:
    """Cost of an instance at all `points`, and at the best prices of a search from there."""
    asked, known, cost_of = _asked_of(one), dict[tuple[int, ...], float](), rule_costs(one, tables)

    def cost_at(point: Sequence[int]) -> float:
        """Return the cost at a point; points that differ only in prices without effect are run once."""
        same = tuple(k if position in asked else 0 for position, k in enumerate(point))
        if same not in known:
            known[same] = cost_of(scheduler_at(same, one.preempts))
        return known[same]

    tried = points()
    costs = np.array([cost_at(point) for point in tried])
    best, least = tried[int(costs.argmin())], float(costs.min())
    for _ in range(ROUNDS):
        before = least
        for position in asked:
            for k in range(len(tuple(PRICES.values())[position])):
                point = (*best[:position], k, *best[position + 1 :])
                if cost_at(point) < least:
                    best, least = point, cost_at(point)
        if least == before:
            break
    return costs, least
