"""Closed loop of sharing: predictions of a live broker follow GPUs that differ from the catalogue."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlsched.broker.base.entries import JobSubmitted, PairSeen
from rlsched.broker.base.ledger_models import factors_of, workload_number
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE, journal_events, records_by_number, redecide
from rlsched.broker.state.learning import LEAST_MEASURED_S
from rlsched.client.client import Client
from rlsched.decide.actions import Start
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.reading import StoreReader
from rlsched.models.learning import seen_factor
from rlsched.wire.states import FINISHED
from rlsched_envs.sim.seen import SeenMemory
from tests.support.broker.preempting import replayed
from tests.support.online.cluster import until
from tests.support.online.live_replay import LiveRun, repeated_starts
from tests.support.online.up import Up

pytestmark = pytest.mark.slow

A, B, C = "a2c-b64", "vit-tiny", "gpt2-b4"
MEMORY_MIB = {A: 3_000, B: 5_000, C: 9_000}
SPEEDS = {(A, C): 0.35, (C, A): 0.4, (A, B): 0.9, (B, A): 0.8}
"""True speed of the first next to the second; by the catalogue all of them share well."""
TRUTH = "".join(
    [
        *(
            f'[workload."{name}"]\nutil_frac = {util}\nmemory_mib = {MEMORY_MIB[name]}\n'
            for name, util in ((A, 0.5), (B, 0.4), (C, 0.7))
        ),
        *(
            f'[[pair]]\nworkload = "{mine}"\npartner = "{theirs}"\nspeed = {speed}\n'
            for (mine, theirs), speed in SPEEDS.items()
        ),
    ]
)
PROGRAM = """\
import json, os, sys, time
_, gate, out = sys.argv[1:]
while not os.path.exists(gate):
    busy_s = time.process_time() + 0.01
    while time.process_time() < busy_s:
        pass
    time.sleep(0.09)
began_s = time.clock_gettime(time.CLOCK_MONOTONIC) - float(open("/proc/uptime").read().split()[0])
started_s = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
json.dump([time.process_time(), time.monotonic() - began_s - started_s], open(out, "w"))
"""
"""Keeps a tenth of a core busy until its gate opens; writes its CPU time and run time, seconds."""
SOLO_S = 40.0


class Run:
    """Jobs of a cluster, by the gate that ends them."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder, self._count = client, folder, 0

    def submit(self, workload: str, gate: int) -> int:
        """Submit a job that ends when its gate opens; returns its number."""
        self._count += 1
        files = (str(self._folder / f"gate{gate}"), str(self._folder / f"{workload}.out{self._count}"))
        command = [sys.executable, "-S", "-c", PROGRAM, workload, *files]
        return self._client.submit(command, num_gpus=1, workload=workload)

    def open(self, gate: int, jobs: list[int]) -> None:
        """Open a gate, and wait for the end of these jobs."""
        (self._folder / f"gate{gate}").touch()
        self.until(lambda: all(self.state(job) in FINISHED for job in jobs), "all have ended")
        assert {self.state(job) for job in jobs} == {"completed"}

    def state(self, job: int) -> str:
        """State of a job."""
        return self._client.job(job).state

    def until(self, look: Callable[[], object], what: str) -> None:
        """Poll once a second, for three minutes at most."""

        def looks() -> object:
            time.sleep(1.0)
            return look()

        until(looks, what, 180.0)


def pressure_of(workload: str) -> float:
    """Pressure of a workload on H100 by the catalogue."""
    return factors_of("H100")[workload_number(workload) - 1][1]


def core_truth(folder: Path, workload: str) -> float:
    """Cores that the jobs of a workload kept busy, by their own clocks; geometric mean."""
    told = [json.loads(path.read_text()) for path in folder.glob(f"{workload}.out*")]
    logs = [math.log(cpu_s / ran_s) for cpu_s, ran_s in told if ran_s > LEAST_MEASURED_S]
    return math.exp(sum(logs) / len(logs))


def test_predictions_and_co_tenants_follow_gpus_that_differ_from_the_catalogue(tmp_path: Path) -> None:
    """And the simulator, which repeats the run with what the broker learnt, starts the same jobs alike."""
    (tmp_path / "truth.toml").write_text(TRUTH)
    up = Up(
        tmp_path,
        *("--nodes", "1", "--gpu-type", "H100", "--simulated-truth", str(tmp_path / "truth.toml")),
        *("--policy", "pack", "--share", "--prediction", "running-mean", "--sharing-watch-s", "20"),
        *("--decision-budget-ms", "60000"),
    )
    journal = up.broker / JOURNAL_FILE

    def facts() -> Counter[tuple[str, str]]:
        entries = (instant.changes for instant in journal_events(journal).instants)
        return Counter(
            (one.workload, one.partner) for batch in entries for one in batch if isinstance(one, PairSeen)
        )

    try:
        with Client(up.wait_ready(), home=up.keys) as client:
            run = Run(client, tmp_path)
            solo = [run.submit(workload, 1) for workload in (A, B, C)]
            run.until(
                lambda: all(time.time() - (client.job(job).start_s or math.inf) > SOLO_S for job in solo),
                "each has run without co-tenants for long enough",
            )
            run.open(1, solo)

            first = [run.submit(A, 2) for _ in range(4)]
            run.until(lambda: all(run.state(job) == "running" for job in first), "the first four run")
            joined = [run.submit(C, 2) for _ in range(4)]
            run.until(lambda: facts()[A, C] >= 4 and facts()[C, A] >= 4, "the pairs are learnt")
            slowed = list(joined)
            run.open(2, [*first, *joined])

            first = [run.submit(A, 3) for _ in range(4)]
            run.until(lambda: all(run.state(job) == "running" for job in first), "the next four run")
            apart = [run.submit(C, 3) for _ in range(4)]
            joined = [run.submit(B, 3) for _ in range(11)]
            run.until(lambda: facts()[A, B] >= 4 and facts()[B, A] >= 4, "these pairs are learnt")
            assert [run.state(job) for job in apart] == ["queued"] * 4, "A slows it down too much"
            run.open(3, [*first, *apart, *joined])
            probes = {workload: run.submit(workload, 3) for workload in (A, B, C)}
            run.open(3, [*probes.values()])
    finally:
        up.stop()

    opened = Journal(journal)
    state = replayed(opened)
    opened.close()
    trait, kind = state.cluster.arrays.models.trait, state.cluster.kind_names.index("H100")
    for (mine, theirs), speed in SPEEDS.items():
        pair = workload_number(mine), kind, workload_number(theirs)
        assert trait.modelled[pair] > 0.8, "by the catalogue"
        assert trait.beside[pair] == pytest.approx(speed, rel=0.05), f"{mine} next to {theirs}"

    events, live = journal_events(journal), records_by_number(up.broker)
    changes = [change for instant in events.instants for change in instant.changes]
    asked = {change.job: change for change in changes if isinstance(change, JobSubmitted)}
    for workload, job in probes.items():
        profile = asked[job].profiles["H100"]
        assert profile.memory_mib is not None
        assert profile.cores_each is not None
        assert profile.memory_mib.value == pytest.approx(MEMORY_MIB[workload], rel=0.05)
        assert profile.cores_each.value == pytest.approx(core_truth(tmp_path, workload), rel=0.15)
    sensitivity = asked[probes[C]].profiles["H100"].sensitivity
    assert sensitivity is not None, "C ran next to A only"
    assert sensitivity.value == pytest.approx(seen_factor(SPEEDS[C, A], pressure_of(A)), rel=0.25)

    reader = StoreReader(up.broker / "decisions")
    reader.refresh()
    for job in slowed:
        (one,) = reader.timeline.jobs[str(job)].attempts
        assert one.predicted_speed_frac > 0.7, "by the catalogue"
        assert one.speed_frac == pytest.approx(SPEEDS[C, A], rel=0.1)
        assert min(one.energy_j, one.predicted_energy_j) > 0.0

    made = redecide(events, load_scheduler("pack"))
    assert sum(isinstance(one.action, Start) for one in made) == 33
    for record in made:
        recorded = live[record.number]
        assert (record.action, record.state_digest) == (recorded.action, recorded.state_digest)
        assert record.plans == recorded.plans, f"decision {record.number}"
    starts = repeated_starts(load_scheduler("pack"), events, [live[number] for number in sorted(live)])
    run = LiveRun.from_journal(events)
    memory = [(now_s, seen) for now_s, seen in run.seen if isinstance(seen, SeenMemory)]
    unlearnt = replace(run, seen=memory).starts(load_scheduler("pack"))
    assert [one.action for one in unlearnt] != [one.action for one in starts]
