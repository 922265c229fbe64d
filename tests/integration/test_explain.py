"""`rlsched explain`, answered from a broker's store and from a replay's store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import rlsched as rs
from rlsched.board.views import overview
from rlsched.broker.journal.replay import records_by_number
from rlsched.cli.users.explain import explain
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.actions import Start
from rlsched.decide.record import Names
from rlsched.decisions.decision_text import done
from rlsched.decisions.past_queue import queue_at
from rlsched.decisions.reading import StoreReader
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from tests.support.online.cluster import Cluster, all_up, until

OPTIONS = ("--policy", "fifo-backfill", "--prediction", "running-mean")


def explained(*arguments: str) -> str:
    result = CliRunner().invoke(explain, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def ended(folder: Path, job: str) -> bool:
    """Whether a store has the end of a job."""
    reader = StoreReader(folder)
    reader.refresh()
    return job in reader.timeline.jobs and bool(reader.timeline.jobs[job].state)


def test_jobs_of_a_broker_have_their_names_in_the_queue(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=OPTIONS)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            first = client.submit(["sleep", "600"], num_gpus=4, name="first")
            second = client.submit(["true"], num_gpus=2, name="second")
            until(lambda: client.job(first).state == "running", "it runs")
            client.cancel(first)
            assert client.wait(second).state == "completed"
            info = client.job(second)
            store = cluster.directory / "broker"
            until(lambda: ended(store / "decisions", str(second)), "the store is written")
        text = explained(str(second), "--run", str(store))
        places = zip(info.nodes, info.gpus, strict=True)
        place = " ".join(f"{node}[{','.join(map(str, gpus))}]" for node, gpus in places)
        assert text.startswith(f"job {second} (second of {info.user}): completed")
        assert f"on {place}" in text
        decision = json.loads(explained(str(second), "--run", str(store), "--json"))["attempts"][0]["why"]
        record = records_by_number(store)[decision["number"]]
        assert decision["did"] == done(record)
        assert isinstance(record.action, Start)
        assert record.names.jobs[record.action.seq] == str(second)
        assert "cancelled" in explained(str(first), "--run", str(store))
        assert f"decision {decision['number']}: " in explained(
            "--decision", str(decision["number"]), "--run", str(store)
        )
        assert "jobs waited" in explained("--at", "2099-01-01", "--run", str(store))
    finally:
        cluster.close()


@pytest.mark.slow
def test_prediction_and_outcome_of_a_shared_start_online(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path,
        nodes=["n0"],
        broker_options=("--policy", "pack", "--share", "--prediction", "running-mean"),
        node_options=("--gpu-type", "H100"),
    )
    wait = f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done"
    try:
        with cluster.client() as client:
            all_up(client, 1)
            jobs = [client.submit(["sh", "-c", wait], num_gpus=4, workload="vit-tiny") for _ in range(2)]
            until(lambda: [client.job(job).state for job in jobs] == ["running"] * 2, "both run")
            assert client.job(jobs[0]).gpus == client.job(jobs[1]).gpus
            until(lambda: all((one := client.job(job).usage) and one.energy_j for job in jobs), "metered")
            store = cluster.directory / "broker"
            until(lambda: running(store / "decisions", 2), "the starts are written")
            before = stories(store, jobs)
            (tmp_path / "gate").touch()
            assert [client.wait(job).state for job in jobs] == ["completed"] * 2
            until(lambda: all(ended(store / "decisions", str(job)) for job in jobs), "the ends are written")
            used_j = [client.job(job).energy_j for job in jobs]
        after = stories(store, jobs)
        line = explained(str(jobs[1]), "--run", str(store)).splitlines()[-1]
    finally:
        cluster.close()
    for job, one, energy_j in zip(before, after, used_j, strict=True):
        plan = next(plan for plan in one["why"]["plans"] if plan["chosen"])
        assert job["predicted_speed_frac"] == one["predicted_speed_frac"]
        assert job["predicted_energy_kwh"] == one["predicted_energy_kwh"]
        assert (job["energy_kwh"], one["speed_frac"]) == (None, None)  # it ran too shortly for a speed
        assert one["predicted_energy_kwh"] * 3.6e6 > plan["power_w"] * plan["run_s"] > 0.0
        assert energy_j is not None
        assert one["energy_kwh"] == pytest.approx(energy_j / 3.6e6)
    assert after[0]["predicted_speed_frac"] == 1.0 > after[1]["predicted_speed_frac"] > 0.5
    two = after[1]
    assert line.endswith(
        f", speed {two['predicted_speed_frac']:.2f} predicted, {two['energy_kwh']:.3g} kWh "
        f"({two['predicted_energy_kwh']:.3g} predicted)"
    )


def running(folder: Path, jobs: int) -> bool:
    """Whether a store has the starts of this many jobs."""
    reader = StoreReader(folder)
    reader.refresh()
    return len(reader.timeline.attempts) == jobs


def stories(store: Path, jobs: list[int]) -> list[dict[str, Any]]:
    """The only attempt of each job."""
    told = [json.loads(explained(str(job), "--run", str(store), "--json")) for job in jobs]
    return [one["attempts"][0] for one in told]


def test_prediction_and_outcome_of_every_attempt_of_a_replay(tmp_path: Path) -> None:
    trace, spec = synthesize("helios", jobs=60, load=2.0, gpus=16, seed=3)
    rs.simulate(trace, spec, "pack", models=rs.Models(), records=tmp_path)
    reader = StoreReader(tmp_path / "pack")
    reader.refresh()
    shared = 0
    for job in reader.timeline.jobs.values():
        (attempt,) = json.loads(explained(job.job, "--run", str(tmp_path / "pack"), "--json"))["attempts"]
        for name in ("speed_frac", "energy_kwh"):
            assert attempt[name] > 0.0
            assert attempt[f"predicted_{name}"] > 0.0
        shared += attempt["predicted_speed_frac"] < 1.0
        line = next(
            line
            for line in explained(job.job, "--run", str(tmp_path / "pack")).splitlines()
            if line.startswith("  completed after ")
        )
        assert line.endswith(
            f", speed {attempt['speed_frac']:.2f} ({attempt['predicted_speed_frac']:.2f} predicted)"
            f", {attempt['energy_kwh']:.3g} kWh ({attempt['predicted_energy_kwh']:.3g} predicted)"
        )
    assert shared > 5


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    trace, spec = synthesize("helios", jobs=80, load=1.1, gpus=8, seed=3)
    rs.simulate(trace, spec, ["fifo-backfill", "qssf"], records=folder)
    return folder


def test_every_attempt_of_a_replay_has_its_decision(replay: Path) -> None:
    reader = StoreReader(replay / "qssf")
    reader.refresh()
    assert len(reader.timeline.jobs) == 80
    for job in reader.timeline.jobs.values():
        story = json.loads(explained(job.job, "--run", str(replay / "qssf"), "--json"))
        for attempt in story["attempts"]:
            assert attempt["why"]["job"] == job.job
            assert attempt["why"]["time_s"] == attempt["start_s"]
            assert attempt["waited_s"] == pytest.approx(attempt["start_s"] - story["submit_s"])
    moment = json.loads(
        explained("--at", str(reader.timeline.last_s / 2), "--run", str(replay / "qssf"), "--json")
    )
    waiting = [job for job in reader.timeline.jobs.values() if job.waits_at(reader.timeline.last_s / 2)]
    assert moment["num_waiting"] == len(waiting)


def test_nodes_that_were_down_or_drained_in_a_replay_are_in_the_chart(tmp_path: Path) -> None:
    trace, _ = synthesize("helios", jobs=60, load=1.0, gpus=16, seed=3)
    first_s = float(trace.submit_s[0])
    later_s = [first_s + hours * 3600.0 for hours in (1.0, 2.0, 3.0, 4.0, 1e6)]
    names = ("n0", "n0", "n1", "n1", "n0")
    events = zip(later_s, names, ("down", "up", "drain", "up", "down"), strict=True)
    file = tmp_path / "events.csv"
    file.write_text("time,node,event\n" + "".join(f"{at_s},{node},{what}\n" for at_s, node, what in events))
    spec = msgspec.structs.replace(ClusterSpec.uniform(2, 8), node_events=str(file))
    rs.simulate(trace, spec, "fifo-backfill", records=tmp_path / "records")
    reader = StoreReader(tmp_path / "records" / "fifo-backfill")
    reader.refresh()
    shown = overview(reader, reader.timeline.first_s, reader.timeline.last_s)
    assert [
        (node["node"], [(one["from_s"], one["to_s"], one["state"]) for one in node["spans"]])
        for node in shown["nodes"]
    ] == [("n0", [(*later_s[:2], "down")]), ("n1", [(*later_s[2:4], "drained")])]
    assert reader.timeline.last_s < later_s[4], "not after the last job"
    at_s = np.array([sum(later_s[:2]) / 2, sum(later_s[2:4]) / 2])
    assert reader.timeline.curves(at_s)["gpus"].tolist() == [8.0, 16.0], "drained GPUs are present"


@pytest.fixture(scope="module")
def preempting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of two rules that preempt; only `gittins` names the job that gains."""
    folder = tmp_path_factory.mktemp("preempting")
    trace, spec = synthesize("helios", jobs=60, load=1.3, gpus=16, seed=3)
    rs.simulate(trace, spec, ["tiresias", "gittins"], records=folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["tiresias", "gittins"])
def test_preemption_is_in_the_histories_of_both_jobs(preempting: Path, rule: str) -> None:
    reader = StoreReader(preempting / rule)
    reader.refresh()
    stories = {
        job.job: json.loads(explained(job.job, "--run", str(preempting / rule), "--json"))
        for job in reader.timeline.jobs.values()
    }
    stopped = [
        (name, attempt["stopped_by"])
        for name, one in stories.items()
        for attempt in one["attempts"]
        if attempt["stopped_by"]
    ]
    made = {
        (other["number"], name)
        for name, one in stories.items()
        for attempt in one["attempts"]
        for other in attempt["made_room"]
    }
    preempts = [row for row in range(len(reader)) if reader.cells(row)["kind"] == "preempt"]
    assert len(stopped) == len(preempts) > 10
    for row in preempts:
        turn = reader.cells(row)["turn"]
        assert (turn != "") == (rule == "gittins")
        if turn:
            assert (int(reader.numbers[row]), turn) in made
    took = {(one["number"], job) for _, one in stopped for job in one["gained"]}
    assert took, "no preempted GPUs were used at once"
    assert took <= made
    job, one = next((job, one) for job, one in stopped if one["gained"])
    number, gainer = one["number"], one["gained"][0]
    said = explained(job, "--run", str(preempting / rule))
    assert f"stopped by decision {number}: {one['did']}, by the rule {one['by'].split()[-1]}" in said
    assert f"; its GPUs went to job {gainer}" in said
    assert f"decision {number} made room for it: preempt job {job}" in explained(
        gainer, "--run", str(preempting / rule)
    )


@pytest.mark.slow
def test_free_gpus_after_a_start_are_those_of_the_simulator(preempting: Path) -> None:
    reader = StoreReader(preempting / "gittins")
    reader.refresh()
    free = {node.node: set(range(node.num_gpus)) for node in reader.timeline.nodes.values()}
    held: dict[str, list[tuple[str, int]]] = {}
    checked = 0
    for row in range(len(reader)):  # the ledger again, from the decisions and the ends before each
        cells, now_s = reader.cells(row), float(reader.times_s[row])
        ended = [
            one.job.job
            for one in reader.timeline.attempts
            if one.job.job in held and one.end_s <= now_s and one.start_s < now_s and one.state == "completed"
        ]
        for job in [*ended, *([cells["job"]] if cells["kind"] == "preempt" else [])]:
            for node, gpu in held.pop(job):
                free[node].add(gpu)
        if cells["kind"] == "start":
            seen = next(
                one for one in reader.timeline.jobs[cells["job"]].attempts if one.start_s == cells["time_s"]
            )
            held[seen.job.job] = [*zip(seen.nodes, seen.gpus, strict=True)]
            for node, gpu in held[seen.job.job]:
                free[node].remove(gpu)
            left = {node: len(free[node]) for node in seen.nodes}
            assert {node: found for node, (found, _) in reader.timeline.left_free(seen).items()} == left
            checked += any(left.values())
    assert checked > 10


def test_queue_at_a_time_is_in_the_policys_order(replay: Path) -> None:
    reader = StoreReader(replay / "qssf")
    reader.refresh()
    times_s = [*reader.times_s.tolist(), *((reader.times_s[1:] + reader.times_s[:-1]) / 2)]
    at_s = max(times_s, key=lambda one: len(reader.timeline.queue_at(one)))
    moment = json.loads(explained("--at", str(at_s), "--run", str(replay / "qssf"), "--json"))
    jobs = [(job["predicted_s"] * job["num_gpus"], job["job"]) for job in moment["waiting"]]
    assert moment["num_in_order"] == len(jobs) > 5
    assert [key for key, _ in jobs] == sorted(key for key, _ in jobs)
    assert [job for _, job in jobs] != [job.job for job in reader.timeline.queue_at(at_s)]
    assert "the queue, in its order:" in explained("--at", str(at_s), "--run", str(replay / "qssf"))
    lost = StoreReader(replay / "qssf")  # for decisions without their queues
    lost.refresh()
    lost.record = lambda row: msgspec.structs.replace(reader.record(row), names=Names())  # type: ignore[method-assign]
    assert [job.job for job, _ in queue_at(lost, at_s)] == [job.job for job in reader.timeline.queue_at(at_s)]


def test_invalid_requests_are_one_line(replay: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((), "expected a JOB, --at WHEN or --decision N"),
        (("7", "--run", str(tmp_path)), "expected a store of decisions"),
        (("7", "--run", str(replay)), "2 decision stores there; name one: fifo-backfill, qssf"),
        (("7", "--run", str(replay / "qssf" / "store.json")), "expected a store of decisions"),
        (("7", "--hours", "3", "--run", str(replay / "qssf")), "--hours: use it together with --instead"),
        (("7", "--within", "3", "--run", str(replay / "qssf")), "--within: use it together with --instead"),
        (("missing", "--run", str(replay / "qssf")), "no job 'missing' in this store; the store has 80"),
        (
            ("--decision", "99999", "--run", str(replay / "qssf")),
            "no decision 99999 in this store; the store has decisions 0 to",
        ),
        (("7", "--at", "noon", "--run", str(replay / "qssf")), "times in this store are seconds of a trace"),
    ):
        with pytest.raises(InputError, match=r"\w") as error:
            CliRunner().invoke(explain, arguments, catch_exceptions=False)
        assert said in str(error.value)
        assert "\n" not in str(error.value)
