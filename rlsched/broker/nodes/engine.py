"""The engine protocol: the interface between the broker, which decides, and an engine, which runs the jobs.

The broker decides order, nodes, GPUs and clocks. An engine carries out these decisions on its nodes. The wire
protocol (`rlsched.wire.messages`) is the engine protocol, and there are two engines. rlsched's own nodes are
the first: each daemon (`rlsched_node`) serves one node, with a key of role `node`. A gateway such as
`rlsched engine slurm` is the second: it serves many nodes through one connection, with one key of role
`engine`, and wraps each message in an `OfNode` or a `ForNode`.

Both engines follow these rules, which `tests/contract/test_engines.py` checks:

- **Orders** (`Launch`, `Kill`, `HoldClock`, `FetchLog`) can be lost, and can arrive twice. An engine starts
  a rank (job, attempt, rank) at most once, and obeys only the highest broker epoch. After a `Kill`, that rank
  never starts, even if its `Launch` arrives later.
- **Events** (`Launched`, `LaunchRefused`, `ClockHeld`, `Ended`, `Held`) arrive at least once. An `Ended` is
  sent again until its `EndedAck` arrives, also after a restart of the sender.
- **Crashes**: any process may crash between receiving an order and recording it. An engine that is not sure
  whether it has obeyed an order checks where the job runs before it starts anything.
- **State of the engine**: `unhealthy` gives the reason why a node gets no jobs (for example, an admin has
  drained it), and `Held` lists GPUs that other jobs use; the broker records both. `engine_away` reports that
  the sender is alive but cannot reach its engine. No job is lost while the engine is away.

An engine reports its abilities in `Hello.capabilities`. An engine without the ability `places` accepts no
`Launch`, and the broker starts nothing on its nodes. Such an engine reads the order of the queue
(`JobInfo.queue_key`), starts jobs itself and reports the nodes and GPUs (`Begin`). The broker then treats the
attempt like any other.

On an engine without the ability `per_node_indices`, a gang has the same GPU numbers on all its nodes. A gang
that is larger than a node is first given whole nodes, so the size of the gang decides whether equal numbers
are possible. A gang that can never run for this reason is rejected at submission (`Known.is_uneven`). An
engine still refuses a `Launch` that it cannot obey (`LaunchRefused`), and the broker decides again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlsched.wire.messages import BrokerToNode, Hello, NodeMessage


class NodeEngine(Protocol):
    """An engine as the broker uses it, independent of the messages on the wire."""

    def hellos(self) -> Sequence[Hello]:
        """Return the registrations of the engine's nodes: resources, capabilities, running attempts."""

    def send_order(self, node: str, order: BrokerToNode, request: int = 0) -> None:
        """Send an order, or another message, to a node. Never blocks. The message may be lost or repeated."""

    def receive_messages(self) -> Sequence[tuple[str, NodeMessage]]:
        """Return (name of the node, message) for each message from the engine's nodes since the last call."""
