"""What runs jobs for the broker: the seam between who decides and who carries it out.

The broker decides order, nodes, GPUs and clocks. An engine carries that out, on its nodes. The wire protocol
is the engine protocol (`rlsched.wire.messages`), and there are two engines. rlsched's own nodes are the
first: each daemon (`rlsched_node`) speaks for one node, under a key of role `node`. A gateway such as
`rlsched engine slurm` is the second: it speaks for many nodes over one connection, under one key of role
`engine`, with each message in an `OfNode` or a `ForNode`.

What both promise, and `tests/contract/test_engines.py` holds both to:

- **Orders** (`Launch`, `Kill`, `HoldClock`, `FetchLog`) may be lost, and may come twice. An engine starts
  (job, attempt, rank) at most once, and obeys the highest broker epoch alone. After a `Kill` that attempt
  never starts, even where its `Launch` comes later.
- **Events** (`Launched`, `LaunchRefused`, `ClockHeld`, `Ended`, `Held`) come at least once. An `Ended` is
  said again until its `EndedAck`, over restarts of whoever says it.
- **Between order and record** anything may die. An engine that is not sure whether it has obeyed looks it up
  where the job runs, before it creates anything there.
- **Facts of the engine's own** are facts of the ledger: `unhealthy` is why a node gets no jobs (an admin has
  drained it, say), `Held` names GPUs that others have, and `engine_away` says that whoever speaks is alive
  but cannot reach its engine: nothing is lost meanwhile.

What an engine cannot do it says (`Hello.capabilities`). Without `places` it takes no `Launch` for an order:
the ledger starts nothing on its nodes. It asks for the queue's order (`JobInfo.queue_key`), starts jobs
itself, and says where (`Begin`); from then on such an attempt is followed like any other.

Without `per_node_indices` a gang has the same GPU numbers on all its nodes. The ledger puts a gang that no
node holds on whole nodes first, so the size alone says whether that can be kept: `Book.is_uneven` rejects it
at its submission, as what can never run. An engine still refuses a `Launch` that it cannot obey
(`LaunchRefused`), and the broker decides again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlsched.wire.messages import BrokerToNode, Hello, NodeMessage


class Engine(Protocol):
    """An engine as its broker meets it, without the wire in between."""

    def hellos(self) -> Sequence[Hello]:
        """Its nodes as they register: what they have, what they can do, what they still run."""

    def tell(self, node: str, order: BrokerToNode, request: int = 0) -> None:
        """Order something of a node, or tell it. Never blocks; may be lost; may be said twice."""

    def heard(self) -> Sequence[tuple[str, NodeMessage]]:
        """What its nodes have to say since the last time, each with its node."""
