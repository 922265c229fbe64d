"""Loads a broker's policy, compiles its kernels before the broker serves, and adds the guard."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from rlsched.broker.base.ledger_models import LedgerModels, workload_name, workload_number
from rlsched.broker.server.ahead import pieces
from rlsched.cluster import kernels
from rlsched.cluster.arrays import DEFERRED, NODE_DRAINED
from rlsched.cluster.placement import class_fits, fits
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.compile.ahead import compile_pieces
from rlsched.decide.clearing import latest_wait_s
from rlsched.decide.compiled import for_state
from rlsched.decide.guard import Guarded
from rlsched.decide.limit import drawn_w, level_too_low, power_left_w, start_w
from rlsched.decide.loop import decide_all
from rlsched.decide.order.queue import OrderedQueue, rank_by_slack
from rlsched.decide.order.slack import next_slack_change_s, slack_ln_weight
from rlsched.decide.own import is_own
from rlsched.decide.policies.policy import Policy
from rlsched.decide.price import planned_start
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.decide.start import policy_start
from rlsched.energy.relative import AHEAD_H
from rlsched.errors import InputError
from rlsched.models.at_clock import MIN_CLOCK_FRAC
from rlsched.models.learning import Observed

_LOW_W: Final = 1_500.0
"""Power limit of the cluster on which trial decisions are made, W: so low that clocks fall and jobs wait."""


def load_policy(
    policy: Policy,
    fallback: Policy | None,
    budget_ms: float,
    *,
    seed: int = 0,
    has_models: bool = False,
    shares: bool = False,
    limits_power: bool = False,
) -> tuple[Scheduler, str]:
    """Load a policy, compile its kernels, and add the guard.

    Args:
        policy: The policy.
        fallback: The rule that decides if the policy fails; None: the rule on which the policy is based
            (`Scheduler.reference`).
        budget_ms: Time limit for one decision, milliseconds.
        seed: Seed of the policy's random draws.
        has_models: Whether to compile also the kernels that choose clocks; False: they are compiled when the
            first job needs them.
        shares: Whether jobs can share GPUs. If not, a policy that needs models of speed is refused.
        limits_power: Whether to compile also the kernels that keep a power limit.

    Returns:
        The scheduler, and the name of its fallback rule; "" if it needs no fallback.

    Raises:
        InputError: the policy cannot be loaded or served, or the fallback does not fit the policy.
    """
    scheduler = _load("--policy", policy, seed, shares)
    rule = fallback or scheduler.reference
    behind = None if rule is None else _load("--fallback", rule, seed, shares)
    has_models = has_models or shares or limits_power
    ahead = pieces(policy, scheduler, has_models=has_models)
    if rule is not None and behind is not None:
        _check_fallback(scheduler, behind)
        ahead += pieces(rule, behind, has_models=has_models)
    compile_pieces(ahead)
    try:
        _warm_up(scheduler, has_models, shares, limits_power)
    except Exception as error:  # a user's own file may raise any error
        if not is_own(policy.settings.rule):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(
            f"--policy {policy.name!r} failed in the trial run on a small cluster: {why}"
        ) from error
    if rule is None and is_own(policy.settings.rule) and scheduler.rule is None:
        raise InputError(
            f"--policy {policy.name!r} is user code and may fail: give a --fallback with queue order "
            f"{scheduler.order.in_words}"
        )
    if behind is None:
        return scheduler, ""
    _warm_up(behind, has_models, shares, limits_power)
    return Guarded(scheduler, behind, budget_ms=budget_ms), behind.name


def _load(option: str, policy: Policy, seed: int, shares: bool) -> Scheduler:
    try:
        scheduler = load_scheduler(policy, seed=seed)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{option} {policy.name!r} cannot be loaded: {error}") from error
    if scheduler.oracle:
        raise InputError(
            f"{option} {policy.name!r} needs the true run times, which a broker cannot know; choose another"
        )
    if scheduler.abilities.needs_models and not shares:
        raise InputError(
            f"{option} {policy.name!r} shares GPUs or sets clocks or cores; this needs speed models, which a "
            "broker has only with --share; add --share, or choose another policy (for clocks only: "
            "--speed-energy W)"
        )
    return scheduler


def _check_fallback(policy: Scheduler, fallback: Scheduler) -> None:
    """Check that a fallback rule can decide in place of a policy.

    Raises:
        InputError: the fallback has another queue order, or preempts although the policy does not.
    """
    if policy.order != fallback.order:
        raise InputError(
            f"--fallback {fallback.name!r} keeps the queue by {fallback.order.in_words}, --policy "
            f"{policy.name!r} by {policy.order.in_words}; choose a fallback of the same order"
        )
    if fallback.abilities.preempts and not policy.abilities.preempts:
        raise InputError(
            f"--fallback {fallback.name!r} preempts jobs, --policy {policy.name!r} does not; "
            "choose a fallback that does not preempt"
        )


def _warm_up(scheduler: Scheduler, has_models: bool, shares: bool, limits_power: bool) -> None:
    """Make trial decisions on a small cluster, so that kernels are compiled before the broker needs them."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(scheduler.order))
    permit(state, scheduler)
    models = LedgerModels(state)
    if has_models:
        models.weigh(0.5)
        models.share(shares)
    if limits_power:
        models.limit_power(_LOW_W)
    seqs = {
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=60.0 * gpus, spread=1.0)
        for gpus in (1, 3, 2, 8, 4, 1, 2)
    }
    state.stops_take_time = True
    state.make_ineligible(sorted(seqs)[:1])  # kernels for quotas
    state.make_eligible(sorted(seqs)[:1], 0.0)
    state.rank_job(min(seqs), 0, 0.0, 0.0)  # kernels for priorities and changes of jobs
    rank_by_slack(state.arrays, 0.0)
    slack_ln_weight(state.arrays, 0, 0.0)
    next_slack_change_s(state.arrays, 0, 0.0)
    state.share_job(min(seqs), shares=True, gpu_need_mib=-1)
    if shares:  # kernels for observed speeds of jobs that share GPUs
        policy_start(state)
        one, two = map(workload_name, (1, 2))
        models.observe(Observed(one, two, state.kind_names[0], 0.5))
        models.pairs.put_into(state.arrays.models, state.kind_names, workload_number)
    if scheduler.rule is not None and scheduler.rule.steps.priced:
        _show_price(state, scheduler)
    for now_s in (3600.0, 7200.0):  # tick times, for rules that decide at ticks
        for _ in decide_all(state, scheduler, now_s, record=True):
            pass
        scheduler.review_s(state)
        if limits_power:
            _show_limit(state, models)
        for seq in state.running() if shares else ():
            models.shared_frac(seq)
        running = sorted(seqs & set(state.running()))
        if scheduler.abilities.preempts and running:
            state.preempt(running[0], now_s + 0.5)
        if running:  # kernels for attempts that end, while their jobs do not
            state.requeue(running[0], now_s + 0.5)
        for seq in running[1:]:
            state.release(seq, now_s)
    kernels.close_node(state.arrays, 0)  # kernels for changes of a node that one job has as a whole
    kernels.set_node_status(state.arrays, 0, NODE_DRAINED)
    class_fits(state.arrays, 0, 0)  # kernels for the reasons of waiting jobs
    fits(state.arrays, 0, 1)
    slot = state.slot_of(state.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0))
    kernels.dequeue(state.arrays, slot)  # kernels for cancelled and changed jobs
    kernels.enqueue(state.arrays, slot, 0.0)
    kernels.undefer(state.arrays, slot)
    kernels.forget_speeds(state.arrays, 0)


def _show_price(state: ClusterState, scheduler: Scheduler) -> None:
    """Call each kernel that the broker and `rlsched why` need for prices, so that it is compiled."""
    state.set_price(1.0, (), math.inf)
    latest_wait_s(state.arrays, 0, 0.0, 0.0, 0.0)
    if scheduler.price_options is not None:
        state.set_price(1.0, (), math.inf, 0.0, (1.0,) * AHEAD_H)
        planned_start(state.arrays, 0, scheduler.price_options, 0.0)


def _show_limit(state: ClusterState, models: LedgerModels) -> None:
    """Call each kernel that the broker and its clients need under a power limit, so that it is compiled."""
    drawn_w(state.arrays, 1.0, 1.0)
    for slot in np.flatnonzero(state.arrays.job.status == DEFERRED).tolist():
        for_state(level_too_low, state)(state.arrays, slot, 0.0)
        power_left_w(state.arrays, slot, 0, 0.0)
        start_w(state.arrays, slot, MIN_CLOCK_FRAC)
    for seq in state.running():
        models.clock_cap(seq)
