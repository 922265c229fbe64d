"""`simulate`: several policies on one workload, and their results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate import run
from rlsched_agents.evaluate.simulate import Runs, simulate
from rlsched_envs.sim.modelling import Models

CLUSTER: ClusterSpec = synthesize("helios", 2, 1.0, 64)[1]


@pytest.fixture(scope="module")
def runs() -> Runs:
    trace, _ = synthesize("helios", 400, 1.0, 64, seed=2)
    ours = Policy("easy", order="area", reserve_after="1h")
    return simulate(trace, CLUSTER, {"fifo": "fifo", "easy": "easy", "<ours>": ours})


def test_runs_are_by_name_in_the_order_given(runs: Runs) -> None:
    assert list(runs) == ["fifo", "easy", "<ours>"]
    assert 'order = "area"' in runs["<ours>"].policy.toml
    jobs = runs["easy"].jobs
    assert len(jobs) == 400
    assert np.isclose(np.nanmean(jobs.queue_s), runs["easy"].metrics.queue_mean_s)
    assert np.allclose(jobs.jct_s, jobs.end_s - jobs.submit_s, equal_nan=True)


def test_wall_time_is_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, replay = SimpleNamespace(now_s=0.0), run._replay

    def compiles(*args: Any) -> Any:
        """Replay in 60 s, of which kernels are compiled for 50 s."""
        clock.now_s += 60.0
        monkeypatch.setattr(run.COMPILING, "took_s", run.COMPILING.took_s + 50.0)
        return replay(*args)

    monkeypatch.setattr(run, "_replay", compiles)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    trace, _ = synthesize("helios", 40, 1.0, 64, seed=2)
    assert simulate(trace, CLUSTER, {"fifo": "fifo"})["fifo"].metrics.wall_s == 10.0


def test_comparison_prints_as_tables(runs: Runs) -> None:
    report = runs.compare(baseline="easy")
    assert set(report.paired) == {"fifo", "<ours>"}
    assert "ratios to easy" in str(report)
    with pytest.raises(InputError, match="baseline 'sjf' is not among the policies"):
        runs.compare("sjf")


def test_written_results_equal_the_comparison(runs: Runs, tmp_path: Path) -> None:
    runs.to_json(tmp_path / "r.json", baseline="easy")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["baseline"] == "easy"
    read = Policy.parse(written["settings"]["<ours>"]["toml"])
    assert read.digest == runs["<ours>"].policy.digest
    runs["easy"].jobs.write(tmp_path / "easy.csv")
    runs.write_jobs(tmp_path / "all")
    assert (tmp_path / "easy.csv").read_bytes() == (tmp_path / "all" / "easy.csv").read_bytes()


def test_page_shows_every_policy_and_loads_nothing_from_the_network(runs: Runs, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs.to_html(tmp_path / "r.html", baseline="easy")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for title in ("Waiting by size", "Tails", "Utilisation over time", "Who gained and who lost"):
        assert f">{title}</h2>" in page
    assert page.count("<svg") == 6  # waiting, tails, GPUs in use and waited for, what two policies changed
    assert "&lt;ours&gt;" in page
    assert "<ours>" not in page
    assert "src=" not in page
    assert "connect-src" not in page
    with pytest.raises(InputError, match="cannot write this page"):
        runs.to_html(tmp_path / "nowhere" / "r.html")


def test_figure_draws_every_policy(runs: Runs, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = runs.plot()
    figure.savefig(tmp_path / "runs.svg")
    assert (tmp_path / "runs.svg").stat().st_size > 10_000
    assert [len(axes.get_lines()) for axes in figure.axes[1:3]] == [3, 3]


def test_policies_of_one_name_are_distinguished() -> None:
    trace, _ = synthesize("philly", 50, 1.0, 64, seed=2)
    runs = simulate(trace, CLUSTER, ["easy", Policy("easy", order="area"), Policy("easy", order="predicted")])
    assert len(runs) == 3
    assert len({run.policy.digest for run in runs.values()}) == 3


def test_conflicting_arguments_are_refused() -> None:
    trace, _ = synthesize("philly", 20, 1.0, 64, seed=2)
    with pytest.raises(InputError, match="expected one or more policies"):
        simulate(trace, CLUSTER, [])
    with pytest.raises(InputError, match="models"):
        simulate(trace, CLUSTER, ["pack"])
    assert len(simulate(trace, CLUSTER, "pack", models=Models())) == 1
