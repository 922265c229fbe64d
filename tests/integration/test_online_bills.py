"""The bill of a job, by hand: a real broker with a file of prices, a real node with simulated GPUs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.broker.base.entries import AttemptOver, EnergyPriced
from rlsched.broker.journal.reading import read_journal
from rlsched.cli.users.history import account, history
from rlsched.energy.series import Series
from tests.support.online.cluster import Cluster, all_up, until

STEP_S, PUE = 2.0, 1.25
ENERGY = f'[energy]\nprice = "p.csv"\ncurrency = "CHF"\npue = {PUE}\n'


def test_bill_of_a_job_by_hand(tmp_path: Path) -> None:
    began_s = STEP_S * (time.time() // STEP_S) - 60.0
    steps = np.random.default_rng(1).uniform(-50.0, 300.0, round(7_200.0 / STEP_S))
    Series("p", datetime.fromtimestamp(began_s, UTC), STEP_S, steps).write(tmp_path / "p.csv")
    known = Series.read(tmp_path / "p.csv").values
    (tmp_path / "e.toml").write_text(ENERGY, encoding="utf-8")
    options = ("--policy", "tuned", "--prediction", "running-mean", "--energy", str(tmp_path / "e.toml"))
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
            said = str(client.why(job))
    finally:
        cluster.close()
    assert past.energy_j is not None
    assert past.cost is not None
    rows = list(read_journal(cluster.journal))
    facts = [(row.now_s, row.entry.price) for row in rows if isinstance(row.entry, EnergyPriced)]
    over_s = next(row.now_s for row in rows if isinstance(row.entry, AttemptOver))
    start_s = past.start_s or 0.0

    def whole_s(at_s: float) -> float:
        """Integral of the price from the first step; after the last fact, at the price of the fact."""
        fact_s, price = max(fact for fact in facts if fact[0] <= at_s)
        assert price is not None
        place = (fact_s - began_s) / STEP_S
        return STEP_S * (known[: int(place)].sum() + (place % 1.0) * known[int(place)]) + price * (
            at_s - fact_s
        )

    mean = (whole_s(over_s) - whole_s(start_s)) / (over_s - start_s)
    assert past.cost == pytest.approx(past.energy_j * mean * PUE / 3.6e9, rel=1e-6)
    assert len({price for _, price in facts}) > 2, "the price changed while the job ran"
    assert (past.currency, past.carbon_kg) == ("CHF", None)
    assert (used.cost, used.currency) == (past.cost, "CHF")
    assert "CHF" in table
    total = json.loads(asked)["total"]
    assert (total["cost"], total["cost_jobs"], total["currency"]) == (past.cost, 1, "CHF")
    assert f"this energy costs {past.cost:.4f} CHF at the prices during its attempts" in said
