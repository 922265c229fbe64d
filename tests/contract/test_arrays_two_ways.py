"""Arrays and dependencies have one meaning in simulator and broker: jobs become eligible at the same times.

There are GPUs for all jobs, so each starts when it becomes eligible. Half of the single jobs fail.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.client.array_text import tasks_of
from rlsched.wire.messages import DependencyKind, DependsOn, Submitted
from rlsched.workload.dependencies import KINDS
from rlsched_envs.sim.attempt_log import RunRules
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.job_arrays import settle
from tests.support.sim.play import run, trace_of

GPUS = 64


class Asked(NamedTuple):
    """A submission: a job, or an array if `limit` is given.

    Attributes:
        durations_s: Run time of the job, or of each task.
        limit: Most tasks that run at once; 0: a job.
        after: Dependencies: kind, and place of the other submission in the list. With `afterok` and
            `afternotok`, the other submission is a job.
        name: Job name.
        single: Whether the job waits for all earlier jobs of its name.
        fails: Whether the job ends with an error.
    """

    durations_s: list[float]
    limit: int
    after: list[tuple[DependencyKind, int]]
    name: str = ""
    single: bool = False
    fails: bool = False


def drawn(seed: int) -> list[Asked]:
    """Jobs and arrays that depend on earlier ones. Run times are different powers of two: ends differ."""
    rng = random.Random(seed)
    powers = [float(1 << k) for k in range(12)]
    rng.shuffle(powers)
    found = list[Asked]()
    while powers:
        size = min(rng.choice([1, 1, 3, 4]), len(powers))
        others = sorted(rng.sample(range(len(found)), rng.randint(0, min(2, len(found)))))
        durations_s, powers = powers[:size], powers[size:]
        after = [(rng.choice(KINDS) if not found[other].limit else "afterany", other) for other in others]
        limit = rng.randint(1, 3) if size > 1 else 0
        single, fails = not limit and rng.random() < 0.3, not limit and rng.random() < 0.5
        found.append(Asked(durations_s, limit, after, rng.choice(["x", "y"]), single, fails))
    return found


def simulated(asked: list[Asked]) -> list[list[float]]:
    """Start of each job or task in the simulator, seconds; -1 if it never starts."""
    rows = [(number, task) for number, one in enumerate(asked) for task in range(len(one.durations_s))]
    names = [[f"{number}_{task}" for task in range(len(one.durations_s))] for number, one in enumerate(asked)]
    limits = [float(asked[number].limit or "nan") for number, _ in rows]
    trace = trace_of(
        [(0.0, asked[number].durations_s[task] + asked[number].fails, 1.0) for number, task in rows],
        ids=[names[number][task] for number, task in rows],
        depends_on=[
            ";".join(
                [f"{kind}:{name}" for kind, other in asked[number].after for name in names[other]]
                + ["singleton"] * asked[number].single
            )
            for number, _ in rows
        ],
        user=["u" for _ in rows],
        job_name=[asked[number].name for number, _ in rows],
        fail_after_s=[str(asked[number].durations_s[0]) if asked[number].fails else "" for number, _ in rows],
        array_id=[str(number) if asked[number].limit else "" for number, _ in rows],
        array_limit=limits,
    )
    table = run(trace, "fifo", gpus=GPUS, rules=RunRules(max_retries=0))
    starts = iter(np.nan_to_num(table.start_s, nan=-1.0).tolist())
    return [[next(starts) for _ in one.durations_s] for one in asked]


def served(journal: Journal, asked: list[Asked]) -> list[list[float]]:
    """Start of each job or task in a broker, seconds after the submissions; -1 if it never starts."""
    broker = make(journal, 0, "fifo")
    broker.says("n0", hello("n0", GPUS))
    numbers = list[int]()
    for one in asked:
        tasks, limit = tasks_of(f"0-{len(one.durations_s) - 1}%{one.limit}") if one.limit else ([], 0)
        depends_on = [DependsOn(kind, numbers[other]) for kind, other in one.after]
        reply = broker.ask(
            submit(tasks=tasks, array_limit=limit, depends_on=depends_on, name=one.name, singleton=one.single)
        )
        assert isinstance(reply, Submitted), reply
        numbers.append(reply.job)
    began_s = broker.now_s
    starts = [[-1.0] * len(one.durations_s) for one in asked]
    ends: dict[int, float] = {}
    while True:
        settle(broker)
        for job, one in list(broker.state.jobs.items()):
            if one.state == "launching":
                head = numbers.index(one.spec.array or job)
                task = one.spec.task or 0
                starts[head][task] = float(round(broker.now_s - began_s))
                ends[job] = starts[head][task] + asked[head].durations_s[task]
                broker.says("n0", launched(job))
        if not ends:
            return starts
        job = min(ends, key=ends.__getitem__)
        fails = asked[numbers.index(broker.state.jobs[job].spec.array or job)].fails
        broker.says(
            "n0", ended(job, exit_code=int(fails)), after_s=max(began_s + ends.pop(job) - broker.now_s, 0.001)
        )


@pytest.mark.parametrize("seed", range(6))
def test_jobs_become_eligible_at_the_same_times(tmp_path: Path, seed: int) -> None:
    asked = drawn(seed)
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        starts = served(journal, asked)
    finally:
        journal.close()
    assert starts == simulated(asked)
    found = {start_s for one in starts for start_s in one}
    assert len(found) > 1, "some have waited"
