"""Reads prices of electricity and power limits from the files that a broker's cluster file names."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlsched.broker.events import PricesRead
from rlsched.broker.server.price_command import PriceCommand
from rlsched.cluster.spec import ClusterSpec, EnergySignals
from rlsched.energy.bills import PriceUnit
from rlsched.energy.limits import BillPrices, ConstantLimit, EnergyTable, LimitTable, read_limit_table
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError

EVERY_S: Final = 60.0
"""Interval at which the files of prices are checked for changes, seconds."""


class PriceSource:
    """Source of the prices of electricity and of the power limits for a broker.

    A changed file is read again. If it cannot be read, the earlier values apply as long as they cover the
    present time.

    Args:
        cluster_file: Cluster file with the table `[energy]`; None: there are no prices and limits.
        say: Function that logs a line.
        elapsed: A monotonic clock, seconds.

    Attributes:
        table: Prices and limits; None: none are known yet.

    Raises:
        InputError: a file cannot be read, or the cluster file has no table `[energy]`.
    """

    def __init__(
        self,
        cluster_file: Path | None,
        say: Callable[[str], object],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._elapsed, self._checked_s = say, elapsed, elapsed()
        self.table: EnergyTable | None = None
        self._command: PriceCommand | None = None
        self._files: list[_Files] = []
        self._ended = set[str]()
        energy = None if cluster_file is None else energy_of(cluster_file)
        if energy is None:
            return
        if energy.command:
            self._command = PriceCommand(energy, say, elapsed)
            self._command.begin()
        signals = _Files((energy.followed, energy.power_limit), lambda: _table_of(energy), say)
        if signals.exist or self._command is None:
            signals.read()
        self._files.append(signals)
        if energy.unfollowed:
            self._files.append(_Files((energy.unfollowed,), lambda: _bill_table_of(energy), say))
            self._files[-1].read()
        self._join()

    def step(self, now_s: float) -> list[PricesRead]:
        """Read the files again if they have changed. Return the new prices and limits, if any.

        Log one line when a file cannot be read, or when the last price has expired. `now_s`: Unix seconds.
        """
        if not self._files or self._elapsed() - self._checked_s < EVERY_S:
            return []
        self._checked_s = self._elapsed()
        if self._command is not None:
            self._command.step()
        changed = [files for files in self._files if files.read_again()]
        if changed:
            self._join()
        if self.table is None:
            return []
        self._say_if_ended(self.table.prices, now_s, "jobs start as if there were no price")
        if self.table.bill_prices is not None:
            self._say_if_ended(self.table.bill_prices.prices, now_s, "it is not in bills from now on")
        return [PricesRead(self.table)] if changed else []

    def _join(self) -> None:
        """Set `table` from the tables of all files that have been read."""
        known = [files.table for files in self._files if files.table is not None]
        if known:
            self.table = known[0]._replace(bill_prices=known[-1].bill_prices)

    def _say_if_ended(self, prices: PriceTable | None, now_s: float, effect: str) -> None:
        """Log one line when the series `prices` has no value for the present time any more."""
        if prices is None:
            return
        if now_s < prices.ends_s:
            self._ended.discard(prices.name)
        elif prices.name not in self._ended:
            self._ended.add(prices.name)
            self._say(
                f"price: {prices.name} has no values for the present time any more; {effect}. Append values "
                "to the file"
            )


class _Files:
    """Files of prices and power limits that are read into one table, and read again when they change.

    Attributes:
        table: The table; None: not read yet.
    """

    def __init__(
        self, names: tuple[str, ...], read: Callable[[], EnergyTable], say: Callable[[str], object]
    ) -> None:
        self._names, self._read, self._say = names, read, say
        self._stamp, self._failed = self._present_stamp(), False
        self.table: EnergyTable | None = None

    @property
    def exist(self) -> bool:
        """Whether all files existed at the last check."""
        return self._stamp is not None

    def read(self) -> None:
        """Read the files.

        Raises:
            InputError: a file cannot be read.
        """
        self.table = self._read()

    def read_again(self) -> bool:
        """Read the files if they have changed, and return whether they were read. Log one line on failure."""
        stamp = self._present_stamp()
        if stamp == self._stamp:
            return False
        try:
            self.read()
        except InputError as error:
            if not self._failed:
                self._say(f"energy: {error}; the earlier values apply")
            self._failed = True
            return False
        self._stamp, self._failed = stamp, False
        return True

    def _present_stamp(self) -> tuple[tuple[int, int], ...] | None:
        """Return the time and size of each file; None if a file cannot be read."""
        try:
            found = [os.stat(name) for name in self._names if name]
        except OSError:
            return None
        return tuple((one.st_mtime_ns, one.st_size) for one in found)


def energy_of(cluster_file: Path) -> EnergySignals:
    """Read the table `[energy]` of a cluster file.

    Raises:
        InputError: the file cannot be read, or has no such table.
    """
    energy = ClusterSpec.read_energy(cluster_file)
    if energy is None:
        raise InputError(
            f"--energy {cluster_file}: expected a cluster file with the table [energy], got a file without "
            "this table; name a CSV file there, as price, carbon or power_limit"
        )
    return energy


def _table_of(energy: EnergySignals) -> EnergyTable:
    prices: PriceTable | None = None
    limits: LimitTable | ConstantLimit | None = None
    unit: PriceUnit | None = None
    if energy.followed:
        prices, unit = _prices_of(energy, energy.followed)
    soft = energy.power_limit_kind == "soft"
    if energy.power_limit:
        limits = read_limit_table(energy.power_limit, energy.power_limit_known_ahead_h, soft=soft)
    elif energy.is_limited:
        limits = ConstantLimit(1000.0 * energy.power_limit_kw, soft)
    return EnergyTable(prices, limits, unit)


def _bill_table_of(energy: EnergySignals) -> EnergyTable:
    return EnergyTable(None, bill_prices=_prices_of(energy, energy.unfollowed))


def _prices_of(energy: EnergySignals, path: str) -> BillPrices:
    """Read the series of a file of `[energy]`, with its unit."""
    unit = PriceUnit("carbon", pue=energy.pue)
    if path == energy.price:
        unit = PriceUnit("cost", energy.currency, energy.pue)
    return BillPrices(PriceTable(Series.read(path), energy.known_ahead_h * HOUR_S), unit)
