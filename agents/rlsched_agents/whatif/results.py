"""The results of `rlsched whatif` as data, and the sentence that summarises them."""

from __future__ import annotations

import msgspec

from rlsched.terminal.show import in_words
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Comparison, Ratio
from rlsched_agents.whatif.capacity import Fewer, SleepPotential
from rlsched_agents.whatif.groups import JobGroup, direction
from rlsched_agents.whatif.site import GRADES, NO_CLAIMS, RuleFit

NO_WAIT_S = 1.0
_MOST_NAMED = 3
_NAMES = {"size": "jobs of {} GPUs", "partition": "partition {}", "user": "user {}"}


class Under(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one policy on the last fifth of the history.

    Attributes:
        policy: Name of the policy.
        toml: Settings of the policy as TOML.
        oracle: Whether the policy knows the true run times, and so cannot be `WhatIf.best`.
        wait_s: Mean wait, seconds.
        jct_s: Mean time from submission to end, seconds.
        against: Comparison with the site's rule on the same jobs; None for the site's rule itself.
        groups: The same comparison by size, partition and user.
        energy_kwh: Energy of the jobs of the last fifth; None without models.
    """

    policy: str
    toml: str
    oracle: bool
    wait_s: float
    jct_s: float
    against: Comparison | None
    groups: list[JobGroup]
    energy_kwh: float | None

    @property
    def ratio(self) -> Ratio | None:
        """Mean wait / mean wait under the site's rule."""
        return self.against.queue_mean_ratio if self.against else None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """All results, which `--json` prints.

    Attributes:
        history: Name of the history.
        form: Format of the history.
        jobs: Number of jobs in the history.
        skipped: Number of rows that are not jobs.
        cluster: Name of the cluster.
        nodes: Number of nodes.
        gpus: Number of GPUs.
        most_busy_gpus: Largest number of GPUs that were busy at the same time, as recorded.
        since_s: Start of the last fifth of the time, seconds of the trace. Results are for jobs submitted
            from then on.
        days: Number of days with submissions in the last fifth; None: no policy was replayed.
        fits: How well each rule explains the recorded waits, best rule first.
        grade: Grade of the best rule: `A` to `C`; `D`: no results are reported.
        refused: Reason why no results are reported; "" if results are reported.
        prediction: Predictor of run times.
        site: Results of the site's rule; None if no results are reported.
        policies: Results of the other policies.
        best: Name of the policy with the lowest `Under.ratio`, among policies whose ratio is significantly
            below 1; "": there is none.
        sleep: Nodes that could sleep under the site's rule and under `best`, by the name of the policy.
        fewer: The smallest cluster on which jobs under `best` wait no longer than jobs on the full cluster
            under the site's rule; None: not computed, or there is none.
        verdict: The result in one sentence.
    """

    history: str
    form: str
    jobs: int
    skipped: int
    cluster: str
    nodes: int
    gpus: int
    most_busy_gpus: float
    since_s: float
    days: int | None
    fits: list[RuleFit]
    grade: str
    refused: str
    prediction: str = ""
    site: Under | None = None
    policies: list[Under] = []
    best: str = ""
    sleep: dict[str, SleepPotential] = {}
    fewer: Fewer | None = None
    verdict: str


def why_refused(best: RuleFit, most_busy: float, gpus: int) -> str:
    """Return the reason why no results are reported; "" if a rule explains the history well enough."""
    if best.grade != NO_CLAIMS:
        return ""
    worse = best.shown
    most = max(limits[0] for limits in GRADES.values())
    text = (
        f"no rule explains the recorded waits: the nearest, {best.rule}, lets jobs wait "
        f"{in_words(worse.replayed_mean_s)} on average where {in_words(worse.recorded_mean_s)} are recorded "
        f"({worse.mean_frac:+.0%}, at most {most:.0%} is explained; job by job {worse.by_job_frac:.0%})"
    )
    if worse.mean_frac < -most and most_busy < gpus:
        return (
            f"{text}; never more than {most_busy:,.0f} of {gpus:,} GPUs were busy: the cluster may have "
            "fewer GPUs than the cluster file says, or nodes were down (node_events)"
        )
    if worse.mean_frac > most:
        return (
            f"{text}; the cluster may have more GPUs than the cluster file says, or jobs are ordered by an "
            "unknown rule"
        )
    return f"{text}; the site may use priorities, reservations or limits that are not in the history"


def best_of(policies: list[Under]) -> str:
    """Return the name of the policy with the lowest `ratio` of mean waits that is significantly below 1.

    "": there is none. Policies that know the true run times are left out.
    """
    shown = [
        (one.ratio.ratio, one.policy)
        for one in policies
        if not one.oracle and one.ratio is not None and direction(one.ratio) == "less"
    ]
    return min(shown)[1] if shown else ""


def verdict(site: Under, policies: list[Under], best: str, days: int, grade: str, fewer: Fewer | None) -> str:
    """Return the result in one sentence."""
    if site.wait_s < NO_WAIT_S:
        return f"keep what you have: under {site.policy} jobs hardly waited at all"
    if days < MIN_BLOCKS:
        return (
            f"no result: the last fifth has submissions on only {days} days, and an interval needs "
            f"{MIN_BLOCKS}: give a longer history"
        )
    if not best:
        return f"keep what you have: no policy is shown to let jobs wait less than {site.policy} does"
    one = next(one for one in policies if one.policy == best)
    assert one.ratio is not None
    assert one.ratio.low is not None
    assert one.ratio.high is not None
    less = f"{1 - one.ratio.ratio:.0%} [{1 - one.ratio.high:.0%}, {1 - one.ratio.low:.0%}]"
    parts = [
        f"{best}: jobs would have waited {less} less than under {site.policy}, "
        f"{in_words(one.wait_s)} instead of {in_words(site.wait_s)} on average"
    ]
    for waits in ("longer", "perhaps longer"):
        losers = [
            f"{_NAMES[group.kind].format(group.name)} ({in_words(group.wait_s)} instead of "
            f"{in_words(group.site_wait_s)})"
            for group in one.groups
            if group.waits == waits
        ]
        if losers:
            more = f" and {len(losers) - _MOST_NAMED} more" if len(losers) > _MOST_NAMED else ""
            parts.append(f"{waits} would wait {', '.join(losers[:_MOST_NAMED])}{more}")
    if fewer is not None and fewer.gpus_spared:
        parts.append(f"the waits would be the same without {fewer.gpus_spared:,} of the GPUs")
    return f"{'; '.join(parts)} (fidelity {grade})"
