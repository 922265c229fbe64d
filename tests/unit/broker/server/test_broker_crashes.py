"""A broker crashes at every possible batch, before or after its commit: each job runs exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlsched.broker.base.entries import Entry
from rlsched.broker.events import ClientAsked, Event, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.state.finished_job import EndedJob
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.wire.messages import (
    AttemptReport,
    BrokerToNode,
    Ended,
    EndedAck,
    Hello,
    Kill,
    Launch,
    Launched,
    NodeMessage,
    Submit,
    Submitted,
    Welcome,
)
from tests.support.broker.hand_broker import HandBroker, RecordingTransport

GANGS = (2, 8, 4, 1, 3, 6, 1, 5, 2, 8, 1)
Key = tuple[int, int, int]


class CrashedError(Exception):
    """The broker has crashed."""


class CrashingJournal(Journal):
    """Crashes at commit number `at`, before or right after it."""

    def __init__(self, path: Path, at: int, *, after: bool) -> None:
        super().__init__(path)
        self.at, self.after, self.commits = at, after, 0

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        self.commits += 1
        if self.commits == self.at and not self.after:
            raise CrashedError
        super().commit(entries, now_s, over)
        if self.commits == self.at:
            raise CrashedError


class Node:
    """A node daemon that keeps the protocol: starts a rank at most once, repeats ends until acknowledged."""

    def __init__(self, name: str, started: Counter[Key]) -> None:
        self.name, self.started = name, started
        self.cluster, self.epoch = "", 0
        self.running: dict[Key, int] = {}
        self.over: dict[Key, int] = {}
        self.seen: set[Key] = set()
        self.out: list[NodeMessage] = []

    def hello(self) -> None:
        self.out = [
            Hello(
                name=self.name,
                gpus=4,
                cluster=self.cluster,
                epoch=self.epoch,
                attempts=[
                    *(AttemptReport(job=j, attempt=a, rank=r, state="running") for j, a, r in self.running),
                    *(
                        AttemptReport(job=j, attempt=a, rank=r, state="ended", exit_code=code)
                        for (j, a, r), code in self.over.items()
                    ),
                ],
            )
        ]

    def obey(self, message: BrokerToNode) -> None:
        match message:
            case Welcome():
                for job, attempt in message.forget:
                    assert not [key for key in self.running if key[:2] == (job, attempt)], "a job was lost"
                    self.over = {key: code for key, code in self.over.items() if key[:2] != (job, attempt)}
                self.cluster, self.epoch = message.cluster, message.epoch
            case Launch(job=job, attempt=attempt, rank=rank):
                key = (job, attempt, rank)
                if key not in self.seen:
                    self.seen.add(key)
                    self.started[key] += 1
                    self.running[key] = 2
                    self.out.append(Launched(job=job, attempt=attempt, rank=rank, pid=1))
            case Kill():
                raise AssertionError("nothing here is to be ended")
            case EndedAck(job=job, attempt=attempt, rank=rank):
                self.over.pop((job, attempt, rank), None)

    def step(self) -> None:
        for key in list(self.running):
            self.running[key] -= 1
            if self.running[key] == 0:
                del self.running[key]
                self.over[key] = 0
        self.out += [Ended(job=j, attempt=a, rank=r, exit_code=code) for (j, a, r), code in self.over.items()]


class World:
    """Two nodes, a client that repeats unacknowledged submissions, and a broker that may crash."""

    def __init__(self, path: Path, scheduler: Scheduler) -> None:
        self.path, self.scheduler = path, scheduler
        self.started: Counter[Key] = Counter()
        self.nodes = {name: Node(name, self.started) for name in ("n0", "n1")}
        self.acknowledged: dict[int, int] = {}
        self.crashes = 0

    def broker(self, journal: Journal) -> HandBroker:
        for node in self.nodes.values():
            node.hello()
        return HandBroker(self.scheduler, journal)

    def live(self, journal: Journal) -> int:
        """Run until every job has ended; return the number of batches."""
        broker: HandBroker | None = None
        for batches in range(1, 200):
            try:
                broker = broker or self.broker(journal)
                self.batch(broker, batches)
                if len(self.acknowledged) == len(GANGS) == broker.state.num_finished:
                    journal.close()
                    return batches
            except CrashedError:
                self.crashes += 1
                journal.close()
                journal, broker = Journal(self.path), None
        raise AssertionError("the jobs never ended")

    def batch(self, broker: HandBroker, number: int) -> None:
        wanted = [n for n in range(len(GANGS)) if n not in self.acknowledged][:2]
        events: list[Event] = [
            ClientAsked(b"c", n, Submit(token=f"t{n}", command=["x"], num_gpus=GANGS[n]))
            for n in wanted
            if number > 1
        ]
        for node in self.nodes.values():
            events += [NodeSaid(node.name, 0, message) for message in node.out]
            node.out = []
        broker.sent = RecordingTransport()
        broker.batch([*events, Tick()], after_s=0.1)
        for _, request, reply in broker.sent.replies:
            assert isinstance(reply, Submitted)
            self.acknowledged[request] = reply.job
        for name, order in broker.sent.orders:
            self.nodes[name].obey(order)
        for node in self.nodes.values():
            node.step()


@pytest.mark.parametrize("after", [False, True], ids=["before its commit", "after its commit"])
def test_crash_at_any_batch_loses_no_job_and_starts_none_twice(tmp_path: Path, after: bool) -> None:
    scheduler = load_scheduler("qssf-backfill")
    ranks = sum(1 + (gpus > 4) for gpus in GANGS)
    batches = World(tmp_path / "whole.sqlite", scheduler).live(Journal(tmp_path / "whole.sqlite"))
    assert batches > 10
    for at in range(1, batches + 1):
        path = tmp_path / f"{at}.sqlite"
        world = World(path, scheduler)
        world.live(CrashingJournal(path, at, after=after))
        assert world.crashes == 1 or at > batches - 2
        assert sorted(world.acknowledged.values()) == list(range(1, len(GANGS) + 1)), f"crash at batch {at}"
        assert len(world.started) == ranks, f"crash at batch {at}: {world.started}"
        assert set(world.started.values()) == {1}, f"crash at batch {at}: {world.started}"
        assert {attempt for _, attempt, _ in world.started} == {1}
