"""Cost and carbon of a run's energy, by the price and the carbon intensity of the cluster's electricity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.spec import ClusterSpec
from rlsched.energy.series import Integrals, Series, integrals
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_envs.sim.sim_arrays import ProgressArrays

J_PER_MWH: Final = 3.6e9
MG_J_PER_KG_KWH: Final = 3.6e9
"""J x g/kWh in a kg: 3.6e6 J in a kWh, 1,000 g in a kg."""


@dataclass(frozen=True)
class Bill:
    """Cost or carbon of the energy of a run, of the whole facility (PUE).

    Attributes:
        jobs: (J,) of each job, in the currency of the cluster or in kg CO2e.
        idle: Of nodes, and of GPUs without jobs.
        cluster: Of the whole cluster, counted separately.
    """

    jobs: NDArray[np.float64]
    idle: float
    cluster: float

    def first_rows(self, rows: int) -> Bill:
        """Return the bill with only the first `rows` jobs."""
        return replace(self, jobs=self.jobs[:rows])


def signals_of(spec: ClusterSpec, trace: Trace, last_s: float) -> Integrals | None:
    """Return the price and carbon of a cluster's electricity over the seconds of a trace; None: unknown.

    Raises:
        InputError: a file cannot be read, does not cover the trace, or the wall-clock time of the trace's
            second 0 is unknown.
    """
    energy = spec.energy
    if energy is None:
        return None
    second_0 = energy.second_0 or trace.origin
    if second_0 is None:
        raise InputError(
            f"{spec.name}: energy.begins: expected the wall-clock time of second 0, which the trace "
            f"{trace.name} does not state; set it in [energy], such as 2026-03-01T00:00Z"
        )
    second_0 = second_0.replace(tzinfo=UTC) if second_0.tzinfo is None else second_0
    series = [Series.read(path) if path else None for path in (energy.price, energy.carbon)]
    return integrals(series, second_0, last_s)


def bills_of(
    progress: ProgressArrays, spec: ClusterSpec, rows: NDArray[np.intp], jobs: int
) -> list[Bill | None]:
    """Return the bills of cost and of carbon of a run whose jobs are settled; None where unknown."""
    energy, books = spec.energy, progress.books[0]
    if energy is None:
        return [None, None]
    found = list[Bill | None]()
    for known, name, unit in ((energy.price, "cost", J_PER_MWH), (energy.carbon, "carbon", MG_J_PER_KG_KWH)):
        factor, of_job = energy.pue / unit, np.zeros(jobs)
        of_job[rows] = progress.outcome[name] * factor
        idle, cluster = float(books[f"idle_{name}"]) * factor, float(books[name]) * factor
        found.append(Bill(of_job, idle, cluster) if known else None)
    return found
