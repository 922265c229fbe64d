"""A day of jobs under a broker that a test drives: a real journal, and nodes that report given ends."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, Event, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.models.catalogue import load_catalogue
from rlsched.transport.roles import Peer
from rlsched.wire.messages import TIME_SLICING, Capabilities, Ended, Launch, Launched, Submit
from rlsched.workload.trace import Trace
from tests.support.broker.hand import hello
from tests.support.broker.hand_broker import HandBroker

LIMITS = Limits(lease_s=1e9, heartbeat_s=1e8, launch_timeout_s=1e9)
ANSWER_S = 0.001
NODES, GPUS, CPUS, GPU_TYPE = 3, 4, 20, "V100"


def jobs_of_a_day(count: int, seed: int, cores: Sequence[int]) -> Trace:
    """Jobs of named workloads that arrive over a day. `cores`: requests for each GPU to draw from."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 1, 2, 4], count)
    trace = Trace.from_columns(
        name="day",
        submit_s=np.sort(np.round(rng.uniform(10.0, 86_400.0, count), 3)),
        duration_s=np.exp(rng.normal(7.6, 1.0, count)).round(3),
        num_gpus=gpus,
        num_cpus=gpus * rng.choice(cores, count),
    )
    return replace(trace, extra={"workload": rng.choice(load_catalogue().names, count)})


def live_day(
    policy: Policy,
    trace: Trace,
    end_s: Callable[[int, float], float],
    path: Path,
    tie: Callable[[], float] = lambda: 1.0,
) -> tuple[list[DecisionRecord], list[Launch]]:
    """Run the jobs on nodes that share GPUs and lend cores; returns the decisions, and the orders to nodes.

    Args:
        policy: The policy.
        trace: Jobs with the column `workload`.
        end_s: End of a job, given its row and its start.
        path: Path of the journal.
        tie: Key, above 0, of an end: of the ends at one time, the one with the lowest key is reported first.
    """
    with closing(Journal(path)) as journal:
        return _live_day(policy, trace, end_s, journal, tie)


def _live_day(
    policy: Policy,
    trace: Trace,
    end_s: Callable[[int, float], float],
    journal: Journal,
    tie: Callable[[], float],
) -> tuple[list[DecisionRecord], list[Launch]]:
    broker = HandBroker(RuleScheduler(policy), journal, limits=LIMITS, now_s=1.0, shares=True)
    memory_mib = int(load_catalogue().arrays([GPU_TYPE]).gpu.memory_mib[0])
    can = Capabilities(shares=True, lends=True, sharing=TIME_SLICING, gpu_memory_mib=memory_mib, fences=True)
    for n in range(NODES):
        told = hello(f"n{n}", GPUS)
        broker.says(told.name, msgspec.structs.replace(told, gpu_type=GPU_TYPE, cpus=CPUS, capabilities=can))
    due: list[tuple[float, float, int, Event]] = []
    for row in range(len(trace)):
        asked = Submit(
            token=f"t{row}",
            command=["true"],
            num_gpus=int(trace.num_gpus[row]),
            num_cpus=int(trace.num_cpus[row]),
            workload=str(trace.extra["workload"][row]),
            share="yes",
        )
        event = ClientAsked(b"x", row + 1, asked, Peer("admin", "hand"))
        due.append((float(trace.submit_s[row]), 0.0, row, event))
    launches: list[Launch] = []
    number = len(trace)
    while due:
        at_s, events, before = due[0][0], list[Event](), len(broker.sent.orders)
        while due and due[0][0] == at_s:
            events.append(heapq.heappop(due)[-1])
        broker.batch(events, after_s=at_s - broker.now_s)
        for node, order in broker.sent.orders[before:]:
            if isinstance(order, Launch):
                launches.append(order)
                rank = {"job": order.job, "attempt": order.attempt, "rank": order.rank}
                ended = Ended(exit_code=0, reason="", **rank)
                over_s = end_s(order.job - 1, at_s)
                for message_s, key, message in (
                    (at_s + ANSWER_S, 0.0, Launched(pid=7, **rank)),
                    (over_s, tie(), ended),
                ):
                    number += 1
                    heapq.heappush(due, (round(message_s, 3), key, number, NodeSaid(node, 0, message)))
    assert all(job.state == "completed" for job in broker.state.jobs.values())
    return [record for batch in broker.records for record in batch.records], launches
