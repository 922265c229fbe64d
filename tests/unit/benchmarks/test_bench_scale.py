"""The scale benchmark measures full queues and real choices."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rlsched.decide.registry import load_scheduler

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_scale.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_crowd_fills_the_cluster_and_keeps_its_queue_length(bench: ModuleType) -> None:
    trace, spec = bench.crowd(64, 500, 2000)
    at_once = trace.submit_s == 0
    assert trace.num_gpus[at_once].sum() > spec.num_gpus + 500
    work_per_s = (trace.duration_s * trace.num_gpus)[~at_once].sum() / trace.submit_s[-1]
    assert work_per_s == pytest.approx(spec.num_gpus, rel=0.15), "arrivals equal the capacity"


def test_cost_of_a_job_is_measured_with_a_full_queue(bench: ModuleType) -> None:
    cost_us, waiting = bench.cost_of_rule("fifo", 64, 300)
    assert cost_us > 0
    assert waiting > 100


def test_cost_of_a_decision_is_measured_with_a_choice(bench: ModuleType) -> None:
    assert bench.cost_of_decision(load_scheduler("qssf-backfill"), 64, 20) > 0


def test_tables_report_missed_targets(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "GPUS", (64, 128))
    monkeypatch.setattr(bench, "WAITING", (10, 20))
    monkeypatch.setattr(bench, "cost_of_rule", lambda _name, gpus, _waiting: (float(gpus), 3.0))
    monkeypatch.setattr(bench, "cost_of_decision", lambda _scheduler, _gpus, waiting: 100.0 + waiting)
    monkeypatch.setattr(bench, "load_scheduler", lambda _name: None)
    bench.cost(tmp_path / "plot.svg")
    out = capsys.readouterr().out
    assert (
        "| growth of `fifo` | 64 to 128 GPUs | 2.0 times | 1.2 times, as the logarithm | **missed** |" in out
    )
    assert (
        "| growth of `fifo` | 10 to 20 waiting jobs | 1.0 times | 1.3 times, as the logarithm | met |" in out
    )
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
