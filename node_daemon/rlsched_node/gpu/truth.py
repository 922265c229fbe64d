"""Figures that replace the catalogue's figures for simulated GPUs. Used in tests of learnt figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlsched.errors import InputError
from rlsched.settings import convert_settings, read_table


class WorkloadTruth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures of a workload, named as in the catalogue. For a figure that is None, the catalogue applies."""

    util_frac: float | None = None
    memory_mib: float | None = None
    clock_bound: float | None = None
    dynamic_w: float | None = None


class PairTruth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Speed of `workload` on a GPU shared with `partner`, as a fraction of its speed without co-tenants."""

    workload: str
    partner: str
    speed: float


class SimulatedTruth(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures for simulated GPUs, read from a TOML file.

    Attributes:
        workload: Figures by name of the workload; other workloads have the catalogue's figures. If a job was
            submitted without a workload, its environment variable `SIMULATED_VARIABLE`
            (`rlsched_node.processes.attempt`) can name one. This name need not be in the catalogue.
        pair: Speeds of pairs of workloads that share a GPU. Other pairs divide the GPU's time as described in
            `SimulatedGpus`.
    """

    workload: dict[str, WorkloadTruth] = {}
    pair: list[PairTruth] = []

    @classmethod
    def read(cls, path: str | Path) -> SimulatedTruth:
        """Read a TOML file with the tables `workload` and `pair`.

        Raises:
            InputError: the file cannot be read, or a value is unknown or out of range.
        """
        truth = convert_settings(read_table(path, "file of simulated truth"), cls, str(path))
        for name, one in truth.workload.items():
            for field in one.__struct_fields__:
                value, most = getattr(one, field), 1.0 if field in _FRACTIONS else math.inf
                if value is not None and not (0.0 < value <= most and math.isfinite(value)):
                    expected = "a number above 0" + (", up to 1" if field in _FRACTIONS else "")
                    raise InputError(f"{path}: workload.{name}.{field}: expected {expected}, got {value:g}")
        for pair in truth.pair:
            if not 0.0 < pair.speed <= 1.0:
                raise InputError(
                    f"{path}: pair.speed: expected a number above 0, up to 1, got {pair.speed:g}"
                )
        return truth

    def changes(self, workload: str) -> dict[str, float]:
        """Return the figures of a workload that replace the catalogue's figures."""
        known = self.workload.get(workload)
        if known is None:
            return {}
        return {
            field: value for field in known.__struct_fields__ if (value := getattr(known, field)) is not None
        }

    def speeds(self, workloads: Sequence[str]) -> list[float | None]:
        """Return the speed of each job on a shared GPU; None if unknown, or if not exactly two jobs run."""
        if len(workloads) != 2:
            return [None] * len(workloads)
        known = {(pair.workload, pair.partner): pair.speed for pair in self.pair}
        one, two = workloads
        return [known.get((one, two)), known.get((two, one))]


_FRACTIONS = ("util_frac", "clock_bound")
