"""The file of prices of a broker: it changes, breaks, disappears, ends, and comes back."""

from __future__ import annotations

import math
import os
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.server import price_command
from rlsched.broker.server.prices import EVERY_S, PriceSource
from rlsched.energy.limits import FALLS, EnergyAt, EnergyTable, LimitAt, LimitTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError
from tests.support.online.cluster import until

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


def write_other(folder: Path, value: float, hours: int = 48) -> None:
    """The file of the series that policies do not follow; its time stamp differs at each call."""
    Series("p2", BEGINS, HOUR_S, np.full(hours, value)).write(folder / "p2.csv")
    os.utime(folder / "p2.csv", (value, value))


def price_at(table: EnergyTable | None) -> float | None:
    found = None if table is None else table.at(NOW_S)
    return None if found is None else found.price


def billed_at(table: EnergyTable | None) -> float | None:
    """Price that only bills use."""
    found = None if table is None or table.bill_prices is None else table.bill_prices.prices.at(NOW_S)
    return None if found is None else found.price


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.source.table is not None
    assert site.look() == []
    site.write(80.0)
    assert site.source.step(NOW_S) == [], "the file is checked once a minute"
    assert site.look() == [80.0]
    assert site.lines == []


def test_a_file_with_only_the_table_energy_is_enough(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "e.toml").write_text('[energy]\nprice = "p.csv"\n', encoding="utf-8")
    assert PriceSource(tmp_path / "e.toml", site.lines.append, lambda: 0.0).table is not None


@pytest.mark.parametrize(
    ("energy", "unit", "other"),
    [
        ('price = "p.csv"\n', ("cost", "EUR", 1.0), None),
        (
            'price = "p.csv"\ncarbon = "p2.csv"\ncurrency = "CHF"\npue = 1.3\n',
            ("cost", "CHF", 1.3),
            ("carbon", "", 1.3),
        ),
        ('carbon = "p.csv"\npue = 1.3\n', ("carbon", "", 1.3), None),
        (
            'price = "p2.csv"\ncarbon = "p.csv"\nfollow = "carbon"\n',
            ("carbon", "", 1.0),
            ("cost", "EUR", 1.0),
        ),
    ],
)
def test_both_series_have_a_meaning(
    tmp_path: Path, energy: str, unit: tuple[str, str, float], other: tuple[str, str, float] | None
) -> None:
    write_other(tmp_path, 300.0)
    table = Site(tmp_path, f"[energy]\n{energy}").source.table
    assert table is not None
    assert table.unit == unit
    assert price_at(table) == 50.0
    assert (table.bill_prices is None) == (other is None)
    if table.bill_prices is not None:
        assert (table.bill_prices.unit, billed_at(table)) == (other, 300.0)


def test_the_files_of_both_series_are_read_apart(tmp_path: Path) -> None:
    """A file that cannot be read keeps its own earlier values; the other file is read again."""
    write_other(tmp_path, 300.0)
    site = Site(tmp_path, '[energy]\nprice = "p.csv"\ncarbon = "p2.csv"\n')
    write_other(tmp_path, 200.0)
    assert (site.look(), billed_at(site.source.table)) == ([50.0], 200.0)
    (tmp_path / "p2.csv").unlink()
    site.write(80.0)
    assert (site.look(), billed_at(site.source.table)) == ([80.0], 200.0)
    assert [line for line in site.lines if "p2.csv" in line and "earlier values apply" in line] == site.lines
    site.prices.unlink()
    write_other(tmp_path, 100.0)
    assert (site.look(), billed_at(site.source.table)) == ([80.0], 100.0)
    assert len(site.lines) == 2


def test_the_end_of_the_other_series_is_logged_once(tmp_path: Path) -> None:
    write_other(tmp_path, 300.0, hours=24)
    site = Site(tmp_path, '[energy]\nprice = "p.csv"\ncarbon = "p2.csv"\n')
    later_s = BEGINS.timestamp() + 25 * HOUR_S
    assert site.look(later_s) == site.look(later_s) == []
    (line,) = site.lines
    assert "p2.csv has no values for the present time any more; it is not in bills from now on" in line


def test_a_missing_file_of_the_other_series_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p2\.csv"):
        Site(tmp_path, '[energy]\nprice = "p.csv"\ncarbon = "p2.csv"\n')


def test_a_power_limit_is_read_with_or_without_prices(tmp_path: Path) -> None:
    site, path = Site(tmp_path), tmp_path / "e.toml"
    path.write_text("[energy]\npower_limit_kw = 5\n", encoding="utf-8")
    table = PriceSource(path, site.lines.append, lambda: 0.0).table
    assert table is not None
    assert table.at(1e9) == EnergyAt(None, 0.0, (), math.inf, 5_000.0)
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    Series("l", begins, 3600.0, np.array([4.0, 4.0, 2.0])).write(tmp_path / "l.csv")
    path.write_text('[energy]\nprice = "p.csv"\npower_limit = "l.csv"\n', encoding="utf-8")
    table = PriceSource(path, site.lines.append, lambda: 0.0).table
    assert table is not None
    assert table.prices is not None
    assert table.limits is not None
    at_s = begins.timestamp()
    assert table.limits.at(at_s - 1.0) == LimitAt(math.inf, at_s)
    assert table.limits.at(at_s) == LimitAt(4_000.0, at_s + 7200.0)
    assert table.limits.at(at_s + 1e6) == LimitAt(2_000.0, math.inf)
    path.write_text(
        '[energy]\nprice = "p.csv"\npower_limit = "l.csv"\npower_limit_known_ahead_h = 0.5\n'
        'power_limit_kind = "soft"\n',
        encoding="utf-8",
    )
    table = PriceSource(path, site.lines.append, lambda: 0.0).table
    assert table is not None
    known_s, fall_s = at_s + 5400.0, at_s + 7200.0
    assert table.limits is not None
    assert table.limits.at(at_s) == LimitAt(4_000.0, known_s, (), True)
    found = table.at(known_s)
    assert found is not None
    assert found.limit_falls == ((fall_s, 2_000.0),)
    assert found.limit_soft


def test_coming_falls_are_the_lowest_limits_so_far() -> None:
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    at_s = begins.timestamp()
    values = np.array([9.0, 5.0, 7.0, 5.0, 4.0, 9.0, 1.0])
    table = LimitTable(Series("l", begins, 3600.0, values), 4.5 * 3600.0)
    falls = ((at_s + 3600.0, 5_000.0), (at_s + 4 * 3600.0, 4_000.0))
    assert table.at(at_s) == LimitAt(9_000.0, at_s + 3600.0, falls)
    assert table.at(at_s + 3600.0) == LimitAt(5_000.0, at_s + 5400.0, falls[1:])
    assert table.at(at_s + 5400.0) == LimitAt(
        5_000.0, at_s + 7200.0, (*falls[1:], (at_s + 21_600.0, 1_000.0))
    )
    assert table.at(at_s + 6.5 * 3600.0) == LimitAt(1_000.0, math.inf)
    before = table.at(at_s - 3600.0)
    assert before.limit_w == math.inf
    assert before.falls[0] == (at_s, 9_000.0)


def test_last_of_many_falls_has_the_lowest_limit() -> None:
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    at_s = begins.timestamp()
    table = LimitTable(Series("l", begins, 3600.0, 100.0 - np.arange(20.0)), 86_400.0)
    falls = table.at(at_s).falls
    assert len(falls) == FALLS
    assert falls[-2:] == ((at_s + 7 * 3600.0, 93_000.0), (at_s + 8 * 3600.0, 81_000.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[energy]\nprce = "p.csv"\n', r"e.toml: energy: unknown setting 'prce'; did you mean 'price'\?"),
        ("[energy]\nprice = 3\n", "e.toml: energy: price: expected `str`, got `int`"),
        ("[energy]\n", "e.toml: .*price"),
        ("energy = 3\n", "e.toml: energy: expected `object`, got `int`"),
        ('name = "c"\n', "e.toml: .*nodes"),
    ],
)
def test_a_wrong_energy_file_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        PriceSource(tmp_path / "e.toml", print, lambda: 0.0)


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
    assert line.startswith("energy: ")
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


class Commanded(Site):
    """The same with a command that prints the file; its script is `command` in the folder."""

    def __init__(self, folder: Path, script: str, *, has_file: bool = True) -> None:
        self.command, self._has_file = folder / "command", has_file
        self.says(script)
        super().__init__(folder, f'[energy]\nprice = "p.csv"\ncommand = "sh {self.command}"\n')

    def says(self, script: str) -> None:
        """Give the command another script."""
        self.command.write_text(script, encoding="utf-8")

    def write(self, value: float, hours: int = 48) -> None:
        if self._has_file:
            super().write(value, hours)
            self.is_old(3_600.0)

    def is_old(self, age_s: float) -> None:
        """Set the time since the file was written."""
        os.utime(self.prices, (time.time() - age_s,) * 2)

    def ended(self) -> list[float]:
        """Wait for the end of the running command; prices that the next check gives."""
        command = self.source._command
        assert command is not None
        assert command._running is not None
        process = command._running[0]._process
        until(lambda: process.poll() is not None, "the command has ended")
        return self.look()

    def next_hour(self) -> list[float]:
        """Let an hour pass; prices that the command then gives."""
        self._at_s += price_command.EVERY_S
        assert self.source.step(NOW_S) == []
        return self.ended()


def printing(value: float) -> str:
    return f"echo utc,value\nfor hour in 00 01 02 03; do echo 2026-03-01T$hour:00,{value}; done\n"


def price_of(source: PriceSource) -> float:
    assert source.table is not None
    found = source.table.at(NOW_S)
    assert found is not None
    return found.price


def test_a_start_without_a_file_waits_for_the_command(tmp_path: Path) -> None:
    site = Commanded(tmp_path, "sleep 0.2\n" + printing(70.0), has_file=False)
    assert price_of(site.source) == 70.0
    assert Series.read(site.prices).values.tolist() == [70.0] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml", "command", "p.csv"]


def test_a_restart_within_the_hour_runs_no_command(tmp_path: Path) -> None:
    site = Commanded(tmp_path, f"echo >> {tmp_path}/runs\n" + printing(70.0))
    assert site.ended() == [70.0]
    site.is_old(1_800.0)
    again = PriceSource(tmp_path / "c.toml", site.lines.append, lambda: 0.0)
    assert price_of(again) == 70.0
    assert again._command is not None
    assert again._command._running is None
    assert (tmp_path / "runs").read_text() == "\n"


def test_the_command_renews_the_file_once_an_hour(tmp_path: Path) -> None:
    site = Commanded(tmp_path, f"echo >> {tmp_path}/runs\n" + printing(70.0))
    assert price_of(site.source) == 50.0, "the start does not wait"
    assert site.ended() == [70.0]
    for _ in range(57):
        assert site.look() == []
    assert (tmp_path / "runs").read_text() == "\n"
    site.says(printing(80.0))
    assert site.next_hour() == [80.0]
    assert site.lines == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no network >&2; exit 3", "exit code 3: no network"),
        ("echo sorry", "its output: "),
        ("", "its output: "),
        (printing(1.0).replace("02", "07"), "its output: line"),
    ],
)
def test_a_command_that_fails_keeps_the_earlier_values(tmp_path: Path, script: str, said: str) -> None:
    site = Commanded(tmp_path, script)
    assert [site.ended(), site.next_hour(), site.next_hour()] == [[], [], []]
    (line,) = site.lines
    assert said in line
    assert line.endswith("; the earlier values apply; it runs again in an hour")
    assert price_of(site.source) == 50.0
    site.says(printing(90.0))
    assert site.next_hour() == [90.0]
    assert len(site.lines) == 1
    assert not list(tmp_path.glob(".new*"))


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    site = Commanded(tmp_path, "sleep 600")
    assert [site.look(), site.look()] == [[], []]
    assert site.lines == [
        "price: the command of [energy] failed: took too long and was killed; the earlier values apply; it "
        "runs again in an hour"
    ]


def test_a_broker_starts_although_the_command_fails(tmp_path: Path) -> None:
    site = Commanded(tmp_path, "exit 1", has_file=False)
    assert site.source.table is None
    assert site.lines == [
        f"price: {site.prices} does not exist yet; waiting up to 10 s for the command of [energy]",
        "price: the command of [energy] failed: exit code 1; no price is known; it runs again in an hour",
    ]
    site.says(printing(60.0))
    assert site.next_hour() == [60.0]


def test_a_start_waits_for_a_slow_command_for_seconds_only(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        f'name = "c"\n[energy]\nprice = "p.csv"\ncommand = "sleep 600"\n{NODES}', encoding="utf-8"
    )
    lines, seconds = list[str](), count()
    source = PriceSource(tmp_path / "c.toml", lines.append, lambda: float(next(seconds)))
    assert source.table is None
    assert len(lines) == 1
    assert next(seconds) < 60
    while len(lines) < 2:
        source.step(NOW_S)
    assert "took too long and was killed; no price is known" in lines[1]


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    site = Site(tmp_path)
    os.utime(site.prices, (0, 0))
    (tmp_path / "c.toml").write_text(
        f'name = "c"\n[energy]\nprice = "p.csv"\ncommand = "/no/such/fetch --zone DE"\n{NODES}',
        encoding="utf-8",
    )
    lines = list[str]()
    assert price_of(PriceSource(tmp_path / "c.toml", lines.append)) == 50.0
    (line,) = lines
    assert "failed: /no/such/fetch cannot be run: No such file or directory; the earlier values apply" in line


def test_a_command_without_words_is_refused(tmp_path: Path) -> None:
    for command, said in (("'x", "No closing quotation"), (" ", "expected a command")):
        with pytest.raises(InputError, match=said):
            Site(tmp_path, energy=f'[energy]\nprice = "p.csv"\ncommand = "{command}"\n')


WITH_FORECAST = """echo utc,value,forecast,forecast_utc
echo 2026-03-01T00:00,60,,
echo 2026-03-01T01:00,60,,
for hour in 02 03 04 05; do echo 2026-03-01T$hour:00,,240,2026-03-01T00:00; done
"""


def test_a_command_can_print_forecasts(tmp_path: Path) -> None:
    """Four hours at 240 are forecast after the present one at 60: the present price is below the mean."""
    site = Commanded(tmp_path, printing(60.0).replace("01 02 03", "01"), has_file=False)
    assert site.source.table is not None
    plain = site.source.table.at(NOW_S)
    assert plain is not None
    assert plain.ratio == 1.0
    site.says(WITH_FORECAST)
    site.next_hour()
    assert "2026-03-01T05:00,,240,2026-03-01T00:00" in site.prices.read_text()
    told = site.source.table.at(NOW_S)
    assert told is not None
    assert told.ratio == pytest.approx(60.0 / ((60.0 + 4 * 240.0) / 5.0), abs=1e-6)
    assert len(site.lines) == 1, "only that the file does not exist yet"
