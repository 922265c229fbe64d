"""Finds groups of jobs (by size, partition and user) that wait less or longer under a policy."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from rlsched.workload.characterise.sizes import SIZE_CLASSES, size_class
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.evaluate.pairs import Ratio, ended_in_all, mean_ratio
from rlsched_agents.whatif.recorded import Mask
from rlsched_envs.sim.job_table import JobTable

MOST_USERS: Final = 20
"""Maximum number of users that are compared: the ones with the longest total wait."""
LEAST_JOBS: Final = 30
"""Users with fewer jobs are not compared."""
LONGER: Final = 1.1
"""A group waits `perhaps longer` if its ratio of mean waits is above this, but not significantly above 1."""
WORDS: Final = {True: "less", False: "longer"}


class JobGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of jobs of the last fifth of a history: its waits under a policy and under the site's rule.

    Attributes:
        kind: `size`, `partition` or `user`.
        name: Name of the group.
        jobs: Number of jobs that ended in both replays.
        site_wait_s: Mean wait in a replay under the site's rule, seconds.
        wait_s: Mean wait under the policy, seconds.
        ratio: `wait_s` / `site_wait_s`, with an interval over days of submissions; None: no job waited.
        waits: `less` or `longer` if the interval excludes 1; `perhaps longer` if it does not, but the ratio
            is above `LONGER`; otherwise "".
    """

    kind: str
    name: str
    jobs: int
    site_wait_s: float
    wait_s: float
    ratio: Ratio | None
    waits: str


def groups(table: JobTable, site: JobTable, measured: Mask) -> list[JobGroup]:
    """Compare the waits of groups of jobs: by size, by partition, and by user.

    `table`: replay under the policy. `site`: replay under the site's rule. Of the users, only
    the ones with the longest total wait have groups.
    """
    both = ended_in_all([table, site], measured)
    trace = table.trace
    classes = size_class(trace.num_gpus)
    found = [
        _group(table, site, both & (classes == number), "size", SIZE_CLASSES[number][0])
        for number in np.unique(classes[both]).tolist()
    ]
    for kind, column in (("partition", trace.vc), ("user", trace.user)):
        names, which = np.unique(column[both], return_inverse=True)
        if len(names) < 2:
            continue
        chosen = np.arange(len(names))
        if kind == "user":
            waited = np.bincount(which, np.maximum(queue_s(site), queue_s(table))[both])
            enough = np.bincount(which) >= LEAST_JOBS
            chosen = np.argsort(-waited * enough, kind="stable")[: min(MOST_USERS, int(enough.sum()))]
        found += [
            _group(table, site, both & (column == name), kind, str(name) or "-")
            for name in names[chosen].tolist()
        ]
    return found


def _group(table: JobTable, site: JobTable, which: Mask, kind: str, name: str) -> JobGroup:
    ratio = mean_ratio([table], [site], which, queue_s)
    return JobGroup(
        kind=kind,
        name=name,
        jobs=int(which.sum()),
        site_wait_s=float(queue_s(site)[which].mean()),
        wait_s=float(queue_s(table)[which].mean()),
        ratio=ratio,
        waits=direction(ratio) or ("perhaps longer" if ratio is not None and ratio.ratio > LONGER else ""),
    )


def direction(ratio: Ratio | None) -> str:
    """Return `less` or `longer` if the confidence interval of a ratio of mean waits excludes 1, else ""."""
    if ratio is None or ratio.low is None or ratio.high is None or ratio.low <= 1.0 <= ratio.high:
        return ""
    return WORDS[ratio.high < 1.0]
