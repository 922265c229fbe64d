"""Selection, checks and runs of the GPU profile without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlsched.errors import InputError
from rlsched_node.gpu.device import GpuLostError, Tenant
from rlsched_node.gpu.simulated import SimulatedGpus
from studies.gpu import opening, profile_catalogue
from studies.gpu.children import Children, MeasurementError
from studies.gpu.conductor import Settings, command, cores_of
from studies.gpu.meter import Meter
from studies.gpu.plan import Budget, Step, all_steps
from studies.gpu.profile_catalogue import Run, resume, seconds
from studies.gpu.protocol import Failed, Host, Job, Warm, decode_message, encode
from studies.gpu.results_out import write_results
from studies.gpu.workloads import WORKLOADS
from studies.tests.gpu.making import MADE_UP, make_measurement, windows_of

ROOT = Path(__file__).resolve().parents[3]
PROFILE = ["-m", "studies.gpu.profile_catalogue"]
JOB = Job("cnn_small", 256)
REHEARSAL = Host("rehearsal on a CPU", "", "9.9", 2, None, True)


def settings(**changed: object) -> Settings:
    plain = Settings(
        seconds=5.0, window_s=1.0, warmup_s=1.0, settle_s=1.0, gpus=None, gpu=0, say=lambda _line: None
    )
    return plain._replace(**changed)  # type: ignore[arg-type]


def test_plan_covers_everything_once_and_prerequisites_first() -> None:
    steps = all_steps(is_small=False)
    assert len({step.key for step in steps}) == len(steps)
    assert [step.kind for step in steps[:2]] == ["idle", "held"]
    assert all(step.kind == "alone" for step in steps[2:10])
    alone = {step.jobs[0] for step in steps if step.kind == "alone"}
    assert len(alone) == 2 * len(WORKLOADS)
    pairs = {(step.mode, frozenset(step.jobs)) for step in steps if step.kind == "pair"}
    assert len(pairs) == sum(step.kind == "pair" for step in steps) == 2 * (16 * 17 // 2)
    cores = {(step.jobs[0], step.cores) for step in steps if step.kind == "cores"}
    assert len(cores) == 8 * 8, "four workloads with an input pipeline, two batch sizes, one to eight cores"


def test_budget_learns_the_cost_of_a_measurement() -> None:
    budget = Budget(100.0, measured_s=6.0)
    alone, idle = Step("alone", "", (JOB,)), Step("idle", "", ())
    assert budget.expected_s(idle) == 6.0
    assert budget.expected_s(alone) > 6.0, "processes take time to start"
    budget.note(alone, 20.0)
    budget.note(alone, 30.0)
    assert budget.expected_s(alone) == 25.0
    assert budget.fits(alone, 75.0)
    assert not budget.fits(alone, 75.1)


def test_skipped_measurements_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gpus = SimulatedGpus(1)
    run = Run(MADE_UP, settings(gpus=gpus), [], tmp_path / "record.jsonl")
    assert run.reason_against(Step("idle", "", ())) == ""
    assert run.reason_against(Step("cores", "", (JOB,), 8)) == ""
    assert run.reason_against(Step("cores", "", (JOB,), 9)) == "this machine has 8 CPU cores"
    assert "nvidia-cuda-mps-control is not installed" in run.reason_against(Step("pair", "mps", (JOB, JOB)))
    rehearsal = Run(REHEARSAL, settings(), [], tmp_path / "record.jsonl")
    assert rehearsal.reason_against(Step("held", "", ())) == "a rehearsal has no GPU to sample"


def test_existing_measurement_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def fake(step: Step, _settings: Settings) -> object:
        taken.append(step.text)
        if step.jobs[0].workload == "ppo":
            raise MeasurementError("OutOfMemoryError: CUDA out of memory")
        return make_measurement(step.kind, windows_of(step.jobs[0].workload, start_s=0.0, steps=[1] * 4))

    monkeypatch.setattr(profile_catalogue, "measure", fake)
    known = make_measurement("alone", windows_of("cnn_small", start_s=0.0, steps=[1] * 4))
    run = Run(MADE_UP, settings(), [known], tmp_path / "record.jsonl")
    steps = [Step("alone", "", (Job(name, 10),)) for name in ("cnn_small", "ppo", "lstm")]
    run.go(steps, budget_s=300.0)
    assert taken == ["alone ppo-b10", "alone lstm-b10"]  # prose: quoted
    assert run.skipped == [("alone ppo-b10", "OutOfMemoryError: CUDA out of memory")]  # prose: quoted
    assert len(run.taken) == 2
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 1, "new measurements are appended"
    write_results(tmp_path, MADE_UP, run.taken, run.skipped)
    results = json.loads((tmp_path / "rows.json").read_text())
    assert results["skipped"] == [
        {"what": "alone ppo-b10", "why": "OutOfMemoryError: CUDA out of memory"}  # prose: quoted
    ]
    assert (
        (tmp_path / "rows.csv")
        .read_text()
        .startswith("workload,gpu_type,field,value,spread,status,source,measured_on\n")
    )
    assert (tmp_path / "pairs.csv").read_text().startswith("gpu_type,mode,a,b,speed_a,speed_b,spread,")


def test_run_is_resumed_only_on_the_same_gpu(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    record.write_text(encode(MADE_UP) + "\n")
    assert resume(record, MADE_UP) == []
    with pytest.raises(InputError, match="taken on NVIDIA H200, and this is rehearsal on a CPU"):
        resume(record, REHEARSAL)


def test_cores_are_halved_for_single_and_paired_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3, 4, 5, 6, 7, 8})
    pair = Step("pair", "timeslice", (JOB, JOB))
    assert cores_of(0, Step("alone", "", (JOB,))) == cores_of(0, pair) == [0, 1, 2, 3]
    assert cores_of(1, pair) == [4, 5, 6, 7]
    assert cores_of(0, Step("cores", "", (JOB,), 6)) == [0, 1, 2, 3, 4, 5]
    words = command(JOB, Step("cores", "", (JOB,), 2), 0, settings(gpus=SimulatedGpus(1)))
    assert words[words.index("--device") + 1] == "cuda"
    assert words[words.index("--cpu-cores") + 1 :] == ["0", "1", "--feed"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {5})
    assert cores_of(1, pair) == [5]


def test_meter_reads_utilisation_and_power() -> None:
    now_s = [0.0]
    gpus = SimulatedGpus(1, clock=lambda: now_s[0])
    gpus.follow({0: [Tenant(1)]})
    meter = Meter(gpus, 0, every_s=0.001, clock=lambda: now_s[0])
    first = meter.look()
    now_s[0] = 3.0
    second = meter.look()
    assert first.energy_j is not None
    assert second.energy_j is not None
    shown = gpus.read(0)
    assert shown.power_w is not None
    assert shown.power_w > SimulatedGpus(1).power_w(0), "the GPU is busy"
    assert second.energy_j - first.energy_j == pytest.approx(3 * shown.power_w)
    assert (second.at_s, second.used_mib, second.power_w) == (3.0, shown.memory_used_mib, shown.power_w)
    with meter:
        pass
    assert meter.samples, "at least one at the end"


def test_lost_gpu_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = SimulatedGpus(1)

    def lost(_gpu: int) -> float:
        raise GpuLostError("GPU is lost")

    monkeypatch.setattr(gpus, "energy_j", lost)
    with pytest.raises(GpuLostError, match="GPU is lost"), Meter(gpus, 0):
        pass


def test_busy_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    gpus = SimulatedGpus(1)
    monkeypatch.setattr(opening, "_open_gpus", lambda: gpus)
    monkeypatch.setattr(opening, "_driver", lambda: "1.2")
    with pytest.raises(InputError, match="cannot use it: install a torch built for CUDA"):
        opening.open_machine(0, is_rehearsal=False, may_be_busy=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="--gpu 3: this machine has GPUs 0 to 0"):
        opening.open_machine(3, is_rehearsal=False, may_be_busy=False)
    gpus.follow({0: [Tenant(1)]})
    busy = rf"GPU 0 is in use \(0 processes, {gpus.utilisation_frac(0):.0%} busy\)"
    with pytest.raises(InputError, match=busy):
        opening.open_machine(0, is_rehearsal=False, may_be_busy=False)
    host, found = opening.open_machine(0, is_rehearsal=False, may_be_busy=True)
    assert (host.gpu_type, host.is_rehearsal, found) == ("simulated GPU", False, gpus)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is an NVIDIA driver here")
def test_missing_gpu_is_reported_with_exit_code_2(tmp_path: Path) -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("", "node_daemon"))
    done = subprocess.run(
        [sys.executable, *PROFILE, "--out", tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no NVIDIA GPU here (")
    assert "--rehearse" in line
    assert not (tmp_path / "out").exists()


def send_and(then: str) -> list[str]:
    """A child that sends a message, and then follows orders."""
    return [sys.executable, "-c", f"import sys, time\nsys.stderr.write('libfoo: not found\\n')\n{then}"]


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("sys.exit(7)", "exit code 7: libfoo: not found"),
        ("print('Welcome!', flush=True); time.sleep(60)", "not a message of a child: 'Welcome!"),
        (f"print('''{encode(Failed(reason='out of memory'))}''', flush=True)", "^out of memory$"),
    ],
)
def test_failed_child_reports_the_reason(
    then: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.gpu.children.END_LIMIT_S", 0.5)
    with pytest.raises(MeasurementError, match=says), Children([send_and(then)], {}, tmp_path) as children:
        children.wait_until_warm()


def test_no_child_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.gpu.children.END_LIMIT_S", 0.2)
    warm = encode(Warm(pid=1, samples_per_step=1, step_s=0.1, precision="none"))
    hangs = send_and(f"print('''{warm}''', flush=True); time.sleep(600)")
    with Children([hangs, hangs], {}, tmp_path) as children:
        children.wait_until_warm()
        pids = [process.pid for process in children._processes]
        monkeypatch.setattr("studies.gpu.children.GRACE_S", 0.1)
        with pytest.raises(MeasurementError, match="did not train in time"):
            children.collect(0.0)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_messages_are_checked() -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode_message('{"type":"warm"}')


def test_window_is_at_least_a_second() -> None:
    assert seconds("1") == 1.0
    for wrong in ("0.5", "inf", "nan"):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds(wrong)
