"""Preferred GPU types have one meaning in simulator and broker: the same starts on the same GPUs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import journal_events, redecide
from rlsched.broker.queries.as_history import history_of
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched_envs.sim.engine import Engine
from tests.support.broker.first_starts import Began, first_starts
from tests.support.broker.hand import hello, make, submit
from tests.support.sim.play import trace_of

SLICES = "NVIDIA H100 80GB HBM3/1g.10gb"
TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", SLICES, "Tesla T4", "H100")
NODES = (*zip((4, 2, 7, 8, 4), TYPES, strict=True), (4, TYPES[0]), (4, TYPES[3]), (2, TYPES[1]))
ACCEPTED = ("", "", "", "A100|H100", "H100")
PREFERRED = ("", "H100", "A100", "T4|A100", "h100/1g.10gb", "H100")


class Asked(NamedTuple):
    """A submission; types are separated by `|`."""

    duration_s: float
    gpus: int
    gpu_type: str
    prefer: str


def drawn(seed: int) -> list[Asked]:
    """Jobs of 1 to 6 GPUs. Run times are different powers of two: ends differ."""
    rng = random.Random(seed)
    powers = [float(1 << k) for k in range(20)]
    rng.shuffle(powers)
    found = []
    for power in powers:
        accepted = rng.choice(ACCEPTED)
        fitting = [one for one in PREFERRED if not accepted or one in ("", "H100")]
        found.append(Asked(power, rng.choice([1, 1, 1, 2, 2, 3, 4, 5, 6]), accepted, rng.choice(fitting)))
    return found


def spec() -> ClusterSpec:
    groups = [
        NodeGroup(gpus=gpus, gpu_type=kind, slices=gpus if kind == SLICES else 0) for gpus, kind in NODES
    ]
    return ClusterSpec(name="c", nodes=tuple(groups))


def simulated(asked: list[Asked], policy: str) -> list[Began]:
    """Start of each job in the simulator."""
    trace = trace_of(
        [(0.0, one.duration_s, float(one.gpus)) for one in asked],
        gpu_type=[one.gpu_type for one in asked],
        prefer=[one.prefer for one in asked],
        ids=[str(number) for number in range(len(asked))],
    )
    rule = Policy(policy).rule
    engine = Engine(trace, spec(), order=rule.order, oracle=True)
    first = engine.state.arrays.node.first_gpu.tolist()
    table = engine.run_rule(rule)
    found = []
    for start_s, gpus in zip(table.start_s, table.gpus, strict=True):
        held: dict[int, list[int]] = {}
        for g in gpus:
            n = int(table.gpu_node[g])
            held.setdefault(n, []).append(int(g) - first[n])
        found.append(Began(float(start_s), held))
    return found


def served(journal: Journal, asked: list[Asked], policy: str) -> list[Began]:
    """Start of each job in a broker, seconds after the submissions."""
    broker = make(journal, 0, policy)
    for number, (gpus, kind) in enumerate(NODES):
        uuids = [f"{number}-{k}" for k in range(gpus)]
        node = msgspec.structs.replace(hello(f"n{number}", gpus), gpu_type=kind, gpu_uuids=uuids)
        broker.says(node.name, node)
    messages = []
    for one in asked:
        accepted, preferred = (text.split("|") if text else [] for text in (one.gpu_type, one.prefer))
        messages.append((submit(one.gpus, gpu_types=accepted, preferred_types=preferred), one.duration_s))
    return first_starts(broker, messages)


@pytest.mark.parametrize("policy", ["fifo-backfill", "fifo"])
@pytest.mark.parametrize("seed", [1, 2, 4, 6])
def test_jobs_start_at_the_same_times_on_the_same_gpus(tmp_path: Path, seed: int, policy: str) -> None:
    asked = drawn(seed)
    journal = Journal(tmp_path / "journal.sqlite")
    try:
        starts = served(journal, asked, policy)
        events = journal_events(journal.path)
        again = [record.action for record in redecide(events, load_scheduler(policy))]
        assert again == [decided.action for decided in events.decisions], "a replay decides alike"
    finally:
        journal.close()
    assert starts == simulated(asked, policy)
    without = simulated([one._replace(prefer="") for one in asked], policy)
    assert sum(one.gpus != other.gpus for one, other in zip(starts, without, strict=True)) > 3
    assert len({one.start_s for one in starts}) > 3, "some have waited"
    trace = history_of(Path(journal.path)).trace
    assert trace.extra["prefer"].tolist() == ["|".join(sorted(one.prefer.split("|"))) for one in asked]
