"""Lists the kernels that a broker needs for its rule and ledger, so that several processes can compile them.

If the list lacks a kernel, the broker compiles it more slowly in the trial decisions of
`rlsched.broker.server.broker_policy`, and `tests/unit/compile/test_ahead.py` fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from rlsched.cluster import capacity, choose, digest, kernels, loans, placement
from rlsched.cluster.arrays import empty_state
from rlsched.cluster.shape import Needs
from rlsched.compile.ahead import Piece
from rlsched.compile.kernel_cache import is_kept
from rlsched.decide import clearing, price, recording, rule_scheduler
from rlsched.decide.compiled import for_needs
from rlsched.decide.options import RuleOptions
from rlsched.decide.order import queue, slack
from rlsched.decide.own import is_own
from rlsched.decide.plans import plan
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.energy.relative import OUTLOOK

Entry = tuple[Any, tuple[Any, ...]]
"""A kernel (compiled function) to compile, and example arguments, of which only the types matter."""


def pieces(policy: Policy, scheduler: Scheduler, *, has_models: bool = False) -> list[Piece]:
    """Return functions that compile the kernels that a broker with this policy needs, one for each kernel.

    The slowest function is first. Kernels that are compiled already are left out.

    Args:
        policy: The policy from which the scheduler was loaded.
        scheduler: The scheduler. If it has no rule, or its rule is in a user's file, the result is empty.
        has_models: Whether to include the kernels that choose clocks. If not, the broker compiles them when
            the first job needs them.
    """
    if scheduler.rule is None or is_own(policy.settings.rule):
        return []
    entries = entries_of(scheduler, has_models=has_models)
    return [
        partial(compile_entry, policy, has_models, number)
        for number, (kernel, _) in enumerate(entries)
        if not is_kept(kernel.py_func)
    ]


def compile_entry(policy: Policy, has_models: bool, number: int) -> None:
    """Compile the kernel at index `number` in the list that `entries_of` returns for a policy."""
    kernel, arguments = entries_of(load_scheduler(policy), has_models=has_models)[number]
    kernel.compile_for(*arguments)


def entries_of(scheduler: Scheduler, *, has_models: bool = False) -> list[Entry]:
    """Return the kernels that a broker calls for a scheduler with a rule, each with example arguments.

    The kernel of a decision is first, because it takes half of the compile time. Kernels that share no code
    with it are next, so that the processes that compile the list do not wait for each other.
    """
    s, rule = empty_state(2, 8, 256, 1, 4, order=queue.OrderedQueue(scheduler.order).arrays), scheduler.rule
    assert rule is not None
    can = scheduler.abilities
    needs = Needs(has_models, can.preempts and scheduler.order.preempts, not math.isinf(can.reserve_after_s))
    bound = rule.steps.bound
    partition, options, now_s = 0, rule.options, 0.0
    first = [(for_needs(rule_scheduler.first_move, needs=needs, **bound), (s, partition, options, now_s))]
    if rule.steps.looks:
        first.append(
            (for_needs(rule_scheduler.look_again_s, needs=needs, **bound), (s, partition, options, now_s))
        )
    found = np.empty(1, recording.FOUND).view(np.recarray)
    last = [
        (choose.choose, (s, 0, 0, 0, np.empty(1, np.int32))),
        (for_needs(recording.list_plans, needs=needs), (s, 0, 0, options.start, now_s, found)),
    ]
    if rule.steps.priced:
        last += _of_prices(s, rule.options, needs)
    if options.start.chooses_type:
        last.append((for_needs(plan.node_to_place, needs=needs), (s, 0, 0, options.start, -1)))
    return [*first, *_of_ledger(s, scheduler), *last]


def _of_prices(s: Any, o: RuleOptions, needs: Needs) -> Iterator[Entry]:
    """Yield the kernels that react to the price of electricity, and the kernels that explain the reaction."""
    slot, partition, now_s, preempts = 0, 0, 0.0, False
    yield for_needs(price.defer_jobs, needs=needs), (s, o.start.price, preempts, now_s)
    yield for_needs(price.next_to_pause, needs=needs), (s, partition, o.start.price, preempts, now_s)
    yield price.review_s, (s, o.start.price)
    yield kernels.set_price, (s, 0.0, np.empty(len(OUTLOOK)), now_s)
    yield clearing.latest_wait_s, (s, slot, 0.0, 0.0, now_s)
    yield price.planned_start, (s, slot, o.start.price, now_s)


def _of_ledger(s: Any, scheduler: Scheduler) -> Iterator[Entry]:
    """Yield the kernels of the ledger, which record submissions, starts and ends of jobs."""
    slot, now_s, slots, gpus = 0, 0.0, np.empty(1, np.int64), np.empty(1, np.int32)
    yield queue.arrive, (s, slot, now_s)
    yield queue.make_eligible, (s, slots, now_s)
    yield queue.requeue, (s, slot, now_s)
    yield queue.rank, (s, slot, now_s)
    yield queue.rank_by_slack, (s, now_s)
    yield slack.slack_ln_weight, (s, slot, now_s)
    yield slack.next_slack_change_s, (s, slot, now_s)
    if scheduler.abilities.preempts:
        yield kernels.note_moved, (s, slot, 0)
    if scheduler.order.revised:
        yield queue.started, (s, slot, now_s)
        yield queue.ended, (s, slot, 0.0, now_s)
    yield kernels.rebuild_index, (s,)
    yield kernels.forget_answers, (s,)
    yield kernels.size_class, (s, 0)
    yield kernels.admit_job, (s, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, False, 0, 0.0, False, 0)
    yield kernels.describe_job, (s, slot, 0, 0)
    yield kernels.rank_job, (s, slot, 0, 0.0)
    yield kernels.share_job, (s, slot, False, 0)
    yield kernels.make_ineligible, (s, slots)
    yield kernels.dequeue, (s, slot)
    yield kernels.enqueue, (s, slot, 0.0)
    yield kernels.undefer, (s, slot)
    yield kernels.forget_speeds, (s, 0)
    yield kernels.allocate, (s, slot, gpus, 0, 0, 0, 0.0, now_s)
    yield loans.withdraw_one, (s, slot)
    yield loans.exceed_parts, (s,)
    yield kernels.release, (s, slot, now_s)
    yield kernels.close_node, (s, 0)
    yield kernels.set_node_status, (s, 0, 0)
    yield placement.class_fits, (s, 0, 0)
    yield placement.fits, (s, 0, 1)
    yield kernels.forget, (s, slot)
    yield capacity.places_on, (s, 0, 0)
    yield digest.sums, digest.arguments(s)
    yield placement.first_fitting, (s, 0, 0)
