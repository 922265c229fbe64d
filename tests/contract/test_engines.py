"""Promises of engines (`rlsched.broker.nodes.engine`) on a wire that loses, repeats and reorders messages.

A broker driven by hand sends orders and engines obey. Everything that is not on disk is lost now and then,
also between an order and its record. Each attempt starts at most once, no GPU has two jobs, and every job
ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.nodes.engine import NodeEngine
from rlsched.decide.registry import load_scheduler
from rlsched.engine.gateway import Gateway
from rlsched.engine.steps import Ask, Say, Times
from rlsched.engine.writer import Writer
from rlsched.transport.roles import Peer
from rlsched.wire.messages import AttemptKey, BrokerToNode, ClientRequest, Hello, Launch, NodeMessage, Submit
from rlsched_node.link.machine import NodeMachine
from rlsched_node.processes.attempt import LocalRank, Phase
from rlsched_node.processes.steps import (
    Acknowledge,
    Connected,
    EndRank,
    Event,
    Exited,
    HardKill,
    NodeTick,
    Persist,
    Received,
    RecordEnded,
    Send,
    Started,
    StartRank,
)
from tests.support.broker.hand_broker import HandBroker
from tests.support.fake_slurm import FakeSlurm

T = TypeVar("T")
NODES, GPUS, JOBS = ("n0", "n1", "n2"), 4, 12
STEP_S = 0.5
LIMITS = Limits(heartbeat_s=1.0, lease_s=60.0, launch_timeout_s=20.0, drain_s=2.0, kill_again_s=4.0)
ENGINE = Peer("engine", "slurm", nodes="*")


class World(NodeEngine, Protocol):
    """An engine with the layer below it: running scripts, and the clock."""

    def submit(self, gpus: int, runs_s: float, code: int) -> ClientRequest | None:
        """Submit a job as users of this engine do; None: the engine itself requests it."""

    def requests(self) -> Sequence[Ask]:
        """Requests of the engine to the broker."""

    def answered(self, ask: Ask, answer: object) -> None:
        """Deliver the broker's answer to a request."""

    def step(self, now_s: float) -> None:
        """Advance the time."""

    def die(self, rng: random.Random) -> None:
        """Crash: state that is not on disk is lost; actions in progress happened or did not."""

    def starts(self) -> list[tuple[str, str, tuple[int, ...], float, float]]:
        """(script, node, GPUs, start, end) of each."""


class OwnNodes:
    """rlsched's own nodes: the daemon's state machine, with processes and a disk that survive it."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._disk: dict[str, dict[AttemptKey, LocalRank]] = {name: {} for name in NODES}
        self._kept: dict[str, tuple[str, int]] = dict.fromkeys(NODES, ("", 0))
        self._runs: dict[str, dict[AttemptKey, tuple[float, int]]] = {name: {} for name in NODES}
        self._plans: dict[int, tuple[float, int]] = {}
        self._starts: dict[tuple[str, AttemptKey], list[tuple[tuple[int, ...], float, float]]] = {}
        self._out: list[tuple[str, NodeMessage]] = []
        self._daemons = {name: self._daemon(name) for name in NODES}
        for name in NODES:
            self._handle(name, Connected())

    def _daemon(self, name: str) -> NodeMachine:
        cluster, epoch = self._kept[name]
        hello = Hello(name=name, gpus=GPUS, cluster=cluster, epoch=epoch)
        return NodeMachine(hello, list(self._disk[name].values()))

    def _handle(self, name: str, event: Event) -> None:
        for effect in self._daemons[name].handle(event, self._now_s):
            match effect:
                case Send(message=message):
                    self._out.append((name, message))
                case Persist(cluster, epoch):
                    self._kept[name] = (cluster, epoch)
                case StartRank(launch=launch):
                    self._start(name, launch)
                case EndRank(key=key) | HardKill(key=key):
                    if key in self._runs[name]:
                        self._exit(name, key, 143, "killed")
                case RecordEnded(key=key, exit_code=code, reason=reason):
                    self._disk[name][key] = LocalRank(key, exit_code=code, reason=reason)
                case Acknowledge(key=key) if key in self._disk[name]:
                    self._disk[name][key].is_acknowledged = True

    def _start(self, name: str, order: Launch) -> None:
        key = AttemptKey(order.job, order.attempt, order.rank, self._kept[name][0])
        gpus = tuple(order.gpus)
        runs_s, code = self._plans[key.job]
        self._runs[name][key] = (self._now_s + runs_s, code)
        self._starts.setdefault((name, key), []).append((gpus, self._now_s, float("inf")))
        self._disk[name][key] = LocalRank(key, gpus, Phase.RUNNING, pid=1)
        self._handle(name, Started(key, 1))

    def _exit(self, name: str, key: AttemptKey, code: int, reason: str) -> None:
        del self._runs[name][key]
        gpus, began_s, _ = self._starts[name, key][-1]
        self._starts[name, key][-1] = (gpus, began_s, self._now_s)
        self._disk[name][key] = LocalRank(key, exit_code=code, reason=reason)
        self._handle(name, Exited(key, code, reason))

    def submit(self, gpus: int, runs_s: float, code: int) -> ClientRequest | None:
        number = len(self._plans) + 1
        self._plans[number] = (runs_s, code)
        return Submit(token=f"t{number}", command=["true"], num_gpus=gpus, user="ada", lost_after_s=0.0)

    def requests(self) -> Sequence[Ask]:
        return ()

    def answered(self, ask: Ask, answer: object) -> None:  # noqa: ARG002
        raise AssertionError("it asks nothing")

    def step(self, now_s: float) -> None:
        self._now_s = now_s
        for name, runs in self._runs.items():
            for key in [key for key, (end_s, _) in runs.items() if now_s >= end_s]:
                self._exit(name, key, runs[key][1], "")
            self._handle(name, NodeTick())

    def die(self, rng: random.Random) -> None:
        name = rng.choice(NODES)
        self._daemons[name] = self._daemon(name)
        self._handle(name, Connected())

    def starts(self) -> list[tuple[str, str, tuple[int, ...], float, float]]:
        return [
            (str(key), name, gpus, began_s, ended_s)
            for (name, key), times in self._starts.items()
            for gpus, began_s, ended_s in times
        ]

    def hellos(self) -> Sequence[Hello]:
        return [Hello(name=name, gpus=GPUS) for name in NODES]

    def send_order(self, node: str, order: BrokerToNode, request: int = 0) -> None:
        self._handle(node, Received(order, request))

    def receive_messages(self) -> Sequence[tuple[str, NodeMessage]]:
        out, self._out = self._out, []
        return out


class OnSlurm:
    """The gateway's state machine, with a Slurm in memory that survives it."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm(NODES, GPUS)
        self.slurm.step(1000.0)
        self._steps: list[Say | Ask] = []
        self._gateway = self._new()

    def _new(self) -> Gateway:
        times = Times(start_s=8.0, repeat_s=1.0, ask_again_s=2.0, look_round_s=3.0, release_after_s=1e6)
        return Gateway("slurm", "c", ("gpu",), Writer(self.slurm.obey), times)

    def submit(self, gpus: int, runs_s: float, code: int) -> ClientRequest | None:
        self.slurm.sbatch(gpus, runs_s, code)
        return None

    def requests(self) -> Sequence[Ask]:
        requests = [step for step in self._steps if isinstance(step, Ask)]
        self._steps = [step for step in self._steps if not isinstance(step, Ask)]
        return requests

    def answered(self, ask: Ask, answer: object) -> None:
        self._steps += self._gateway.handle_answer(ask.about, answer, self.slurm.now_s)

    def step(self, now_s: float) -> None:
        self.slurm.step(now_s)
        self._steps += self._gateway.handle_facts(self.slurm.facts())

    def die(self, rng: random.Random) -> None:
        running = [job for job in self.slurm.jobs.values() if job.state == "RUNNING"]
        if running and rng.random() < 0.5:  # an admin requeues a job
            self.slurm.obey([f"requeuehold {rng.choice(running).key}"])
        self.slurm.loses = rng.choice((0, 0, 1, 2))  # writes in progress
        self._steps += self._gateway.handle_facts(self.slurm.facts())
        self.slurm.loses = 0
        self._steps = []
        self._gateway = self._new()

    def starts(self) -> list[tuple[str, str, tuple[int, ...], float, float]]:
        found = []
        for job in self.slurm.jobs.values():
            for restarts, (nodes, gpus, began_s) in enumerate(job.starts):
                assert len(gpus) == job.gpus, "no start without its GPUs, none with more"
                ended_s = [*job.requeued_s, job.end_s or float("inf")][restarts]
                name = f"{job.key} after {restarts} restarts"
                found += [(name, node, tuple(gpus), began_s, ended_s) for node in nodes]
        return found

    def hellos(self) -> Sequence[Hello]:
        return self._gateway.hellos()

    def send_order(self, node: str, order: BrokerToNode, request: int = 0) -> None:  # noqa: ARG002
        self._steps += self._gateway.handle_message(node, order, self.slurm.now_s)

    def receive_messages(self) -> Sequence[tuple[str, NodeMessage]]:
        out = [(step.node, step.message) for step in self._steps if isinstance(step, Say)]
        self._steps = [step for step in self._steps if isinstance(step, Ask)]
        return out


def _storm(world: World, journal: Journal, seed: int) -> HandBroker:
    """Submit, decide and run, on a bad wire for a while and then on a good one until all jobs have ended."""
    rng = random.Random(seed)
    policy = "fifo-backfill"
    broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS)
    plans = [
        (rng.choice((1, 1, 2, 4)), rng.choice((0.7, 2.0, 5.0)), rng.choice((0, 0, 3))) for _ in range(JOBS)
    ]
    said = 0
    for number in range(4000):
        is_bad = number < 120
        if plans and number % 4 == 0:
            request = world.submit(*plans.pop())
            if request is not None:
                broker.ask(request)
        if is_bad and rng.random() < 0.06:
            world.die(rng)
        if is_bad and rng.random() < 0.03:  # the broker crashes: a new one replays the journal
            broker = HandBroker(load_scheduler(policy), journal, limits=LIMITS, now_s=broker.now_s + 1.0)
            said = len(broker.sent.orders)
        world.step(broker.now_s)
        orders = broker.sent.orders[said:]
        said = len(broker.sent.orders)
        for node, order in _wire(rng, orders) if is_bad else orders:
            world.send_order(node, order)
        for ask in world.requests():
            if not is_bad or rng.random() < 0.8:
                broker.batch([ClientAsked(b"gateway", 1, ask.message, ENGINE)])
                answer = broker.sent.replies[-1][2]
                if not is_bad or rng.random() < 0.8:
                    world.answered(ask, answer)
        received = list(world.receive_messages())
        events = [
            NodeSaid(node, 0, message) for node, message in (_wire(rng, received) if is_bad else received)
        ]
        broker.batch([*events, Tick()], after_s=STEP_S)
        if not plans and not is_bad and broker.state.num_finished == JOBS:
            return broker
    raise AssertionError({job.number: (job.state, job.reason) for job in broker.state.jobs.values()})


def _wire(rng: random.Random, messages: Sequence[T]) -> list[T]:
    """Messages as they arrive: some are lost, some repeated, and some reordered."""
    found = [one for one in messages for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2)))]
    if rng.random() < 0.2:
        rng.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [OwnNodes, OnSlurm])
def test_each_attempt_starts_once_and_every_job_ends(
    make: Callable[[], World], seed: int, tmp_path: Path
) -> None:
    world = make()
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        broker = _storm(world, journal, seed)
    finally:
        journal.close()
    starts = world.starts()
    names = [(name, node) for name, node, _, _, _ in starts]
    assert len(set(names)) == len(names), "an attempt started twice"
    seats = sorted(
        (node, gpu, began_s, ended_s) for _, node, gpus, began_s, ended_s in starts for gpu in gpus
    )
    for before, after in pairwise(seats):
        if before[:2] == after[:2] and before[3] < float("inf"):
            assert before[3] <= after[2], "two jobs had one GPU"
    assert sum(broker.state.outcomes.values()) == JOBS
    assert set(broker.state.outcomes) <= {"completed", "failed"}
    for job in broker.state.jobs.values():
        assert job.exit_code in (0, 3), (job.number, job.state, job.reason)
