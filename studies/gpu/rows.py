"""Rows of the catalogue and rows of pairs from a record."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from rlsched.errors import InputError
from rlsched.models.catalogue.table import FITTED, MEASURED
from rlsched.models.gpu_types import GENERIC, canonical_kind
from studies.gpu.arithmetic import (
    Estimate,
    cores_to_feed,
    counted_span,
    difference,
    memory_mib,
    power_w,
    ratio,
    samples_per_s,
    utilisation_frac,
)
from studies.gpu.protocol import Host, Job, Measurement

REHEARSAL = "rehearsal"
"""Status of rows of a rehearsal, which the catalogue rejects."""


class CatalogueRow(NamedTuple):
    """One figure. `workload` is empty for figures of the GPU itself; `spread` is an interquartile range."""

    workload: str
    gpu_type: str
    field: str
    value: float
    spread: float | None
    status: str
    source: str
    measured_on: str


class PairRow(NamedTuple):
    """Two workloads on one GPU: each one's speed relative to unshared, and the larger of their spreads."""

    gpu_type: str
    mode: str
    a: str
    b: str
    speed_a: float
    speed_b: float
    spread: float | None
    power_w: float | None
    status: str
    source: str
    measured_on: str


def gpu_type_of(name: str) -> str:
    """The catalogue's type of a GPU; the name itself, without its maker, if the type is unknown."""
    kind = canonical_kind(name)
    return name.removeprefix("NVIDIA ").strip() if kind == GENERIC else kind


class Rows:
    """Computes rows from a record.

    Args:
        host: The machine of the measurements.
        measurements: The measurements, in any order. Of measurements with equal keys, the last counts.
    """

    def __init__(self, host: Host, measurements: Sequence[Measurement]) -> None:
        self._host = host
        self._gpu_type = gpu_type_of(host.gpu_type)
        self._by_key = {one.key: one for one in measurements}

    def catalogue(self) -> list[CatalogueRow]:
        """Figures of the GPU, then of each workload: see studies/gpu/README.md for the fields."""
        rows = self._of_gpu()
        for measurement in self._of_kind("alone"):
            rows += self._of_workload(measurement)
        return rows

    def pairs(self) -> list[PairRow]:
        """Return every pair of jobs that were also measured unshared."""
        rows = []
        for measurement in self._of_kind("pair"):
            span = counted_span(measurement)
            speeds = [
                ratio(samples_per_s(run, span), self._alone_samples_per_s(run.job))
                for run in measurement.runs
            ]
            first, second = speeds
            if first is None or second is None:
                continue
            spreads = [speed.spread for speed in (first, second) if speed.spread is not None]
            power = power_w(measurement.samples, span)
            rows.append(
                PairRow(
                    self._gpu_type,
                    measurement.mode,
                    measurement.runs[0].job.label,
                    measurement.runs[1].job.label,
                    first.value,
                    second.value,
                    max(spreads, default=None),
                    None if power is None else power.value,
                    REHEARSAL if self._host.is_rehearsal else MEASURED,
                    self._source(measurement, min(first.readings, second.readings)),
                    measurement.measured_on,
                )
            )
        return rows

    def _of_gpu(self) -> list[CatalogueRow]:
        rows = []
        for kind, field in (("idle", "idle_w"), ("held", "static_w")):
            for measurement in self._of_kind(kind):
                power = power_w(measurement.samples, counted_span(measurement))
                rows += self._row("", field, power, measurement)
        total = self._host.memory_total_mib
        for measurement in self._of_kind("idle"):
            rows += self._row(
                "", "memory_mib", None if total is None else Estimate(float(total), None, 1), measurement
            )
        return rows

    def _of_workload(self, measurement: Measurement) -> list[CatalogueRow]:
        run, span = measurement.runs[0], counted_span(measurement)
        name = run.job.label
        speed = samples_per_s(run, span)
        power = power_w(measurement.samples, span)
        figures = {
            "util_frac": utilisation_frac(measurement.samples, span),
            "memory_mib": memory_mib(measurement, 0),
            "power_w": power,
            "dynamic_w": difference(power, self._static_w()),
            "samples_per_s": speed,
            "energy_per_sample_j": ratio(power, speed),
        }
        rows = [
            row for field, figure in figures.items() for row in self._row(name, field, figure, measurement)
        ]
        return rows + self._on_cores(run.job, speed)

    def _on_cores(self, job: Job, full: Estimate | None) -> list[CatalogueRow]:
        rows, speeds = [], {}
        fed = [one for one in self._of_kind("cores") if one.runs[0].job == job]
        for measurement in sorted(fed, key=lambda one: one.cores):
            speed = samples_per_s(measurement.runs[0], counted_span(measurement))
            if speed is not None:
                speeds[measurement.cores] = speed.value
                field = f"speed_on_{measurement.cores}_cores"
                rows += self._row(job.label, field, ratio(speed, full), measurement)
        if speeds and full is not None:
            rows += self._row(
                job.label, "cores_each", cores_to_feed(speeds, full.value), fed[-1], status=FITTED
            )
        return rows

    def _row(
        self,
        workload: str,
        field: str,
        figure: Estimate | None,
        measurement: Measurement,
        status: str = MEASURED,
    ) -> list[CatalogueRow]:
        """One row, or none if the figure is unknown."""
        if figure is None:
            return []
        return [
            CatalogueRow(
                workload,
                self._gpu_type,
                field,
                figure.value,
                figure.spread,
                REHEARSAL if self._host.is_rehearsal else status,
                self._source(measurement, figure.readings),
                measurement.measured_on,
            )
        ]

    def _source(self, measurement: Measurement, count: int) -> str:
        host = self._host
        precision = "/".join(sorted({run.warm.precision for run in measurement.runs} - {"none"}))
        parts = ["studies/gpu/profile_catalogue.py", host.gpu_type]
        parts += [f"driver {host.driver}"] if host.driver else []
        parts += [f"torch {host.torch}", precision, f"{count} readings"]
        return "; ".join(part for part in parts if part)

    def _of_kind(self, kind: str) -> list[Measurement]:
        return [one for one in self._by_key.values() if one.kind == kind]

    def _alone_samples_per_s(self, job: Job) -> Estimate | None:
        for one in self._of_kind("alone"):
            if one.runs[0].job == job:
                return samples_per_s(one.runs[0], counted_span(one))
        return None

    def _static_w(self) -> Estimate | None:
        for one in self._of_kind("held"):
            return power_w(one.samples, counted_span(one))
        return None


def relative_speeds(rows: Sequence[CatalogueRow], reference: Sequence[CatalogueRow]) -> list[CatalogueRow]:
    """Rows `speed`: samples a second, relative to the same workload on the GPU of `reference`.

    Raises:
        InputError: The reference has no samples a second of any of the workloads, or mixes GPU types.
    """
    known_speeds = [row for row in reference if row.field == "samples_per_s"]
    base = {row.workload: row for row in known_speeds}
    kinds = sorted({row.gpu_type for row in known_speeds})
    if len(kinds) != 1:
        raise InputError(f"expected samples_per_s of one GPU type as a reference, found {kinds or 'none'}")
    found = []
    for row in rows:
        known = base.get(row.workload)
        if row.field != "samples_per_s" or known is None:
            continue
        speed = ratio(Estimate(row.value, row.spread, 1), Estimate(known.value, known.spread, 1))
        if speed is not None:
            found.append(
                row._replace(
                    field="speed",
                    value=speed.value,
                    spread=speed.spread,
                    source=f"{row.source}; relative to {known.gpu_type} of {known.measured_on}",
                )
            )
    if not found:
        raise InputError(f"none of these workloads was measured on the reference, {kinds[0]}")
    return found


def to_csv(rows: Sequence[CatalogueRow] | Sequence[PairRow], header: Sequence[str]) -> str:
    """CSV with a header; unknown figures are blank, others have six significant digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(
            f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else cell for cell in row
        )
    return text.getvalue()


def read_catalogue_csv(text: str, where: str) -> list[CatalogueRow]:
    """Read the output of `to_csv`.

    Raises:
        InputError: the text has other columns, or a figure is not a number.
    """
    lines = csv.DictReader(io.StringIO(text))
    if tuple(lines.fieldnames or ()) != CatalogueRow._fields:
        raise InputError(
            f"{where}: expected the columns {','.join(CatalogueRow._fields)}, got {lines.fieldnames}"
        )
    rows = []
    for line in lines:
        try:
            value, spread = float(line["value"]), float(line["spread"]) if line["spread"] else None
        except ValueError as error:
            raise InputError(f"{where}, line {lines.line_num}: {error}") from error
        texts = {
            name: line[name] for name in ("workload", "gpu_type", "field", "status", "source", "measured_on")
        }
        rows.append(CatalogueRow(value=value, spread=spread, **texts))
    return rows
