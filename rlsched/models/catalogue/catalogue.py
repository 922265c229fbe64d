"""`Catalogue`: the traits of workloads as arrays, by name and GPU type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import InputError
from rlsched.models.arrays import TRAIT, ModelArrays, Records
from rlsched.models.catalogue.draw import JobColumns, draw_workloads
from rlsched.models.catalogue.table import (
    ASSUMED,
    DEFINED,
    FAMILY_OF,
    FIELDS,
    FITTED,
    GPU_TYPES,
    MEASURED,
    REFERENCE_TYPE,
    Cell,
    Source,
    WorkloadPair,
    read_cells,
    read_pairs,
    read_sources,
)
from rlsched.models.slice_name import is_slice

if TYPE_CHECKING:
    from rlsched.models.mig import Slice

UNKNOWN: Final = 0
"""Number (row of the arrays) of the unknown workload."""
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "util_frac": (0.01, 1.0),
    "memory_mib": (256.0, np.inf),
    "clock_bound": (0.0, 1.0),
    "dynamic_w": (0.0, np.inf),
    "sensitivity": (0.0, np.inf),
    "pressure": (0.0, np.inf),
    "speed": (0.01, np.inf),
    "cores_each": (1.0, np.inf),
    "node_penalty": (0.0, np.inf),
    "checkpoint_s": (0.0, np.inf),
}
"""Lowest and highest value of each field. Scaled cells (values of workloads) stay within these bounds."""
FOLLOWS_SLICE: Final = ("speed", "dynamic_w", "cores_each")
"""Fields that are proportional to a job's speed on a MIG slice."""
_STANDS_FOR: Final = {"H200": "H100"}


def load_catalogue(*, assumed_scale: float = 1.0) -> Catalogue:
    """Return the catalogue that is part of rlsched.

    Args:
        assumed_scale: Factor by which assumed cells (values without measurement) are multiplied; products are
            limited to `BOUNDS`. Use 0.7 and 1.3 to repeat a result with the assumptions 30 % lower and
            higher.

    Raises:
        InputError: the scale is not above 0.
    """
    if not 0 < assumed_scale < np.inf:
        raise InputError(f"assumed_scale: expected a number above 0, got {assumed_scale}")
    if assumed_scale == 1.0:
        return Catalogue(cells=read_cells(), pairs=read_pairs(), sources=read_sources())
    scaled = {
        key: _scaled(cell, assumed_scale, key[2]) if cell.status == ASSUMED else cell
        for key, cell in read_cells().items()
    }
    return Catalogue(cells=scaled, pairs=read_pairs(), sources=read_sources())


def _scaled(cell: Cell, scale: float, field: str) -> Cell:
    low, high = BOUNDS[field]
    return Cell(min(max(cell.value * scale, low), high), cell.status, cell.source)


def catalogue_type(kind: str) -> str:
    """Return the GPU type of the catalogue (`GPU_TYPES`) for a GPU type of a cluster.

    Types without rows in the catalogue are `generic`; an H200 counts as an H100.
    """
    if kind in GPU_TYPES:
        return kind
    from rlsched.models.gpu_types import (
        canonical_kind,  # compiles kernels on import: only if needed
    )

    name = canonical_kind(kind)
    name = _STANDS_FOR.get(name, name)
    return name if name in GPU_TYPES else GPU_TYPES[-1]


def _slice_of(kind: str) -> Slice | None:
    """Return the MIG slice that a GPU type names; None for whole GPUs."""
    if not is_slice(kind):
        return None
    from rlsched.models.mig import slice_of  # compiles kernels on import: only if needed

    return slice_of(kind)


@dataclass(frozen=True, eq=False, kw_only=True)
class Catalogue:
    """The workloads by name and number, their cells, and the measured pairs of workloads.

    Attributes:
        cells: Cells by workload, GPU type (`GPU_TYPES`) and field of `TRAIT`, without unknown cells.
        pairs: All measured pairs, each listed once.
        sources: Descriptions of the sources of cells.
    """

    cells: Mapping[tuple[str, str, str], Cell]
    pairs: tuple[WorkloadPair, ...]
    sources: Mapping[str, Source]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all workloads; the workload at position i has number i + 1."""
        return tuple(FAMILY_OF)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, start=1)}

    def number(self, name: str) -> int:
        """Return the number of a workload (its row in the arrays); `UNKNOWN` for the name "".

        Raises:
            InputError: the catalogue does not have the name; the message suggests similar names.
        """
        if not name:
            return UNKNOWN
        if name not in self._numbers:
            raise InputError(
                f"expected a workload of the catalogue, got {name!r}{self._like(name)}; "
                "`rlsched models` lists all"
            )
        return self._numbers[name]

    def _like(self, name: str) -> str:
        near = difflib.get_close_matches(name.lower(), self.names, n=3, cutoff=0.5)
        near = near or [known for known in self.names if name.lower() in known][:3]
        return f" (near: {', '.join(near)})" if near else ""

    def cell(self, name: str, gpu_type: str, field: str) -> Cell | None:
        """Return a cell; None if it is unknown."""
        return self.cells.get((name, gpu_type, field))

    def traits(self, kinds: Sequence[str]) -> Records:
        """Return (W, K) TRAIT, a row per workload. Row 0 (unknown workload) has the medians of all workloads.

        Args:
            kinds: Names of GPU types as in a cluster (see `catalogue_type`).
        """
        out = np.zeros((1 + len(self.names), len(kinds)), TRAIT)
        for column, kind in enumerate(catalogue_type(kind) for kind in kinds):
            for field in FIELDS:
                cells = [self.cells.get((name, kind, field)) for name in self.names]
                values = np.array([np.nan if cell is None else cell.value for cell in cells])
                out[field][1:, column] = values
                latent = field in ("sensitivity", "pressure")
                out[field][0, column] = np.nan if latent else np.median(values)
        for column, kind in enumerate(kinds):
            self._cut(out[:, column], kind)
        return out.view(np.recarray)

    def _cut(self, traits: Records, gpu_type: str) -> None:
        """If a GPU type is a MIG slice, convert `traits`, (W,) TRAIT, from the whole GPU to the slice.

        Dynamic power and the cores that the input pipeline needs are proportional to the work done, so they
        fall with the speed. The slice's utilisation is the GPU's utilisation x speed / size of the slice.
        """
        cut = _slice_of(gpu_type)
        if cut is None:
            return
        from rlsched.models.mig import speed_on_slice

        for row, name in zip(traits, ("", *self.names), strict=True):
            speed = speed_on_slice(name, row["util_frac"], cut)
            row["util_frac"] = min(row["util_frac"] * speed / cut.size_frac, 1.0)
            for field in FOLLOWS_SLICE:
                row[field] *= speed

    def pair_speeds(self, kinds: Sequence[str]) -> NDArray[np.float64]:
        """Return (K, W, W) measured speeds; nan if unknown.

        Element [k, a, b] is the speed of workload a next to workload b on GPU type k.
        """
        size = 1 + len(self.names)
        out = np.full((len(kinds), size, size), np.nan)
        for row, kind in zip(out, (catalogue_type(kind) for kind in kinds), strict=True):
            for pair in self.pairs:
                if pair.gpu_type == kind:
                    a, b = self.number(pair.a), self.number(pair.b)
                    row[a, b], row[b, a] = pair.speed_a, pair.speed_b
        return out

    def arrays(self, kinds: Sequence[str]) -> ModelArrays:
        """Return the arrays of all models for a cluster with these GPU types, in this order."""
        from rlsched.models.power import gpu_models

        gpu, trait = gpu_models(kinds).view(np.recarray), self.traits(kinds)
        gpu.usual_speed = np.exp(np.log(np.maximum(trait.speed[1:], 1e-3)).mean(axis=0))
        return ModelArrays(gpu=gpu, trait=trait, pair=self.pair_speeds(kinds))

    def draw(self, trace: JobColumns, seed: int) -> NDArray[np.int32]:
        """Draw the number of each job's workload.

        A job whose column `workload` names a workload gets that workload. Every other job gets a random
        workload that depends only on the job's own columns (`draw_workloads`). A job without GPUs gets none.

        Args:
            trace: J jobs.
            seed: Seed of the draws, 0 or more.

        Returns:
            (J,) numbers of workloads; 0: no workload.

        Raises:
            InputError: the catalogue does not have a workload; the message names the job and similar
                workloads.
        """
        named = self.named(trace)
        return np.where(named, named, draw_workloads(trace, seed, self._reference_util))

    def named(self, trace: JobColumns) -> NDArray[np.int32]:
        """Return the (J,) numbers of the workloads that the column `workload` names, 0 for other jobs.

        Raises:
            InputError: as in `draw`.
        """
        named, out = trace.extra.get("workload"), np.zeros(len(trace), np.int32)
        for name in () if named is None else np.unique(named):
            if name:
                mine = named == name
                try:
                    out[mine] = self.number(str(name))
                except InputError as error:
                    job = trace.job_id[int(np.argmax(mine))]
                    raise InputError(f"{trace.name}: job {job}, column workload: {error}") from None
        return out

    @cached_property
    def _reference_util(self) -> NDArray[np.float64]:
        # from the data files, not from scaled cells: draws do not depend on `assumed_scale`
        cells = read_cells()
        return np.array([cells[name, REFERENCE_TYPE, "util_frac"].value for name in self.names])

    def measured_share(
        self,
        workloads: Iterable[int] | NDArray[np.int32],
        kinds: Sequence[str],
        fields: Sequence[str] = FIELDS,
    ) -> float:
        """Return which fraction of the catalogue's cells that jobs use is measured or fitted; nan: no cells.

        `cells_behind` describes the arguments, and which cells count.
        """
        sure, used = self.cells_behind(workloads, kinds, fields)
        return sure / used if used else float("nan")

    def cells_behind(
        self,
        workloads: Iterable[int] | NDArray[np.int32],
        kinds: Sequence[str],
        fields: Sequence[str] = FIELDS,
    ) -> tuple[int, int]:
        """Count the catalogue's cells that jobs with these workloads use: (measured or fitted, all).

        A cell is counted once for each job of its workload. Unknown cells, and cells that are fixed by
        definition (speed on the reference type), are not counted. All cells of the unknown workload are
        assumed. So are cells that are scaled by the speed on a MIG slice, if that speed was not measured.

        Args:
            workloads: Numbers of the jobs' workloads, as returned by `draw`.
            kinds: Names of the GPU types on which the jobs run.
            fields: Fields of `TRAIT` that are used.

        Raises:
            InputError: one of `fields` is not a field of `TRAIT`.
        """
        for field in fields:
            if field not in FIELDS:
                raise InputError(f"expected a field of {', '.join(FIELDS)}, got {field!r}")
        sure = used = 0
        columns = {(catalogue_type(kind), _slice_of(kind)) for kind in kinds}
        numbers, counts = np.unique(np.asarray(workloads, dtype=np.int32), return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            for kind, cut in columns:
                for field in fields:
                    if number == UNKNOWN:
                        used += count
                        continue
                    name = self.names[number - 1]
                    cell = self.cells.get((name, kind, field))
                    if cell is not None and cell.status != DEFINED:
                        follows = cut is not None and field in (*FOLLOWS_SLICE, "util_frac")
                        known = cut is None or not follows or cut.was_measured(name)
                        used += count
                        sure += count * (known and cell.status in (MEASURED, FITTED))
        return sure, used
