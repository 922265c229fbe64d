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
from rlsched_envs.sim.engine import Engine
from tests.support.broker.first_starts import first_starts
from tests.support.broker.hand import hello, make, submit
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
    messages = [(submit(one.gpus, exclusive=one.exclusive), one.duration_s) for one in asked]
    return [Began(one.start_s, list(one.gpus)) for one in first_starts(broker, messages)]


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
