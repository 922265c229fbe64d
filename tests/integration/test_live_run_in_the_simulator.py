"""One state, two drivers: a live run's journal, replayed by the simulator's engine, gives the same decisions.

A real broker places real processes; then the engine receives the journal's arrivals, predictions and ends.
Every start must agree bit for bit: state, dials, plans, choice.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.base.entries import JobSubmitted, NodeUp
from rlsched.broker.journal.replay import JournalEvents, journal_events, records_by_number
from rlsched.client.client import Client
from rlsched.decide.actions import Start
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.wire.states import FINISHED
from tests.support.online.cluster import until
from tests.support.online.live_replay import repeated_starts
from tests.support.online.up import Up

JOBS = 140
TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
ASKED: tuple[list[str], ...] = ([], [], [], ["H100"], ["a100"], ["A100", "h100-80gb"])
MIN_CONTESTED = 100


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

    `gpu_types`: types of the nodes; then half of the jobs that fit one node request some of them, and jobs
    that accept both prefer one, both or none.
    """
    up = Up(folder, "--policy", policy, "--gpu-type", ",".join(gpu_types) or "generic")
    try:
        rng = random.Random(5)
        with Client(up.wait_ready(), home=up.keys) as client:
            for _ in range(JOBS):
                seconds = rng.choice((0.0, 0.02, 0.05))
                num_gpus = rng.choice((1, 1, 2, 3, 4, 6, 8))
                time_limit_s = rng.choice((None, 20.0, 60.0))
                asks = rng.choice(ASKED) if gpu_types and num_gpus <= 4 else []
                prefers = rng.choice(ASKED) if gpu_types and len(asks) != 1 else []
                client.submit(
                    ["sleep", str(seconds)],
                    num_gpus=num_gpus,
                    time_limit_s=time_limit_s,
                    gpu_types=asks,
                    preferred_types=prefers,
                )
            until(
                lambda: all(job.state in FINISHED for job in client.jobs(finished=True)),
                "the jobs have ended",
                progress=lambda: sum(job.state in FINISHED for job in client.jobs(finished=True)),
            )
            assert all(job.state == "completed" for job in client.jobs(finished=True))
    finally:
        up.stop()
    return up.broker


def repeated(policy: str, broker: Path) -> tuple[JournalEvents, list[DecisionRecord]]:
    """Events of a live run, and its starts, repeated in the simulator."""
    events, live = journal_events(broker), records_by_number(broker)
    return events, repeated_starts(load_scheduler(policy), events, [live[number] for number in sorted(live)])


def test_simulator_repeats_every_decision_of_a_live_run_bit_for_bit(tmp_path: Path) -> None:
    policy = policy_with_dials(tmp_path)
    events, starts = repeated(policy, live_run(tmp_path, policy))
    assert len(events.decisions) >= MIN_CONTESTED
    assert {decision.source for decision in events.decisions} == {"rule"}
    assert len(starts) == JOBS


@pytest.mark.slow
def test_jobs_with_gpu_types_are_placed_the_same_live_and_simulated(tmp_path: Path) -> None:
    """Accepted types, and preferred types."""
    policy = policy_with_dials(tmp_path)
    events, _ = repeated(policy, live_run(tmp_path, policy, TYPES))
    asked = {
        change.job: change.gpu_types
        for instant in events.instants
        for change in instant.changes
        if isinstance(change, JobSubmitted)
    }
    assert {tuple(types) for types in asked.values()} == {(), ("H100",), ("A100",), ("A100", "h100-80gb")}
    preferred = {
        tuple(change.preferred_types)
        for instant in events.instants
        for change in instant.changes
        if isinstance(change, JobSubmitted)
    }
    assert preferred == {(), ("H100",), ("A100",), ("A100", "h100-80gb")}
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
