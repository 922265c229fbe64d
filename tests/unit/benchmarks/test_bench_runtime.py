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
    decided = 0
    for _ in range(30):
        for number, (wall_us, cpu_us) in enumerate(crowd.round(record=False)):
            if number == 0:
                assert len(crowd.state.queue(0)) >= waiting - 1
            decided += 1
            assert wall_us > 0
            assert cpu_us > 0
        assert node.free.sum() < 32
        assert sorted(crowd._running) == crowd.state.running()
    assert decided >= 30, "one or more in each round"


def test_percentiles_are_of_the_timed_decisions(bench: ModuleType) -> None:
    row = bench.latency(load_scheduler("ppo"), 128, 20, 30, record=True)
    for times in (row["wall_us"], row["cpu_us"]):
        assert 0 < times["p50"] <= times["p99"] <= times["p99.9"]
    assert (row["gpus"], row["waiting"], row["decisions"], row["recorded"]) == (128, 20, 30, True)


def test_broker_has_answered_before_the_clock_stops(bench: ModuleType, tmp_path: Path) -> None:
    row = bench.start_broker(tmp_path)
    assert row["cpu_s"] > 0
    assert 0 < row["ready_s"] < bench.START_TIMEOUT_S
    assert 50 < row["peak_mb"] < 2_000
    assert (tmp_path / "broker" / bench.ADDRESS_FILE).exists()


def test_json_has_the_requested_figures(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--only", "decision", "--decisions", "20", "--json"]
    monkeypatch.setattr(sys, "argv", ["bench_runtime.py", *options])
    monkeypatch.setattr(bench, "GPUS", (64,))
    monkeypatch.setattr(bench, "WAITING", (4,))
    bench.main()
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"command", "cores", "load_average", "decision"}
    plain, as_in_a_broker = found["decision"]
    assert (plain["recorded"], as_in_a_broker["recorded"]) == (False, True)
    assert {row["gpus"] for row in found["decision"]} == {64}
    assert plain.keys() == {"gpus", "waiting", "recorded", "decisions", "wall_us", "cpu_us"}


def test_crowd_under_models_is_decided_with_all_plans(bench: ModuleType) -> None:
    crowd = bench.Crowd(load_scheduler("tuned"), 24, 20, modelled=True)
    assert sum(1 for _ in range(20) for _ in crowd.round(record=True)) > 20
    shared = [
        int(crowd.state.arrays.job.share_milli[crowd.state.slot_of(seq)]) for seq in crowd.state.running()
    ]
    assert min(shared) < 1000, "some jobs share GPUs"
    assert len(crowd.state.waiting(0)) > 0


def test_missed_target_is_reported(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.show_footprint("broker", 1.0, 201.0, (2.0, 200.0), "")
    times = {"p50": 500.0, "p99": 999.0, "p99.9": 5_000.0}
    row = {"gpus": 128, "waiting": 512, "recorded": False, "wall_us": times}
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
