"""Cost of a submission, a job and a heartbeat in the broker's loop: CPU time, as other processes may be busy.

    .venv/bin/python -m benchmarks.loop_cost            # two minutes
    .venv/bin/python -m benchmarks.loop_cost --policy fifo --prediction running-mean --json

The broker has no sockets, and its journal is on disk. `submission`: a submission is decoded, checked,
predicted, journalled and answered; all GPUs are in use, and a turn of the loop has several submissions.
`job`: a job is submitted, started and ended, with all messages of nodes. `heartbeat`: one heartbeat per turn,
and several. Figures are the median and the 10 % quantile of `ROUNDS` rounds, microseconds of the loop's
thread, without the cost of sockets.

The last lines are the 99th percentile of the time of a decision, and its ratio to three other cases; turns of
the two cases alternate. `metered`: each turn also has the measurements of a node with 8 busy ranks. `stored`:
decisions, and events of jobs, are written to the store of decisions after each turn, as in a broker.
`unrecorded`: no record of the decision is made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlsched.broker.base.pauses import ShortPauses
from rlsched.broker.events import ClientAsked, NodeSaid, Tick
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.records import RecordLog
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision
from rlsched.transport.roles import Peer
from rlsched.wire.messages import (
    Ended,
    Heartbeat,
    Hello,
    Launch,
    Launched,
    Message,
    Metered,
    RankMetered,
    RankUsage,
    Submit,
    decode,
    encode,
)
from tests.support.broker.hand_broker import HandBroker

NODES, GPUS = 200, 8
A_TURN = 4
"""Submissions in a turn: one each from this many clients that wait for their answers."""
A_FULL_TURN = 16
ROUNDS, TURNS = 30, 10
USAGE = RankUsage(measured_s=10, gpu_milli=871, gpu_memory_mib=31_000, cpu_milli=3_500, memory_mib=9_000)
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
        self._log: RecordLog | None = None
        journal = Journal(directory / "journal.sqlite")
        self._broker = HandBroker(load_scheduler(policy), journal, prediction=prediction)
        self._names = [f"n{number}" for number in range(NODES)]
        self._broker.batch([NodeSaid(name, 0, Hello(name=name, gpus=GPUS)) for name in self._names])

    def run(self) -> None:
        """Start jobs that do not end: measurements are of their ranks."""
        ranks: dict[str, list[RankMetered]] = {}
        for node, one in self._turn(*(asked(1) for _ in range(GPUS))):
            key: dict[str, Any] = {"job": one.job, "attempt": one.attempt, "rank": one.rank}
            self._turn(said(node, Launched(pid=1, **key)))
            ranks.setdefault(node, []).append(RankMetered(usage=USAGE, energy_mj=10**9, **key))
        self._measured = {node: Metered(ranks=found) for node, found in ranks.items()}

    def store_in(self, log: RecordLog | None) -> None:
        """From now on, write decisions and events to this store after each turn; None: write nothing."""
        self._log = log

    def _turn(self, *events: ClientAsked | NodeSaid | Tick) -> list[tuple[str, Launch]]:
        """Process a batch of events, and return the resulting launch orders with their nodes."""
        sent = self._broker.sent
        sent.replies.clear()
        sent.orders.clear()
        self._broker.records.clear()
        self._broker.batch(events)
        if self._log is not None:
            for kept in self._broker.records:
                self._log.add(kept.records, kept.happened)
            self._log.step()
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

    def decide(self, *, metered: bool = False, recorded: bool = True) -> list[float]:
        """Start and end some jobs, and return the CPU time of each decision, microseconds.

        Args:
            metered: Whether a node's measurements are in the same turn.
            recorded: Whether records of the decisions are made.
        """
        took_us = list[float]()
        scheduler = self._broker.machine.scheduler
        decide = scheduler.decide

        def timed(*args: Any, **named: Any) -> Decision:
            began_ns = time.thread_time_ns()
            found = decide(*args, **{**named, "record": recorded})
            took_us.append((time.thread_time_ns() - began_ns) / 1e3)
            return found

        with patch.object(scheduler, "decide", timed):
            more = [said(node, message) for node, message in self._measured.items()] if metered else []
            launches = self._turn(*more, *(asked(1) for _ in range(A_TURN)))
        for message in (Launched, Ended):
            rest = {"pid": 1} if message is Launched else {"exit_code": 0, "ran_s": 1.0}
            self._turn(
                *(
                    said(node, message(job=one.job, attempt=one.attempt, rank=one.rank, **rest))
                    for node, one in launches
                )
            )
        return took_us

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


def decision_ratios(loop: Loop, folder: Path) -> dict[str, float]:
    """Return the 99th percentile of a decision, us, and the ratios that other cases have to it.

    `folder`: where the store of decisions is written.
    """
    loop.run()
    log = RecordLog(folder)

    def stored() -> list[float]:
        loop.store_in(log)
        took_us = loop.decide()
        loop.store_in(None)
        return took_us

    found: dict[str, float] = {}
    cases: dict[str, Callable[[], list[float]]] = {
        "metered": partial(loop.decide, metered=True),
        "stored": stored,
        "unrecorded": partial(loop.decide, recorded=False),
    }
    for name, case in cases.items():
        took_us: tuple[list[float], list[float]] = [], []
        for _ in range(5 * ROUNDS * TURNS):
            took_us[0].extend(loop.decide())
            took_us[1].extend(case())
        plain_us, other_us = (statistics.quantiles(one, n=100)[98] for one in took_us)
        found |= {"decision_p99_us": plain_us, f"{name}_ratio": other_us / plain_us}
    log.close()
    return found | {"stored_decisions": log.kept}


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
        decision = decision_ratios(loop, Path(made) / "decisions")
        loop.fill()
        for a_turn in (A_TURN, A_FULL_TURN):
            found[f"submission, {a_turn} a turn"] = cost_us(partial(loop.submissions, a_turn))
        found["heartbeat, 1 a turn"] = cost_us(lambda: loop.heartbeats(1))
        found["heartbeat, 5 a turn"] = cost_us(lambda: loop.heartbeats(5))
    load = os.getloadavg()[0]
    if args.json:
        asked_for = {"load": load, "policy": args.policy, "prediction": args.prediction}
        print(json.dumps({**asked_for, **found, **decision}))
        return
    print(f"load average {load:.1f} on {os.cpu_count()} cores; {args.policy}, {args.prediction}")
    print(f"{'microseconds of CPU time':26}{'cheapest tenth':>16}{'median':>10}")
    for what, row in found.items():
        print(f"{what:26}{row['p10_us']:16.0f}{row['median_us']:10.0f}")
    print(
        f"decision, p99: {decision['decision_p99_us']:.0f} us; with measurements of nodes "
        f"{decision['metered_ratio']:.2f} of that; with the store {decision['stored_ratio']:.2f} "
        f"({decision['stored_decisions']:,} decisions stored); without records "
        f"{decision['unrecorded_ratio']:.2f}"
    )


if __name__ == "__main__":
    main()
