"""Input (events) and output (effects) of the broker's state machine."""

from __future__ import annotations

from typing import Literal

import msgspec

from rlsched.broker.base.entries import Entry
from rlsched.broker.state.finished_job import EndedJob
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.energy.limits import EnergyTable
from rlsched.transport.roles import ANONYMOUS, Peer
from rlsched.wire.messages import BrokerToNode, ClientReply, ClientRequest, NodeMessage


class ClientAsked(msgspec.Struct, frozen=True):
    """A client's request. The reply has the same `peer` and `request`. `by`: owner of the client's key."""

    peer: bytes
    request: int
    message: ClientRequest
    by: Peer = ANONYMOUS


class NodeSaid(msgspec.Struct, frozen=True):
    """A node's message. `node`: the node's name, authenticated by its key."""

    node: str
    request: int
    message: NodeMessage
    wall_s: float | None = None
    """Time of receipt by the clock of the broker's machine, Unix seconds; None: the clock was not read."""


class Tick(msgspec.Struct, frozen=True):
    """A timer tick. Every message received before the tick is in the tick's batch or an earlier batch."""


class Due(msgspec.Struct, frozen=True):
    """The time has arrived at which the scheduler asked to decide again (`Machine.due_s`).

    Unlike at a `Tick`, messages that arrived earlier may still be unread.
    """


class Intake(msgspec.Struct, frozen=True):
    """Refuse submissions from now on, with the error `refusal`; if `refusal` is "", accept them again."""

    refusal: str


class PowerDone(msgspec.Struct, frozen=True):
    """The operator's command to power a node up or down has ended; `error`: why it failed, "" on success."""

    node: str
    order: Literal["suspend", "resume"]
    error: str


class PricesRead(msgspec.Struct, frozen=True):
    """Prices of electricity and power limits were read, for the first time or again."""

    table: EnergyTable


Event = ClientAsked | NodeSaid | Tick | Due | Intake | PowerDone | PricesRead


class Commit(msgspec.Struct, frozen=True):
    """Commit these entries in one transaction, before the effects that follow in the list."""

    entries: list[Entry]
    over: list[EndedJob] = []
    """Rows of the jobs that finish with these entries, for the table of ended jobs."""


class Reply(msgspec.Struct, frozen=True):
    """Answer a client."""

    peer: bytes
    request: int
    message: ClientReply


class SendNode(msgspec.Struct, frozen=True):
    """Send a message to a node. If it is undeliverable, drop it; orders are repeated after a reconnect."""

    node: str
    message: BrokerToNode
    request: int = 0


class DropNode(msgspec.Struct, frozen=True):
    """Forget a node's connection, so that the node must register again (for example, its lease expired)."""

    node: str


class Records(msgspec.Struct, frozen=True):
    """Store these decision records and these events of jobs and nodes, outside the critical path."""

    records: list[DecisionRecord]
    happened: list[JobEvent | NodeChange] = []


class PowerNode(msgspec.Struct, frozen=True):
    """Run the operator's command that powers a node up or down. The result arrives as a `PowerDone`."""

    node: str
    order: Literal["suspend", "resume"]


Effect = Commit | Reply | SendNode | DropNode | Records | PowerNode
