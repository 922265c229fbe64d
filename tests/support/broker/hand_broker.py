"""Fakes for tests: a journal that fails, and a broker without sockets that a test drives step by step."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from rlsched.broker.base.entries import BrokerStarted, Entry
from rlsched.broker.base.limits import Limits
from rlsched.broker.base.sqlite_errors import clear_error
from rlsched.broker.events import ClientAsked, Event, NodeSaid, PowerNode, Records, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import recover_state
from rlsched.broker.machine.machine import Machine
from rlsched.broker.nodes.sleepers import SleepPlan
from rlsched.broker.nodes.slow_sharing import SharingRules
from rlsched.broker.server.performing import perform
from rlsched.broker.state.finished_job import EndedJob
from rlsched.broker.state.predictions import Predictions
from rlsched.broker.state.priorities import PriorityRules
from rlsched.decide.scheduler import Scheduler
from rlsched.energy.limits import EnergyTable
from rlsched.transport.roles import Peer
from rlsched.wire.messages import BrokerToNode, ClientReply, ClientRequest, Heartbeat, NodeMessage
from rlsched.workload.predict.kinds import RUNNING_MEAN


class FailingJournal(Journal):
    """A real journal whose disk is full from commit number `fail_from` on (from 0; tests can change it)."""

    def __init__(self, path: str | Path, fail_from: float = float("inf")) -> None:
        super().__init__(path)
        self.fail_from = fail_from
        self.commits = 0

    def commit(self, entries: Sequence[Entry], now_s: float, over: Sequence[EndedJob] | None = None) -> None:
        """Commit the entries, or fail as if the disk was full: nothing is written."""
        self.commits += 1
        if self.commits > self.fail_from:
            raise clear_error(self.path, sqlite3.OperationalError("database or disk is full"))
        super().commit(entries, now_s, over)


class RecordingTransport:
    """A transport that records messages in order instead of sending them.

    Attributes:
        replies: (peer, request, message).
        orders: (node, message).
        requests: The request number of each order.
        dropped: Nodes whose connection was closed.
    """

    def __init__(self) -> None:
        self.replies: list[tuple[bytes, int, ClientReply]] = []
        self.orders: list[tuple[str, BrokerToNode]] = []
        self.requests: list[int] = []
        self.dropped: list[str] = []

    def reply(self, route: bytes, request: int, message: ClientReply) -> None:
        """Record a reply."""
        self.replies.append((route, request, message))

    def send_node(self, node: str, message: BrokerToNode, request: int = 0) -> None:
        """Record an order."""
        self.orders.append((node, message))
        self.requests.append(request)

    def drop_node(self, node: str) -> None:
        """Record that a node's connection was closed."""
        self.dropped.append(node)


class HandBroker:
    """A broker without sockets, driven by a test: its clock moves only when the test moves it.

    Args:
        scheduler: The policy.
        journal: The journal; its entries are replayed first.
        limits: Time-outs and intervals.
        now_s: The first batch's time, Unix seconds.
        prediction: `running-mean` or `hedge`.
        speed_energy: Weight of energy against time, 0 to 1.
        shares: Whether jobs share GPUs.
        prices: Prices of electricity and power limits.

    Attributes:
        sent: Messages that were sent.
        records: Decision records.
        powered: Operator's commands that a real broker would have run.
        has_time: Called after each answer; returns whether this batch has time for another question.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        journal: Journal,
        *,
        limits: Limits | None = None,
        now_s: float = 1_000.0,
        prediction: str = RUNNING_MEAN,
        speed_energy: float = 0.0,
        shares: bool = False,
        ranks: PriorityRules | None = None,
        sleep: SleepPlan | None = None,
        sharing: SharingRules | None = None,
        prices: EnergyTable | None = None,
    ) -> None:
        self.journal = journal
        self.powered: list[PowerNode] = []
        self.sent = RecordingTransport()
        self.records: list[Records] = []
        self.has_time: Callable[[], bool] = lambda: True
        ranks = ranks or PriorityRules()
        predictions = Predictions(prediction)
        self.state = recover_state(journal, predictions, scheduler, half_life_s=ranks.half_life_s)
        self.now_s = max(now_s, self.state.now_s + 0.001)
        started = BrokerStarted(
            epoch=self.state.epoch + 1,
            cluster=self.state.identity or "c1",
            version="test",
            policy=scheduler.name,
            fallback="",
            order=scheduler.order.name,
            speed_energy=speed_energy,
            shares=shares,
        )
        self.machine = Machine(
            self.state,
            scheduler,
            started,
            self.now_s,
            ended=journal.ended,
            limits=limits,
            ranks=ranks,
            sleep=sleep,
            sharing=sharing,
            prices=prices,
        )
        self._requests = itertools.count(1)
        self.batch([])

    def batch(self, events: Sequence[Event], *, after_s: float = 0.001) -> list[ClientReply | BrokerToNode]:
        """Handle one batch, `after_s` after the previous one. Return its output, replies first."""
        self.now_s = round(self.now_s + after_s, 3)
        replies, orders = len(self.sent.replies), len(self.sent.orders)
        effects = self.machine.handle_batch(events, self.now_s)
        self.records += perform(effects, self.now_s, self.journal, self.sent, self.powered.append)
        perform(self.machine.answer(self.has_time), self.now_s, self.journal, self.sent)
        return [
            *(message for _, _, message in self.sent.replies[replies:]),
            *(message for _, message in self.sent.orders[orders:]),
        ]

    def ask(self, message: ClientRequest) -> ClientReply:
        """Send one request of an admin in a batch of its own. Return the reply."""
        self.batch([ClientAsked(b"peer", next(self._requests), message, Peer("admin", "hand"))])
        return self.sent.replies[-1][2]

    def says(
        self, node: str, *messages: NodeMessage, after_s: float = 0.001
    ) -> list[ClientReply | BrokerToNode]:
        """Send messages of a node in one batch. Return the batch's output."""
        return self.batch([NodeSaid(node, 0, message) for message in messages], after_s=after_s)

    def wait(self, seconds: float, *alive: str) -> list[ClientReply | BrokerToNode]:
        """Let time pass in steps while the nodes `alive` send heartbeats. Return the output."""
        said: list[ClientReply | BrokerToNode] = []
        until_s, step_s = self.now_s + seconds, self.machine.limits.lease_s / 5
        while self.now_s < until_s:
            beats = [NodeSaid(node, 0, Heartbeat(name=node)) for node in alive]
            said += self.batch([*beats, Tick()], after_s=min(step_s, max(until_s - self.now_s, 0.001)))
        return said
