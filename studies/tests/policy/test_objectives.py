"""Studies of prices and objectives: windows for the comparison share nothing with training."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.training_data import REAL
from rlsched.workload.split import time_split
from rlsched.workload.trace import Trace
from studies.policy import objectives, price_bar
from studies.policy.price_bar import CARBON, DAY_AHEAD, OTHERS, REAL_TIME, Market


@pytest.mark.parametrize("market", [DAY_AHEAD, CARBON, REAL_TIME])
def test_other_clusters_and_zones_are_in_no_training(market: Market) -> None:
    assert not set(OTHERS) & set(REAL)
    assert not set(market.others) & set(market.zones)
    assert market.later[1] == 1.0


def test_real_time_prices_of_the_comparison_are_in_no_training() -> None:
    assert REAL_TIME.training[1] <= REAL_TIME.later[0]
    assert REAL_TIME.known_ahead_s == CARBON.known_ahead_s == 0.0


def test_later_jobs_are_in_no_training(shared_data: Path) -> None:
    name = "ms_itp_08"
    split = time_split(Trace.read(shared_data / "traces" / f"{name}.csv.gz"))
    assert split.train[1] <= split.test[0]
    tariffs = DAY_AHEAD.read(shared_data / "energy")
    parts = {
        part: price_bar.source(shared_data / "traces", name, tariffs, days, part)
        for part, days in {"train": (0.0, 0.8), "test": DAY_AHEAD.later}.items()
    }
    assert parts["train"].submit_s[-1] < split.train[1]
    assert parts["test"].submit_s[0] >= split.test[0]
    for train, test in zip(parts["train"].tariffs, parts["test"].tariffs, strict=True):
        assert train.first_day + train.days <= test.first_day


@pytest.mark.slow
def test_table_has_every_policy_and_bound(
    shared_data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, traces in (
        (objectives, "REAL", ["philly"]),
        (price_bar, "REAL", ["philly"]),
        (price_bar, "OTHERS", ["ms_itp_09"]),
    ):
        monkeypatch.setattr(module, name, traces)
    words = ["--traces", str(shared_data / "traces"), "--energy", str(shared_data / "energy")]
    words += ["--objective", "bill", "--recipe", "smoke", "--windows", "6"]
    assert objectives.main(words) == 0
    head, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("| objective | windows | policy | cost | terms |")
    assert len(rows) == len(objectives.SHOWN) * (len(objectives.POLICIES) + 3)
    for row in rows:
        assert " of 1.02; urgent " in row
        assert "; money " in row
    named = [row.split("|")[3].strip() for row in rows[:6]]
    assert named[:4] == [*objectives.POLICIES, objectives.RULE]
    assert named[4].startswith("trained (")
