"""The file of prices of a broker: it changes, breaks, disappears, ends, and comes back."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.server.prices import EVERY_S, PriceSource
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError

BEGINS = datetime(2026, 3, 1, tzinfo=UTC)
NOW_S = BEGINS.timestamp() + 60.0
NODES = "\n[[nodes]]\ngpus = 1\n"


class Site:
    """A cluster file with its price file, a source that reads them, and its log lines."""

    def __init__(self, folder: Path, energy: str = '[energy]\nprice = "p.csv"\n') -> None:
        self.prices, self.lines, self._at_s = folder / "p.csv", list[str](), 0.0
        self.write(50.0)
        (folder / "c.toml").write_text(f'name = "c"\n{energy}{NODES}', encoding="utf-8")
        self.source = PriceSource(folder / "c.toml", self.lines.append, lambda: self._at_s)

    def write(self, value: float, hours: int = 48) -> None:
        Series("p", BEGINS, HOUR_S, np.full(hours, value)).write(self.prices)
        self.touch()

    def touch(self) -> None:
        os.utime(self.prices, ns=(0, os.stat(self.prices).st_mtime_ns + 1_000_000))

    def look(self, now_s: float = NOW_S) -> list[float]:
        """Prices that the next check of the file gives."""
        self._at_s += EVERY_S
        found = [read.table.at(now_s) for read in self.source.step(now_s)]
        return [one.price for one in found if one is not None]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.source.table is not None
    assert site.look() == []
    site.write(80.0)
    assert site.source.step(NOW_S) == [], "the file is checked once a minute"
    assert site.look() == [80.0]
    assert site.lines == []


@pytest.mark.parametrize("damage", ["no file", "no number", "empty", "gap"])
def test_a_file_that_cannot_be_read_keeps_the_earlier_values(tmp_path: Path, damage: str) -> None:
    site = Site(tmp_path)
    if damage == "no file":
        site.prices.unlink()
    else:
        rows = {"no number": "2026-03-01,x\n2026-03-02,1", "empty": "", "gap": "2026-03-01,1"}
        site.prices.write_text(f"utc,value\n{rows[damage]}\n", encoding="utf-8")
    assert [site.look(), site.look(), site.look()] == [[], [], []]
    (line,) = site.lines
    assert line.startswith("price: ")
    assert line.endswith("; the earlier values apply")
    assert site.source.table is not None
    assert site.source.table.at(NOW_S) is not None
    site.write(90.0)
    assert site.look() == [90.0]


def test_the_end_of_the_values_is_logged_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    later_s = BEGINS.timestamp() + 49 * HOUR_S
    assert site.look(later_s) == site.look(later_s) == []
    (line,) = site.lines
    assert "has no values for the present time any more" in line
    site.write(60.0, hours=72)
    assert site.look(later_s) == [60.0]
    assert len(site.lines) == 1


def test_a_broker_does_not_start_with_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a cluster file with the table \[energy\]"):
        Site(tmp_path, energy="")
    with pytest.raises(InputError, match=r"no\.csv"):
        Site(tmp_path, energy='[energy]\nprice = "no.csv"\n')


def test_without_a_cluster_file_no_price_is_known() -> None:
    source = PriceSource(None, print)
    assert source.table is None
    assert source.step(NOW_S) == []
