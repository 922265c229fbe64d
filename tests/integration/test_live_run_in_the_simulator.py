"""One state, two drivers: a live run's journal, replayed by the simulator's engine, gives the same decisions.

A real broker places real processes; then the engine receives the journal's arrivals, predictions and ends.
Every start must agree bit for bit: state, dials, plans, choice.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import AttemptOver, JobSubmitted, NodeUp
from rlsched.broker.journal.replay import JournalEvents, journal_events, records_by_number
from rlsched.client.client import Client
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Start
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.registry import load_scheduler
from rlsched.wire.states import FINISHED
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes

RLSCHED = (sys.executable, "-m", "rlsched")
JOBS = 140
TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
ASKED: tuple[list[str], ...] = ([], [], [], ["H100"], ["a100"], ["A100", "h100-80gb"])
MIN_CONTESTED = 100
DEADLINE_S = 120.0


def policy_with_dials(folder: Path) -> str:
    """A policy file whose strategy has random weights. The digest of a state includes its dials."""
    weights = np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))
    Strategy.from_layers(weights).write(folder / "strategy.json")
    policy = folder / "policy.toml"
    settings = 'base = "tuned"\npredictions = "submitted"\nreserve_after = "1s"\n'
    settings += "".join(f"{name} = false\n" for name in ("share", "clock", "cores", "types"))
    settings += "plain_without_models = false\n"  # otherwise all dials stay at 0
    policy.write_text(f'{settings}dials = "{folder / "strategy.json"}"\n')
    return str(policy)


def live_run(folder: Path, policy: str, gpu_types: tuple[str, ...] = ()) -> Path:
    """Place `JOBS` processes with a broker and two nodes; returns the broker's directory.

    `gpu_types`: types of the nodes; then half of the jobs that fit one node request some of them.
    """
    with (folder / "up.log").open("wb") as log:
        cluster = subprocess.Popen(
            [
                *RLSCHED,
                "up",
                "--nodes",
                "2",
                "--gpus",
                "4",
                "--gpu-type",
                ",".join(gpu_types) or "generic",
                "--policy",
                policy,
                "--address",
                "tcp://127.0.0.1:0",
                "--dir",
                str(folder / "up"),
                "--keys",
                str(folder / "keys"),
                "--decision-budget-ms",
                "10000",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while "ready" not in (folder / "up.log").read_text():
            assert cluster.poll() is None, (folder / "up.log").read_text()
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.05)
        address = (folder / "up" / "broker" / "address").read_text().strip()
        rng = random.Random(5)
        with Client(address, home=folder / "keys") as client:
            for _ in range(JOBS):
                seconds = rng.choice((0.0, 0.02, 0.05))
                num_gpus = rng.choice((1, 1, 2, 3, 4, 6, 8))
                time_limit_s = rng.choice((None, 20.0, 60.0))
                asks = rng.choice(ASKED) if gpu_types and num_gpus <= 4 else []
                client.submit(
                    ["sleep", str(seconds)], num_gpus=num_gpus, time_limit_s=time_limit_s, gpu_types=asks
                )
            while any(job.state not in FINISHED for job in client.jobs(finished=True)):
                assert time.monotonic() < deadline, "the jobs did not end"
                time.sleep(0.05)
            assert all(job.state == "completed" for job in client.jobs(finished=True))
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(60)
    return folder / "up" / "broker"


def as_workload(events: JournalEvents) -> tuple[Trace, ClusterSpec, PredictedTimes, np.ndarray]:
    """The journal's jobs as a trace, its nodes as a cluster, its predictions, and its ends as recorded."""
    nodes: list[NodeGroup] = []
    submitted: list[tuple[float, JobSubmitted]] = []
    ends: dict[int, float] = {}
    for instant in events.instants:
        for change in instant.changes:
            if isinstance(change, NodeUp) and len(nodes) < 2:
                nodes.append(NodeGroup(gpus=change.gpus, gpu_type=change.gpu_type))
            elif isinstance(change, JobSubmitted):
                submitted.append((instant.now_s, change))
            elif isinstance(change, AttemptOver):
                assert change.outcome != "queued"
                ends[change.job] = instant.now_s
    trace = Trace.from_columns(
        name="live",
        submit_s=[now_s for now_s, _ in submitted],
        duration_s=np.ones(len(submitted)),
        num_gpus=[job.num_gpus for _, job in submitted],
        gpu_type=["|".join(job.gpu_types) for _, job in submitted],
        time_limit_s=[math.nan if job.time_limit_s is None else job.time_limit_s for _, job in submitted],
    )
    predictions = PredictedTimes(
        np.array([job.predicted_s for _, job in submitted]), np.array([job.spread for _, job in submitted])
    )
    return (
        trace,
        ClusterSpec(name="live", nodes=tuple(nodes)),
        predictions,
        np.array([ends[job.job] for _, job in submitted]),
    )


def is_start(record: DecisionRecord) -> bool:
    return isinstance(record.action, Start)


def plans_of(record: DecisionRecord) -> list[PlanSeen]:
    """Plans without the names of nodes: the simulator names nodes in the order of their registration."""
    return [msgspec.structs.replace(plan, node="") for plan in record.plans]


def replay(policy: str, events: JournalEvents, live: dict[int, DecisionRecord]) -> list[DecisionRecord]:
    """Decisions of a live run, repeated in the simulator, each the same bit for bit."""
    trace, spec, predictions, ends_s = as_workload(events)
    scheduler = load_scheduler(policy)
    engine = Engine(trace, spec, order=scheduler.order, predictions=predictions, fixed_end_s=ends_s)
    replayed: list[DecisionRecord] = []
    engine.run(scheduler, on_record=replayed.append)
    replayed = [record for record in replayed if is_start(record)]  # a broker waits at more instants
    live = dict(enumerate(live[number] for number in sorted(live) if is_start(live[number])))
    assert len(replayed) == len(live)
    for number, record in enumerate(replayed):
        theirs = live[number]
        assert record.now_s == theirs.now_s
        assert record.state_digest == theirs.state_digest
        assert (record.action, record.source) == (theirs.action, theirs.source)
        assert plans_of(record) == plans_of(theirs)
    return replayed


def test_simulator_repeats_every_decision_of_a_live_run_bit_for_bit(tmp_path: Path) -> None:
    policy = policy_with_dials(tmp_path)
    broker = live_run(tmp_path, policy)
    events, live = journal_events(broker), records_by_number(broker)
    assert len(events.decisions) >= MIN_CONTESTED
    assert {decision.source for decision in events.decisions} == {"rule"}
    assert len(replay(policy, events, live)) == JOBS


@pytest.mark.slow
def test_jobs_with_gpu_types_are_placed_the_same_live_and_simulated(tmp_path: Path) -> None:
    policy = policy_with_dials(tmp_path)
    broker = live_run(tmp_path, policy, TYPES)
    events, live = journal_events(broker), records_by_number(broker)
    asked = {
        change.job: change.gpu_types
        for instant in events.instants
        for change in instant.changes
        if isinstance(change, JobSubmitted)
    }
    assert {tuple(types) for types in asked.values()} == {(), ("H100",), ("A100",), ("A100", "h100-80gb")}
    own = {number: job for job, number in enumerate(asked)}  # no job of a live run is rejected
    first = next(change for change in events.instants[0].changes if isinstance(change, NodeUp))
    ours = range(4) if first.gpu_type == TYPES[0] else range(4, 8)
    starts = [decision.action for decision in events.decisions if isinstance(decision.action, Start)]
    for start in starts:
        types = asked[list(own)[start.seq]]
        on_a100 = {gpu in ours for gpu in start.gpus}
        assert types != ["A100"] or on_a100 == {True}
        assert types != ["H100"] or on_a100 == {False}
    assert len(events.decisions) >= MIN_CONTESTED
    replay(policy, events, live)
