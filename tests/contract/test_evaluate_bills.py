"""`rlsched evaluate` on a cluster with a price and a carbon intensity: report, tables and job files."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.energy.series import Series
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.cli.evaluate import evaluate

KWH_J = 3.6e6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, and a cluster file whose series lie in a folder next to it."""
    folder = tmp_path_factory.mktemp("bills")
    trace, spec = synthesize("helios", jobs=150, load=0.9, gpus=16, seed=3)
    trace.write(folder / "t.csv")
    hours = int(trace.submit_s[-1] / 3600.0) + 2
    (folder / "signals").mkdir()
    rng = np.random.default_rng(1)
    Series("p", datetime(2026, 3, 1, tzinfo=UTC), 3600.0, rng.uniform(10, 200, hours)).write(
        folder / "signals" / "price.csv"
    )
    Series("c", datetime(2026, 3, 1, tzinfo=UTC), 3600.0, np.full(hours, 400.0)).write(
        folder / "signals" / "carbon.csv.gz"
    )
    energy = (
        '\n[energy]\nprice = "signals/price.csv"\ncarbon = "signals/carbon.csv.gz"\ncurrency = "NOK"\n'
        'pue = 1.5\nbegins = "2026-03-01"\n'
    )
    (folder / "c.toml").write_text(spec.to_toml() + energy, encoding="utf-8")
    return folder


def run(folder: Path, *words: str) -> tuple[Any, str]:
    """The report, and the tables."""
    paths = ("--trace", str(folder / "t.csv"), "--cluster", str(folder / "c.toml"))
    out = folder / "out.json"
    done = CliRunner().invoke(evaluate, [*paths, *words, "--json", str(out)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(out.read_text(encoding="utf-8")), done.output


def test_report_and_job_files_agree(folder: Path, tmp_path: Path) -> None:
    words = ("--models", "default", "--policy", "fifo-backfill", "--policy", "easy")
    report, _ = run(folder, *words, "--jobs-out", str(tmp_path))
    assert report["currency"] == "NOK"
    for name, one in report["policies"].items():
        carbon, cost = one["carbon_kg"], one["cost"]
        assert carbon["jobs"] == pytest.approx(one["energy_kwh"] * 0.4 * 1.5)
        assert carbon["cluster"] == pytest.approx(one["cluster_energy_kwh"] * 0.4 * 1.5)
        assert carbon["idle"] == pytest.approx(one["idle_energy_kwh"] * 0.4 * 1.5)
        assert cost["jobs"] + cost["idle"] == pytest.approx(cost["cluster"])
        by_hour = one["energy_by_hour_kwh"]
        assert sum(by_hour) == pytest.approx(one["cluster_energy_kwh"], rel=1e-9)
        assert carbon["by_hour"] == pytest.approx([kwh * 0.4 * 1.5 for kwh in by_hour])
        assert sum(cost["by_hour"]) == pytest.approx(cost["cluster"], rel=1e-9)
        assert sum(carbon["by_hour"]) == pytest.approx(carbon["jobs"] + carbon["idle"], rel=1e-9)
        hours, whole = one["by_hour"], one["cluster_energy_kwh"]
        assert math.fsum(hours["energy_kwh"]) == pytest.approx(whole, rel=1e-9)
        assert math.fsum(hours["cost"]) == pytest.approx(cost["cluster"], rel=1e-9)
        assert math.fsum(hours["carbon_kg"]) == pytest.approx(carbon["cluster"], rel=1e-9)
        prices = Series.read(folder / "signals" / "price.csv").values
        first = round(hours["from_s"] / 3600.0)
        for at, (kwh, amount) in enumerate(zip(hours["energy_kwh"], hours["cost"], strict=True), first):
            if at < len(prices):  # later, the mean of the last days applies
                assert amount == pytest.approx(1.5 * kwh * prices[at] / 1000.0, rel=1e-9)
        assert len(hours["cost"]) > 48
        of_day = np.bincount((first + np.arange(len(hours["cost"]))) % 24, hours["cost"])
        assert cost["by_hour"] == pytest.approx(of_day.tolist(), rel=1e-9)
        assert sum(cost["by_vc"].values()) == pytest.approx(cost["jobs"])
        assert sum(cost["by_user"].values()) == pytest.approx(cost["jobs"])
        with (tmp_path / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            jobs = list(csv.DictReader(file))
        assert sum(float(job["cost"]) for job in jobs) == pytest.approx(cost["jobs"])
        assert all(
            float(job["carbon_kg"]) == pytest.approx(float(job["energy_j"]) / KWH_J * 0.6) for job in jobs
        )
        users = dict.fromkeys(cost["by_user"], 0.0)
        trace = Trace.read(folder / "t.csv")
        owner = dict(zip(trace.job_id.tolist(), trace.user.tolist(), strict=True))
        for job in jobs:
            users[owner[job["job_id"]] or "-"] += float(job["cost"])
        assert users == pytest.approx(cost["by_user"])
    paired = report["paired"]["easy"]
    assert paired["carbon_ratio"]["ratio"] == pytest.approx(paired["energy_ratio"]["ratio"])
    assert paired["cost_ratio"]["ratio"] != paired["energy_ratio"]["ratio"]


def test_steps_have_price_carbon_and_power(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--models", "default", "--policy", "easy", "--html", str(page), "--jobs-out", str(tmp_path))
    report, _ = run(folder, *words, "--policy", "fifo-backfill")
    one = report["policies"]["easy"]
    steps = one["over_time"]
    minutes = np.repeat(Series.read(folder / "signals" / "price.csv").values, 60)
    edges_s = np.append(np.arange(steps["from_s"], steps["to_s"], steps["step_s"]), steps["to_s"])
    middles_s = edges_s[0] + 0.5 + np.arange(int(edges_s[-1] - edges_s[0]))
    of_step = np.minimum(((middles_s - edges_s[0]) / steps["step_s"]).astype(int), len(edges_s) - 2)
    prices = minutes[(middles_s / 60.0).astype(int)]
    by_hand = np.bincount(of_step, prices) / np.bincount(of_step)
    assert steps["price"] == pytest.approx(by_hand.tolist(), rel=0.01)
    assert steps["carbon_g_kwh"] == pytest.approx([400.0] * len(by_hand))
    with (tmp_path / "easy.csv").open(newline="", encoding="utf-8") as file:
        jobs = list(csv.DictReader(file))
    within_j = 0.0
    for job in jobs:
        start_s, end_s = float(job["start_time"]), float(job["end_time"])
        overlap_s = min(end_s, edges_s[-1]) - max(start_s, edges_s[0])
        within_j += float(job["energy_j"]) * max(overlap_s, 0.0) / (end_s - start_s)
    assert np.dot(steps["power_kw"], np.diff(edges_s)) * 1000.0 == pytest.approx(within_j, rel=1e-6)
    text = page.read_text(encoding="utf-8")
    assert "Energy of the whole cluster, idle power included, by hour of the day." in text
    for words in ("cost, NOK", "carbon, kg", "cost, ratio", "NOK per MWh", "g CO2e per kWh", "kW"):
        assert words in text
    assert text.count("The line joins the policies of which no other is better in both.") >= 2
    assert "mean job completion time, hours" in text


def test_tables_name_the_currency_and_explain_their_columns(folder: Path) -> None:
    _, said = run(folder, "--models", "default", "--policy", "fifo-backfill", "--policy", "easy")
    words = " ".join(said.split())
    assert "over the whole replay, NOK" in words
    assert "over the whole replay, kg CO2e" in words
    for head in ("by jobs:", "per job:", "in all:", "idle part:", "cost:", "carbon:"):
        assert head in words


def test_without_models_a_note_says_what_is_missing(folder: Path) -> None:
    report, said = run(folder, "--policy", "fifo-backfill")
    assert report["policies"]["fifo-backfill"]["cost"] is None
    assert report["currency"] == ""
    assert "without --models energy, cost and carbon are unknown" in " ".join(said.split())


def test_power_limit_is_kept_under_every_policy_and_reported(folder: Path, tmp_path: Path) -> None:
    text = (folder / "c.toml").read_text(encoding="utf-8").replace('"signals/', f'"{folder}/signals/')
    words = ("--policy", "fifo-backfill", "--policy", "tuned")
    (tmp_path / "t.csv").write_bytes((folder / "t.csv").read_bytes())
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    free, _ = run(tmp_path, *words, "--models", "default")
    assert all(one["power_limit"] is None for one in free["policies"].values())
    most_kw = max(one["peak_kw"] for one in free["policies"].values())
    (tmp_path / "c.toml").write_text(f"{text}power_limit_kw = {0.8 * most_kw}\n", encoding="utf-8")
    report, said = run(tmp_path, *words, "--models", "default")
    assert "power limit, over the whole replay" in said
    assert "clocks lowered, h" in said
    for name, one in report["policies"].items():
        assert one["power_limit"]["capped_h"] > 0.0, name
        assert one["power_limit"]["exceeded_h"] == one["power_limit"]["exceeded_kwh"] == 0.0
        assert one["peak_kw"] <= 0.8 * most_kw
        assert one["unfinished"] == free["policies"][name]["unfinished"]
    _, said = run(tmp_path, *words)
    assert "and the power limit does not apply." in " ".join(said.split())
