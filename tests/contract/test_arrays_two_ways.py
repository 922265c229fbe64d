"""Arrays and dependencies have one meaning in simulator and broker: jobs become eligible at the same times.

There are GPUs for all jobs, so each starts when it becomes eligible.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.client.array_text import tasks_of
from rlsched.wire.messages import DependsOn, Submitted
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.job_arrays import settle
from tests.support.sim.play import run, trace_of

GPUS = 64


class Asked(NamedTuple):
    """A submission: a job, or an array if `limit` is given.

    Attributes:
        durations_s: Run time of the job, or of each task.
        limit: Most tasks that run at once; 0: a job.
        after: Submissions that have to end first, by their place in the list.
    """

    durations_s: list[float]
    limit: int
    after: list[int]


def drawn(seed: int) -> list[Asked]:
    """Jobs and arrays that depend on earlier ones. Run times are different powers of two: ends differ."""
    rng = random.Random(seed)
    powers = [float(1 << k) for k in range(12)]
    rng.shuffle(powers)
    found = list[Asked]()
    while powers:
        size = min(rng.choice([1, 1, 3, 4]), len(powers))
        after = rng.sample(range(len(found)), rng.randint(0, min(2, len(found))))
        durations_s, powers = powers[:size], powers[size:]
        found.append(Asked(durations_s, rng.randint(1, 3) if size > 1 else 0, sorted(after)))
    return found


def simulated(asked: list[Asked]) -> list[list[float]]:
    """Start of each job or task in the simulator, seconds."""
    rows = [(number, task) for number, one in enumerate(asked) for task in range(len(one.durations_s))]
    names = [[f"{number}_{task}" for task in range(len(one.durations_s))] for number, one in enumerate(asked)]
    limits = [float(asked[number].limit or "nan") for number, _ in rows]
    trace = trace_of(
        [(0.0, asked[number].durations_s[task], 1.0) for number, task in rows],
        ids=[names[number][task] for number, task in rows],
        depends_on=[
            ";".join(name for other in asked[number].after for name in names[other]) for number, _ in rows
        ],
        array_id=[str(number) if asked[number].limit else "" for number, _ in rows],
        array_limit=limits,
    )
    starts = iter(run(trace, "fifo", gpus=GPUS).start_s.tolist())
    return [[next(starts) for _ in one.durations_s] for one in asked]


def served(journal: Journal, asked: list[Asked]) -> list[list[float]]:
    """Start of each job or task in a broker, seconds after the submissions."""
    broker = make(journal, 0, "fifo")
    broker.says("n0", hello("n0", GPUS))
    numbers = list[int]()
    for one in asked:
        tasks, limit = tasks_of(f"0-{len(one.durations_s) - 1}%{one.limit}") if one.limit else ([], 0)
        depends_on = [DependsOn("afterany", numbers[other]) for other in one.after]
        reply = broker.ask(submit(tasks=tasks, array_limit=limit, depends_on=depends_on))
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
        broker.says("n0", ended(job), after_s=max(began_s + ends.pop(job) - broker.now_s, 0.001))


@pytest.mark.parametrize("seed", range(6))
def test_jobs_become_eligible_at_the_same_times(tmp_path: Path, seed: int) -> None:
    asked = drawn(seed)
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        starts = served(journal, asked)
    finally:
        journal.close()
    assert starts == simulated(asked)
    assert len({start_s for one in starts for start_s in one}) > 1, "some have waited"
