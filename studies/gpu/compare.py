"""Measured co-tenants and workloads against rlsched's predictions, from a run of `profile_catalogue`.

    .venv/bin/python -m studies.gpu.profile_catalogue           # on a machine with a GPU
    .venv/bin/python -m studies.gpu.compare                     # reads runs/gpu/rows.json; --json

Pairs: the seen speed of each job, what a broker predicts that has learned both jobs' GPU time, and what the
formula for strangers gives. Workloads: measured figures against figures of the most similar workload of
the catalogue; the networks are similar, not the same. Clock-bound shares are not measured: no clock is
changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from rlsched.broker.state.job_requests import workload_like
from rlsched.errors import InputError, RlschedError
from rlsched.models.catalogue import load_catalogue
from rlsched.models.catalogue.catalogue import catalogue_type
from rlsched.models.sharing import shared_speed, stranger_speed
from studies.gpu.results_out import Results

FIELDS: Final = ("util_frac", "memory_mib", "dynamic_w", "cores_each")
"""Measured fields of the catalogue."""
SIMILAR: Final = {
    "cnn_small-b64": "resnet18-cifar10-b64",
    "cnn_small-b256": "resnet18-cifar10-b256",
    "cnn_large-b32": "resnet50-imagenet-b32",
    "cnn_large-b128": "resnet50-imagenet-b128",
    "lstm-b32": "lstm-wikitext2-b40",
    "lstm-b128": "lstm-wikitext2-b80",
    "encoder-b16": "bert-base-sentiment140-b16",
    "encoder-b64": "bert-base-sentiment140-b64",
    "decoder-b4": "gpt2-b4",
    "recommender-b2048": "autoencoder-movielens20m-b2048",
    "recommender-b16384": "autoencoder-movielens20m-b8192",
    "graph-b128": "gnn-b256",
    "ppo-b64": "ppo-lunarlander-b64",
}
"""The most similar workload of the catalogue, by measured workload. Other measured workloads have none."""


class PairSpeed(NamedTuple):
    """One job of a measured pair: speeds relative to unshared."""

    gpu_type: str
    mode: str
    job: str
    beside: str
    seen: float
    predicted: float
    formula: float

    @property
    def ratio(self) -> float:
        """Seen / predicted: below 1 where the broker is too optimistic."""
        return self.seen / self.predicted


class FieldFigure(NamedTuple):
    """One figure of a measured workload, and the catalogue's figure of a similar one."""

    gpu_type: str
    workload: str
    similar: str
    field: str
    measured: float
    catalogue: float
    status: str

    @property
    def ratio(self) -> float:
        """Measured / catalogue; nan if the catalogue has 0."""
        return self.measured / self.catalogue if self.catalogue else float("nan")


def read_results(path: Path) -> Results:
    """Read a `rows.json`.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path}: expected rows.json of studies.gpu.profile_catalogue, got {error}"
        ) from None


def pair_speeds(results: Results) -> list[PairSpeed]:
    """Return both jobs of each pair, if the GPU time of both was also measured unshared."""
    models: Any = load_catalogue().arrays((results.host.gpu_type,))
    busy = {
        str(row["workload"]): _number(row["value"]) for row in results.rows if row["field"] == "util_frac"
    }
    found = []
    for row in results.pairs:
        names = [str(row["a"]), str(row["b"])]
        if not busy.keys() >= set(names):
            continue
        for (job, beside), seen in zip((names, names[::-1]), (row["speed_a"], row["speed_b"]), strict=True):
            workload, other = workload_like(busy[job]), workload_like(busy[beside])
            predicted = shared_speed(models, 0, workload, np.array([other], dtype=np.int64), 1)
            formula = stranger_speed(busy[job], busy[beside])
            found.append(
                PairSpeed(
                    str(row["gpu_type"]),
                    str(row["mode"]),
                    job,
                    beside,
                    _number(seen),
                    float(predicted),
                    float(formula),
                )
            )
    return found


def field_figures(results: Results) -> list[FieldFigure]:
    """Measured figures of workloads that have a similar one in the catalogue."""
    catalogue, kind, found = load_catalogue(), catalogue_type(results.host.gpu_type), []
    for row in results.rows:
        name, field = str(row["workload"]), str(row["field"])
        similar = SIMILAR.get(name)
        cell = None if similar is None or field not in FIELDS else catalogue.cell(similar, kind, field)
        if similar is not None and cell is not None:
            found.append(
                FieldFigure(kind, name, similar, field, _number(row["value"]), cell.value, cell.status)
            )
    return found


def _number(value: object) -> float:
    """A figure of rows.json.

    Raises:
        InputError: it is not a number.
    """
    if not isinstance(value, (int, float)):
        raise InputError(f"rows.json: expected a number, got {value!r}")
    return float(value)


def summary(ratios: Sequence[float]) -> str:
    """Median and spread of ratios, in words."""
    if not ratios:
        return "none"
    low, median, high = np.nanquantile(ratios, [0.1, 0.5, 0.9])
    return f"{len(ratios)} figures, median {median:.2f}, 10 to 90 %: {low:.2f} to {high:.2f}"


def print_tables(results: Results) -> None:
    """Print both tables, each with a summary of its ratios."""
    pairs, figures = pair_speeds(results), field_figures(results)
    host = results.host
    note = ": a rehearsal on a CPU, meaningless for any GPU" if host.is_rehearsal else ""
    print(f"{host.gpu_type}, driver {host.driver or 'unknown'}, torch {host.torch}{note}")
    print(f"\n{'mode':10} {'job':20} {'next to':20} {'seen':>6} {'predicted':>9} {'ratio':>6} {'formula':>8}")
    for one in pairs:
        print(
            f"{one.mode:10} {one.job:20} {one.beside:20} {one.seen:6.2f} {one.predicted:9.2f} "
            f"{one.ratio:6.2f} {one.formula:8.2f}"
        )
    for mode in sorted({one.mode for one in pairs}):
        print(f"seen / predicted, {mode}: {summary([one.ratio for one in pairs if one.mode == mode])}")
    print(
        f"\n{'workload':18} {'similar in the catalogue':32} {'field':11} "
        f"{'measured':>9} {'catalogue':>9} {'ratio':>6} status"
    )
    for figure in figures:
        print(
            f"{figure.workload:18} {figure.similar:32} {figure.field:11} "
            f"{figure.measured:9.4g} {figure.catalogue:9.4g} {figure.ratio:6.2f} {figure.status}"
        )
    for field in FIELDS:
        print(
            f"measured / catalogue, {field}: {summary([one.ratio for one in figures if one.field == field])}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a run and print its tables; without a run, print one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=Path,
        default=Path("runs/gpu/rows.json"),
        help="rows.json of a run [default: %(default)s]",
    )
    parser.add_argument("--json", action="store_true", help="print both tables as JSON")
    asked = parser.parse_args(arguments)
    if asked.rows == parser.get_default("rows") and not asked.rows.exists():
        print(f"nothing to compare: no {asked.rows}; on a GPU run `python -m studies.gpu.profile_catalogue`")
        return 0
    results = read_results(asked.rows)
    if not asked.json:
        print_tables(results)
        return 0
    tables = {
        "pairs": [one._asdict() | {"ratio": one.ratio} for one in pair_speeds(results)],
        "fields": [one._asdict() | {"ratio": one.ratio} for one in field_figures(results)],
    }
    print(json.dumps(tables, indent=2))
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
