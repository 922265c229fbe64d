"""Closed loop of sharing: predictions of a live broker follow GPUs that differ from the catalogue."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rlsched.broker.base.entries import JobSubmitted, PairSeen
from rlsched.broker.base.ledger_models import factors_of, workload_number
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import (
    JOURNAL_FILE,
    JournalEvents,
    journal_events,
    records_by_number,
    redecide,
)
from rlsched.broker.state.job_requests import runs_as
from rlsched.broker.state.learning import LEAST_MEASURED_S
from rlsched.client.client import Client
from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.reading import StoreReader
from rlsched.models.learning import seen_factor
from rlsched.wire.states import FINISHED
from rlsched_envs.sim.seen import SeenMemory
from rlsched_node.processes.attempt import SIMULATED_VARIABLE
from tests.support.broker.preempting import replayed
from tests.support.online.cluster import until
from tests.support.online.live_replay import LiveRun, repeated_starts
from tests.support.online.up import Up

pytestmark = pytest.mark.slow

A, B, C = "a2c-b64", "vit-tiny", "gpt2-b4"
UTILS = {A: 0.5, B: 0.4, C: 0.7}
MEMORY_MIB = {A: 3_000, B: 5_000, C: 9_000}
SPEEDS = {(A, C): 0.35, (C, A): 0.4, (A, B): 0.9, (B, A): 0.8}
"""True speed of the first next to the second; by the catalogue all of them share well."""
FIRST, SECOND, THIRD = "first", "second", "third"
UTILS_OF_COMMANDS = {FIRST: 0.45, SECOND: 0.2, THIRD: 0.6}
MEMORY_OF_COMMANDS_MIB = {FIRST: 3_000, SECOND: 5_000, THIRD: 9_000}
SPEEDS_OF_COMMANDS = {
    (FIRST, THIRD): 0.49,
    (THIRD, FIRST): 0.5,
    (FIRST, SECOND): 0.93,
    (SECOND, FIRST): 0.96,
}
"""As `SPEEDS`. The workloads with the nearest GPU times share well too. Of the other workloads, one with a
higher GPU time fits the observed speeds of `SECOND` better."""
PROGRAM = """\
import json, os, sys, time
_, gate, out = sys.argv[1:]
while not os.path.exists(gate):
    busy_s = time.process_time() + 0.004
    while time.process_time() < busy_s:
        pass
    time.sleep(0.096)
began_s = time.clock_gettime(time.CLOCK_MONOTONIC) - float(open("/proc/uptime").read().split()[0])
started_s = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
json.dump([time.process_time(), time.monotonic() - began_s - started_s], open(out, "w"))
"""
"""Keeps 4 % of a core busy until its gate opens; writes its CPU time and run time, seconds."""
SOLO_S = 40.0


class Run:
    """Jobs of a cluster, by the gate that ends them.

    Args:
        client: Client of the cluster.
        folder: Directory of gates and outputs.
        journal: Journal of the broker.
        named: Whether jobs name their workload. If not, only their commands differ.
    """

    def __init__(self, client: Client, folder: Path, journal: Path, *, named: bool = True) -> None:
        self._client, self._folder, self._journal, self._named = client, folder, journal, named
        self._kinds: dict[int, str] = {}

    def submit(self, kind: str, gate: int) -> int:
        """Submit a job of a workload or command that ends when its gate opens; returns its number."""
        files = (str(self._folder / f"gate{gate}"), str(self._folder / f"{kind}.out{len(self._kinds)}"))
        command = [sys.executable, "-S", "-c", PROGRAM, kind, *files]
        if self._named:
            job = self._client.submit(command, num_gpus=1, workload=kind)
        else:
            env = {SIMULATED_VARIABLE: kind}
            job = self._client.submit(command, num_gpus=1, share="yes", env=env)
        self._kinds[job] = kind
        return job

    def solo(self, kinds: Iterable[str], gate: int) -> None:
        """Run a job of each kind without co-tenants."""
        jobs = [self.submit(kind, gate) for kind in kinds]
        self.until(
            lambda: all(time.time() - (self._client.job(job).start_s or math.inf) > SOLO_S for job in jobs),
            "each has run without co-tenants for long enough",
        )
        self.open(gate, jobs)

    def start(self, kind: str, gate: int) -> list[int]:
        """Submit four jobs, one for each GPU, and wait until they run."""
        jobs = [self.submit(kind, gate) for _ in range(4)]
        self.until(lambda: all(self.state(job) == "running" for job in jobs), f"four jobs of {kind} run")
        return jobs

    def until_learnt(self, one: str, other: str, count: int = 4) -> None:
        """Wait until this many pairs of jobs have been learnt, both ways."""

        def has_all() -> bool:
            entries = (instant.changes for instant in journal_events(self._journal).instants)
            seen = Counter(
                (self._kinds[fact.job], self._kinds[fact.beside])
                for batch in entries
                for fact in batch
                if isinstance(fact, PairSeen)
            )
            return min(seen[one, other], seen[other, one]) >= count

        self.until(has_all, f"{count} pairs of {one} and {other} are learnt")

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


def truth_of(
    utils: dict[str, float], memory_mib: dict[str, int], speeds: dict[tuple[str, str], float]
) -> str:
    """Text of a file for `--simulated-truth`."""
    figures = (
        f'[workload."{kind}"]\nutil_frac = {util}\nmemory_mib = {memory_mib[kind]}\n'
        for kind, util in utils.items()
    )
    pairs = (
        f'[[pair]]\nworkload = "{mine}"\npartner = "{theirs}"\nspeed = {speed}\n'
        for (mine, theirs), speed in speeds.items()
    )
    return "".join([*figures, *pairs])


def learning_up(folder: Path, truth: str) -> Up:
    """Start a node of 4 GPUs with this truth, and a broker that learns pairs within 20 s."""
    (folder / "truth.toml").write_text(truth)
    return Up(
        folder,
        *("--nodes", "1", "--gpu-type", "H100", "--simulated-truth", str(folder / "truth.toml")),
        *("--policy", "pack", "--share", "--prediction", "running-mean", "--sharing-watch-s", "20"),
        *("--decision-budget-ms", "60000"),
    )


def submitted(events: JournalEvents) -> dict[int, JobSubmitted]:
    """Submissions by number of the job."""
    changes = (change for instant in events.instants for change in instant.changes)
    return {change.job: change for change in changes if isinstance(change, JobSubmitted)}


def expects_true_use(job: JobSubmitted, kind: str, memory_mib: float, folder: Path) -> None:
    """Compare the memory and cores that the broker expected at a submission with the truth."""
    profile = job.profiles["H100"]
    assert profile.memory_mib is not None
    assert profile.cores_each is not None
    assert profile.memory_mib.value == pytest.approx(memory_mib, rel=0.05)
    assert profile.cores_each.value == pytest.approx(core_truth(folder, kind), rel=0.15)


def repeats(events: JournalEvents, live: dict[int, DecisionRecord], starts: int) -> None:
    """Repeat the run from its journal, and in the simulator, where what was learnt matters."""
    made = redecide(events, load_scheduler("pack"))
    assert sum(isinstance(one.action, Start) for one in made) == starts
    for record in made:
        recorded = live[record.number]
        assert (record.action, record.state_digest) == (recorded.action, recorded.state_digest)
        assert record.plans == recorded.plans, f"decision {record.number}"
    again = repeated_starts(load_scheduler("pack"), events, [live[number] for number in sorted(live)])
    run = LiveRun.from_journal(events)
    memory = [one for one in run.seen if isinstance(one[1], SeenMemory)]
    unlearnt = replace(run, seen=memory).starts(load_scheduler("pack"))
    assert [one.action for one in unlearnt] != [one.action for one in again]


def pressure_of(workload: str) -> float:
    """Pressure of a workload on H100 by the catalogue."""
    return factors_of("H100")[workload_number(workload) - 1][1]


def core_truth(folder: Path, workload: str) -> float:
    """Cores that the jobs of a workload kept busy, by their own clocks; geometric mean."""
    told = [json.loads(path.read_text()) for path in folder.glob(f"{workload}.out*")]
    logs = [math.log(cpu_s / ran_s) for cpu_s, ran_s in told if ran_s > LEAST_MEASURED_S]
    return math.exp(sum(logs) / len(logs))


@pytest.mark.soak
def test_predictions_and_co_tenants_follow_gpus_that_differ_from_the_catalogue(tmp_path: Path) -> None:
    """And the simulator, which repeats the run with what the broker learnt, starts the same jobs alike."""
    up = learning_up(tmp_path, truth_of(UTILS, MEMORY_MIB, SPEEDS))
    journal = up.broker / JOURNAL_FILE
    try:
        with Client(up.wait_ready(), home=up.keys) as client:
            run = Run(client, tmp_path, journal)
            run.solo((A, B, C), 1)

            first = run.start(A, 2)
            slowed = [run.submit(C, 2) for _ in range(4)]
            run.until_learnt(A, C)
            run.open(2, [*first, *slowed])

            first = run.start(A, 3)
            apart = [run.submit(C, 3) for _ in range(4)]
            joined = [run.submit(B, 3) for _ in range(11)]
            run.until_learnt(A, B)
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

    events = journal_events(journal)
    asked = submitted(events)
    for workload, job in probes.items():
        expects_true_use(asked[job], workload, MEMORY_MIB[workload], tmp_path)
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
    repeats(events, records_by_number(up.broker), 33)


def test_predictions_and_co_tenants_follow_commands_that_name_no_workload(tmp_path: Path) -> None:
    """The broker recognises these jobs by their commands, and chooses the workload that models each.

    Observed speeds change this choice for `SECOND`. Speeds of pairs are learnt by workload, so the speeds of
    its former workload no longer apply: its predicted speed is 9 % too low until the pair is observed again.
    """
    up = learning_up(tmp_path, truth_of(UTILS_OF_COMMANDS, MEMORY_OF_COMMANDS_MIB, SPEEDS_OF_COMMANDS))
    journal = up.broker / JOURNAL_FILE
    try:
        with Client(up.wait_ready(), home=up.keys) as client:
            run = Run(client, tmp_path, journal, named=False)
            run.solo((FIRST, SECOND, THIRD), 1)

            first = run.start(FIRST, 2)
            slowed = [run.submit(THIRD, 2) for _ in range(4)]
            run.until_learnt(FIRST, THIRD)
            run.open(2, [*first, *slowed])

            first = run.start(FIRST, 3)
            apart = [run.submit(THIRD, 3) for _ in range(4)]
            before = [run.submit(SECOND, 3) for _ in range(4)]
            run.until_learnt(FIRST, SECOND)
            assert [run.state(job) for job in apart] == ["queued"] * 4, "the first slows it down too much"
            run.open(3, [*first, *apart, *before])

            first = run.start(FIRST, 4)
            after = [run.submit(SECOND, 4) for _ in range(4)]
            run.until_learnt(FIRST, SECOND, 8)
            run.open(4, [*first, *after])
            probes = {command: run.submit(command, 4) for command in UTILS_OF_COMMANDS}
            run.open(4, [*probes.values()])
    finally:
        up.stop()

    opened = Journal(journal)
    state = replayed(opened)
    opened.close()
    events = journal_events(journal)
    asked = submitted(events)
    assert not any(one.workload for one in asked.values())
    number = {command: runs_as(asked[job]) for command, job in probes.items()}
    assert runs_as(asked[before[0]]) != runs_as(asked[after[0]]) == number[SECOND]

    trait, kind = state.cluster.arrays.models.trait, state.cluster.kind_names.index("H100")
    for (mine, theirs), speed in SPEEDS_OF_COMMANDS.items():
        pair = number[mine], kind, number[theirs]
        assert trait.beside[pair] == pytest.approx(speed, rel=0.05), f"{mine} next to {theirs}"
    for command, job in probes.items():
        expects_true_use(asked[job], command, MEMORY_OF_COMMANDS_MIB[command], tmp_path)

    reader = StoreReader(up.broker / "decisions")
    reader.refresh()
    for job in slowed:
        (one,) = reader.timeline.jobs[str(job)].attempts
        assert one.predicted_speed_frac > 0.85, "by the workloads with the nearest GPU times"
        assert one.speed_frac == pytest.approx(SPEEDS_OF_COMMANDS[THIRD, FIRST], rel=0.1)
    for job in after:
        (one,) = reader.timeline.jobs[str(job)].attempts
        assert one.predicted_speed_frac < 0.95 * SPEEDS_OF_COMMANDS[SECOND, FIRST], "not yet observed again"
    repeats(events, records_by_number(up.broker), 34)
