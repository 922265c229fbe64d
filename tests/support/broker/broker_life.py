"""The random life of a broker, and the contents of its book, for tests that take journals apart."""

from __future__ import annotations

import zlib
from collections import deque
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import msgspec
import numpy as np

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, NodeSaid, Tick
from rlsched.broker.journal import codec as picture_module
from rlsched.broker.journal.codec import pack
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.recovery import recover_state
from rlsched.broker.journal.snapshots import _AS_NEW
from rlsched.broker.server.broker_policy import load_policy
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import PriorityRules
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.decide.scheduler import Scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import Cancel, DrainNode, Heartbeat, Kill, Launch, ResumeNode
from rlsched.workload.predict.boosting import sklearn_installed
from rlsched.workload.predict.kinds import HEDGE, RUNNING_MEAN
from tests.support.broker.hand import ended, hello, launched, submit
from tests.support.broker.hand_broker import HandBroker

NODES = {"n0": "", "n1": "", "m0": "v"}
sorted_json = msgspec.json.Encoder(order="deterministic")
RANKS = PriorityRules(half_life_s=200.0, age_s=100.0)
LIMITS = Limits(lost_after_s=60.0, ended_s=50.0, ended_jobs=8)
STEPS, STEPS_AFTER = 240, 80
"""Numbers of steps: of the life that is taken apart, and of the two that continue from the rebuilt state."""
CASES = [
    ("fifo-backfill", RUNNING_MEAN, 0.0),
    ("tuned", RUNNING_MEAN, 0.5),
    ("gittins", RUNNING_MEAN, 0.0),
    ("dials", RUNNING_MEAN, 0.0),
    ("ppo", RUNNING_MEAN, 0.0),
    *([("tuned", HEDGE, 0.0)] if sklearn_installed() else []),
]


@cache
def strategy_file() -> str:
    """Dials that change with every observation."""
    path = Path(mkdtemp()) / "lively.json"
    Strategy.from_layers(np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))).write(path)
    return str(path)


def scheduler_of(name: str) -> Scheduler:
    dials = name == "dials"
    policy = Policy("easy", reserve_after="1s", dials=strategy_file()) if dials else Policy.of(name)
    return load_policy(policy, None, 1e9)[0]


class Life:
    """A broker, its nodes and its clients, driven at random: equal seeds give equal lives."""

    def __init__(self, broker: HandBroker, seed: int) -> None:
        self.broker, self.chance = broker, Random(seed)
        self.running: deque[tuple[str, int, int, int]] = deque()

    def step(self) -> None:
        """One random event, then a pause."""
        chance, broker = self.chance, self.broker
        first = len(broker.sent.orders)
        after_s = chance.choice((0.001, 0.5, 2.0, 20.0))
        jobs = sorted(broker.state.job_of_seq.values(), key=lambda job: job.number)
        what = chance.random()
        if what < 0.35:
            asked = [
                ClientAsked(b"c", k, self._submission(), Peer("admin", "c"))
                for k in range(chance.randint(1, 3))
            ]
            broker.batch(asked, after_s=after_s)
        elif what < 0.4 and jobs:
            job = chance.choice(jobs).number
            broker.batch([ClientAsked(b"c", 0, Cancel(job=job), Peer("admin", "c"))], after_s=after_s)
        elif what < 0.45:
            node = chance.choice(sorted(broker.state.nodes))
            order = DrainNode(node=node) if chance.random() < 0.3 else ResumeNode(node=node)
            broker.batch([ClientAsked(b"c", 0, order, Peer("admin", "c"))], after_s=after_s)
        elif what < 0.8 and self.running:
            node, job, attempt, rank = self.running[0]
            self.running.rotate(-1)
            if chance.random() < 0.7:
                self.running.pop()
                code = chance.choice((0, 0, 0, 1))
                broker.says(node, ended(job, attempt, rank, code), after_s=after_s)
        else:
            beats = [NodeSaid(node, 0, Heartbeat(name=node)) for node in sorted(broker.state.nodes)]
            broker.batch([*beats, Tick()], after_s=after_s)
        self._obey(first)

    def _submission(self) -> Any:
        chance = self.chance
        return submit(
            chance.choice((1, 1, 2, 4, 6)),
            token=f"{chance.random():.16f}",
            vc=chance.choice(("", "", "v")),
            user=chance.choice(("ada", "bob")),
            name=f"train-{chance.randint(1, 30)}",
            preemptible=chance.random() < 0.4,
            priority=chance.choice(("low", "normal", "normal", "high")),
            time_limit_s=chance.choice((None, 300.0)),
            speed_energy=chance.choice((None, None, 0.7)),
        )

    def _obey(self, first: int) -> None:
        """Nodes carry out their orders."""
        for node, order in self.broker.sent.orders[first:]:
            key = (node, getattr(order, "job", 0), getattr(order, "attempt", 0), getattr(order, "rank", 0))
            match order:
                case Launch() if key not in self.running:
                    self.broker.says(*key[:1], launched(*key[1:]))
                    self.running.append(key)
                case Kill() if key in self.running:
                    self.running.remove(key)
                    self.broker.says(*key[:1], ended(*key[1:], exit_code=143, reason="killed"))


def broker_on(journal: Journal, case: tuple[str, str, float]) -> HandBroker:
    policy, prediction, energy = case
    return HandBroker(
        scheduler_of(policy), journal, limits=LIMITS, prediction=prediction, speed_energy=energy, ranks=RANKS
    )


def born(journal: Journal, case: tuple[str, str, float], seed: int, kind: type[Life] = Life) -> Life:
    """A life at its start, with its nodes registered."""
    broker = broker_on(journal, case)
    for node, vc in NODES.items():
        broker.says(node, hello(node, vc=vc))
    return kind(broker, seed)


def put_together(journal: Journal, case: tuple[str, str, float]) -> BrokerState:
    """State of the book that a journal gives."""
    policy, prediction, _ = case
    said: list[str] = []
    state = recover_state(
        journal, Predictions(prediction), scheduler_of(policy), said.append, half_life_s=RANKS.half_life_s
    )
    assert said == []
    return state


def go_on(
    life: Life, journals: tuple[Journal, Journal], case: tuple[str, str, float], seed: int
) -> tuple[list[HandBroker], list[list[Any]]]:
    """Continue this life on the brokers of two journals, then close the journals.

    The random events are the same for both. Returns the entries that each wrote since.
    """
    last, brokers, entries = life.broker.journal.last, [], []
    for journal in journals:
        one = type(life)(broker_on(journal, case), seed + 1_000)
        one.running = deque(life.running)
        for _ in range(STEPS_AFTER):
            one.step()
        journal.close()
        brokers.append(one.broker)
        entries.append([row.entry for row in read_journal(journal.path) if row.n > last])
    return brokers, entries


def shape(state: BrokerState) -> list[object]:
    """The book except the cluster's arrays, without ended jobs."""
    return [
        state.cluster.digest(),
        [sorted_json.encode(job) for job in state.job_of_seq.values()],
        [(name, sorted_json.encode(node)) for name, node in state.nodes.items()],
        (state.decisions, state.contested, state.interventions, state.outcomes, state.asked_for_s),
        (state.epoch, state.last_number, state.last_attempt, state.restored_s, state.identity, state.now_s),
        (len(state.numbers), state.numbers.numbers_between(0, 10_000), sorted(state.seats._leaving)),
        [state.number_of_seq.get(seq) for seq in range(2_000)],
        (state.usage._gpu_s, state.usage._at_s, state.priorities._levels, repr(state.priorities._live)),
        unshared(msgspec.msgpack.decode(zlib.decompress(pack(state.predictions, _AS_NEW)))),
    ]


def unshared(picture: Any) -> Any:
    """A snapshot in which shared objects are written out at each place; arrays may be read-only or not."""
    known: list[Any] = []

    def plain(packed: Any) -> Any:
        if not isinstance(packed, list):
            return repr(packed)
        if packed[0] == picture_module._AGAIN:
            return known[packed[1]]
        if packed[0] == picture_module._TUPLE:
            return tuple(map(plain, packed[1:]))
        place = len(known)
        known.append(None)
        if packed[0] == picture_module._ARRAY:
            known[place] = (*map(repr, packed[1:4]), packed[5])
        else:
            known[place] = tuple(map(plain, packed))
        return known[place]

    return [repr(picture[0]), plain(picture[1])]
