"""What goes into the broker's state machine, and what comes out."""

from __future__ import annotations

from typing import Literal

import msgspec

from rlsched.broker.base.entries import Entry
from rlsched.broker.state.ended import EndedJob
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.schema import JobEvent, NodeEvent
from rlsched.transport.roles import NOBODY, Peer
from rlsched.wire.messages import BrokerToNode, ClientReply, ClientRequest, NodeMessage


class ClientAsked(msgspec.Struct, frozen=True):
    """A client's request. `peer` and `request` come back with the reply; `by` is whom its key belongs to."""

    peer: bytes
    request: int
    message: ClientRequest
    by: Peer = NOBODY


class NodeSaid(msgspec.Struct, frozen=True):
    """A node's message; `node` is the name that its key proves."""

    node: str
    request: int
    message: NodeMessage
    wall_s: float | None = None
    """What this machine's clock said as it came, Unix seconds; None where nobody looked."""


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and everything that had arrived by now has been handed in."""


class Due(msgspec.Struct, frozen=True):
    """The time has come that the scheduler asked for (`Machine.due_s`); says nothing of what has arrived."""


class Intake(msgspec.Struct, frozen=True):
    """From now on new submissions are refused with this line; "": they are taken."""

    refusal: str


class PowerDone(msgspec.Struct, frozen=True):
    """The operator's command to power a node up or down is over; `error`: why it failed, "" if it did not."""

    node: str
    order: Literal["suspend", "resume"]
    error: str


Event = ClientAsked | NodeSaid | Tick | Due | Intake | PowerDone


class Journal(msgspec.Struct, frozen=True):
    """Commit these, as one, before any effect that follows."""

    entries: list[Entry]
    over: list[EndedJob] = []
    """Jobs that are over by them."""


class Reply(msgspec.Struct, frozen=True):
    """Answer a client."""

    peer: bytes
    request: int
    message: ClientReply


class SendNode(msgspec.Struct, frozen=True):
    """Tell a node; a message that cannot be delivered is dropped, and said again when the node is back."""

    node: str
    message: BrokerToNode
    request: int = 0


class DropNode(msgspec.Struct, frozen=True):
    """Forget the node's connection: its lease is over, and it has to say hello again."""

    node: str


class Records(msgspec.Struct, frozen=True):
    """Keep these decision records, and what happened to jobs and nodes, off the critical path."""

    records: list[DecisionRecord]
    happened: list[JobEvent | NodeEvent] = []


class PowerNode(msgspec.Struct, frozen=True):
    """Run the operator's command for a node; what becomes of it is told by `PowerDone`."""

    node: str
    order: Literal["suspend", "resume"]


Effect = Journal | Reply | SendNode | DropNode | Records | PowerNode
