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
    """A client's request.

    Attributes:
        peer: Route to the client's connection.
        request: ID of the request; the reply has the same `peer` and `request`.
        by: Owner of the client's key.
    """

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
    """A timer tick. All messages received before the tick are in the same batch or in an earlier batch."""


class Due(msgspec.Struct, frozen=True):
    """The time of the next decision (`Machine.due_s`) has come.

    Some messages that arrived before a `Due` may still be unread. A `Tick` comes only when all were read.
    """


class Intake(msgspec.Struct, frozen=True):
    """New submissions are refused from now on with the error `refusal`; "": they are accepted again."""

    refusal: str


class PowerDone(msgspec.Struct, frozen=True):
    """A node's suspend or resume command has ended. `error`: why it failed; "" on success."""

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
    """Rows of the jobs that these entries end, for the table of ended jobs."""


class Reply(msgspec.Struct, frozen=True):
    """Answer a client."""

    peer: bytes
    request: int
    message: ClientReply


class SendNode(msgspec.Struct, frozen=True):
    """Send a message to a node. An undeliverable message is dropped.

    The broker repeats its orders when the node connects again.
    """

    node: str
    message: BrokerToNode
    request: int = 0


class DropNode(msgspec.Struct, frozen=True):
    """Forget a node's connection, so that the node must register again, for example if its lease expired."""

    node: str


class Records(msgspec.Struct, frozen=True):
    """Store these decision records, and these events of jobs and nodes, after all other effects."""

    records: list[DecisionRecord]
    happened: list[JobEvent | NodeChange] = []


class PowerNode(msgspec.Struct, frozen=True):
    """Run the suspend or resume command of a node. The result arrives as a `PowerDone`."""

    node: str
    order: Literal["suspend", "resume"]


Effect = Commit | Reply | SendNode | DropNode | Records | PowerNode
