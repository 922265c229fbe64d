"""`benchmarks/bench_runtime.py` measures full clusters, long queues, and brokers that answer."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rlsched.cluster.arrays import NODE_UP
from rlsched.decide.registry import load_scheduler

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER.parent)
    spec = importlib.util.spec_from_file_location("bench_runtime", FOLDER / "bench_runtime.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("waiting", [16, 100])
def test_crowd_stays_full_with_a_constant_queue(bench: ModuleType, waiting: int) -> None:
    crowd = bench.Crowd(load_scheduler("ppo"), 128, waiting, modelled=False)
    node = crowd.state.arrays.node
    assert (node.status == NODE_UP).all()
    assert not node.free.any()
    sources = []
    for _ in range(30):
        for source, wall_us, cpu_us in crowd.round(record=False):
            if not sources:
                assert len(crowd.state.queue(0)) >= waiting - 1
            sources.append(source)
            assert wall_us > 0
            assert cpu_us > 0
        assert node.free.sum() < 32
        assert sorted(crowd._running) == crowd.state.running()
    assert sources.count("policy") > len(sources) / 2


def test_percentiles_are_of_decisions_by_the_network(bench: ModuleType) -> None:
    row = bench.latency(load_scheduler("ppo"), 128, 20, 30, record=True)
    assert 0 < row["wall_us"]["p50"] <= row["wall_us"]["p99"] <= row["wall_us"]["p99.9"]
    assert 0.5 < row["asked_frac"] <= 1
    assert (row["gpus"], row["waiting"], row["decisions"]) == (128, 20, 30)


def test_broker_has_answered_before_the_clock_stops(bench: ModuleType, tmp_path: Path) -> None:
    row = bench.start_broker(tmp_path)
    assert row["cpu_s"] > 0
    assert 0 < row["ready_s"] < bench.START_TIMEOUT_S
    assert 50 < row["peak_mb"] < 2_000
    assert (tmp_path / "broker" / bench.ADDRESS_FILE).exists()


def test_json_has_the_requested_figures(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_runtime.py", "--only", "import", "--repeats", "1", "--json"])
    monkeypatch.setattr(bench, "IMPORTS", {"nothing": "pass", "numpy": "import numpy"})
    bench.main()
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"command", "window_rows", "cores", "load_average", "import"}
    nothing, with_numpy = found["import"]
    assert nothing["peak_mb"] < with_numpy["peak_mb"]
    assert with_numpy["import_s"] > 0


def test_crowd_under_models_is_decided_with_all_plans(bench: ModuleType) -> None:
    crowd = bench.Crowd(load_scheduler("tuned"), 24, 20, modelled=True)
    actions = [source for _ in range(20) for source, _, _ in crowd.round(record=True)]
    assert set(actions) == {"rule"}
    shared = [
        int(crowd.state.arrays.job.share_milli[crowd.state.slot_of(seq)]) for seq in crowd.state.running()
    ]
    assert min(shared) < 1000, "some jobs share GPUs"
    assert len(crowd.state.waiting(0)) > 0


def test_missed_target_is_reported(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.show_footprint("broker", 1.0, 201.0, (2.0, 200.0), "")
    times = {"p50": 500.0, "p99": 999.0, "p99.9": 5_000.0}
    row = {"gpus": 128, "waiting": 512, "recorded": False, "asked_frac": 1.0, "wall_us": times}
    bench.show_decision({**row, "cpu_us": times})
    bench.show_decision({**row, "cpu_us": times, "waiting": 64})
    broker, target, other = capsys.readouterr().out.splitlines()
    assert broker.endswith("| 1.00 s, 201 MB | 2 s, 200 MB | **missed** |")
    assert target.endswith("| met (1 ms) |")
    assert other.endswith("| - |")


def test_every_page_of_the_queue_is_timed(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = sys.modules["benchmarks.questions"]
    for name, value in (("NODES", 40), ("RUNNING", 80), ("WAITING", 520)):
        monkeypatch.setattr(questions, name, value)
    rows = {row["what"]: row for row in bench.asked("fifo-backfill", 2)}
    assert rows["queue"]["answers"] > 2
    assert 0 < rows["queue"]["p50_ms"] <= rows["queue"]["longest_ms"] <= rows["queue"]["all_ms"]
    assert rows["why, a waiting job"]["answers"] == 1
