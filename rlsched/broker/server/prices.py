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
from rlsched.energy.limits import ConstantLimit, EnergyTable, LimitTable, read_limits
from rlsched.energy.relative import PriceTable
from rlsched.energy.series import HOUR_S, Series
from rlsched.errors import InputError

EVERY_S: Final = 60.0
"""Interval at which the files are checked for changes, seconds."""


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
        self._energy = None if cluster_file is None else energy_of(cluster_file)
        self._failed = self._has_ended = False
        self._command: PriceCommand | None = None
        if self._energy is not None and self._energy.command:
            self._command = PriceCommand(self._energy, say, elapsed)
            self._command.begin()
        self._stamp, self.table = self._present_stamp(), None
        if self._energy is not None and (self._command is None or self._stamp is not None):
            self.table = _table_of(self._energy)

    def step(self, now_s: float) -> list[PricesRead]:
        """Read the files again if they have changed. Return the new prices and limits, if any.

        Log one line when a file cannot be read, or when the last price has expired. `now_s`: Unix seconds.
        """
        if self._energy is None or self._elapsed() - self._checked_s < EVERY_S:
            return []
        self._checked_s = self._elapsed()
        if self._command is not None:
            self._command.step()
        found = self._read_again()
        prices = None if self.table is None else self.table.prices
        if prices is not None and now_s >= prices.ends_s and not self._has_ended:
            self._say(
                f"price: {prices.name} has no values for the present time any more; jobs start as "
                "if there were no price. Append values to the file"
            )
            self._has_ended = True
        return found

    def _read_again(self) -> list[PricesRead]:
        stamp = self._present_stamp()
        if stamp == self._stamp or self._energy is None:
            return []
        try:
            self.table = _table_of(self._energy)
        except InputError as error:
            if not self._failed:
                self._say(f"energy: {error}; the earlier values apply")
            self._failed = True
            return []
        self._stamp, self._failed, self._has_ended = stamp, False, False
        return [PricesRead(self.table)]

    def _present_stamp(self) -> tuple[tuple[int, int], ...] | None:
        """Return the time and size of each file; None if a file cannot be read."""
        energy = self._energy
        names = () if energy is None else (energy.followed, energy.power_limit)
        try:
            found = [os.stat(name) for name in names if name]
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
        prices = PriceTable(Series.read(energy.followed), energy.known_ahead_h * HOUR_S)
        unit = PriceUnit("carbon", pue=energy.pue)
        if energy.followed == energy.price:
            unit = PriceUnit("cost", energy.currency, energy.pue)
    if energy.power_limit:
        limits = LimitTable(read_limits(energy.power_limit))
    elif energy.is_limited:
        limits = ConstantLimit(1000.0 * energy.power_limit_kw)
    return EnergyTable(prices, limits, unit)
