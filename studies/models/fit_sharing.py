"""Refit the models of sharing, and report their errors on held-out pairs, models and slices.

    .venv/bin/python -m studies.models.fit_sharing           # ten seconds on one core; needs RLSCHED_DATA
    .venv/bin/python -m studies.models.fit_sharing --json    # the same as JSON

Data: Gavel's pairs on one GPU (OSDI'20; K80, P100, V100; pairs that did not fit in memory left out) and
MISO's MIG logs (SoCC'22; A100). Held out by groups: *unseen pair*, ten folds of pairs, both directions
together; *unseen workload*, each model and batch size in turn with all its pairs. Seed 1. The formula for
strangers needs utilisations, which Gavel's data lack: for it only the distance to its own fit can be
reported."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rlsched.models.learning import INTRODUCED_SD, POPULATION_SD, Observed, PairKnowledge
from studies.models.sharing_curves import fit_formula, slices

SEED = 1
FOLDS = 10
DRAWS = 5
SEEN = (1, 3, 10)
GATE = 0.85
FIT_SD = 0.08
"""Weight of a pair's error in speed against the spread of the factors, `POPULATION_SD`, in their fit."""
Floats = NDArray[np.float64]


@dataclass
class Pairs:
    """P measured pairs of W workloads on one GPU type.

    Attributes:
        names: (W,) workloads.
        jobs: (P, 2) indices of the two workloads.
        speeds: (P, 2) speed of each together with the other.
    """

    names: list[str]
    jobs: NDArray[np.int64]
    speeds: Floats


@dataclass
class Score:
    """Errors on held-out data (or in sample, if the split is named so).

    Attributes:
        gpu: GPU type.
        split: The held-out part.
        predictor: The predictor.
        r2: Coefficient of determination of the speeds.
        mae: Mean absolute error of the speeds.
        sd_log: Standard deviation of ln(real / predicted).
        precision: Precision of the gate (both jobs are predicted to keep `GATE` of their speed); None if no
            pair passes it.
        recall: Recall of the gate; None if no pair is fine.
        fine: Number of pairs in which both jobs really keep `GATE` of their speed.
        pairs: Pairs that were predicted.
    """

    gpu: str
    split: str
    predictor: str
    r2: float
    mae: float
    sd_log: float
    precision: float | None
    recall: float | None
    fine: int
    pairs: int


def data_folder() -> Path:
    root = Path(__file__).resolve().parents[2]
    return (root / os.environ.get("RLSCHED_DATA", "../shared")).resolve() / "facts"


def read_pairs(gpu: str) -> Pairs:
    """Pairs on one GPU that fitted in its memory, each once."""
    with (data_folder() / "pair_speeds_gavel.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if row["gpu"] == gpu and row["gpus1"] == row["gpus2"] == "1"
        ]
    kept = {
        (row["job1"], row["job2"]): (float(row["rel1"]), float(row["rel2"]))
        for row in rows
        if row["job1"] <= row["job2"] and float(row["co1"]) > 0 and float(row["co2"]) > 0
    }
    names = sorted({name for pair in kept for name in pair})
    jobs = np.array([[names.index(a), names.index(b)] for a, b in kept])
    return Pairs(names, jobs, np.array(list(kept.values())))


def product(sensitivity: Floats, pressure: Floats, jobs: NDArray[np.int64]) -> Floats:
    """(P, 2) speeds of pairs by the logarithms of the factors."""
    return 1.0 / (1.0 + np.exp(sensitivity[jobs] + pressure[jobs[:, ::-1]]))


def fit_factors(workloads: int, jobs: NDArray[np.int64], speeds: Floats) -> tuple[Floats, Floats]:
    """(W,) logarithms of sensitivities and pressures: the likeliest, with normal priors whose mean is fitted
    too."""
    rows = np.arange(speeds.size)
    first, second = jobs.ravel(), jobs[:, ::-1].ravel()

    def misses(x: Floats) -> Floats:
        s, p, mean = x[:workloads], x[workloads:-1], x[-1]
        off = (product(s, p, jobs) - speeds).ravel() / FIT_SD
        return np.concatenate([off, (s - mean) / POPULATION_SD, (p - mean) / POPULATION_SD])

    def slopes(x: Floats) -> Floats:
        speed = product(x[:workloads], x[workloads:-1], jobs).ravel()
        slope = -speed * (1.0 - speed) / FIT_SD
        out = np.zeros((speeds.size + 2 * workloads, 2 * workloads + 1))
        np.add.at(out, (rows, first), slope)
        np.add.at(out, (rows, workloads + second), slope)
        out[speeds.size :, :-1] = np.eye(2 * workloads) / POPULATION_SD
        out[speeds.size :, -1] = -1.0 / POPULATION_SD
        return out

    x = least_squares(misses, np.zeros(2 * workloads + 1), jac=slopes).x
    return x[:workloads], x[workloads:-1]


def score(gpu: str, split: str, predictor: str, told: Floats, real: Floats) -> Score:
    """Compare (P, 2) predicted and real speeds."""
    called, fine = (told >= GATE).all(1), (real >= GATE).all(1)
    both = int((called & fine).sum())
    return Score(
        gpu,
        split,
        predictor,
        r2=float(1 - ((told - real) ** 2).sum() / ((real - real.mean()) ** 2).sum()),
        mae=float(abs(told - real).mean()),
        sd_log=float(np.log(real / told).std()),
        precision=both / int(called.sum()) if called.any() else None,
        recall=both / int(fine.sum()) if fine.any() else None,
        fine=int(fine.sum()),
        pairs=len(real),
    )


def held_out(data: Pairs) -> tuple[Floats, Floats]:
    """(P, 2) speeds of every pair predicted from the other nine tenths: by their mean, by latent factors."""
    fold = np.random.default_rng(SEED).permutation(len(data.jobs)) % FOLDS
    constant, latent = np.empty_like(data.speeds), np.empty_like(data.speeds)
    for k in range(FOLDS):
        out, rest = fold == k, fold != k
        constant[out] = data.speeds[rest].mean()
        factors = fit_factors(len(data.names), data.jobs[rest], data.speeds[rest])
        latent[out] = product(*factors, data.jobs[out])
    return constant, latent


def unseen_pairs(gpu: str, data: Pairs) -> list[Score]:
    """Return scores of every pair predicted from the other nine tenths; and in sample, for comparison."""
    constant, latent = held_out(data)
    inside = product(*fit_factors(len(data.names), data.jobs, data.speeds), data.jobs)
    return [
        score(gpu, "unseen pair", "constant", constant, data.speeds),
        score(gpu, "unseen pair", "latent factors", latent, data.speeds),
        score(gpu, "in sample", "latent factors", inside, data.speeds),
    ]


def unseen_workloads(gpu: str, data: Pairs) -> list[Score]:
    """Each workload in turn: unknown at first, then `k` random pairs of it observed, the rest
    predicted."""
    rng = np.random.default_rng(SEED)
    told: dict[str, list[Floats]] = {}
    real: dict[str, list[Floats]] = {}

    def keep(predictor: str, speeds: Floats, rows: NDArray[np.int64]) -> None:
        told.setdefault(predictor, []).append(speeds)
        real.setdefault(predictor, []).append(data.speeds[rows])

    for held in range(len(data.names)):
        mine = (data.jobs == held).any(1)
        rows = np.flatnonzero(mine)
        s, p = fit_factors(len(data.names), data.jobs[~mine], data.speeds[~mine])
        others = np.arange(len(data.names)) != held
        s[held], p[held] = s[others].mean(), p[others].mean()
        keep("constant", np.full((len(rows), 2), data.speeds[~mine].mean()), rows)
        base = product(s, p, data.jobs)
        keep("latent factors, k = 0", base[rows], rows)
        for k in SEEN:
            for _ in range(DRAWS):
                order = rng.permutation(rows)
                seen, left = order[:k], order[k:]
                known = learnt(gpu, data, s, p, held, seen)
                keep(f"learnt, k = {k}", predictions(known, gpu, data, left), left)
                keep(f"shrunk log ratio, k = {k}", by_ratio(base, data, held, seen, left), left)
    return [
        score(gpu, "unseen workload", name, np.concatenate(told[name]), np.concatenate(real[name]))
        for name in sorted(told, key=_by_kind)
    ]


def _by_kind(name: str) -> tuple[str, int]:
    kind, _, k = name.partition(", k = ")
    return kind, int(k or 0)


def learnt(gpu: str, data: Pairs, s: Floats, p: Floats, held: int, seen: NDArray[np.int64]) -> PairKnowledge:
    """Knowledge after these pairs were observed, with all workloads known except one."""
    known = PairKnowledge()
    for w, name in enumerate(data.names):
        sd = POPULATION_SD if w == held else INTRODUCED_SD
        known.introduce(name, gpu, float(np.exp(s[w])), float(np.exp(p[w])), sd)
    for row in seen:
        for a, b, speed in _directions(data, row):
            known.observe(Observed(a, b, gpu, speed))
    return known


def _directions(data: Pairs, row: int) -> list[tuple[str, str, float]]:
    (a, b), (first, second) = data.jobs[row], data.speeds[row]
    return [(data.names[a], data.names[b], first), (data.names[b], data.names[a], second)]


def predictions(known: PairKnowledge, gpu: str, data: Pairs, rows: NDArray[np.int64]) -> Floats:
    """(P, 2) speeds of these pairs."""
    told = [[known.predicted_speed(a, b, gpu) for a, b, _ in _directions(data, row)] for row in rows]
    return np.array(told).reshape(-1, 2)


def by_ratio(
    base: Floats, data: Pairs, held: int, seen: NDArray[np.int64], left: NDArray[np.int64]
) -> Floats:
    """Return speeds by a simpler method: the job's mean ln(observed / predicted), shrunk by one observation.

    The speeds of the job's partners stay as in `base`.
    """
    own = data.jobs == held
    ratios = np.log(data.speeds[seen] / base[seen])[own[seen]]
    shrunk = ratios.sum() / (len(ratios) + 1)
    return np.where(own[left], np.minimum(base[left] * np.exp(shrunk), 1.0), base[left])


def population(data: dict[str, Pairs]) -> dict[str, Any]:
    """Basis of `learning.POPULATION`, `POPULATION_SD` and `OBSERVATION_SD`: factors fitted to all
    pairs."""
    out: dict[str, Any] = {}
    for gpu, pairs in data.items():
        s, p = fit_factors(len(pairs.names), pairs.jobs, pairs.speeds)
        off = np.log(product(s, p, pairs.jobs) / pairs.speeds)
        out[gpu] = {
            "pairs": len(pairs.jobs),
            "geometric_mean": [float(np.exp(s.mean())), float(np.exp(p.mean()))],
            "sd_log": [float(s.std()), float(p.std())],
            "sd_log_speed": float(off.std()),
            "median_abs_log_speed": float(np.median(abs(off))),
        }
    return out


def show(found: dict[str, Any]) -> None:
    """Print the results as Markdown."""
    line: Callable[[str], None] = print
    line("## The formula for strangers")
    for name, value in found["formula"].items():
        line(f"- {name}: {value}")
    line(
        "\n## Gavel's pairs\n"
        "| GPU | split | predictor | R2 | MAE | sd of ln | gate precision | recall | fine / pairs |"
    )
    line("|---|---|---|---|---|---|---|---|---|")
    for row in found["pairs"]:
        gate = [f"{row[name]:.2f}" if row[name] is not None else "–" for name in ("precision", "recall")]
        line(
            f"| {row['gpu']} | {row['split']} | {row['predictor']} | {row['r2']:.2f} | {row['mae']:.3f} | "
            f"{row['sd_log']:.2f} | {gate[0]} | {gate[1]} | {row['fine']} / {row['pairs']} |"
        )
    line("\n## Workloads as a population")
    for gpu, value in found["population"].items():
        line(f"- {gpu}: {value}")
    line("\n## MIG")
    for name, value in found["mig"].items():
        line(f"- {name}: {value}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    if not (data_folder() / "pair_speeds_gavel.csv").is_file():
        parser.error(
            f"expected pair_speeds_gavel.csv in {data_folder()}: set RLSCHED_DATA to the shared data"
        )
    data = {gpu: read_pairs(gpu) for gpu in ("v100", "p100", "k80")}
    found = {
        "seed": SEED,
        "formula": fit_formula(),
        "pairs": [
            asdict(row)
            for gpu, pairs in data.items()
            for row in (*unseen_pairs(gpu, pairs), *unseen_workloads(gpu, pairs))
        ],
        "population": population(data),
        "mig": slices(),
    }
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        show(found)


if __name__ == "__main__":
    main()
