"""The files of a run: rows.csv, pairs.csv and rows.json, written atomically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rlsched.errors import InputError
from studies.gpu.protocol import Host, Measurement
from studies.gpu.rows import CatalogueRow, PairRow, Rows, read_catalogue_csv, relative_speeds, to_csv


class Skipped(NamedTuple):
    """A skipped measurement."""

    what: str
    why: str


class Results(msgspec.Struct, frozen=True):
    """rows.json."""

    host: Host
    rows: list[dict[str, object]]
    pairs: list[dict[str, object]]
    skipped: list[dict[str, str]]


def write_results(
    folder: Path,
    host: Host,
    measurements: Sequence[Measurement],
    skipped: Sequence[Skipped],
    reference: Path | None = None,
) -> tuple[list[CatalogueRow], list[PairRow]]:
    """Write all three files.

    Args:
        reference: rows.csv of the GPU to which speeds are relative.

    Raises:
        InputError: The reference cannot be read, or has none of the workloads.
    """
    made = Rows(host, measurements)
    rows, pairs = made.catalogue(), made.pairs()
    if reference is not None:
        try:
            text = reference.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--reference {reference}: {error}") from error
        rows += relative_speeds(rows, read_catalogue_csv(text, str(reference)))
    results = Results(
        host=host,
        rows=[row._asdict() for row in rows],
        pairs=[row._asdict() for row in pairs],
        skipped=[one._asdict() for one in skipped],
    )
    _write(folder / "rows.csv", to_csv(rows, CatalogueRow._fields))
    _write(folder / "pairs.csv", to_csv(pairs, PairRow._fields))
    _write(folder / "rows.json", msgspec.json.format(msgspec.json.encode(results)).decode() + "\n")
    return rows, pairs


def _write(path: Path, text: str) -> None:
    half_written = path.with_name(path.name + ".part")
    half_written.write_text(text, encoding="utf-8")
    half_written.replace(path)
