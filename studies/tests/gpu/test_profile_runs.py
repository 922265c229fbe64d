"""Rehearsal of the GPU profile: real children and real windows on this machine's CPU."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from rlsched_node.gpu.device import Tenant
from rlsched_node.gpu.simulated import SimulatedGpus
from studies.gpu import conductor, profile_catalogue
from studies.gpu.arithmetic import counted_span, memory_mib, power_w, samples_per_s
from studies.gpu.plan import Step
from studies.gpu.protocol import Job
from studies.tests.gpu import fake_mps

pytest.importorskip("torch")

SMALL = Job("cnn_small", 8)
STEPS = [
    Step("idle", "", ()),
    Step("alone", "", (SMALL,)),
    Step("pair", "mps", (SMALL, SMALL)),
    Step("pair", "timeslice", (SMALL, SMALL)),
]


def test_options_choose_the_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--rehearse", "--workload", "cnn_small", "--kind", "alone", "--kind", "pair")
    monkeypatch.setattr(sys, "argv", ["profile", *words])
    steps = profile_catalogue.chosen(profile_catalogue.parse())
    assert {step.kind for step in steps} == {"alone", "pair"}
    assert {job.workload for step in steps for job in step.jobs} == {"cnn_small"}


@pytest.mark.slow
def test_rehearsal_measures_single_jobs_and_pairs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def profile(steps: list[Step], *words: str) -> str:
        monkeypatch.setattr(profile_catalogue, "chosen", lambda _: steps)
        monkeypatch.setattr(
            sys, "argv", ["profile", "--rehearse", "--seconds", "1", "--out", str(tmp_path), *words]
        )
        assert profile_catalogue.main() == 0
        return capsys.readouterr().out

    assert "1 measurements" in profile(STEPS[:2], "--budget-s", "120")
    said = profile(STEPS, "--budget-s", "180", "--resume", str(tmp_path / "record.jsonl"))
    assert "2 measurements" in said
    assert "MPS needs a GPU" in said
    assert "a rehearsal has no GPU to sample" in said
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    fields = {(row["workload"], row["field"]) for row in rows}
    assert ("cnn_small-b8", "samples_per_s") in fields
    assert {row["status"] for row in rows} == {"rehearsal"}
    with (tmp_path / "pairs.csv").open() as file:
        pairs = {(row["mode"], row["a"], row["b"]) for row in csv.DictReader(file)}
    assert pairs == {("timeslice", "cnn_small-b8", "cnn_small-b8")}
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_pair_under_mps_ends_before_its_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole measurement except the GPU: children on the CPU, simulated readings, a script for MPS."""
    calls = fake_mps.install(tmp_path, monkeypatch)
    gpus = SimulatedGpus(1)
    gpus.follow({0: [Tenant(os.getpid())]})
    settings = conductor.Settings(
        seconds=3.0, window_s=0.2, warmup_s=0.2, settle_s=0.2, gpus=gpus, gpu=0, say=lambda _line: None
    )
    plain = conductor.command

    def on_the_cpu(job: Job, step: Step, place: int, settings: conductor.Settings) -> list[str]:
        return plain(job, step, place, settings._replace(gpus=None))

    monkeypatch.setattr(conductor, "command", on_the_cpu)
    jobs = (Job("recommender", 16), Job("graph", 2))
    measurement = conductor.measure(Step("pair", "mps", jobs), settings)
    assert fake_mps.recorded_commands(calls) == ["start", "get_client_list", "quit", "ended"]
    span = counted_span(measurement)
    assert span[1] - span[0] >= 3.0
    for run in measurement.runs:
        speed = samples_per_s(run, span)
        assert speed is not None
        assert speed.readings >= 5
    power = power_w(measurement.samples, span)
    assert power is not None
    # time and energy of a reading are taken one after the other, on a machine with other work
    assert power.value == pytest.approx(gpus.power_w(0), rel=0.05), "by its energy counter"
    assert memory_mib(measurement, 0) is None, "the simulated GPU shows no processes"
    with pytest.raises(ProcessLookupError):
        os.kill(measurement.runs[0].warm.pid, 0)


@pytest.mark.slow
def test_job_on_one_core_is_measured() -> None:
    settings = conductor.Settings(
        seconds=1.0, window_s=0.2, warmup_s=0.2, settle_s=0.2, gpus=None, gpu=0, say=lambda _line: None
    )
    measurement = conductor.measure(Step("cores", "", (Job("cnn_small", 4),), 1), settings)
    (run,) = measurement.runs
    speed = samples_per_s(run, counted_span(measurement))
    assert speed is not None
    assert measurement.cores == 1
    with pytest.raises(ProcessLookupError):
        os.kill(run.warm.pid, 0)
