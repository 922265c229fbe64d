"""The settings of a policy, as typed data: the fields of a TOML file or a constructor, each defined once."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from rlsched.errors import InputError
from rlsched.settings import Seconds


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of settings."""


class LeaveFree(_Part, frozen=True, kw_only=True):
    """A long job starts only if a share of the GPUs stays free (`rules.keep_free`).

    Attributes:
        longer_than: Predicted run time above which a job is long.
        share: Share of a partition's GPUs that stays free, 0 to 1.
    """

    longer_than: Seconds = Seconds(43_200.0)
    share: float = 0.25


class Share(_Part, frozen=True, kw_only=True):
    """Jobs share GPUs, if models predict their speed (`decide.plans`).

    Attributes:
        min_speed: Predicted speed that all jobs on a shared GPU must keep; 1: the speed without sharing.
        max_jobs: Most jobs on a GPU, 2 to 4; measurements exist for pairs.
        when: `blocked`: jobs that find no free GPUs. `better`: also jobs for which shared GPUs of another
            type are worth more than free ones. `lucid`: all jobs that may share, before free GPUs, by Lucid's
            rule.
        min_gain: Least gain of a second job, its predicted speed less the speed that the other loses; -1:
            none.
        min_gain_more: Least gain of a third and fourth job; None: as `min_gain`.
        by_length: Added to both gains, times tanh(ln(predicted run time of the new job / 1 h) / 3).
        by_left: Added to both gains, times tanh(ln(predicted remaining time of the running job / 1 h) / 3).
        by_queue: Added to both gains, times 1 - exp(-4 x waiting jobs per GPU).
        by_slowest: Added to both gains, times the amount by which the slowest job is below a speed of 0.85.
        by_hold: Added to both gains, times (2 h)^3 x t / (t + 1 h): the jobs hold the share h of the
            partition's GPUs, and are predicted to hold them for t longer than without the new job. 0: a gang
            is priced as any job.
    """

    min_speed: float = 0.85
    max_jobs: int = 2
    min_gain: float = -1.0
    min_gain_more: float | None = None
    by_length: float = 0.0
    by_left: float = 0.0
    by_queue: float = 0.0
    by_slowest: float = 0.0
    by_hold: float = 0.0
    when: Literal["blocked", "better", "lucid"] = "blocked"


class ClockSettings(_Part, frozen=True, kw_only=True):
    """SM clocks below the highest, if models predict their effect (`decide.clocks`).

    Attributes:
        rule: `fixed`: the same for all jobs. `slowdown`: for each job the clock of least energy within a
            slowdown. `lull`: as `slowdown` while no other job waits, else the highest. `weighed`: for each
            job the clock of least weighted cost of time and energy; time counts more while jobs wait.
        at: `fixed`: the clock as a fraction of the maximum, 0.5 to 1.
        slowdown: `slowdown`, `lull`: the slowdown allowed; 0.05: 5 % longer.
        energy_weight: `weighed`: weight of energy against time, 0 to 1; None: the cluster's weight.
    """

    rule: Literal["fixed", "slowdown", "lull", "weighed"]
    at: float = 1.0
    slowdown: float = 0.0
    energy_weight: float | None = None


class PreemptSettings(_Part, frozen=True, kw_only=True):
    """Running jobs are preempted for waiting ones.

    Attributes:
        by: `gittins`: jobs of higher index are preempted if that makes room (`rules.gittins`). `service`: the
            same with two levels of attained service as the index. `priority`: the queue is in index order,
            and only jobs of lower priority are preempted. `quota`: the quota walk (`rules.las`), by two
            levels of attained service and then by the order of the queue.
        spread: `gittins`: standard deviation of ln(run time / prediction) that is added to the prediction's
            own.
        trust: `gittins`: factor of the standard deviation that comes with each prediction.
        of_mean: `gittins`: predictions are means of their lognormals instead of medians.
        gpus_power: `gittins`: power of a gang's GPUs by which its service is multiplied.
        margin: `gittins`: a job is preempted for a job whose ln(cost) is lower by this.
        age_step: `gittins`: factor between the steps in which ages count.
        first_age: `gittins`: the first age step.
        tick: Interval between decisions that depend on time. `quota`: all decisions are taken at its
            multiples; 0: at every event.
        threshold_gpu_s: `service`, `quota`: attained service, GPU-seconds, above which a job is of the second
            level.
        declared: Only jobs that declare it are preempted. Until the first such job is submitted, the queue
            follows `order`, with `reserve_after`; from then on, the index.
    """

    by: Literal["gittins", "service", "priority", "quota"] = "gittins"
    spread: float = 1.5
    trust: float = 0.0
    of_mean: bool = False
    gpus_power: float = 0.7
    margin: float = 0.5
    age_step: float = 2.0
    first_age: Seconds = Seconds(60.0)
    tick: Seconds = Seconds(60.0)
    threshold_gpu_s: float = math.inf
    declared: bool = False


class Types(_Part, frozen=True, kw_only=True):
    """Jobs start on the GPU type of highest worth to them, if models predict the speeds on several types.

    Attributes:
        price: Price of a type's usual speed; 0: fastest first; 1: fast GPUs go to the jobs that gain most.
        later: Factor of the waiting time when a job may wait for better GPUs than the free ones; infinite: no
            job waits.
    """

    price: float = 0.0
    later: float = math.inf


class PriceSettings(_Part, frozen=True, kw_only=True):
    """Decisions follow the price of electricity, if the price is known (`decide.price`).

    Attributes:
        power: Exponent of price / mean in the odds of energy against time, when `weighed` clocks are chosen.
        defer: A waiting job does not start before it has used tanh(defer x ln(price / mean)) of its slack, at
            most 0.8; 0: no job waits for a lower price.
        pause: The same for running jobs: a preemptible job is preempted, and does not start again, while it
            has used less than this share of its slack.
    """

    power: float = 0.0
    defer: float = 0.0
    pause: float = 0.0


class ProfilerSettings(_Part, frozen=True, kw_only=True):
    """Cost of a profiler: a job that runs longer than `run` first does work of this length, which is lost.

    Attributes:
        run: Time that the profiler runs a job.
        max_gpus: Most GPUs of a job that is profiled.
    """

    run: Seconds = Seconds(200.0)
    max_gpus: int = 8


class Settings(_Part, frozen=True, kw_only=True):
    """All settings of a policy. Settings that are left out have no effect.

    Attributes:
        rule: Rule or scheduler, if the other settings do not define one: `sb3`, `random`, another
            installed scheduler, the path of a Python file with a rule, or `FILE.py:NAME` of a rule or a
            scheduler in the file.
        order: Order of the queue: `submit`, `predicted`, `area` (predicted run time x GPUs), `area^0.7`,
            `remaining` or `index`; default: `index` if jobs preempt by it, else `submit`.
        blocks: The first job that does not fit holds up all later jobs.
        predictions: `submitted`: as made at submission. `revised`: revised by other jobs of the same burst.
            `oracle`: the true run times, a bound.
        reserve_after: Waiting time after which a job that does not fit gets a reservation, which no start
            delays.
        leave_free: Long jobs leave a share of the GPUs free.
        preempt: Running jobs are preempted.
        share: Jobs share GPUs.
        clock: SM clocks below the highest.
        cores: Input-bound jobs get idle CPU cores, and other jobs release cores that they cannot use.
        types: Choice of the GPU type of a job.
        price: Decisions follow the price of electricity.
        profile: Cost of a profiler.
        checkpoint: `sb3`: the path of a model of Stable-Baselines3, or the zip itself as
            `data:application/zip;base64,...`.
        plain_without_models: On a cluster without models, jobs start on free GPUs at full clock, with the
            cores that they requested, and all dials stay at 0; without this setting, sharing, clocks and
            cores are an error there.
        dials: File of a strategy that sets dials of these settings (`rlsched train`), its text, which begins
            with `{`, or `default` for the strategy that ships with rlsched; "": none.
        own: Numbers for a user-defined rule, in order.
    """

    rule: str = ""
    order: str | None = None
    blocks: bool = False
    predictions: Literal["submitted", "revised", "oracle"] = "submitted"
    reserve_after: Seconds | None = None
    leave_free: LeaveFree | None = None
    preempt: PreemptSettings | None = None
    share: Share | None = None
    clock: ClockSettings | None = None
    cores: bool = False
    types: Types | None = None
    price: PriceSettings | None = None
    profile: ProfilerSettings | None = None
    checkpoint: str = ""
    plain_without_models: bool = False
    dials: str = ""
    own: tuple[float, ...] = ()


_REMOVED: Final = ("ppo", "rollout", "clairvoyant")
"""Schedulers of earlier versions, which scored the waiting jobs one by one."""
_RANGES: dict[str, tuple[float, float, str]] = {
    "leave_free.share": (0.0, 1.0, "a share of the GPUs from 0 to 1"),
    "share.min_speed": (0.0, 1.0, "a speed from 0 to 1, 1 = not shared"),
    "share.max_jobs": (2, 4, "2 to 4 jobs"),
    **{f"share.{name}": (-1.0, 4.0, "a speed from -1 to 4") for name in ("min_gain", "min_gain_more")},
    **{
        f"share.{name}": (-10.0, 10.0, "a figure from -10 to 10")
        for name in ("by_length", "by_left", "by_queue", "by_slowest", "by_hold")
    },
    "clock.at": (0.5, 1.0, "a clock from 0.5 to 1 of the maximum"),
    "clock.slowdown": (0.0, 10.0, "a slowdown from 0 to 10, such as 0.05"),
    "clock.energy_weight": (0.0, 1.0, "a weight from 0 to 1"),
    "preempt.spread": (0.0, 10.0, "a figure from 0 to 10"),
    "preempt.trust": (0.0, 10.0, "a figure from 0 to 10"),
    "preempt.gpus_power": (0.0, 10.0, "a figure from 0 to 10"),
    "preempt.margin": (0.0, 10.0, "a figure from 0 to 10"),
    "preempt.age_step": (1.01, 1000.0, "a factor above 1"),
    "preempt.threshold_gpu_s": (0.0, math.inf, "GPU-seconds, 0 or more"),
    "types.price": (0.0, 4.0, "a price from 0 to 4"),
    "types.later": (0.1, math.inf, "a factor of 0.1 or more"),
    "price.power": (0.0, 4.0, "an exponent from 0 to 4"),
    **{f"price.{name}": (0.0, 100.0, "a slope from 0 to 100") for name in ("defer", "pause")},
    "profile.max_gpus": (1, 1e6, "1 GPU or more"),
}


def check(settings: Settings, where: str) -> None:
    """Check that settings are in range and consistent.

    Raises:
        InputError: a setting is wrong; the message names the setting, the value expected and the value given.
    """
    for path, (low, high, expected) in _RANGES.items():
        value: Any = settings
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"{where}: {path}: expected {expected}, got {value:g}")
    if settings.rule in _REMOVED:
        raise InputError(
            f"{where}: rule: {settings.rule!r} is a scheduler of an earlier version, which scored the "
            "waiting jobs one by one; use the policy `ppo`, or train a policy with `rlsched train`"
        )
    if settings.checkpoint and not settings.rule:
        raise InputError(f"{where}: checkpoint: only a scheduler such as sb3 reads it; leave it out")
    deciding = [
        name for name in ("reserve_after", "leave_free", "preempt") if getattr(settings, name) is not None
    ]
    declared = settings.preempt is not None and settings.preempt.declared
    if declared and settings.preempt is not None and settings.preempt.by == "quota":
        raise InputError(f"{where}: preempt.declared: expected by gittins, service or priority, got by quota")
    if len(deciding) > 1 and not (declared and settings.leave_free is None):
        raise InputError(f"{where}: {' and '.join(deciding)} exclude each other; leave out all but one")
    price = settings.price
    if price is not None and price.pause > 0.0 and settings.preempt is None:
        raise InputError(f"{where}: price.pause: paused jobs are preempted; set preempt too, or leave it out")
    by_index = settings.preempt is not None and settings.preempt.by != "quota"
    preempt = settings.preempt
    if preempt is not None and preempt.by == "service" and math.isinf(preempt.threshold_gpu_s):
        raise InputError(
            f"{where}: preempt.threshold_gpu_s: preempt by service needs the attained service of the first "
            "level, such as 18000"
        )
    if settings.order not in (None, "index") and by_index and not declared:
        raise InputError(
            f"{where}: order: the queue is ordered by the index if jobs preempt by it; leave order out, got "
            f"{settings.order!r}"
        )
    if settings.share is not None and settings.preempt is not None and not by_index:
        raise InputError(f"{where}: share: preempt by quota gives whole GPUs; leave one of them out")
    if settings.blocks and (deciding or settings.rule):
        raise InputError(f"{where}: blocks holds up the queue of a rule that does nothing else; leave it out")
