"""Cost of a submission, a job and a heartbeat in the broker's loop: CPU time, as other processes may be busy.

    .venv/bin/python -m benchmarks.loop_cost            # half a minute
    .venv/bin/python -m benchmarks.loop_cost --policy fifo --prediction running-mean --json

The broker has no sockets, and its journal is on disk. `submission`: a submission is decoded, checked,
predicted, journalled and answered; all GPUs are in use, and a turn of the loop has several submissions.
`job`: a job is submitted, started and ended, with all messages of nodes. `heartbeat`: one heartbeat per turn,
and several. Figures are the median and the 10 % quantile of `ROUNDS` rounds, microseconds of the loop's
thread, without the cost of sockets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rlsched.broker.base.pauses import ShortPauses
from rlsched.broker.events import ClientAsked, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.decide.registry import load_scheduler
from rlsched.transport.roles import Peer
from rlsched.wire.messages import Ended, Heartbeat, Hello, Launch, Launched, Message, Submit, decode, encode
from tests.support.broker.hand_broker import HandBroker

NODES, GPUS = 200, 8
A_TURN = 4
"""Submissions in a turn: one each from this many clients that wait for their answers."""
A_FULL_TURN = 16
ROUNDS, TURNS = 30, 10
_numbers = itertools.count()
_me = Peer("admin", "me", "me")


def asked(gpus: int) -> ClientAsked:
    """A submission, as received from a socket."""
    number = next(_numbers)
    frame = encode(Submit(token=f"t{number}", command=["true"], num_gpus=gpus, cwd="/home/me"), number + 1)
    envelope = decode(frame)
    assert isinstance(envelope.message, Submit)
    return ClientAsked(b"route", envelope.request, envelope.message, _me)


def said(node: str, message: Message) -> NodeSaid:
    """A node's message, as received from a socket."""
    return NodeSaid(node, 0, decode(encode(message, 1)).message)  # type: ignore[arg-type]


class Loop:
    """A broker with all of its nodes.

    Args:
        directory: Directory of the journal.
        policy: The policy.
        prediction: The predictor.
    """

    def __init__(self, directory: Path, policy: str, prediction: str) -> None:
        journal = Journal(directory / "journal.sqlite")
        self._broker = HandBroker(load_scheduler(policy), journal, prediction=prediction)
        self._names = [f"n{number}" for number in range(NODES)]
        self._broker.batch([NodeSaid(name, 0, Hello(name=name, gpus=GPUS)) for name in self._names])

    def _turn(self, *events: ClientAsked | NodeSaid | Tick) -> list[tuple[str, Launch]]:
        """Process a batch of events, and return the resulting launch orders with their nodes."""
        sent = self._broker.sent
        sent.replies.clear()
        sent.orders.clear()
        self._broker.records.clear()
        self._broker.batch(events)
        return [(node, order) for node, order in sent.orders if isinstance(order, Launch)]

    def jobs(self) -> int:
        """Run some jobs from submission to end, and return their number."""
        launches = self._turn(*(asked(1) for _ in range(A_TURN)))
        ranks = [(node, order.job, order.attempt, order.rank) for node, order in launches]
        self._turn(
            *(said(node, Launched(job=job, attempt=a, rank=rank, pid=1)) for node, job, a, rank in ranks)
        )
        self._turn(
            *(
                said(node, Ended(job=job, attempt=a, rank=rank, exit_code=0, ran_s=1.0))
                for node, job, a, rank in ranks
            )
        )
        return len(ranks)

    def fill(self) -> None:
        """Submit jobs that take all GPUs."""
        self._turn(asked(NODES * GPUS))

    def submissions(self, a_turn: int) -> int:
        """Submit `a_turn` jobs that wait, and return their number."""
        self._turn(*(asked(NODES * GPUS) for _ in range(a_turn)))
        return a_turn

    def heartbeats(self, a_turn: int) -> int:
        """Process the heartbeats of `a_turn` nodes, and return their number."""
        names = [self._names[next(_numbers) % NODES] for _ in range(a_turn)]
        self._turn(*(said(name, Heartbeat(name=name)) for name in names))
        return a_turn


def cost_us(step: Callable[[], int]) -> dict[str, float]:
    """Return the CPU time per item, microseconds; `step` processes items and returns their number."""
    rounds = []
    for _ in range(ROUNDS):
        began_ns, count = time.thread_time_ns(), 0
        for _ in range(TURNS):
            count += step()
        rounds.append((time.thread_time_ns() - began_ns) / 1e3 / count)
    rounds.sort()
    return {"p10_us": rounds[ROUNDS // 10], "median_us": rounds[ROUNDS // 2]}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="tuned")
    parser.add_argument("--prediction", default="hedge", choices=("hedge", "running-mean"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        loop = Loop(Path(made), args.policy, args.prediction)
        loop.jobs()  # compiles the missing kernels
        ShortPauses().step()  # as a broker's loop does
        found = {"job": cost_us(loop.jobs)}
        loop.fill()
        for a_turn in (A_TURN, A_FULL_TURN):
            found[f"submission, {a_turn} a turn"] = cost_us(partial(loop.submissions, a_turn))
        found["heartbeat, 1 a turn"] = cost_us(lambda: loop.heartbeats(1))
        found["heartbeat, 5 a turn"] = cost_us(lambda: loop.heartbeats(5))
    load = os.getloadavg()[0]
    if args.json:
        print(json.dumps({"load": load, "policy": args.policy, "prediction": args.prediction, **found}))
        return
    print(f"load average {load:.1f} on {os.cpu_count()} cores; {args.policy}, {args.prediction}")
    print(f"{'microseconds of CPU time':26}{'cheapest tenth':>16}{'median':>10}")
    for what, row in found.items():
        print(f"{what:26}{row['p10_us']:16.0f}{row['median_us']:10.0f}")


if __name__ == "__main__":
    main()
