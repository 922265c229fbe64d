"""Queue-order rules as data, and the one compiled step that runs them in simulator and broker alike."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import msgspec

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.lanes import comes_before
from rlsched.cluster.placement import class_fits, fits_slot
from rlsched.decide.abilities import (
    BLOCKED,
    NEVER,
    NO_ABILITIES,
    NO_ABILITY,
    Abilities,
    AbilityCode,
    next_to_share,
)
from rlsched.decide.aging import next_by_age
from rlsched.decide.easy import next_by_easy
from rlsched.decide.orders import Order
from rlsched.decide.reserve import next_by_reserve
from rlsched.decide.scheduler import Information
from rlsched.jit import kernel, large_kernel

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
    can: AbilityCode


SKIPPING: Final = RuleCode(PLAIN, False, math.inf, 0.0, NO_ABILITY)
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
            this is a long one. `easy`: a job has a reservation only when it has waited so long.
        free_frac: `reserve`: share of a partition's GPUs that stays free after the start of a long job.
        abilities: What it may do beside starting jobs on free GPUs.
        revises: Whether predictions of waiting jobs follow what their siblings do (`cluster.siblings`).
        profile_s: What Lucid's profiler costs: jobs that run longer begin by so much work that is lost ...
        profile_max_gpus: ... if they have no more GPUs than this.
    """

    name: str
    order: Order
    blocks: bool = False
    information: Information = "causal"
    kind: RuleKind = "plain"
    bound_s: float = math.inf
    free_frac: float = 0.0
    abilities: Abilities = NO_ABILITIES
    revises: bool = False
    profile_s: float = 0.0
    profile_max_gpus: float = math.inf

    @property
    def code(self) -> RuleCode:
        """The rule for kernels."""
        return RuleCode(
            _KIND_CODES[self.kind],
            self.blocks,
            float(self.bound_s),
            float(self.free_frac),
            self.abilities.code,
        )


@kernel
def next_by_rule(s: StateArrays, p: int, blocks: bool) -> int:
    """Slot of the next job that a plain rule starts in partition `p`, -1 for none.

    The first of the queue order, where it fits, or, for a rule that does not block, the first that fits: the
    first among the tops of the demand classes that fit.
    """
    lane, first = s.derived.lane, -1
    for c in range(lane.shape[1]):
        top = lane.root[p, c]
        if top >= 0 and (first < 0 or comes_before(s, top, first)) and (blocks or class_fits(s, p, c)):
            first = top
    return first if first < 0 or not blocks or fits_slot(s, p, first) else -1


@kernel
def next_to_start(s: StateArrays, p: int, rule: RuleCode, now_s: float) -> int:
    """Slot of the next job that any rule starts in partition `p`, -1 for none.

    All but plain rules need the sorted queue (`SORTS_QUEUE`).
    """
    if rule.kind == PLAIN:
        return next_by_rule(s, p, rule.blocks)
    if rule.kind == EASY:
        position = next_by_easy(s, p, now_s, rule.bound_s)
    elif rule.kind == AGING:
        position = next_by_age(s, p, rule.bound_s, now_s)
    else:
        position = next_by_reserve(s, p, rule.bound_s, rule.free_frac)
    return s.derived.queue[p, position] if position >= 0 else -1


@large_kernel
def next_move(s: StateArrays, p: int, rule: RuleCode, now_s: float) -> tuple[int, int]:
    """(slot, running slot to share GPUs with or -1) of the next job that a rule starts; (-1, -1) for none.

    Rules that share where jobs are blocked start on free GPUs first; Lucid's takes the first job of the order
    that can do either, and prefers to share.
    """
    slot = next_to_start(s, p, rule, now_s)
    if rule.can.share == NEVER or (slot >= 0 and rule.can.share == BLOCKED):
        return slot, -1
    sharer, beside = next_to_share(s, p, rule.blocks, rule.can)
    if slot < 0 or (sharer >= 0 and (sharer == slot or comes_before(s, sharer, slot))):
        return sharer, beside
    return slot, -1
