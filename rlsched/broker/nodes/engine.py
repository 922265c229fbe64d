"""The engine protocol: the interface between the broker, which decides, and an engine, which runs the jobs.

The broker decides the order of jobs, and their nodes, GPUs and clocks. Engines use the wire protocol
(`rlsched.wire.messages`). There are two kinds of engine. rlsched's own engine consists of node daemons
(`rlsched_node`): each serves one node, with a key of role `node`. A gateway, such as `rlsched engine slurm`,
serves many nodes through one connection, with one key of role `engine`. It wraps each message in an `OfNode`
or a `ForNode`, which names the node.

Both engines follow these rules, which `tests/contract/test_engines.py` checks:

- **Orders** (`Launch`, `Kill`, `HoldClock`, `FetchLog`) can be lost, and can arrive twice. An engine starts a
  rank (identified by job, attempt and rank) at most once, and obeys only the highest broker epoch. After a
  `Kill`, that rank never starts, even if its `Launch` arrives later.
- **Events** (`Launched`, `LaunchRefused`, `ClockHeld`, `Ended`, `Held`) arrive at least once. The engine
  repeats an `Ended` until its `EndedAck` arrives, also after a restart of the engine.
- **Crashes**: any process may crash between receiving an order and recording it. An engine that is not sure
  whether it has obeyed a `Launch` first checks whether the job runs.
- **State of the engine**: `unhealthy` gives the reason why a node gets no jobs (for example, an admin has
  drained it), and `Held` lists GPUs that other jobs use; the broker records both. `engine_away` reports that
  a gateway is alive but cannot reach its cluster (such as Slurm). No job counts as lost during this time.

An engine reports its abilities in `Hello.capabilities`. An engine without the ability `places` accepts no
`Launch`. It reads the order of the queue (`JobInfo.queue_key`), starts jobs itself and reports the nodes and
GPUs (`Begin`). The broker then treats the attempt like any other.

On an engine without the ability `per_node_indices`, a gang (a job on several nodes) must use GPUs with the
same indexes on all its nodes. The broker gives such a gang whole nodes first, so equal indexes are possible
only for some GPU counts. A gang that can never run for this reason is rejected at submission
(`Known.is_uneven`). If an engine still cannot obey a `Launch`, it refuses (`LaunchRefused`), and the broker
decides again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlsched.wire.messages import BrokerToNode, Hello, NodeMessage


class NodeEngine(Protocol):
    """The interface of an engine to the broker, independent of the format of messages on the wire."""

    def hellos(self) -> Sequence[Hello]:
        """Return the registrations of the engine's nodes: resources, capabilities, running attempts."""

    def send_order(self, node: str, order: BrokerToNode, request: int = 0) -> None:
        """Send a message to a node without blocking. The message may be lost or repeated."""

    def receive_messages(self) -> Sequence[tuple[str, NodeMessage]]:
        """Return (name of the node, message) for each message from the engine's nodes since the last call."""
