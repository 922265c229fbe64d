"""`Steps`: the four functions of a rule; `CompiledRule`: a rule with its options; and the installed rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.options import NEVER, NO_PRICE, PLAIN_START, RuleOptions
from rlsched.decide.order.keys import Order
from rlsched.decide.rules import backfill, declared, gittins, greedy, keep_free, las


@dataclass(frozen=True)
class Steps:
    """The four functions of a rule, and the properties that a loop needs.

    Attributes:
        begin, next_move, after, next_look_s: The functions that `rlsched.decide.rules` describes.
        looks: Whether the rule must also decide at times without an event (`next_look_s`).
        skips_quiet: Whether the loop can skip a partition that has not changed since the rule last returned
            no move for it.
        sorted_queue: Whether the rule reads the sorted queue; False: only the heaps of waiting jobs, one per
            demand class.
        dialled: Whether dials adjust the settings of the rule.
        priced: Whether decisions follow the price of electricity, or a power limit.
    """

    begin: Any
    next_move: Any
    after: Any
    next_look_s: Any
    looks: bool = False
    skips_quiet: bool = False
    sorted_queue: bool = True
    dialled: bool = False
    priced: bool = False

    @classmethod
    def from_module(cls, module: Any) -> Steps:
        """Return the rule of a module or class.

        Functions that the module lacks are taken from `greedy`. The module can set `LOOKS`, `SKIPS_QUIET`
        and `SORTED_QUEUE`.
        """
        functions = {
            name: getattr(module, name, getattr(greedy, name))
            for name in ("begin", "next_move", "after", "next_look_s")
        }
        return cls(
            **functions,
            looks=getattr(module, "LOOKS", False),
            skips_quiet=getattr(module, "SKIPS_QUIET", False),
            sorted_queue=getattr(module, "SORTED_QUEUE", True),
        )

    def with_dials(self) -> Steps:
        """Return the rule with dials. The loop then skips no partition: dials can change any decision."""
        return replace(self, dialled=True, skips_quiet=False)

    def with_price(self) -> Steps:
        """Return the rule with decisions that follow the price of electricity, or a power limit."""
        return replace(self, priced=True)

    @cached_property
    def bound(self) -> dict[str, Any]:
        """Return a dict: name in compiled kernels -> the function or the constant of this rule."""
        return {
            "begin": self.begin,
            "next_move": self.next_move,
            "after": self.after,
            "next_look_s": self.next_look_s,
            "DIALLED": self.dialled,
            "PRICED": self.priced,
        }


@dataclass(frozen=True, eq=False)
class CompiledRule:
    """A rule with its options: all data that a compiled loop needs.

    Attributes:
        steps: The functions of the rule.
        options: The options of the rule.
        order: Order of the queue.
        strategy: Strategy that sets the dials; None: all dials stay at 0.
        plain_without_models: Whether the rule can run on a cluster without models; it then neither shares
            GPUs, nor sets clocks, nor moves cores.
        profile_s: Duration of a profiler's run, seconds; 0: no profiler. The first attempt of a job takes
            this time longer, if its run time exceeds this time.
        profile_max_gpus: Largest number of GPUs of a job that is profiled.
    """

    steps: Steps
    options: RuleOptions
    order: Order
    strategy: Strategy | None = None
    plain_without_models: bool = False
    profile_s: float = 0.0
    profile_max_gpus: float = math.inf

    def dialled_by(self, strategy: Strategy) -> CompiledRule:
        """Return the rule with a strategy that sets its dials."""
        steps = self.steps.with_dials()
        return replace(self, steps=steps.with_price() if strategy.follows_price else steps, strategy=strategy)

    @property
    def sorted_queue(self) -> bool:
        """Whether the rule reads the sorted queue."""
        return self.steps.sorted_queue or self.steps.dialled or self.options.start.share != NEVER

    @property
    def needs_models(self) -> bool:
        """Whether the actions of the rule require models."""
        start = self.options.start._replace(price=NO_PRICE)
        return start != PLAIN_START and not self.plain_without_models


RULES = {
    "greedy": Steps.from_module(greedy),
    "backfill": Steps.from_module(backfill),
    "declared": Steps.from_module(declared),
    "keep-free": Steps.from_module(keep_free),
    "gittins": Steps.from_module(gittins),
    "las": Steps.from_module(las),
}
"""The rules by name; `rules.making` chooses a rule by the settings of a policy."""
