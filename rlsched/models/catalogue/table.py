"""The catalogue's data files: families of workloads, their cells, measured pairs, and the sources."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from rlsched.models.arrays import TRAIT, WORKED_OUT

FOLDER: Final = Path(__file__).resolve().parent
REFERENCE_TYPE: Final = "V100"
"""GPU type on which every workload's speed is 1."""
GPU_TYPES: Final = (REFERENCE_TYPE, "P100", "A100", "H100", "T4", "generic")
FIELDS: Final = tuple(name for name in TRAIT.names or () if name not in WORKED_OUT)

MEASURED: Final = "measured"
FITTED: Final = "fitted"
ASSUMED: Final = "assumed"
DEFINED: Final = "defined"
STATUSES: Final = (MEASURED, FITTED, ASSUMED, DEFINED)


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of training, which has one workload per batch size.

    Attributes:
        domain: Domain of the training.
        parameters_m: Parameters of the model, millions.
        batches: Batch sizes, samples per GPU; empty: the family has one workload of unknown batch size.
        weight: Weight of the family in draws, before the adjustment to a job's size and duration (assumed).
        gang: Whether the family is commonly trained on several GPUs (assumed).
    """

    domain: str
    parameters_m: float
    batches: tuple[int, ...]
    weight: float
    gang: bool


class Cell(msgspec.Struct, frozen=True):
    """One value of the catalogue, with its status (`STATUSES`) and the key of its source."""

    value: float
    status: str
    source: str


class Source(msgspec.Struct, frozen=True):
    """Origin of figures: a description, and the error of the fit ("" if the figures are not fitted)."""

    what: str
    error: str


class WorkloadPair(msgspec.Struct, frozen=True):
    """Two workloads that share a GPU: the speed of each next to the other, relative to its solo speed."""

    gpu_type: str
    a: str
    b: str
    speed_a: float
    speed_b: float


def workload_name(family: str, batch: int) -> str:
    """Return the name of a family's workload with the batch size `batch`; 0: the size is unknown."""
    return f"{family}-b{batch}" if batch else family


def _families() -> dict[str, Family]:
    text = (FOLDER / "families.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Family])


FAMILIES: Final = MappingProxyType(_families())
FAMILY_OF: Final = MappingProxyType(
    {
        workload_name(name, batch): name
        for name, family in FAMILIES.items()
        for batch in family.batches or (0,)
    }
)
"""Family of each workload, in the catalogue's order."""


@cache
def read_cells() -> dict[tuple[str, str, str], Cell]:
    """Return all cells, by workload, GPU type and field; unknown cells are missing."""
    return {
        (row["workload"], row["gpu_type"], row["field"]): Cell(
            float(row["value"]), row["status"], row["source"]
        )
        for row in _rows("cells.csv")
    }


@cache
def read_pairs() -> tuple[WorkloadPair, ...]:
    """Return all measured pairs, each listed once."""
    return tuple(
        WorkloadPair(row["gpu_type"], row["a"], row["b"], float(row["speed_a"]), float(row["speed_b"]))
        for row in _rows("pairs.csv")
    )


@cache
def read_sources() -> dict[str, Source]:
    """Return every source by its key."""
    return {row["key"]: Source(row["what"], row["error"]) for row in _rows("sources.csv")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
