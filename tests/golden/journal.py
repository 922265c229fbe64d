"""A broker's journal: written by the real machine on real SQLite, with simulated nodes."""

from __future__ import annotations

import heapq
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, Due, Event, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Scheduler
from rlsched.wire.messages import Ended, Heartbeat, Hello, Kill, Launch, Launched, Submit
from tests.support.broker.hand_broker import HandBroker

NODES = {"n0": (4, ""), "n1": (4, ""), "n2": (8, "red")}
JOBS = 70
ANSWERS_S, LEAVES_S = 0.05, 2.0
TICK_S = 5.0


class _Nodes:
    """Nodes that answer orders after a delay, and whose jobs run for their given time."""

    def __init__(self, runs_s: dict[int, float]) -> None:
        self._runs_s = runs_s
        self._number = itertools.count()
        self.due: list[tuple[float, int, Event]] = []

    def schedule(self, at_s: float, event: Event) -> None:
        heapq.heappush(self.due, (round(at_s, 3), next(self._number), event))

    def obey(self, node: str, order: Any, now_s: float) -> None:
        """Obey an order; only orders to launch or to kill need an answer."""
        if isinstance(order, Launch):
            rank = {"job": order.job, "attempt": order.attempt, "rank": order.rank}
            self.schedule(now_s + ANSWERS_S, NodeSaid(node, 0, Launched(pid=100 + order.rank, **rank)))
            ends_s = now_s + ANSWERS_S + self._runs_s[order.job]
            self.schedule(ends_s, NodeSaid(node, 0, Ended(exit_code=0, reason="", **rank)))
        elif isinstance(order, Kill):
            rank = {"job": order.job, "attempt": order.attempt, "rank": order.rank}
            self.schedule(now_s + LEAVES_S, NodeSaid(node, 0, Ended(exit_code=143, reason="killed", **rank)))


def _submissions(rng: np.random.Generator) -> list[tuple[float, float, Submit]]:
    """(submission time, run time, request)."""
    at_s = np.cumsum(rng.exponential(11.0, JOBS) * (rng.random(JOBS) < 0.5))
    runs_s = np.round(np.exp(rng.normal(3.8, 1.2, JOBS)), 2)
    return [
        (
            float(at_s[k]),
            float(runs_s[k]),
            Submit(
                token=f"t{k}",
                command=["true"],
                num_gpus=int(rng.choice([1, 1, 2, 2, 3, 4, 6, 8])),
                vc=str(rng.choice(["", "", "red"])),
                preemptible=bool(rng.random() < 0.6),
                time_limit_s=None if rng.random() < 0.7 else float(runs_s[k]) * 2.0,
            ),
        )
        for k in range(JOBS)
    ]


def journal_content(
    scheduler: Scheduler, again: Scheduler
) -> tuple[list[DecisionRecord], list[DecisionRecord]]:
    """(records of the life of a broker, records of a scheduler that decides its journal again)."""
    submissions = _submissions(np.random.default_rng(31))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = Journal(path)
        broker = HandBroker(scheduler, journal, limits=Limits(lease_s=1e6, launch_timeout_s=1e6))
        nodes = _Nodes({k + 1: runs_s for k, (_, runs_s, _) in enumerate(submissions)})
        for name, (gpus, vc) in NODES.items():
            nodes.schedule(broker.now_s + 1.0, NodeSaid(name, 0, Hello(name=name, gpus=gpus, vc=vc)))
        for k, (at_s, _, submit) in enumerate(submissions):
            nodes.schedule(broker.now_s + 2.0 + at_s, ClientAsked(b"peer", k + 1, submit))
        seen, tick_s = 0, broker.now_s + TICK_S
        while nodes.due or broker.state.num_finished < JOBS:
            ask_s = broker.machine.due_s()
            now_s = min(nodes.due[0][0] if nodes.due else tick_s, tick_s, ask_s)
            now_s = max(round(now_s, 3), round(broker.now_s + 0.001, 3))
            batch: list[Event] = []
            while nodes.due and nodes.due[0][0] <= now_s:
                batch.append(heapq.heappop(nodes.due)[2])
            if now_s >= tick_s:
                tick_s = now_s + TICK_S
                batch += [NodeSaid(name, 0, Heartbeat(name=name)) for name in NODES] + [Tick()]
            elif now_s >= ask_s:
                batch.append(Due())
            broker.batch(batch, after_s=now_s - broker.now_s)
            for node, order in broker.sent.orders[seen:]:
                nodes.obey(node, order, now_s)
            seen = len(broker.sent.orders)
        journal.close()
        live = [record for kept in broker.records for record in kept.records]
        return live, redecide(journal_events(path), again)
