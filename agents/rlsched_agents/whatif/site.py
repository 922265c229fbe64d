"""Identifies the rule of a site: replays the history under each candidate rule, and compares the starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.pairs import DAY_S
from rlsched_agents.evaluate.run import Task, run_task
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_agents.whatif.recorded import Mask, Recorded
from rlsched_agents.whatif.stretches import replayed_waits
from rlsched_agents.whatif.usage import used_at_submission
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

Floats = NDArray[np.float64]
Tell = Callable[[str, float], None]
"""Callback that gets the current step, and the progress of the whole run (0 to 1)."""

LEAST_WAIT_S: Final = 60.0
"""Errors are divided by the recorded mean wait, but at least by this wait, seconds: real schedulers run only
at intervals."""
SAME_START_S: Final = 60.0
LEAST_LIMITS_FRAC: Final = 0.5
"""Minimum fraction of jobs with a time limit for which rules that use time limits are tried."""
GRADES: Final[dict[str, tuple[float, float, float]]] = {
    "A": (0.05, 0.15, 0.30),
    "B": (0.10, 0.20, 0.40),
    "C": (0.15, 0.25, 0.50),
}
"""Largest permitted errors of each grade, best grade first. The three limits are for `mean_frac`; for each of
`by_size_frac`, `by_partition_frac` and `by_day_frac`; and for `by_job_frac`.
"""
BEST: Final = "A"
NO_CLAIMS: Final = "D"


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of the waits in a replay, compared with the recorded waits of the same jobs.

    The unit of `mean_frac` and `by_*` is the recorded mean wait, or `LEAST_WAIT_S` if that is longer. The
    errors `by_size_frac`, `by_partition_frac` and `by_day_frac` compare the total waits of groups, so that
    errors within a group cancel. Each is the sum of the absolute differences, divided by the number of jobs.

    Attributes:
        jobs: Number of jobs.
        recorded_mean_s: Mean recorded wait, seconds.
        replayed_mean_s: Mean wait in the replay, seconds.
        mean_frac: Mean wait in the replay less mean recorded wait.
        by_size_frac: Error of the waits of groups by number of GPUs.
        by_partition_frac: Error of the waits of groups by partition.
        by_day_frac: Error of the waits of groups by day of submission.
        by_job_frac: Mean absolute error of the wait of a job.
        same_start_frac: Fraction of jobs that start within a minute of their recorded start.
    """

    jobs: int
    recorded_mean_s: float
    replayed_mean_s: float
    mean_frac: float
    by_size_frac: float
    by_partition_frac: float
    by_day_frac: float
    by_job_frac: float
    same_start_frac: float

    @property
    def grade(self) -> str:
        """Grade of these errors: `A` to `C`; `D`: the replay is too inaccurate to report results."""
        groups = max(self.by_size_frac, self.by_partition_frac, self.by_day_frac)
        for grade, (mean, by_group, by_job) in GRADES.items():
            if abs(self.mean_frac) <= mean and groups <= by_group and self.by_job_frac <= by_job:
                return grade
        return NO_CLAIMS


class RuleFit(msgspec.Struct, frozen=True, kw_only=True):
    """How well one rule explains the recorded waits.

    Attributes:
        rule: Name of the rule.
        line: Description in one line.
        toml: Settings of the rule as TOML.
        all: Errors of one continuous replay of the whole history.
        last: Errors of the same replay in the last fifth of the history, for which results are reported.
        stretches: Errors of separate replays of the days (`whatif.stretches`). None: not computed, because a
            rule has the best grade without them.
        grade: The worse grade of `all` and `last`, or the grade of `stretches` if that is better.
        by_size: Recorded mean wait and mean wait in the replay, by number of GPUs.
        by_partition: Recorded mean wait and mean wait in the replay, by partition.
    """

    rule: str
    line: str
    toml: str
    all: Errors
    last: Errors
    stretches: Errors | None
    grade: str

    @property
    def shown(self) -> Errors:
        """The errors by which rules are compared."""
        return self.stretches or self.all

    by_size: dict[str, MeanWaits]
    by_partition: dict[str, MeanWaits]


class MeanWaits(msgspec.Struct, frozen=True):
    """Mean waits of a group of jobs.

    Attributes:
        jobs: Number of jobs.
        recorded_s: Recorded mean wait, seconds.
        replayed_s: Mean wait in the replay, seconds.
    """

    jobs: int
    recorded_s: float
    replayed_s: float


@dataclass(frozen=True)
class SiteRule:
    """A candidate for the rule of a site.

    Attributes:
        policy: The rule, with its displayed name.
        line: Description of the rule.
        predictions: Values that the rule uses as predicted run times, such as time limits.
    """

    policy: Policy
    line: str
    predictions: PredictedTimes


def site_rules(recorded: Recorded) -> list[SiteRule]:
    """Return the candidate rules for a history. Some require time limits in the history, or several users."""
    trace = recorded.trace
    nothing = _known(np.ones(len(trace)))
    found = [
        SiteRule(Policy("fifo"), "first come, first served; the queue blocks", nothing),
        SiteRule(
            Policy("fifo-backfill"), "first come, first served; jobs that do not fit are skipped", nothing
        ),
    ]
    limits = trace.time_limit_s
    if np.isfinite(limits[recorded.compared]).mean() >= LEAST_LIMITS_FRAC:
        by_limits = _known(np.where(np.isfinite(limits), limits, np.nanmax(limits)))
        found += [
            SiteRule(
                Policy("easy", name="easy-limits"),
                "EASY backfill: the first that does not fit has a reservation, by requested limits",
                by_limits,
            ),
            SiteRule(
                Policy("easy", name="limits-first", order="predicted"),
                "shortest requested limit first, with a reservation for the first that does not fit",
                by_limits,
            ),
            SiteRule(
                Policy("fifo-backfill", name="least-asked-first", order="area"),
                "least requested limit times GPUs first; jobs that do not fit are skipped",
                by_limits,
            ),
        ]
    if len(np.unique(trace.user[recorded.compared])) > 1:
        used = used_at_submission(trace, trace.submit_s + recorded.wait_s)
        found.append(
            SiteRule(
                Policy("fifo-backfill", name="fair-share", order="predicted"),
                "users with the least use at submission first (half-life 7 days); jobs that do not fit are "
                "skipped",
                _known(1.0 + used),
            )
        )
    return found


def replayed(
    recorded: Recorded,
    rule: SiteRule,
    rules: RunRules,
    window: MeasuredWindow,
    models: Models | None = None,
) -> JobTable:
    """Replay the whole history under the site rule `rule`. `rules`: retries and node events of the replay."""
    task = Task(
        rule.policy,
        0,
        recorded.trace,
        recorded.cluster,
        window,
        rule.predictions,
        rules=rules,
        models=models,
    )
    return run_task(task, lambda _: None).table


@dataclass(frozen=True)
class Explained:
    """How well the candidate rules explain a history.

    Attributes:
        fits: Fit of each candidate rule, best first.
        rule: The best rule.
        table: Replay of the history under the best rule.
    """

    fits: list[RuleFit]
    rule: SiteRule
    table: JobTable

    @property
    def best(self) -> RuleFit:
        """Fit of the best rule."""
        return self.fits[0]


def explain(recorded: Recorded, run: RunRules, window: MeasuredWindow, tell: Tell) -> Explained:
    """Replay a history under each candidate rule, and compare the replays with the record.

    Args:
        recorded: The recorded history.
        run: Retries and node events of the replays.
        window: The last fifth of the history, for which results are reported.
        tell: Called with the current step, and the progress of the whole run (0 to 1).
    """
    rules = site_rules(recorded)
    last = window.measured(recorded.trace)
    tables: list[JobTable] = []
    tried: list[RuleFit] = []
    for number, rule in enumerate(rules):
        tell(f"replaying {rule.policy.name}", 0.5 * number / len(rules))
        tables.append(replayed(recorded, rule, run, window))
        tried.append(_fit(recorded, rule, tables[-1].start_s - recorded.trace.submit_s, last))
    if min(fit.grade for fit in tried) > BEST:
        for number, rule in enumerate(rules):
            tell(f"replaying {rule.policy.name} day by day", 0.5 + 0.5 * number / len(rules))
            waits_s = replayed_waits(recorded, rule.policy, rule.predictions, run)
            tried[number] = _by_stretches(recorded, tried[number], waits_s)
    at = min(range(len(rules)), key=lambda number: _rank(tried[number]))
    return Explained(sorted(tried, key=_rank), rules[at], tables[at])


def _rank(fit: RuleFit) -> tuple[str, float]:
    return fit.grade, fit.shown.by_job_frac


def _fit(recorded: Recorded, rule: SiteRule, replay_s: Floats, last: Mask) -> RuleFit:
    trace = recorded.trace
    which = recorded.compared & np.isfinite(replay_s)
    whole, part = (errors(trace, recorded.wait_s, replay_s, which & mask) for mask in (True, last))
    return RuleFit(
        rule=rule.policy.name,
        line=rule.line,
        toml=rule.policy.toml,
        all=whole,
        last=part,
        stretches=None,
        grade=max(whole.grade, part.grade),
        **_waits(recorded, replay_s, which),
    )


def _by_stretches(recorded: Recorded, fit: RuleFit, replay_s: Floats) -> RuleFit:
    which = recorded.compared & np.isfinite(replay_s)
    found = errors(recorded.trace, recorded.wait_s, replay_s, which)
    return msgspec.structs.replace(
        fit, stretches=found, grade=min(fit.grade, found.grade), **_waits(recorded, replay_s, which)
    )


def _waits(recorded: Recorded, replay_s: Floats, which: Mask) -> dict[str, dict[str, MeanWaits]]:
    trace, was_s = recorded.trace, recorded.wait_s
    return {
        "by_size": _pairs(trace.num_gpus, was_s, replay_s, which, lambda size: f"{size:g}"),
        "by_partition": _pairs(trace.vc, was_s, replay_s, which, lambda vc: str(vc) or "-"),
    }


def errors(trace: Trace, recorded_s: Floats, replay_s: Floats, which: Mask) -> Errors:
    """Return the errors of a replay, compared with the recorded waits.

    Args:
        trace: J jobs.
        recorded_s: (J,) recorded waits, seconds.
        replay_s: (J,) waits in the replay, seconds.
        which: (J,) whether each job is compared.
    """
    was, now = recorded_s[which], replay_s[which]
    if not len(was):
        return Errors(
            jobs=0, recorded_mean_s=0.0, replayed_mean_s=0.0, mean_frac=np.inf, by_size_frac=np.inf,
            by_partition_frac=np.inf, by_day_frac=np.inf, by_job_frac=np.inf, same_start_frac=0.0,
        )  # fmt: skip
    scale_s = max(float(was.mean()), LEAST_WAIT_S) * len(was)
    day = np.floor(trace.submit_s[which] / DAY_S)
    by_size, by_partition, by_day = (
        float(np.abs(np.bincount(np.unique(key, return_inverse=True)[1], now - was)).sum()) / scale_s
        for key in (trace.num_gpus[which], trace.vc[which], day)
    )
    return Errors(
        jobs=len(was),
        recorded_mean_s=float(was.mean()),
        replayed_mean_s=float(now.mean()),
        mean_frac=float((now - was).sum()) / scale_s,
        by_size_frac=by_size,
        by_partition_frac=by_partition,
        by_day_frac=by_day,
        by_job_frac=float(np.abs(now - was).sum()) / scale_s,
        same_start_frac=float(np.mean(np.abs(now - was) <= SAME_START_S)),
    )


def _pairs(
    key: NDArray[np.str_] | Floats,
    was_s: Floats,
    now_s: Floats,
    which: Mask,
    name: Callable[[str | float], str],
) -> dict[str, MeanWaits]:
    found = {}
    for value in np.unique(key[which]).tolist():
        of = which & (key == value)
        found[name(value)] = MeanWaits(int(of.sum()), float(was_s[of].mean()), float(now_s[of].mean()))
    return found


def _known(predicted_s: Floats) -> PredictedTimes:
    return PredictedTimes(np.asarray(predicted_s, dtype=np.float64), np.zeros(len(predicted_s)))
