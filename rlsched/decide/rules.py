"""Queue-order rules as data, and the one compiled step that runs them in simulator and broker alike."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import msgspec

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import first_fitting, fits
from rlsched.decide.aging import next_by_age
from rlsched.decide.easy import next_by_easy
from rlsched.decide.reserve import next_by_reserve
from rlsched.decide.scheduler import Information, Order
from rlsched.jit import kernel

RuleKind = Literal["plain", "easy", "aging", "reserve"]
"""What decides beside the order: fit alone, or `decide.easy`, `decide.aging`, `decide.reserve`."""

PLAIN: Final = 0
EASY: Final = 1
AGING: Final = 2
RESERVE: Final = 3
_KIND_CODES: Final = {"plain": PLAIN, "easy": EASY, "aging": AGING, "reserve": RESERVE}


class RuleCode(NamedTuple):
    """A rule as kernels take it."""

    kind: int
    blocks: bool
    bound_s: float
    free_frac: float


SKIPPING: Final = RuleCode(PLAIN, False, math.inf, 0.0)
"""The plain rules that go on behind a job that does not fit; the order is the state's."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A queue-order heuristic.

    Attributes:
        name: Its name on the command line.
        order: The key of the queue.
        blocks: Whether the first job that does not fit blocks those behind it; plain rules alone.
        information: Whether the predictions it is fed are causal or the true durations.
        kind: What decides beside the order.
        bound_s: `aging`: a job is overdue when it has waited so long. `reserve`: a job predicted longer than
            this is a long one.
        free_frac: `reserve`: share of a partition's GPUs that stays free after the start of a long job.
    """

    name: str
    order: Order
    blocks: bool = False
    information: Information = "causal"
    kind: RuleKind = "plain"
    bound_s: float = math.inf
    free_frac: float = 0.0

    @property
    def code(self) -> RuleCode:
        """The rule for kernels."""
        return RuleCode(_KIND_CODES[self.kind], self.blocks, float(self.bound_s), float(self.free_frac))


@kernel
def next_by_rule(s: StateArrays, p: int, blocks: bool, position: int) -> int:
    """Queue position of the next job that a plain rule starts in partition `p`, -1 for none.

    `position`: where to go on; jobs before it are known not to fit.
    """
    if not blocks:
        return first_fitting(s, p, position)
    if s.derived.part.queue_len[p] > 0 and fits(s, p, s.job.gpus[s.derived.queue[p, 0]]):
        return 0
    return -1


@kernel
def next_to_start(s: StateArrays, p: int, rule: RuleCode, position: int, now_s: float) -> int:
    """Queue position of the next job that any rule starts in partition `p`, -1 for none.

    `position`: where to go on at the same instant; 0 is always right.
    """
    if rule.kind == PLAIN:
        return next_by_rule(s, p, rule.blocks, position)
    if rule.kind == EASY:
        return next_by_easy(s, p, now_s)
    if rule.kind == AGING:
        return next_by_age(s, p, rule.bound_s, now_s)
    return next_by_reserve(s, p, rule.bound_s, rule.free_frac, position)
