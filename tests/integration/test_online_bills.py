"""The bills of a job, by hand: a real broker with price and carbon, a real node with simulated GPUs."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.broker.base.entries import AttemptOver, BillPriced, EnergyPriced
from rlsched.broker.journal.reading import read_journal
from rlsched.cli.users.history import account, history
from rlsched.energy.series import Series
from tests.support.online.cluster import Cluster, all_up, until

STEP_S, PUE = 2.0, 1.25
CARBON_STEP_S = 1.0
ENERGY = f'[energy]\nprice = "p.csv"\ncarbon = "c.csv"\ncurrency = "CHF"\npue = {PUE}\n'


class Known:
    """A series of random values in its file, and the facts about it in the journal."""

    def __init__(self, path: Path, seed: int, began_s: float, step_s: float, low: float, high: float) -> None:
        steps = np.random.default_rng(seed).uniform(low, high, round(7_200.0 / step_s))
        Series("p", datetime.fromtimestamp(began_s, UTC), step_s, steps).write(path)
        self._values, self._began_s, self._step_s = Series.read(path).values, began_s, step_s
        self.facts: list[tuple[float, float | None]] = []

    def whole_s(self, at_s: float) -> float:
        """Integral from the first step to a time, as the broker knew it at the end of the job.

        After the last fact, the value of the fact applies. If a step has ended between two facts, the mean up
        to the later fact applies from then on.
        """
        fact_s, value = max(fact for fact in self.facts if fact[0] <= at_s)
        assert value is not None
        step_end_s = self._began_s + self._step_s * ((fact_s - self._began_s) // self._step_s + 1)
        next_s = min((fact[0] for fact in self.facts if fact[0] > at_s), default=math.inf)
        if step_end_s < at_s and next_s < math.inf:
            until_s, total = self._exact_s(step_end_s), self._exact_s(next_s)
            return until_s + (total - until_s) * (at_s - step_end_s) / (next_s - step_end_s)
        return self._exact_s(fact_s) + value * (at_s - fact_s)

    def _exact_s(self, at_s: float) -> float:
        place = (at_s - self._began_s) / self._step_s
        steps = self._values[: int(place)].sum() + (place % 1.0) * self._values[int(place)]
        return self._step_s * float(steps)

    def bill(self, energy_j: float, since_s: float, until_s: float) -> float:
        """Cost or carbon of an energy at the mean value between two times."""
        mean = (self.whole_s(until_s) - self.whole_s(since_s)) / (until_s - since_s)
        return energy_j * mean * PUE / 3.6e9


@pytest.mark.slow
def test_bills_of_a_job_by_hand(tmp_path: Path) -> None:
    began_s = STEP_S * (time.time() // STEP_S) - 60.0
    price = Known(tmp_path / "p.csv", 1, began_s, STEP_S, -50.0, 300.0)
    intensity = Known(tmp_path / "c.csv", 2, began_s, CARBON_STEP_S, 20.0, 900.0)
    (tmp_path / "e.toml").write_text(ENERGY, encoding="utf-8")
    policy = ("--policy", "fifo-backfill", "--prediction", "running-mean")
    options = (*policy, "--energy", str(tmp_path / "e.toml"))
    cluster = Cluster(tmp_path, nodes=["n0"], broker_options=options)
    try:
        with cluster.client() as client:
            all_up(client, 1)
            job = client.submit(["sleep", "5"], num_gpus=2, name="billed")
            until(lambda: client.job(job).state == "running", "it runs")
            assert client.wait(job).state == "completed"
            (past,) = client.history()
            (used,) = client.usage()
            at = ["--broker", cluster.address, "--keys", str(cluster.keys)]
            table = CliRunner().invoke(history, at, catch_exceptions=False).stdout
            asked = CliRunner().invoke(account, ["--json", *at], catch_exceptions=False).stdout
            hours = CliRunner().invoke(account, ["--by", "hour,user", "--json", *at], catch_exceptions=False)
            sums = CliRunner().invoke(account, at, catch_exceptions=False).stdout
            said = str(client.why(job))
            at_end = client.job(job)
    finally:
        cluster.close()
    assert past.energy_j is not None
    assert past.cost is not None
    assert past.carbon_kg is not None
    rows = list(read_journal(cluster.journal))
    rows = rows[: next(at for at, row in enumerate(rows) if isinstance(row.entry, AttemptOver))]
    price.facts = [(row.now_s, row.entry.price) for row in rows if isinstance(row.entry, EnergyPriced)]
    intensity.facts = [(row.now_s, row.entry.price) for row in rows if isinstance(row.entry, BillPriced)]
    start_s, end_s = past.start_s or 0.0, past.end_s or 0.0
    last_s = max(fact_s for fact_s, _ in (*price.facts, *intensity.facts) if fact_s <= end_s)
    assert past.cost == pytest.approx(price.bill(past.energy_j, start_s, end_s), rel=1e-6)
    assert past.carbon_kg == pytest.approx(intensity.bill(past.energy_j, start_s, end_s), rel=1e-6)
    assert (used.spans[0].start_s, used.spans[-1].end_s) == (start_s, end_s)
    assert len(used.spans) > 4
    for one in used.spans:  # after the last fact, its price is only assumed to last
        energy_j = past.energy_j * (one.end_s - one.start_s) / (end_s - start_s)
        assert one.energy_j == pytest.approx(energy_j, rel=1e-6)
        if one.end_s <= last_s:
            assert one.cost == pytest.approx(price.bill(energy_j, one.start_s, one.end_s), rel=1e-6)
            assert one.carbon_kg == pytest.approx(intensity.bill(energy_j, one.start_s, one.end_s), rel=1e-6)
    assert math.fsum(one.cost or 0.0 for one in used.spans) == pytest.approx(past.cost, rel=1e-9)
    assert math.fsum(one.carbon_kg or 0.0 for one in used.spans) == pytest.approx(past.carbon_kg, rel=1e-9)
    for known in (price, intensity):
        assert len({value for _, value in known.facts}) > 2, "the values changed while the job ran"
    assert past.currency == "CHF"
    assert (at_end.energy_j, at_end.cost, at_end.carbon_kg, at_end.currency) == (
        past.energy_j, past.cost, past.carbon_kg, "CHF",
    )  # fmt: skip
    assert (used.cost, used.carbon_kg, used.currency) == (past.cost, past.carbon_kg, "CHF")
    total = json.loads(asked)["total"]
    assert (total["cost"], total["cost_jobs"], total["currency"]) == (past.cost, 1, "CHF")
    assert (total["carbon_kg"], total["carbon_jobs"]) == (past.carbon_kg, 1)
    by_hour = json.loads(hours.stdout)
    for field in ("cost", "carbon_kg", "gpu_hours", "energy_kwh"):
        assert math.fsum(row[field] for row in by_hour["rows"]) == pytest.approx(total[field], rel=1e-9)
    for text in (table, sums):
        assert "CHF" in text
        assert "CO2e" in text
    assert f"this energy costs {past.cost:.4f} CHF at the prices during its attempts" in said
    assert "CO2e at the carbon intensities during its attempts" in said
