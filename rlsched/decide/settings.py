"""The settings of a policy, as typed data: what a TOML file or a constructor may say, each in one place."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from rlsched.errors import InputError
from rlsched.settings import Seconds


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of settings."""


class LeaveFree(_Part, frozen=True, kw_only=True):
    """A long job starts only where a share of the GPUs stays free (`rules.keep_free`).

    Attributes:
        longer_than: A job predicted to run longer is a long one.
        share: Of a partition's GPUs, 0 to 1.
    """

    longer_than: Seconds = Seconds(43_200.0)
    share: float = 0.25


class Share(_Part, frozen=True, kw_only=True):
    """Jobs share GPUs, where models say how fast they run then (`decide.plans`).

    Attributes:
        min_speed: Predicted speed that all who share a GPU have to keep, alone = 1.
        max_jobs: Jobs on a GPU at most, 2 to 4; what is measured is pairs.
        when: `blocked`: jobs that find no free GPUs. `better`: also those to which shared GPUs of another
            type are worth more than free ones. `lucid`: all that may, before free GPUs, by Lucid's rule.
        min_gain: What a second job has to add: its predicted speed, less what the other loses; -1: nothing.
        min_gain_more: The same of a third and fourth; None: as `min_gain`.
        by_length: Added to both, times tanh(ln(predicted run time of the newcomer / 1 h) / 3).
        by_left: ... times tanh(ln(predicted time left of the running job / 1 h) / 3).
        by_queue: ... times 1 - exp(-4 x waiting jobs a GPU).
        by_slowest: ... times what the slowest of them falls below 0.85.
        by_hold: ... times (2 h)^3 x t / (t + 1 h): they hold the share h of the partition's GPUs, and are
            predicted to hold them for t longer than without the newcomer. 0: a gang is priced as any job.
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


class Clock(_Part, frozen=True, kw_only=True):
    """SM clocks below the highest, where models say what they cost (`decide.clocks`).

    Attributes:
        rule: `fixed`: one for all jobs. `slowdown`: for each job the one of least energy within a slowdown.
            `lull`: the same while no other job waits, else the highest. `weighed`: for each job the one at
            which time and energy cost least, time counting more where jobs wait.
        at: `fixed`: the clock, of the maximum, 0.5 to 1.
        slowdown: `slowdown`, `lull`: the slowdown allowed; 0.05: 5 % longer.
        energy_weight: `weighed`: what energy counts against time, 0 to 1; None: what the cluster says.
    """

    rule: Literal["fixed", "slowdown", "lull", "weighed"]
    at: float = 1.0
    slowdown: float = 0.0
    energy_weight: float | None = None


class Preempt(_Part, frozen=True, kw_only=True):
    """Running jobs give way to waiting ones.

    Attributes:
        by: `gittins`: jobs whose index is higher give way where that makes room (`rules.gittins`).
            `service`: the same by two levels of attained service. `priority`: the queue goes by the index,
            and only jobs of a lower priority give way. `quota`: the quota walk (`rules.las`), by two levels
            of attained service and then by the order of the queue.
        spread: `gittins`: standard deviation of ln(run time / prediction) that is added to what comes with
            each prediction.
        trust: `gittins`: factor for the one that comes with each prediction.
        of_mean: `gittins`: predictions are means of their lognormals, and not medians.
        gpus_power: `gittins`: power of a gang's GPUs that its service is multiplied by.
        margin: `gittins`: a job gives way to one whose ln(cost) is lower by this.
        age_step: `gittins`: ages count in steps of this factor.
        first_age: `gittins`: the first of these steps.
        tick: Where time alone changes what is decided, it is decided at multiples of this; `quota`: at these
            alone, 0: at every event.
        threshold_gpu_s: `service`, `quota`: attained service, GPU-seconds, above which a job is of the second
            level.
        declared: Only jobs that declare it give way. Until the first of them is submitted, the queue goes by
            `order`, with `reserve_after`, and from then on by the index.
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


class Migrate(_Part, frozen=True, kw_only=True):
    """Running jobs are moved so that a gang finds its GPUs together (`rules.migration`).

    Attributes:
        dwell: A job is moved when its attempt has lasted so long.
        gain: The gang's GPUs times its wait otherwise, as predicted, have to be so many times the GPU-seconds
            of the restarts.
        first: Whether jobs are moved before any is preempted to wait; else only where nobody gives way.
    """

    dwell: Seconds = Seconds(120.0)
    gain: float = 2.0
    first: bool = False


class Types(_Part, frozen=True, kw_only=True):
    """Jobs go on the GPU type that is worth most to them, where there are several and models know them.

    Attributes:
        price: What a type's usual speed costs: 0: fastest first; 1: fast GPUs go to those who gain most.
        later: A job waits for GPUs that come free where they are worth more to it than any now; the wait
            counts so many times. Infinite: no job waits for them.
    """

    price: float = 0.0
    later: float = math.inf


class Profile(_Part, frozen=True, kw_only=True):
    """What a profiler costs: jobs that run longer than `run` begin by so much work that is lost.

    Attributes:
        run: How long it runs a job.
        max_gpus: It takes jobs of up to so many GPUs.
    """

    run: Seconds = Seconds(200.0)
    max_gpus: int = 8


class Search(_Part, frozen=True, kw_only=True):
    """A network looks ahead before it decides: futures a contested decision, or a time for them.

    Attributes:
        samples: So many futures, 2 or more; 0: as many as fit the time.
        time_ms: Time for them, milliseconds; 0: not bounded by time.
    """

    samples: int = 0
    time_ms: float = 0.0


class Settings(_Part, frozen=True, kw_only=True):
    """All settings of a policy. Those that are left out do nothing.

    Attributes:
        rule: What decides, where the other settings do not say it: `ppo`, `sb3`, `random`, `rollout`, another
            scheduler that is installed, the path of a Python file with a rule of one's own, or `FILE.py:NAME`
            of a rule or a scheduler in one.
        order: What the queue goes by: `submit`, `predicted`, `area` (predicted run time x GPUs), `area^0.7`,
            `remaining` or `index`; none: `index` where jobs preempt by it, else `submit`.
        blocks: The first job that does not fit holds up all behind it.
        predictions: `submitted`: as made when a job is submitted. `revised`: they follow what jobs of the
            same burst do. `oracle`: the true run times, a bound.
        reserve_after: A job that does not fit has a reservation, which no start delays, once it has waited so
            long.
        leave_free: Long jobs leave a share of the GPUs free.
        preempt: Running jobs give way.
        migrate: Running jobs are moved.
        share: Jobs share GPUs.
        clock: SM clocks below the highest.
        cores: Input-bound jobs get idle CPU cores, and others leave those that they have no use for.
        types: On which GPU type jobs start.
        profile: What a profiler costs.
        checkpoint: `ppo`: `default`, `untrained`, or the path of a checkpoint. `sb3`: the path of a model of
            Stable-Baselines3. In place of a path, the zip itself as `data:application/zip;base64,...`.
        search: `ppo`: look-ahead.
        samples: `rollout`: futures a decision.
        plain_without_models: On a cluster without models, jobs start on free GPUs at full clock, with the
            cores that they asked for; without this, sharing, clocks and cores are an error there.
        dials: File of a strategy that sets dials of these settings (`rlsched train`), or its text, which
            begins with `{`; "": none.
        own: Numbers that a rule of one's own reads, in order.
    """

    rule: str = ""
    order: str | None = None
    blocks: bool = False
    predictions: Literal["submitted", "revised", "oracle"] = "submitted"
    reserve_after: Seconds | None = None
    leave_free: LeaveFree | None = None
    preempt: Preempt | None = None
    migrate: Migrate | None = None
    share: Share | None = None
    clock: Clock | None = None
    cores: bool = False
    types: Types | None = None
    profile: Profile | None = None
    checkpoint: str = "default"
    search: Search | None = None
    samples: int = 8
    plain_without_models: bool = False
    dials: str = ""
    own: tuple[float, ...] = ()


_SAMPLES = "2 to 1000 futures, or 0 for as many as fit"
"""By one future nothing is known of chance."""
_RANGES: dict[str, tuple[float, float, str]] = {
    "leave_free.share": (0.0, 1.0, "a share of the GPUs from 0 to 1"),
    "share.min_speed": (0.0, 1.0, "a speed from 0 to 1, alone = 1"),
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
    "migrate.gain": (0.0, 1e9, "a figure of 0 or more"),
    "types.price": (0.0, 4.0, "a price from 0 to 4"),
    "types.later": (0.1, math.inf, "a factor of 0.1 or more"),
    "profile.max_gpus": (1, 1e6, "1 GPU or more"),
    "search.samples": (0, 1000, _SAMPLES),
    "search.time_ms": (0.0, 10_000.0, "0 to 10000 milliseconds"),
    "samples": (1, 1000, "1 to 1000 futures"),
}


def check(settings: Settings, where: str) -> None:
    """Find out whether settings are in range and go together.

    Raises:
        InputError: naming the setting, what was expected and what came.
    """
    for path, (low, high, expected) in _RANGES.items():
        value: Any = settings
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None and not low <= value <= high:
            raise InputError(f"{where}: {path}: expected {expected}, got {value:g}")
    if settings.search is not None and settings.rule != "ppo":
        raise InputError(f"{where}: search: only ppo looks ahead; leave it out")
    if settings.search is not None and settings.search.samples == 1:
        raise InputError(f"{where}: search.samples: expected {_SAMPLES}, got 1")
    deciding = [
        name for name in ("reserve_after", "leave_free", "preempt") if getattr(settings, name) is not None
    ]
    declared = settings.preempt is not None and settings.preempt.declared
    if declared and settings.preempt is not None and settings.preempt.by == "quota":
        raise InputError(f"{where}: preempt.declared: expected by gittins, service or priority, got by quota")
    if len(deciding) > 1 and not (declared and settings.leave_free is None):
        raise InputError(f"{where}: {' and '.join(deciding)} exclude each other; leave out all but one")
    by_index = settings.preempt is not None and settings.preempt.by != "quota"
    preempt = settings.preempt
    if preempt is not None and preempt.by == "service" and math.isinf(preempt.threshold_gpu_s):
        raise InputError(
            f"{where}: preempt.threshold_gpu_s: preempt by service needs the attained service of the first "
            "level, such as 18000"
        )
    if settings.migrate is not None and not by_index and settings.rule != "ppo":
        raise InputError(
            f"{where}: migrate needs preempt by gittins, service or priority: add preempt, or leave it out"
        )
    if settings.order not in (None, "index") and by_index and not declared:
        raise InputError(
            f"{where}: order: the queue goes by the index where jobs preempt by it; leave order out, got "
            f"{settings.order!r}"
        )
    if settings.rule == "ppo" and settings.order is not None:
        raise InputError(
            f"{where}: order: what the queue of ppo goes by follows from the cluster and the jobs; leave it "
            f"out, got {settings.order!r}"
        )
    if settings.share is not None and settings.preempt is not None and not by_index:
        raise InputError(f"{where}: share: preempt by quota gives whole GPUs; leave one of them out")
    if settings.blocks and (deciding or settings.rule):
        raise InputError(f"{where}: blocks holds up the queue of a rule that does nothing else; leave it out")
