"""Replaced decisions: each choice gives the schedule of the simulator, the original one that of the run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rlsched as rs
from rlsched.broker.base.entries import AttemptOver, JobSubmitted, NodeUp
from rlsched.broker.journal.replay import journal_events
from rlsched.cli.users.explain import explain
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decisions.candidates import Candidate, candidates
from rlsched.decisions.difference import waiting_s
from rlsched.decisions.reading import StoreReader
from rlsched.decisions.stored_timeline import StoredTimeline
from rlsched.decisions.timeline import Timeline
from rlsched.errors import InputError, RlschedError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.origin import task_of
from rlsched_agents.evaluate.task import engine_of
from rlsched_agents.whatif.course import Watch
from rlsched_agents.whatif.from_journal import courses
from rlsched_agents.whatif.instead import HOUR_S, instead, replayed
from rlsched_agents.whatif.other_choice import LATER_S
from rlsched_envs.sim.engine import Engine, PredictedTimes
from rlsched_envs.sim.job_table import JobTable
from tests.support.online.cluster import Cluster, all_up, until

HOURS = 30.0
JOBS = 60


@pytest.fixture(scope="module")
def workload() -> tuple[Trace, ClusterSpec]:
    return synthesize("helios", jobs=JOBS, load=1.2, gpus=16, seed=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, workload: tuple[Trace, ClusterSpec]) -> Path:
    """The store of a rule without models."""
    folder = tmp_path_factory.mktemp("runs")
    rs.simulate(*workload, "qssf", records=folder)
    return folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory, workload: tuple[Trace, ClusterSpec]) -> Path:
    """Stores of a rule that preempts, and with models of a rule, without and with dials."""
    folder = tmp_path_factory.mktemp("more")
    rs.simulate(*workload, "tiresias", records=folder)
    rs.simulate(*workload, ["tuned", "ppo"], models=rs.Models(energy_weight=0.3), records=folder)
    return folder


def opened(folder: Path) -> StoreReader:
    reader = StoreReader(folder)
    reader.refresh()
    return reader


def attempts(
    timeline: Timeline | StoredTimeline, until_s: float, *, measured: bool = False
) -> list[tuple[Any, ...]]:
    """Every attempt started by a time, with all known values of attempts ended by then.

    Measured runs leave out energy, as a replay without models has none.
    """
    return [
        (one.job.job, one.start_s, tuple(one.nodes), tuple(one.gpus))
        + ((one.end_s, one.state, one.sm_clock_frac) if one.end_s < until_s else ())
        + ((repr(one.energy_j),) if one.end_s < until_s and not measured else ())
        for one in timeline.attempts
        if one.start_s < until_s
    ]


def test_original_choice_gives_the_original_schedule(runs: Path) -> None:
    gives_the_original(opened(runs / "qssf"))


@pytest.mark.slow
@pytest.mark.parametrize("store", ["tiresias", "tuned", "ppo"])
def test_original_choice_with_preemption_models_and_dials(more: Path, store: str) -> None:
    gives_the_original(opened(more / store))


def gives_the_original(reader: StoreReader) -> None:
    task = task_of(reader.folder)
    rows = range(len(reader) // 2, len(reader))
    row, choice = next((row, one) for row in rows for one in candidates(reader.record(row)) if one.taken)
    record = reader.record(row)
    whole = replayed(task, record, choice, math.inf, Watch())
    assert attempts(whole.timeline, math.inf) == attempts(reader.timeline, math.inf)
    assert len(attempts(whole.timeline, math.inf)) >= JOBS - 1
    until_s = record.now_s + HOURS * HOUR_S
    part = replayed(task, record, choice, until_s, Watch())
    assert attempts(part.timeline, until_s) == attempts(reader.timeline, until_s)
    assert instead(reader, row, str(choice.number), hours=HOURS)["same"]


class Waits(Scheduler):
    """A policy that waits in one decision: the given one, or its first start of a job."""

    def __init__(self, policy: Scheduler, *, number: int = -1, seq: int = -1, until_s: float | None = None):
        self.name, self.policy_id, self.order = policy.name, policy.policy_id, policy.order
        self.abilities, self.rule = policy.abilities, policy.rule
        self.policy, self.number, self.seq, self.until_s = policy, number, seq, until_s

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        made = self.policy.decide(state, partition, now_s, record=record)
        starts = isinstance(made.action, Start) and made.action.seq == self.seq
        if not starts and state.decisions != self.number:
            return made
        self.seq = -1
        return Decision(action=Wait(until_s=self.until_s), source="rule")


def first_waits(table: JobTable) -> dict[str, float]:
    waits = table.start_s - table.trace.submit_s
    return dict(zip(table.trace.job_id.tolist(), waits.tolist(), strict=True))


def test_another_choice_equals_a_simulator_run_from_that_state(runs: Path) -> None:
    reader = opened(runs / "qssf")
    task, was = task_of(reader.folder), reader.timeline
    differing = 0
    for row in range(len(reader)):
        record = reader.record(row)
        later = [
            one for one in candidates(record) if one.of == "plan" and record.plans[one.at].how == "later"
        ]
        if not isinstance(record.action, Start) or not later or differing == 3:
            continue
        wait_s = record.plans[later[0].at].wait_s
        rule = load_scheduler(task.policy, seed=task.seed)
        waiting = Waits(rule, number=record.number, until_s=record.now_s + (wait_s or LATER_S))
        waits = first_waits(engine_of(task, waiting).run(waiting))
        found = instead(reader, row, str(later[0].number), hours=math.inf)
        assert found["whole"]
        total = sum(
            max(0.0, job.submit_s + waits[job.job] - max(job.submit_s, record.now_s))
            for job in was.jobs.values()
        )
        assert found["other_waited_s"] == pytest.approx(total, abs=1e-6)
        for listed in (*found["less"], *found["more"]):
            job = was.jobs[listed["job"]]
            assert listed["other_start_s"] == job.submit_s + waits[job.job] or listed["change_s"] == 0.0
            assert listed["waited_s"] == waiting_s(job, record.now_s, found["to_s"])
        differing += not found["same"]
    assert differing == 3


@pytest.mark.slow
def test_plans_and_the_choice_of_the_rule_without_dials_can_be_taken(more: Path) -> None:
    reader = opened(more / "ppo")
    taken: set[str] = set()
    for row in range(len(reader)):
        for one in candidates(reader.record(row)):
            if not one.taken and one.of not in taken:
                found = instead(reader, row, "rule" if one.of == "rule" else str(one.number), hours=HOURS)
                taken.add(one.of)
                assert found["jobs"] > 0
                assert found["other_energy_kwh"] > 0.0
    assert taken == {"rule", "plan"}
    assert all(one.of == "plan" for one in candidates(opened(more / "tuned").record(0)))


def test_output_fits_a_screen_and_errors_are_one_line(runs: Path, tmp_path: Path) -> None:
    folder = runs / "qssf"
    reader = opened(folder)
    row = next(row for row in range(len(reader)) if len(candidates(reader.record(row))) > 1)
    record = reader.record(row)
    other = next(one for one in candidates(record) if not one.taken)
    asked = ("--run", str(folder), "--decision", str(record.number), "--instead")
    result = CliRunner().invoke(explain, [*asked, str(other.number)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith(f"decision {record.number}, ")
    assert f"instead: {other.words}; then the same policy, until " in result.output
    assert len(result.output.splitlines()) <= 40
    result = CliRunner().invoke(explain, [*asked, str(other.number), "--json"], catch_exceptions=False)
    assert json.loads(result.output)["candidate"] == other.number
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if not file.name.startswith("made_with"):
            (bare / file.name).write_bytes(file.read_bytes())
    job = next(job for job in reader.timeline.jobs.values() if job.attempts)
    last = next(
        k
        for k in range(len(reader))
        if reader.cells(k)["kind"] == "start"
        and reader.cells(k)["job"] == job.job
        and reader.times_s[k] == job.attempts[-1].start_s
    )
    choice = next(one for one in candidates(reader.record(last)) if one.taken)
    of_job = (job.job, "--run", str(folder), "--instead", str(choice.number))
    result = CliRunner().invoke(explain, of_job, catch_exceptions=False)
    history = CliRunner().invoke(explain, of_job[:3], catch_exceptions=False).output
    assert result.output.startswith(history)
    assert result.output[len(history) :].startswith(f"decision {reader.numbers[last]}, ")
    early = (*of_job[:3], "--at", "-1", *of_job[3:])
    for arguments, said in (
        (early, f"no decision about job {job.job} in this store"),
        ((*asked, "rule"), f"the rule itself made decision {record.number}"),
        ((*asked, "99"), "expected 'rule' or the number of a candidate"),
        ((*asked, "yes"), "expected 'rule' or the number of a candidate"),
        (("--run", str(folder), "--instead", "1"), "use it together with --decision N"),
        (
            ("--run", str(bare), *asked[2:], str(other.number)),
            "expected a store with the inputs of its replay",
        ),
    ):
        with pytest.raises(InputError, match=r"\w") as error:
            CliRunner().invoke(explain, arguments, catch_exceptions=False)
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(RlschedError, match="not finished within 1e-09 s"):
        instead(reader, row, str(other.number), hours=HOURS, within_s=1e-9)


def test_store_with_decisions_of_another_policy_is_refused(runs: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for file in (runs / "qssf").iterdir():
        (mixed / file.name).write_bytes(file.read_bytes())
    origin = json.loads((mixed / "made_with.json").read_text())
    origin["policy_toml"] = Policy("fifo").toml
    (mixed / "made_with.json").write_text(json.dumps(origin))
    reader = opened(mixed)
    row = len(reader) - 1
    with pytest.raises(InputError, match="a replay does not"):
        instead(reader, row, str(candidates(reader.record(row))[0].number), hours=1.0)


# ---- a broker's journal ---------------------------------------------------------------------------


def live(folder: Path) -> Path:
    """A broker with one node of 4 GPUs that has run some jobs; returns its directory."""
    cluster = Cluster(
        folder, nodes=["n0"], broker_options=("--policy", "fifo-backfill", "--prediction", "running-mean")
    )
    try:
        with cluster.client() as client:
            all_up(client, 1)
            jobs = [
                client.submit(["sleep", str(seconds)], num_gpus=gpus)
                for gpus, seconds in ((4, 1.0), (3, 0.9), (2, 0.5), (1, 0.7), (4, 0.4), (2, 0.3), (1, 0.2))
            ]
            for job in jobs:
                assert client.wait(job).state == "completed"
    finally:
        cluster.close()
    return cluster.directory / "broker"


@pytest.mark.slow
def test_replaced_live_decision_equals_the_simulator(tmp_path: Path) -> None:
    directory = live(tmp_path)
    reader, events = opened(directory / "decisions"), journal_events(directory)
    submitted = [
        (instant.now_s, one)
        for instant in events.instants
        for one in instant.changes
        if isinstance(one, JobSubmitted)
    ]
    nodes = [one for instant in events.instants for one in instant.changes if isinstance(one, NodeUp)]
    over_s = {
        one.job: instant.now_s
        for instant in events.instants
        for one in instant.changes
        if isinstance(one, AttemptOver)
    }
    start_s = {one.job.job: one.start_s for one in reader.timeline.attempts}
    checked = 0
    for row in range(len(reader)):
        record = reader.record(row)
        if not isinstance(record.action, Start):
            continue
        made = next(one for one in candidates(record) if one.taken)
        _, again = courses(reader, record, made, record.now_s + HOUR_S, Watch())
        assert attempts(again.timeline, math.inf, measured=True) == attempts(
            reader.timeline, math.inf, measured=True
        )
        assert again.by_predictions == 0
        later = [one for one in candidates(record) if one.of == "plan" and not one.taken]
        if not later or record.plans[later[0].at].wait_s:
            continue
        _, other = courses(reader, record, later[0], record.now_s + HOUR_S, Watch())
        table = simulated(submitted, nodes[0].gpus, over_s, start_s, record, later[0])
        for job, seen in zip(submitted, table.start_s.tolist(), strict=True):
            twin = other.timeline.jobs[str(job[1].job)]
            if seen > events.instants[-1].now_s:  # actions of nodes after the journal's end are unknown
                continue
            assert twin.attempts[0].start_s == pytest.approx(seen, abs=2e-3)
        checked += [one.start_s for one in other.timeline.attempts] != list(start_s.values())
    assert checked >= 2


@pytest.mark.slow
def test_unknown_run_times_are_predicted_and_marked(tmp_path: Path) -> None:
    options = ("--policy", "fifo-backfill", "--prediction", "running-mean")
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=options)
    store = cluster.directory / "broker" / "decisions"
    try:
        with cluster.client() as client:
            all_up(client, 1)
            first = client.submit(["sleep", "600"], num_gpus=3, time_limit_s=7200.0)
            second = client.submit(["sleep", "600"], num_gpus=4, time_limit_s=3600.0)
            cancelled = client.submit(["sleep", "600"], num_gpus=1)
            until(lambda: client.job(cancelled).state == "running", "two of them run")
            client.cancel(cancelled)
            until(lambda: client.job(cancelled).state == "cancelled", "it is cancelled")
            until(lambda: len(opened(store).timeline.attempts) == 2, "the store is written")
        reader = opened(store)
        record = reader.record(reader.rows_about(str(first))[0])
        later = next(one for one in candidates(record) if not one.taken)
        asked = ["--run", str(store.parent), "--decision", str(record.number), "--instead", str(later.number)]
        said = CliRunner().invoke(explain, asked, catch_exceptions=False).output
        assert "by predictions: the run time of 2 jobs is not known yet" in said
        found = json.loads(CliRunner().invoke(explain, [*asked, "--json"], catch_exceptions=False).output)
        assert found["by_predictions"] == 2
        made = next(one for one in candidates(record) if one.taken)
        was, again = courses(reader, record, made, record.now_s + 24 * HOUR_S, Watch())
        assert attempts(was.timeline, math.inf) == attempts(again.timeline, math.inf)
        begins_s = was.timeline.jobs[str(second)].attempts[0].start_s
        assert begins_s == was.timeline.jobs[str(first)].end_s  # within its limit, from predictions
        assert begins_s <= record.now_s + 7200.0
        (store / "policies.jsonl").unlink()
        with pytest.raises(InputError, match="cannot read which policy decided"):
            instead(reader, reader.rows_about(str(first))[0], str(later.number), hours=1.0)
    finally:
        cluster.close()


def simulated(
    submitted: list[tuple[float, JobSubmitted]],
    gpus: int,
    over_s: dict[int, float],
    start_s: dict[str, float],
    record: DecisionRecord,
    choice: Candidate,
) -> JobTable:
    """The same jobs with their true run times in the simulator, with one decision replaced."""
    assert record.plans[choice.at].how == "later"
    trace = Trace.from_columns(
        name="live",
        submit_s=[now_s for now_s, _ in submitted],
        duration_s=[over_s[job.job] - start_s[str(job.job)] for _, job in submitted],
        num_gpus=[job.num_gpus for _, job in submitted],
    )
    predictions = PredictedTimes(
        np.array([job.predicted_s for _, job in submitted]), np.array([job.spread for _, job in submitted])
    )
    spec = ClusterSpec(name="live", nodes=(NodeGroup(gpus=gpus),))
    rule = load_scheduler("fifo-backfill")
    assert isinstance(record.action, Start)
    until_s = record.now_s + LATER_S
    waiting = Waits(
        rule, seq=record.action.seq, until_s=until_s
    )  # decisions of a broker have other numbers, as it waits more often
    return Engine(trace, spec, order=rule.order, predictions=predictions).run(waiting)
