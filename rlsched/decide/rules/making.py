"""Creates the rule that the settings of a policy define."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import numpy as np

from rlsched.compile.jit import Kernel
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.options import (
    BETTER,
    BLOCKED,
    FIXED,
    FULL,
    KEEP_FRAC,
    LUCID,
    LULL,
    NEVER,
    NO_GATE,
    NO_PRICE,
    SLOWDOWN,
    WEIGHED,
    Gate,
    PriceOptions,
    RuleOptions,
    StartOptions,
)
from rlsched.decide.order.gittins import Gittins
from rlsched.decide.order.keys import LEVEL_LN, Order
from rlsched.decide.own import file_of, loaded
from rlsched.decide.rules.steps import RULES, CompiledRule, Steps
from rlsched.decide.settings import ClockSettings, PreemptSettings, Settings, Share
from rlsched.errors import InputError

_WHEN = {"blocked": BLOCKED, "better": BETTER, "lucid": LUCID}
_CLOCKS = {"fixed": FIXED, "slowdown": SLOWDOWN, "lull": LULL, "weighed": WEIGHED}


def make_rule(settings: Settings) -> CompiledRule:
    """Return the rule that the settings of a policy define.

    Raises:
        InputError: a user-defined rule cannot be loaded.
    """
    steps = own_steps(settings.rule) if settings.rule else RULES[_kind(settings)]
    steps = steps.with_price() if settings.price is not None else steps
    profile = settings.profile
    made = CompiledRule(
        steps,
        _options(settings),
        order_of(settings),
        None,
        settings.plain_without_models,
        profile_s=float(profile.run) if profile else 0.0,
        profile_max_gpus=float(profile.max_gpus) if profile else math.inf,
    )
    return made.dialled_by(Strategy.of_setting(settings.dials)) if settings.dials else made


def order_of(settings: Settings) -> Order:
    """Return the queue order of a policy."""
    revised, preempt = settings.predictions == "revised", settings.preempt
    indexed = preempt is not None and preempt.by != "quota"
    declared = preempt is not None and preempt.declared
    order = Order(by="index") if indexed and not declared else Order.parse(settings.order or "submit")
    return msgspec.structs.replace(
        order,
        index=_index(preempt) if preempt is not None and indexed else order.index,
        revised=revised,
        until_declared=declared,
        slack=settings.slack,
    )


def _kind(settings: Settings) -> str:
    if settings.preempt is not None and settings.preempt.declared:
        return "declared"
    if settings.preempt is not None:
        return "las" if settings.preempt.by == "quota" else "gittins"
    if settings.reserve_after is not None:
        return "backfill"
    return "keep-free" if settings.leave_free is not None else "greedy"


def _index(preempt: PreemptSettings) -> Gittins:
    return Gittins(
        spread=preempt.spread,
        trust=preempt.trust,
        of_mean=preempt.of_mean,
        gpus_power=preempt.gpus_power,
        margin=LEVEL_LN / 2 if preempt.by == "priority" else preempt.margin,
        age_step=preempt.age_step,
        first_age_s=float(preempt.first_age),
        tick_s=float(preempt.tick),
        threshold_gpu_s=preempt.threshold_gpu_s if preempt.by == "service" else math.inf,
    )


def _options(settings: Settings) -> RuleOptions:
    preempt, leave = settings.preempt, settings.leave_free
    after = settings.reserve_after
    return RuleOptions(
        blocks=settings.blocks,
        reserve_after_s=math.inf if after is None else float(after),
        long_job_s=float(leave.longer_than) if leave else math.inf,
        leave_frac=float(leave.share) if leave else 0.0,
        threshold_gpu_s=float(preempt.threshold_gpu_s) if preempt else math.inf,
        tick_s=float(preempt.tick) if preempt else 0.0,
        preempts=preempt is not None,
        start=_start(settings),
        own=np.array(settings.own, np.float64),
    )


def _start(settings: Settings) -> StartOptions:
    share, clock, price = settings.share, settings.clock, settings.price
    return StartOptions(
        share=NEVER if share is None else _WHEN[share.when],
        max_jobs=share.max_jobs if share else 2,
        min_speed=float(share.min_speed) if share else KEEP_FRAC,
        clock=FULL if clock is None else _CLOCKS[clock.rule],
        clock_value=_clock_value(clock),
        cores=settings.cores,
        gate=_gate(share),
        chooses_type=settings.types is not None,
        type_price=float(settings.types.price) if settings.types else 0.0,
        later=float(settings.types.later) if settings.types else math.inf,
        price=NO_PRICE
        if price is None
        else PriceOptions(
            power=float(price.power),
            defer=float(price.defer),
            pause=float(price.pause),
            window=price.window,
            percentile=float(price.percentile),
            longer_than_s=float(price.longer_than),
            spare=float(price.spare),
        ),
    )


def _gate(share: Share | None) -> Gate:
    if share is None:
        return NO_GATE
    more = share.min_gain if share.min_gain_more is None else share.min_gain_more
    tilts = (share.by_length, share.by_left, share.by_queue, share.by_slowest, share.by_hold)
    asks = NO_GATE._replace(is_shut=True) != (True, share.min_gain, more, *tilts)
    return Gate(asks, float(share.min_gain), float(more), *map(float, tilts))


def _clock_value(clock: ClockSettings | None) -> float:
    if clock is None:
        return 1.0
    if clock.rule == "fixed":
        return float(clock.at)
    if clock.rule == "weighed":
        return -1.0 if clock.energy_weight is None else float(clock.energy_weight)
    return float(clock.slowdown)


def own_steps(rule: str) -> Steps:
    """Load a user-defined rule from its Python file.

    Raises:
        InputError: the file does not exist, cannot be run, or defines no rule.
    """
    found = loaded(rule)
    if isinstance(found, Kernel):
        found = SimpleNamespace(next_move=found)
    if not isinstance(getattr(found, "next_move", None), Kernel):
        raise InputError(
            f"{rule}: found no kernel `next_move(s, p, o, now_s)`; define one, or name a subclass of "
            f"Scheduler as {file_of(rule)}:NAME; see examples/own_rule.py and examples/own_scheduler.py"
        )
    return Steps.from_module(found)
