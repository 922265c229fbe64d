"""A day of jobs that share GPUs and borrow CPU cores, under the simulator and under a broker.

The simulator runs first. The broker is the real machine on a real journal; it gets the jobs at their times,
and its nodes report the ends of the simulator. Both must decide the same starts, with the same cores.
"""

from __future__ import annotations

import heapq
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.limits import Limits
from rlsched.broker.events import ClientAsked, Event, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.models.catalogue import load_catalogue
from rlsched.transport.roles import Peer
from rlsched.wire.messages import TIME_SLICING, Capabilities, Ended, Launch, Launched, Submit
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.support.broker.hand import hello
from tests.support.broker.hand_broker import HandBroker

JOBS, NODES, GPUS, CPUS = 300, 3, 4, 20
LIMITS = Limits(lease_s=1e9, heartbeat_s=1e8, launch_timeout_s=1e9)
POLICY = Policy("fifo-backfill", share={"min_speed": 0.6}, cores=True)
MODELS = Models(noise=False, lends_cores=True)
ANSWER_S = 0.001


def jobs(most_cores: int) -> Trace:
    """Jobs of named workloads that request up to `most_cores` per GPU; cores are short."""
    rng = np.random.default_rng(4)
    gpus = rng.choice([1, 1, 1, 2, 4], JOBS)
    trace = Trace.from_columns(
        name="day",
        submit_s=np.sort(np.round(rng.uniform(10.0, 86_400.0, JOBS), 3)),
        duration_s=np.exp(rng.normal(7.6, 1.0, JOBS)).round(3),
        num_gpus=gpus,
        num_cpus=gpus * rng.choice([1, 2, 3, most_cores], JOBS),
    )
    return replace(trace, extra={"workload": rng.choice(load_catalogue().names, JOBS)})


def simulated(trace: Trace, models: Models) -> tuple[JobTable, list[Start]]:
    spec = ClusterSpec(name="day", nodes=(NodeGroup(count=NODES, gpus=GPUS, gpu_type="V100", cpus=CPUS),))
    engine = Engine(trace, spec, order=POLICY.rule.order, models=models)
    found: list[Start] = []
    table = engine.run(
        RuleScheduler(POLICY),
        on_record=lambda one: found.append(one.action) if isinstance(one.action, Start) else None,
    )
    return table, found


def live(trace: Trace, end_s: np.ndarray, path: Path) -> tuple[list[Start], list[Launch]]:
    """Starts of a broker whose jobs end at these times, and its orders to nodes."""
    with closing(Journal(path)) as journal:
        return _live(trace, end_s, journal)


def _live(trace: Trace, end_s: np.ndarray, journal: Journal) -> tuple[list[Start], list[Launch]]:
    broker = HandBroker(RuleScheduler(POLICY), journal, limits=LIMITS, now_s=1.0, shares=True)
    can = Capabilities(shares=True, lends=True, sharing=TIME_SLICING, gpu_memory_mib=16_160, fences=True)
    for n in range(NODES):
        told = hello(f"n{n}", GPUS)
        broker.says(told.name, msgspec.structs.replace(told, gpu_type="V100", cpus=CPUS, capabilities=can))
    due: list[tuple[float, int, Event]] = []
    for row in range(JOBS):
        asked = Submit(
            token=f"t{row}",
            command=["true"],
            num_gpus=int(trace.num_gpus[row]),
            num_cpus=int(trace.num_cpus[row]),
            workload=str(trace.extra["workload"][row]),
            share="yes",
        )
        due.append(
            (float(trace.submit_s[row]), row, ClientAsked(b"x", row + 1, asked, Peer("admin", "hand")))
        )
    launches: list[Launch] = []
    number = JOBS
    while due:
        at_s, events, before = due[0][0], list[Event](), len(broker.sent.orders)
        while due and due[0][0] == at_s:
            events.append(heapq.heappop(due)[2])
        broker.batch(events, after_s=at_s - broker.now_s)
        for node, order in broker.sent.orders[before:]:
            if isinstance(order, Launch):
                launches.append(order)
                rank = {"job": order.job, "attempt": order.attempt, "rank": order.rank}
                ended = Ended(exit_code=0, reason="", **rank)
                then_s = (at_s + ANSWER_S, float(end_s[order.job - 1]))
                for message_s, message in zip(then_s, (Launched(pid=7, **rank), ended), strict=True):
                    number += 1
                    heapq.heappush(due, (round(message_s, 3), number, NodeSaid(node, 0, message)))
    assert all(job.state == "completed" for job in broker.state.jobs.values())
    made = [record.action for batch in broker.records for record in batch.records]
    return [action for action in made if isinstance(action, Start)], launches


@pytest.mark.parametrize("most_cores", [5, 8])
def test_broker_and_simulator_share_gpus_and_lend_cores_alike(tmp_path: Path, most_cores: int) -> None:
    """A GPU's part of the cores of its node is 5."""
    trace = jobs(most_cores)
    table, starts = simulated(trace, MODELS)
    decided, launches = live(trace, table.end_s, tmp_path / "journal.sqlite")
    assert decided == starts
    asked = trace.num_cpus / trace.num_gpus
    lent = [one.cpu_milli_each / 1000 - asked[one.seq] for one in starts]
    assert min(lent) == 0.0
    assert sum(one > 0.0 for one in lent) > 30
    assert sum(one.share_with >= 0 for one in starts) > 30
    for one, more in zip(starts, lent, strict=True):
        ranks = [order for order in launches if order.job == one.seq + 1]
        assert sum(order.cores for order in ranks) == trace.num_cpus[one.seq]
        assert sum(order.lent_cores for order in ranks) == more * trace.num_gpus[one.seq]
    kept, _ = simulated(trace, Models(noise=False))
    assert (kept.end_s != table.end_s).any()
