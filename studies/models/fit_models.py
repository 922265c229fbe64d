"""Errors of the models of clocks, power and CPU cores against measurements.

    RLSCHED_DATA=../shared python -m studies.models.fit_models [--only SECTION] [--json]

Reads `facts/` of the shared data. *clocks*: the V100 at 13 SM clocks. *choice*: energy saved on the measured
curves by the model's clock within a slowdown budget, against the best clock of each job.
*caps*: power limits, four GPU types. *cores*: Synergy's profiles.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from rlsched.models import clocks, cores
from rlsched.models.arrays import Records
from rlsched.models.power import gpu_models

FACTS = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "facts"
BUDGETS = (0.02, 0.05, 0.10)
ZEUS_V100 = {"static_w": 20.0, "knee_frac": 0.70, "voltage_slope": 0.40, "theta": 0.7}
"""The V100's constants as fitted to power caps, to compare with the constants fitted to clocks."""

Floats = NDArray[np.float64]
Table = list[dict[str, Any]]


def facts(name: str, folder: Path | None = None) -> list[dict[str, str]]:
    """The rows of one file of `facts/`."""
    with ((folder or FACTS) / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Curve(NamedTuple):
    """One workload on the V100: measured at each SM clock, and the model's two numbers for it."""

    name: str
    is_deep_learning: bool
    clock_bound: float
    dynamic_w: float
    x: Floats
    perf: Floats
    power_w: Floats
    energy: Floats


def v100_curves(folder: Path | None = None) -> list[Curve]:
    """The GPU-DVFS-Dataset with rho and A as fitted to it; perf and energy relative to full clock."""
    measured = facts("dvfs_v100_smclock.csv", folder)
    out = []
    for row in facts("dvfs_v100_fitted_params.csv", folder):
        points = [point for point in measured if point["workload"] == row["workload"]]
        columns = (
            np.array([float(point[key]) for point in points])
            for key in ("sm_frac", "rel_perf", "power_w", "rel_energy")
        )
        name, rho, dynamic_w = row["workload"], float(row["rho"]), float(row["A_dyn_w"])
        out.append(Curve(name, row["is_dl"] == "True", rho, dynamic_w, *columns))
    return out


def modelled(curve: Curve, gpu: Records) -> tuple[Floats, Floats]:
    """Time relative to full clock and power, W, of the model at the curve's clocks."""
    time = [clocks.relative_time(curve.clock_bound, x) for x in curve.x]
    power_w = [clocks.power_at(gpu, 0, curve.clock_bound, curve.dynamic_w, x) for x in curve.x]
    return np.array(time), np.array(power_w)


def clock_errors(curves: Iterable[Curve], gpu: Records) -> dict[str, float]:
    """Errors over all points of the curves; energy is relative to full clock, model against measured."""
    perf, power, energy = [], [], []
    for curve in curves:
        time, power_w = modelled(curve, gpu)
        perf.append(1 / time - curve.perf)
        power.append(np.abs(power_w / curve.power_w - 1))
        full_w = clocks.power_at(gpu, 0, curve.clock_bound, curve.dynamic_w, 1.0)
        energy.append(np.abs(power_w * time / full_w - curve.energy))
    return {
        "workloads": len(perf),
        "perf_rmse": float(np.sqrt(np.mean(np.concatenate(perf) ** 2))),
        "power_mape_pct": 100 * float(np.mean(np.concatenate(power))),
        "power_worst_pct": 100 * float(np.max(np.concatenate(power))),
        "energy_mae": float(np.mean(np.concatenate(energy))),
    }


def clock_tables(folder: Path | None = None) -> Table:
    """Errors of the V100's clock model."""
    gpu, curves = gpu_models(["V100"]), v100_curves(folder)
    learning = [curve for curve in curves if curve.is_deep_learning]
    return [
        {"curves": "all", **clock_errors(curves, gpu)},
        {"curves": "deep learning", **clock_errors(learning, gpu)},
    ]


def _outcome(picked: list[tuple[float, float]]) -> dict[str, float]:
    energy, perf = np.array(picked).T
    return {
        "saved_mean_pct": 100 * float(np.mean(1 - energy)),
        "saved_median_pct": 100 * float(np.median(1 - energy)),
        "slower_mean_pct": 100 * float(np.mean(1 / perf - 1)),
        "slower_worst_pct": 100 * float(np.max(1 / perf - 1)),
    }


def _at(curve: Curve, x: float) -> tuple[float, float]:
    """Measured energy and speed at a clock; interpolated between two measured clocks."""
    return float(np.interp(x, curve.x, curve.energy)), float(np.interp(x, curve.x, curve.perf))


def _oracle(curve: Curve, allowed: Floats, budget: float) -> tuple[float, float]:
    best = (1.0, 1.0)
    for x in allowed:
        energy, perf = _at(curve, x)
        if energy < best[0] and 1 / perf <= 1 + budget:
            best = energy, perf
    return best


def choice_tables(folder: Path | None = None) -> Table:
    """Energy saved on the measured curves of the 19 deep-learning workloads, by method of choice."""
    gpu = gpu_models(["V100"])
    levels = np.array(gpu[0]["levels_frac"])
    curves = [curve for curve in v100_curves(folder) if curve.is_deep_learning]

    def chosen(curve: Curve, budget: float, clock_bound: float, dynamic_w: float) -> tuple[float, float]:
        return _at(curve, levels[clocks.best_level(gpu, 0, clock_bound, dynamic_w, budget)])

    def model_any(curve: Curve, budget: float) -> tuple[float, float]:
        time, power_w = modelled(curve, gpu)
        return _at(curve, curve.x[np.argmin(np.where(time <= 1 + budget, power_w * time, np.inf))])

    def stranger(curve: Curve, budget: float) -> tuple[float, float]:
        others = [other.clock_bound for other in curves if other is not curve]
        full_w = curve.power_w[-1] - gpu[0]["static_w"]
        return chosen(curve, budget, float(np.quantile(others, 0.75)), full_w)

    def profiled(curve: Curve, budget: float) -> tuple[float, float]:
        rho = clocks.clock_bound_of(1 / _at(curve, levels[-1])[1], levels[-1])
        return chosen(curve, budget, rho, curve.power_w[-1] - gpu[0]["static_w"])

    def fixed(curve: Curve, _: float) -> tuple[float, float]:
        return _at(curve, levels[1])

    choosers: dict[str, Callable[[Curve, float], tuple[float, float]]] = {
        "best of 13 clocks, measured": lambda curve, budget: _oracle(curve, curve.x, budget),
        "model, 13 clocks": model_any,
        "best of 4 levels, measured": lambda curve, budget: _oracle(curve, levels, budget),
        "model, 4 levels": lambda curve, budget: chosen(curve, budget, curve.clock_bound, curve.dynamic_w),
        "model, 4 levels, job measured at two clocks": profiled,
        "model, 4 levels, rho unknown": stranger,
        "level 1 for all": fixed,
    }
    return [
        {
            "chooser": name,
            "budget_pct": 100 * budget,
            **_outcome([choose(curve, budget) for curve in curves]),
        }
        for name, choose in choosers.items()
        for budget in BUDGETS
    ]


def level_search(folder: Path | None = None) -> Table:
    """The three measured clocks below full that save most with the best clock per job, over all budgets."""
    curves = [curve for curve in v100_curves(folder) if curve.is_deep_learning]
    found = []
    for three in itertools.combinations(curves[0].x[:-1], 3):
        saved = [np.mean([1 - _oracle(c, np.array(three), b)[0] for c in curves]) for b in BUDGETS]
        found.append((float(np.mean(saved)), three))
    return [
        {"saved_mean_pct": 100 * saved, "mhz": " ".join(f"{1530 * x:.0f}" for x in reversed(three))}
        for saved, three in sorted(found, reverse=True)[:3]
    ]


@numba.njit(error_model="numpy")
def fit_caps(gpu: Records, caps_w: Floats, tput: Floats, power_w: Floats, uncapped_w: float) -> Floats:
    """rho and A of least squared relative error of time and power under caps, on a grid; then both models.

    Returns:
        (2, caps) relative throughput and power, W, of the best pair.
    """
    n = caps_w.shape[0]
    best, out, trial, least = np.empty((2, n)), np.empty((2, n)), np.empty(n), np.inf
    for r in range(21):
        for m in range(20):
            rho, dynamic_w = 0.05 * r, (0.7 + 0.05 * m) * max(uncapped_w - gpu[0].static_w, 1.0)
            for k in range(n):
                x = clocks.capped_clock(gpu, 0, rho, dynamic_w, caps_w[k])
                trial[k] = clocks.relative_time(rho, x)
                out[1, k] = min(clocks.power_at(gpu, 0, rho, dynamic_w, x), caps_w[k])
            error = 0.0
            for k in range(n):
                out[0, k] = trial[n - 1] / trial[k]
                error += (out[0, k] / tput[k] - 1.0) ** 2 + (out[1, k] / power_w[k] - 1.0) ** 2
            if error < least:
                least = error
                best[:] = out
    return best


class CapCurve(NamedTuple):
    """One workload under power caps (Zeus), and the model with rho and A fitted to it.

    Attributes:
        cap_frac: (N,) of the highest cap, ascending.
        tput: (N,) throughput relative to the highest cap, measured.
        power_w: (N,) mean power, measured.
        model_tput: (N,) as `tput`.
        model_power_w: (N,) as `power_w`.
    """

    cap_frac: Floats
    tput: Floats
    power_w: Floats
    model_tput: Floats
    model_power_w: Floats

    def energies(self) -> tuple[Floats, Floats]:
        """Energy of a unit of work relative to the highest cap, measured and by the model."""
        measured, model = self.power_w / self.tput, self.model_power_w / self.model_tput
        return measured / measured[-1], model / model[-1]


def cap_curves(kind: str, constants: dict[str, float], folder: Path | None = None) -> list[CapCurve]:
    """Every curve of a GPU type with more than two caps; `constants` replace the type's own."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in facts("power_limit_curves.csv", folder):
        if row["gpu"] == kind:
            key = tuple(row[k] for k in ("dataset", "network", "batch_size", "optimizer"))
            groups.setdefault(key, []).append(row)
    gpu, out = gpu_models([kind]), []
    for field, value in constants.items():
        gpu[field] = value
    for rows in groups.values():
        if len(rows) > 2:
            rows.sort(key=lambda row: float(row["power_limit"]))
            cap, tput, power_w, frac = (
                np.array([float(row[k]) for row in rows])
                for k in ("power_limit", "rel_tput", "average_power", "pl_frac")
            )
            model = fit_caps(gpu, cap, tput, power_w, power_w[-1])
            out.append(CapCurve(frac, tput, power_w, *model))
    return out


def cap_tables(folder: Path | None = None) -> Table:
    """Errors under power caps (Zeus), for all caps and for caps of at least 60 % of the highest."""
    out: Table = []
    for label, kind, constants in (
        ("V100", "V100", {}),
        ("V100, constants fitted to caps", "V100", ZEUS_V100),
        *((kind, kind, {}) for kind in ("P100", "RTX6000", "A40")),
    ):
        parts = []
        for curve in cap_curves(kind, constants, folder):
            measured, energy = curve.energies()
            off = (
                curve.model_tput / curve.tput - 1,
                curve.model_power_w / curve.power_w - 1,
                energy / measured - 1,
            )
            parts.append(np.array([curve.cap_frac, *off]))
        points = np.concatenate(parts, axis=1)
        for which, least_frac in (("all", 0.0), (">= 60 % of the highest", 0.599)):
            error = 100 * np.abs(points[1:, points[0] >= least_frac]).mean(axis=1)
            names = ("time_mape_pct", "power_mape_pct", "energy_mape_pct")
            errors = dict(zip(names, map(float, error), strict=True))
            out.append({"gpu": label, "caps": which, "curves": len(parts), **errors})
    return out


def core_profiles(folder: Path | None = None) -> dict[str, list[cores.CoreRow]]:
    """Synergy's profiles with most memory: throughput by cores a GPU, relative to three."""
    best: dict[tuple[str, float], float] = {}
    for row in facts("cpu_sensitivity_synergy.csv", folder):
        key = row["model"], float(row["cpu_cores"])
        best[key] = max(best.get(key, 0.0), float(row["rel_tput_vs_3cores"]))
    out: dict[str, list[cores.CoreRow]] = {}
    for (model, count), value in sorted(best.items()):
        out.setdefault(model, []).append(cores.CoreRow(count, value))
    return out


def core_tables(folder: Path | None = None) -> Table:
    """Cores needed, and errors of min(G, 0.40 c^0.83) in units of the throughput at three cores."""
    out: Table = []
    for model, rows in core_profiles(folder).items():
        needed, bound = cores.cores_needed(rows), max(row.throughput for row in rows)
        errors = [
            bound * cores.input_speed(row.cores_each, needed) - row.throughput for row in rows
        ]  # for language jobs `needed` is one core, and the model exact
        worst = max(range(len(rows)), key=lambda k: abs(errors[k]))
        out.append(
            {
                "model": model,
                "gpu_bound": bound,
                "cores_needed": needed,
                "mae": float(np.mean(np.abs(errors))),
                "largest_error": errors[worst],
                "at_cores": rows[worst].cores_each,
            }
        )
    return out


SECTIONS: dict[str, tuple[Callable[..., Table], ...]] = {
    "clocks": (clock_tables,),
    "choice": (choice_tables, level_search),
    "caps": (cap_tables,),
    "cores": (core_tables,),
}


def show(table: Table) -> None:
    """Print one table as Markdown."""
    print("| " + " | ".join(table[0]) + " |\n|" + "---|" * len(table[0]))
    for row in table:
        print("| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    print()


def main() -> None:
    """Read the command line, fit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(SECTIONS), help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    arguments = parser.parse_args()
    if not FACTS.is_dir():
        parser.error(f"no measured data in {FACTS}: set RLSCHED_DATA to the folder of the shared data")
    tables = {
        make.__name__.removesuffix("_tables"): make()
        for name in arguments.only or SECTIONS
        for make in SECTIONS[name]
    }
    if arguments.json:
        print(json.dumps(tables, indent=1))
        return
    for name, table in tables.items():
        print(f"### {name}\n")
        show(table)


if __name__ == "__main__":
    main()
