"""Inputs and outputs of the broker's state machine: events and effects."""

from __future__ import annotations

from typing import Literal

import msgspec

from rlsched.broker.base.entries import Entry
from rlsched.broker.state.finished_job import EndedJob
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.transport.roles import ANONYMOUS, Peer
from rlsched.wire.messages import BrokerToNode, ClientReply, ClientRequest, NodeMessage


class ClientAsked(msgspec.Struct, frozen=True):
    """A client's request. The reply repeats `peer` and `request`; `by` is the owner of the client's key."""

    peer: bytes
    request: int
    message: ClientRequest
    by: Peer = ANONYMOUS


class NodeSaid(msgspec.Struct, frozen=True):
    """A node's message; `node` is the name that its key proves."""

    node: str
    request: int
    message: NodeMessage
    wall_s: float | None = None
    """Time of receipt by this machine's clock, Unix seconds; None if the clock was not read."""


class Tick(msgspec.Struct, frozen=True):
    """A timer tick: every message received by this time is in this batch or an earlier one."""


class Due(msgspec.Struct, frozen=True):
    """The time that the scheduler asked for (`Machine.due_s`) has come. Messages may still be unread."""


class Intake(msgspec.Struct, frozen=True):
    """New submissions are refused with this line from now on; "": they are accepted."""

    refusal: str


class PowerDone(msgspec.Struct, frozen=True):
    """The operator's command to power a node up or down has ended; `error`: why it failed, "" on success."""

    node: str
    order: Literal["suspend", "resume"]
    error: str


Event = ClientAsked | NodeSaid | Tick | Due | Intake | PowerDone


class Commit(msgspec.Struct, frozen=True):
    """Commit these entries in one transaction, before any later effect."""

    entries: list[Entry]
    over: list[EndedJob] = []
    """Jobs that these entries end."""


class Reply(msgspec.Struct, frozen=True):
    """Answer a client."""

    peer: bytes
    request: int
    message: ClientReply


class SendNode(msgspec.Struct, frozen=True):
    """Send a message to a node. If undeliverable, it is dropped, and sent again when the node is back."""

    node: str
    message: BrokerToNode
    request: int = 0


class DropNode(msgspec.Struct, frozen=True):
    """Close the node's connection: its lease has expired, and the node has to register again."""

    node: str


class Records(msgspec.Struct, frozen=True):
    """Store these decision records, and events of jobs and nodes, off the critical path."""

    records: list[DecisionRecord]
    happened: list[JobEvent | NodeChange] = []


class PowerNode(msgspec.Struct, frozen=True):
    """Run the operator's command for a node; its result comes back as `PowerDone`."""

    node: str
    order: Literal["suspend", "resume"]


Effect = Commit | Reply | SendNode | DropNode | Records | PowerNode
