"""What `rlsched whatif` found, as data, and the sentence that sums it up."""

from __future__ import annotations

import msgspec

from rlsched.terminal.show import in_words
from rlsched_agents.evaluate.pairs import MIN_BLOCKS, Comparison, Ratio
from rlsched_agents.whatif.capacity import Fewer, Sleep
from rlsched_agents.whatif.groups import Group, said
from rlsched_agents.whatif.site import GRADES, NO_CLAIMS, Fit

NOBODY_WAITS_S = 1.0
_MOST_NAMED = 3
_NAMES = {"size": "jobs of {} GPUs", "partition": "partition {}", "user": "user {}"}


class Under(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy makes of the last fifth.

    Attributes:
        policy: Its name.
        toml: Its settings.
        oracle: Whether it is told the true run times: a bound, and no choice.
        wait_s: Mean wait.
        jct_s: Mean time from submission to end.
        against: Itself against the site's rule, on the same jobs; None: it is the site's rule.
        groups: By size, partition and user.
        energy_kwh: Drawn for these jobs; None without models.
    """

    policy: str
    toml: str
    oracle: bool
    wait_s: float
    jct_s: float
    against: Comparison | None
    groups: list[Group]
    energy_kwh: float | None

    @property
    def ratio(self) -> Ratio | None:
        """Mean wait over that of the site's rule."""
        return self.against.queue_mean_ratio if self.against else None


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """All of it: what `--json` prints.

    Attributes:
        history: What the history is called.
        form: Its format.
        jobs: Jobs in it.
        skipped: Rows that are none.
        cluster: What the cluster is called.
        nodes: Its nodes.
        gpus: Its GPUs.
        most_busy_gpus: The most of them that were busy at once, by the record.
        since_s: Claims are of jobs submitted from here on: the last fifth of the time.
        days: Days with submissions among them; None: no policy was replayed.
        fits: Every rule against the record, the best first.
        grade: Of the best: `A` to `C`; `D`: nothing is claimed.
        refused: Why nothing is claimed; "" where something is.
        prediction: Who predicted run times.
        site: The site's rule, as replayed; None where nothing is claimed.
        policies: The others.
        best: Which of them is shown to wait least, "" where none is shown to wait less than the site's rule.
        sleep: Nodes that could sleep under the site's rule and under `best`, by name.
        fewer: What `best` could do without.
        verdict: In a sentence.
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
    fits: list[Fit]
    grade: str
    refused: str
    prediction: str = ""
    site: Under | None = None
    policies: list[Under] = []
    best: str = ""
    sleep: dict[str, Sleep] = {}
    fewer: Fewer | None = None
    verdict: str


def why_refused(best: Fit, most_busy: float, gpus: int) -> str:
    """Why nothing is claimed of a history that no rule explains; "" where one does."""
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
            "fewer than its file says, or nodes were down (node_events)"
        )
    if worse.mean_frac > most:
        return (
            f"{text}; the cluster may have more GPUs than its file says, or jobs are sorted by a rule that "
            "is not known here"
        )
    return f"{text}; the site may go by priorities, reservations or limits that are not in the history"


def best_of(policies: list[Under]) -> str:
    """The policy that is shown to wait least; "" where none is shown to wait less than the site's rule."""
    shown = [
        (one.ratio.ratio, one.policy)
        for one in policies
        if not one.oracle and one.ratio is not None and said(one.ratio) == "less"
    ]
    return min(shown)[1] if shown else ""


def verdict(site: Under, policies: list[Under], best: str, days: int, grade: str, fewer: Fewer | None) -> str:
    """One sentence for people."""
    if site.wait_s < NOBODY_WAITS_S:
        return f"keep what you have: under {site.policy} jobs hardly waited at all"
    if days < MIN_BLOCKS:
        return (
            f"nothing is claimed: the last fifth has submissions on {days} days, and an interval needs "
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
        parts.append(f"{fewer.gpus_spared:,} of the GPUs need not be there for waits as they were")
    return f"{'; '.join(parts)} (fidelity {grade})"
