"""`benchmarks/bench_evaluate.py` measures whole processes, and names phases of the command."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from rlsched.workload.synth import synthesize

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "bench_evaluate.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_evaluate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_process_counts_with_its_children(bench: ModuleType) -> None:
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}], check=True)"
    spent = bench.spent_by([sys.executable, "-c", child])
    assert spent.cpu_s > 0.2
    assert spent.wall_s > 0.2
    assert spent.peak_mib > 1


def test_memory_is_measured_for_each_process() -> None:
    """A process starts with its parent's peak, so the benchmark itself has to be small."""
    code = (
        "import runpy, sys\n"
        f"spent_by = runpy.run_path({str(SCRIPT)!r})['spent_by']\n"
        "for code in ('bytearray(200_000_000)', ''): print(spent_by([sys.executable, '-c', code]).peak_mib)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    large, small = (float(line) for line in done.stdout.split())
    assert large > 190
    assert small < 60


def test_failed_process_is_no_measurement(bench: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="exit code 3"):
        bench.spent_by([sys.executable, "-c", "raise SystemExit(3)"])


def test_row_has_medians_and_reports_missed_targets(bench: ModuleType) -> None:
    runs = [bench.Spent(5.0, 6.0, 700.0), bench.Spent(13.0, 14.0, 800.0), bench.Spent(11.0, 12.0, 900.0)]
    met = bench.row(bench.JOBS, bench.GPUS, bench.POLICY, runs)
    assert (
        "| 11.0 CPU s, 12.0 s, 800 MiB | 12 CPU s, 1024 MiB | met | `python benchmarks/bench_evaluate.py` |"
        in met
    )
    missed = bench.row(500, 64, "qssf", [bench.Spent(1.0, 1.0, 1100.0)])
    assert "**missed** | `python benchmarks/bench_evaluate.py --jobs 500 --gpus 64 --policy qssf` |" in missed


def test_every_phase_is_timed_and_patches_are_removed(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, spec = synthesize("helios", 60, 0.9, 16, seed=1)
    trace.write(tmp_path / "t.csv.gz")
    spec.write(tmp_path / "c.toml")
    before = [resolve_name(path) for path in bench.PHASES]
    arguments = bench.evaluate(str(tmp_path / "t.csv.gz"), str(tmp_path / "c.toml"), "qssf")
    spent = bench.phases(arguments)
    assert "qssf" in capsys.readouterr().out
    assert all(spent[phase] > 0 for phase in bench.PHASES.values())
    assert [resolve_name(path) for path in bench.PHASES] == before
    with pytest.raises(RuntimeError, match="exit code 2"):
        bench.phases([*arguments, "--load", "-1"])
