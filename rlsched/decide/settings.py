"""The settings of a policy. These classes define the keys of its TOML file and the arguments of `Policy`."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from rlsched.errors import InputError
from rlsched.settings import Seconds


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of settings."""


class LeaveFree(_Part, frozen=True, kw_only=True):
    """A long job starts only if it leaves a fraction of the GPUs free (`rules.keep_free`).

    Attributes:
        longer_than: Predicted run time above which a job is long.
        share: Fraction of a partition's GPUs that stays free, 0 to 1.
    """

    longer_than: Seconds = Seconds(43_200.0)
    share: float = 0.25


class Share(_Part, frozen=True, kw_only=True):
    """Jobs share GPUs, if models predict their speed (`decide.plans`).

    Attributes:
        min_speed: Predicted speed that all jobs on a shared GPU must keep; 1: the speed without sharing.
        max_jobs: Maximum number of jobs on a GPU, 2 to 4; speeds are measured for two jobs, and extrapolated
            to more.
        when: Jobs that share. `blocked`: jobs that find no free GPUs. `better`: also jobs for which shared
            GPUs of another type are worth more than free GPUs. `lucid`: all jobs that Lucid's rule allows,
            even if GPUs are free.
        min_gain: Least gain of a second job: its predicted speed less the speed that the first job loses; -1:
            no limit.
        min_gain_more: Least gain of a third and fourth job; None: as `min_gain`.
        by_length: This setting x tanh(ln(predicted run time of the new job / 1 h) / 3) is added to `min_gain`
            and `min_gain_more`.
        by_left: This setting x tanh(ln(predicted remaining time of the running job / 1 h) / 3) is added to
            both minimum gains.
        by_queue: This setting x (1 - exp(-4 x waiting jobs per GPU)) is added to both minimum gains.
        by_slowest: This setting x (0.85 - speed of the slowest job, at least 0) is added to both minimum
            gains.
        by_hold: This setting x (2 f)^3 x t / (t + 1 h) is added to both minimum gains. f is the fraction of
            the partition's GPUs that the new job would share, and t is the predicted delay that the new job
            adds to the release of these GPUs.
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
        rule: `fixed`: one clock for all jobs. `slowdown`: for each job the clock of least energy within a
            slowdown. `lull`: as `slowdown` while no other job waits, else the highest clock. `weighed`: for
            each job the clock of least weighted cost of time and energy; time counts more while jobs wait.
        at: `fixed`: the clock as a fraction of the maximum, 0.5 to 1.
        slowdown: `slowdown`, `lull`: the slowdown allowed; 0.05 means 5 % longer.
        energy_weight: `weighed`: weight of energy against time, 0 to 1; None: the cluster's weight.
    """

    rule: Literal["fixed", "slowdown", "lull", "weighed"]
    at: float = 1.0
    slowdown: float = 0.0
    energy_weight: float | None = None


class PreemptSettings(_Part, frozen=True, kw_only=True):
    """Running jobs are preempted for waiting jobs.

    Attributes:
        by: `gittins`: jobs of higher index are preempted if this makes room (`rules.gittins`). `service`: as
            `gittins`, with two levels of attained service as the index. `priority`: the queue is in index
            order, and only jobs of lower priority are preempted. `quota`: the quota walk (`rules.las`), in
            order of two levels of attained service, then in the order of the queue.
        spread: `gittins`: standard deviation of ln(run time / prediction), assumed for all jobs. The
            index uses sqrt(`spread`^2 + (`trust` x spread of the prediction)^2).
        trust: `gittins`: factor of the standard deviation that comes with each prediction.
        of_mean: `gittins`: predictions are means of their lognormals instead of medians.
        gpus_power: `gittins`: exponent p; the service of a gang is its time x (number of GPUs)^p.
        margin: `gittins`: a running job is preempted for a waiting job whose index is lower by more than this
            value; the index is the logarithm of a cost.
        age_step: `gittins`: ratio of successive age steps; ages are rounded down to steps.
        first_age: `gittins`: the first age step, a time.
        tick: Interval between decisions that depend on time. `quota`: all decisions are made at multiples of
            `tick`; 0: at every event.
        threshold_gpu_s: `service`, `quota`: attained service, GPU-seconds, above which a job is on the second
            level.
        declared: Only jobs that declare themselves preemptible are preempted. Before the first such job is
            submitted, the queue follows `order`, with `reserve_after`; from then on it follows the index.
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
        price: Exponent p in the worth of a type: (the job's speed on this type) / (the usual workload's speed
            on this type)^p. 0: fastest first; 1: fast GPUs go to the jobs that gain most.
        later: Factor by which the predicted wait for GPUs of a better type than the free GPUs is multiplied;
            infinite: no job waits for better GPUs.
    """

    price: float = 0.0
    later: float = math.inf


class PriceSettings(_Part, frozen=True, kw_only=True):
    """Decisions follow the price of electricity, if the price is known (`decide.price`).

    Attributes:
        power: Exponent p: for `weighed` clocks, the weight of energy against time is multiplied by
            (price / mean)^p.
        defer: A waiting job does not start before it has used the fraction tanh(defer x ln(price / mean)) of
            its slack, at most 0.8; 0: no job waits for a lower price.
        pause: A preemptible running job is preempted, and does not start again, while it has used less than
            the fraction tanh(pause x ln(price / mean)) of its slack, at most 0.8; 0: no job is preempted for
            the price.
        window: Whether a waiting job with slack starts at the time at which its predicted run costs least.
            Only starts that use at most 0.8 of its slack count.
        percentile: While the price is above this quantile of the prices of the past 7 days, jobs that have
            used less than 0.8 of their slack do not start, and preemptible jobs among them are preempted; 0:
            off.
        longer_than: Predicted run time up to which a waiting job starts at any price, unless it was preempted
            before. Such jobs use little energy.
        spare: A job waits or pauses for a lower price only while the rest of its slack is longer than `spare`
            x the clearing time, the time in which the GPUs complete all predicted work; 0: off.
    """

    power: float = 0.0
    defer: float = 0.0
    pause: float = 0.0
    window: bool = False
    percentile: float = 0.0
    longer_than: Seconds = Seconds(0.0)
    spare: float = 0.0


class SlackSettings(_Part, frozen=True, kw_only=True):
    """Jobs with slack (a delay that their users accept) change their place in the queue as they use it up.

    A job of weight w is ordered as if its cost were divided by w (`decide.order.slack`).

    Attributes:
        early_weight: Weight of a job that has used less than the fraction `early_until` of its slack.
        late_weight: Weight of a job that has used the fraction `late_from` of its slack or more.
        early_until: Fraction of the slack, 0 to `late_from`. From then on, the weight is 1.
        late_from: Fraction of the slack, `early_until` to 1.
    """

    early_weight: float = 0.05
    late_weight: float = 4.0
    early_until: float = 0.5
    late_from: float = 0.8


class ProfilerSettings(_Part, frozen=True, kw_only=True):
    """Cost of a profiler: a job that runs longer than `run` first runs for `run`, and this work is lost.

    Attributes:
        run: Time for which the profiler runs a job.
        max_gpus: Number of GPUs up to which jobs are profiled.
    """

    run: Seconds = Seconds(200.0)
    max_gpus: int = 8


class Settings(_Part, frozen=True, kw_only=True):
    """All settings of a policy. A setting that is left out has its default.

    Attributes:
        rule: Rule or scheduler, if the other settings do not define a rule: `sb3`, `random`, the name of
            another installed scheduler, the path of a Python file with a rule, or `FILE.py:NAME` of a rule or
            a scheduler in the file.
        order: Order of the queue: `submit`, `predicted`, `area` (predicted run time x GPUs), `area^0.7`,
            `remaining` or `index`; default: `index` if jobs preempt by it, else `submit`.
        blocks: Whether the first job that does not fit blocks all later jobs.
        predictions: `submitted`: predictions made at submission. `revised`: predictions revised by run times
            of jobs of the same burst. `oracle`: the true run times, which give a bound on the gain from
            better predictions.
        reserve_after: Waiting time after which a job that does not fit gets a reservation. Other jobs start
            only if they do not delay the reserved job.
        leave_free: Long jobs leave a fraction of the GPUs free.
        preempt: Running jobs are preempted.
        share: Jobs share GPUs.
        clock: SM clocks below the highest.
        cores: Whether input-bound jobs get idle CPU cores, and other jobs release CPU cores that they cannot
            use.
        types: Choice of the GPU type of a job.
        price: Decisions follow the price of electricity.
        slack: Jobs with slack wait longer at first, and less once most of it is used.
        profile: Cost of a profiler.
        checkpoint: `sb3`: the path of a model of Stable-Baselines3, or the zip itself as
            `data:application/zip;base64,...`.
        plain_without_models: Whether the policy can run on a cluster without models. There, jobs start on
            free GPUs at full clock, with the CPU cores that they requested, and all dials stay at 0. If
            false, `share`, `clock`, `cores` and `types` are an error on such a cluster.
        dials: Strategy that sets the dials: the path of a file that `rlsched train` wrote; the text of such a
            file (it begins with `{`); or `default`, the strategy that ships with rlsched. "": no strategy.
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
    slack: SlackSettings | None = None
    profile: ProfilerSettings | None = None
    checkpoint: str = ""
    plain_without_models: bool = False
    dials: str = ""
    own: tuple[float, ...] = ()


_REMOVED: Final = ("ppo", "rollout", "clairvoyant")
"""Schedulers of earlier versions. They scored the waiting jobs one by one."""
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
    "price.spare": (0.0, 10.0, "a factor from 0 to 10"),
    "price.percentile": (0.0, 1.0, "a share from 0 to 1, such as 0.3"),
    **{f"slack.{name}": (1e-6, 1e6, "a weight from 1e-6 to 1e6") for name in ("early_weight", "late_weight")},
    **{f"slack.{name}": (0.0, 1.0, "a share from 0 to 1") for name in ("early_until", "late_from")},
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
        raise InputError(
            f"{where}: preempt.declared works only with preempt.by gittins, service or priority, got quota"
        )
    if len(deciding) > 1 and not (declared and settings.leave_free is None):
        raise InputError(f"{where}: {' and '.join(deciding)} exclude each other; leave out all but one")
    price = settings.price
    if price is not None and price.pause > 0.0 and settings.preempt is None:
        raise InputError(f"{where}: price.pause works only with preempt: set preempt, or leave pause out")
    slack = settings.slack
    if slack is not None and slack.early_until > slack.late_from:
        raise InputError(
            f"{where}: slack.late_from: expected {slack.early_until:g} (slack.early_until) or more, got "
            f"{slack.late_from:g}"
        )
    by_index = settings.preempt is not None and settings.preempt.by != "quota"
    preempt = settings.preempt
    if preempt is not None and preempt.by == "service" and math.isinf(preempt.threshold_gpu_s):
        raise InputError(
            f"{where}: preempt.threshold_gpu_s: expected GPU-seconds, such as 18000, because preempt.by is "
            "service; got no value"
        )
    if settings.order not in (None, "index") and by_index and not declared:
        raise InputError(
            f"{where}: order: expected index, because preempt orders the queue by the index; leave it out, "
            f"got {settings.order!r}"
        )
    if settings.share is not None and settings.preempt is not None and not by_index:
        raise InputError(
            f"{where}: share does not work with preempt.by quota, which gives whole GPUs; leave one out"
        )
    if settings.blocks and (deciding or settings.rule):
        raise InputError(
            f"{where}: blocks works only without rule, reserve_after, leave_free, preempt; leave blocks out"
        )
