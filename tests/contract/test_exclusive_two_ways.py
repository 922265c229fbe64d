"""Jobs with whole nodes have one meaning in simulator and broker: the same starts on the same nodes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.wire.messages import Submitted
from rlsched_envs.sim.engine import Engine
from tests.support.broker.hand import ended, hello, launched, make, submit
from tests.support.broker.job_arrays import settle
from tests.support.sim.play import trace_of

SIZES = (4, 2, 8, 4)
POLICY = "fifo-backfill"


class Asked(NamedTuple):
    """A submission."""

    duration_s: float
    gpus: int
    exclusive: bool


class Began(NamedTuple):
    """The start of a job, seconds, and its nodes."""

    start_s: float
    nodes: list[int]


def drawn(seed: int) -> list[Asked]:
    """Jobs of 1 to 14 GPUs. Run times are different powers of two: ends differ."""
    rng = random.Random(seed)
    powers = [float(1 << k) for k in range(14)]
    rng.shuffle(powers)
    sizes = [1, 1, 2, 3, 4, 5, 8, 10, 14]
    return [Asked(power, rng.choice(sizes), rng.random() < 0.4) for power in powers]


def simulated(asked: list[Asked]) -> list[Began]:
    """Start of each job in the simulator."""
    trace = trace_of(
        [(0.0, one.duration_s, float(one.gpus)) for one in asked],
        exclusive=["true" if one.exclusive else "" for one in asked],
        ids=[str(number) for number in range(len(asked))],
    )
    spec = ClusterSpec(name="c", nodes=tuple(NodeGroup(gpus=gpus) for gpus in SIZES))
    rule = Policy(POLICY).rule
    table = Engine(trace, spec, order=rule.order, oracle=True).run_rule(rule)
    return [
        Began(float(start_s), sorted({int(table.gpu_node[g]) for g in gpus}))
        for start_s, gpus in zip(table.start_s, table.gpus, strict=True)
    ]


def served(journal: Journal, asked: list[Asked]) -> list[Began]:
    """Start of each job in a broker, seconds after the submissions."""
    broker = make(journal, 0, POLICY)
    for number, gpus in enumerate(SIZES):
        broker.says(f"n{number}", hello(f"n{number}", gpus))
    numbers = list[int]()
    for one in asked:
        reply = broker.ask(submit(one.gpus, exclusive=one.exclusive))
        assert isinstance(reply, Submitted), reply
        numbers.append(reply.job)
    began_s = broker.now_s
    starts: dict[int, Began] = {}
    ends: dict[int, float] = {}
    while True:
        settle(broker)
        for job, one in list(broker.state.jobs.items()):
            if one.state == "launching":
                ranks = one.attempt.ranks if one.attempt is not None else []
                start_s = float(round(broker.now_s - began_s))
                starts[job] = Began(start_s, [int(rank.node[1:]) for rank in ranks])
                ends[job] = start_s + asked[numbers.index(job)].duration_s
                for number, rank in enumerate(ranks):
                    broker.says(rank.node, launched(job, rank=number))
        if not ends:
            return [starts[job] for job in numbers]
        job = min(ends, key=ends.__getitem__)
        left_s = max(began_s + ends.pop(job) - broker.now_s, 0.001)
        for number, node in enumerate(starts[job].nodes):
            broker.says(f"n{node}", ended(job, rank=number), after_s=left_s if number == 0 else 0.001)


@pytest.mark.parametrize("seed", range(6))
def test_jobs_start_at_the_same_times_on_the_same_nodes(tmp_path: Path, seed: int) -> None:
    asked = drawn(seed)
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        starts = served(journal, asked)
        events = journal_events(journal.path)
        again = [record.action for record in redecide(events, load_scheduler(POLICY))]
        assert again == [decided.action for decided in events.decisions], "a replay decides alike"
    finally:
        journal.close()
    assert starts == simulated(asked)
    assert len({one.start_s for one in starts}) > 3, "some have waited"
    for one, began in zip(asked, starts, strict=True):
        for other, theirs in zip(asked, starts, strict=True):
            overlap = began.start_s < theirs.start_s + other.duration_s
            overlap = overlap and theirs.start_s < began.start_s + one.duration_s
            if one.exclusive and other is not one and overlap:
                assert not set(began.nodes) & set(theirs.nodes)
