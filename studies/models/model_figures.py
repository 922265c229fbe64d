"""Every model with its measured points, as SVG.

    RLSCHED_DATA=../shared python -m studies.models.model_figures [--only NAME] [--out DIR]   # runs/figures

Needs the shared data and matplotlib (extra `report`). Explanation: `docs/explanation/model.md`. Dots are
measured, lines are the model. Do not redistribute the files: some of the data behind them have no licence.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rlsched.models import cores, mig
from rlsched.models.catalogue.table import ASSUMED, FAMILY_OF, FITTED, MEASURED, REFERENCE_TYPE, read_cells
from rlsched.models.power import gpu_models
from studies.models import fit_models, fit_sharing, sharing_curves
from studies.models.catalogue_facts import Facts
from studies.models.catalogue_fits import Fits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "C6"
Floats = NDArray[np.float64]


def label(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Name the axes and the panel."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left")


def diagonal(axes: Axes) -> None:
    """The line on which a prediction is right."""
    axes.plot([0, 1.05], [0, 1.05], color=GREY, linewidth=1.0)
    axes.set_xlim(0, 1.05)
    axes.set_ylim(0, 1.05)


def clocks(axes: list[Axes], folder: Path) -> None:
    """Time, power and energy of 19 workloads at 13 SM clocks of a V100."""
    gpu = gpu_models(["V100"])
    curves = [curve for curve in fit_models.v100_curves(folder) if curve.is_deep_learning]
    curves.sort(key=lambda curve: curve.clock_bound)
    shown = {curves[at].name: f"C{number}" for number, at in enumerate((0, len(curves) // 2, -1))}
    for curve in sorted(curves, key=lambda curve: curve.name in shown):
        time, power_w = fit_models.modelled(curve, gpu)
        energy = power_w * time / (power_w[-1] * time[-1])
        measured = (1 / curve.perf, curve.power_w, curve.energy)
        colour = shown.get(curve.name, GREY)
        alpha = 1.0 if curve.name in shown else 0.3
        name = f"{curve.name}, rho {curve.clock_bound:.2f}" if curve.name in shown else None
        for panel, dots, line in zip(axes, measured, (time, power_w, energy), strict=True):
            panel.plot(curve.x, dots, "o", color=colour, alpha=alpha)
            panel.plot(curve.x, line, color=colour, alpha=alpha, linewidth=1.2, label=name)
    errors = fit_models.clock_errors(curves, gpu)
    x = "SM clock, of the highest"
    label(axes[0], x, "time, full clock = 1", f"speed: RMSE {errors['perf_rmse']:.3f}")
    label(axes[1], x, "power, W", f"power: mean error {errors['power_mape_pct']:.1f} %")
    label(axes[2], x, "energy, full clock = 1", f"energy: MAE {errors['energy_mae']:.3f}")
    axes[0].legend()


def caps(axes: list[Axes], folder: Path) -> None:
    """Energy of a unit of work under power caps, four GPU types."""
    for panel, kind in zip(axes, ("V100", "P100", "RTX6000", "A40"), strict=True):
        curves = fit_models.cap_curves(kind, {}, folder)
        cap = np.concatenate([curve.cap_frac for curve in curves])
        measured, model = (np.concatenate(part) for part in zip(*(c.energies() for c in curves), strict=True))
        panel.plot(cap, measured, "o", color="C0", alpha=0.3, label="measured")
        at = np.unique(cap.round(4))
        for values, style, name in ((measured, "--", "its median"), (model, "-", "model, median")):
            medians = [np.median(values[np.isclose(cap, one, atol=1e-4)]) for one in at]
            panel.plot(at, medians, style, color="C0" if style == "--" else "C1", label=name)
        error_pct = 100 * np.abs(model / measured - 1).mean()
        label(
            panel, "cap, of the highest", "energy, highest cap = 1", f"{kind}: mean error {error_pct:.1f} %"
        )
    axes[0].legend()


def sharing(axes: list[Axes], _: Path) -> None:
    """Combined throughput of two jobs by band of the sum of their utilisations."""
    edges = sharing_curves.BANDS
    told = sharing_curves.band_throughput(sharing_curves.SHIPPED)
    u = np.linspace(0.05, 1.0, 96)
    equal = 2 * sharing_curves.formula(sharing_curves.SHIPPED, u, u)
    axes[0].stairs(
        sharing_curves.BAND_THROUGHPUT,
        edges,
        baseline=None,
        color="C0",
        linewidth=2.4,
        label="measured, mean",
    )
    axes[0].stairs(told, edges, baseline=None, color="C1", linewidth=1.6, label="formula, mean of the band")
    axes[0].plot(2 * u, equal, color=GREY, linewidth=1.0, label="formula, two equal jobs")
    axes[0].set_ylim(1.0, 2.1)
    worst = float(np.abs(told - sharing_curves.BAND_THROUGHPUT).max())
    label(
        axes[0],
        "u1 + u2, unshared",
        "throughput of both, unshared = 1",
        f"bands: largest error {worst:.2f} of 2",
    )
    axes[0].legend()


def pairs(axes: list[Axes], _: Path) -> None:
    """Speeds of held-out pairs by the latent factors."""
    for panel, gpu in zip(axes, ("v100", "p100"), strict=True):
        data = fit_sharing.read_pairs(gpu)
        _, told = fit_sharing.held_out(data)
        found = fit_sharing.score(gpu, "unseen pair", "latent factors", told, data.speeds)
        panel.plot(told.ravel(), data.speeds.ravel(), "o", color="C0", alpha=0.4)
        panel.axvline(fit_sharing.GATE, color="C1", linewidth=1.0)
        panel.axhline(fit_sharing.GATE, color="C1", linewidth=1.0)
        diagonal(panel)
        title = f"{gpu.upper()}: R2 {found.r2:.2f}, MAE {found.mae:.3f}, {found.pairs} pairs"
        label(panel, "speed predicted, pair held out", "speed measured", title)


def slices(axes: list[Axes], _: Path) -> None:
    """Speeds on MIG slices of an A100: at the demand fitted to each case, and predicted from 1g."""
    demand = sharing_curves.fit_slices(sharing_curves.SLICE_SPEEDS)[5:]
    grid = np.linspace(0.02, 1.0, 60)
    for number, size in enumerate((1, 2, 3, 4)):
        axes[0].plot(demand, sharing_curves.SLICE_SPEEDS[:, number], "o", color=f"C{number}")
        line = [mig.slice_speed(float(d), size) for d in grid]
        axes[0].plot(grid, line, color=f"C{number}", label=f"{size}g")
    axes[0].legend()
    label(axes[0], "share of the GPU that the job needs", "speed, 7g = 1", "roofline, one fitted need a case")
    told, real = np.array(sharing_curves.held_out_slices()["from 1g"]).T
    axes[1].plot(told, real, "o", color="C0")
    diagonal(axes[1])
    mae = float(np.abs(told - real).mean())
    label(axes[1], "predicted from 1g, model unseen", "speed measured", f"2g to 4g: MAE {mae:.3f}")


CORE_PANELS = (("res50", "mobilenet", "res18", "deepspeech", "bert"), ("alexnet", "shufflenet", "m5"))
"""Models of Synergy by panel; the other text models are as BERT."""


def core_speeds(axes: list[Axes], folder: Path) -> None:
    """Throughput by CPU cores."""
    profiles = fit_models.core_profiles(folder)
    for panel, names in zip(axes, CORE_PANELS, strict=True):
        for number, name in enumerate(names):
            rows = profiles[name]
            needed, bound = cores.cores_needed(rows), max(row.throughput for row in rows)
            at = np.linspace(1.0, max(row.cores_each for row in rows), 60)
            line = [bound * cores.input_speed(float(c), needed) for c in at]
            panel.plot(*np.array(rows).T, "o", color=f"C{number}")
            panel.plot(at, line, color=f"C{number}", label=f"{name}: needs {needed:.1f}")
        panel.legend(loc="lower right" if number < 3 else "center right")
        label(panel, "CPU cores for each GPU", "throughput, three cores = 1")


def catalogue(axes: list[Axes], folder: Path) -> None:
    """Utilisation on a V100: its relation to power, and the source of each workload's figure."""
    fits = Fits(Facts(folder))
    mine = np.array([point[3:] for point in fits.points if point[0] == "V100"])
    line, error_w = fits.power_of_util
    axes[0].plot(mine[:, 0], mine[:, 1], "o", color="C0", alpha=0.6)
    ends = np.array([mine[:, 0].min(), 1.0])
    axes[0].plot(ends, np.polyval(line, ends), color="C1")
    label(axes[0], "utilisation", "dynamic power, W", f"V100: mean error {error_w:.0f} W, families held out")
    cells = sorted(
        (read_cells()[name, REFERENCE_TYPE, "util_frac"] for name in FAMILY_OF), key=lambda cell: cell.value
    )
    for number, status in enumerate((MEASURED, FITTED, ASSUMED)):
        at = [place for place, cell in enumerate(cells) if cell.status == status]
        values = [cells[place].value for place in at]
        axes[1].bar(at, values, 0.8, color=f"C{number}", label=f"{status}: {len(at)}")
    axes[1].legend()
    label(
        axes[1], "workload, by utilisation", "utilisation", f"{len(cells)} workloads of the catalogue, V100"
    )


class Plot(NamedTuple):
    """One file: its title, number of panels, and drawing function."""

    title: str
    panels: int
    fill: Callable[[list[Any], Path], None]


PLOTS = {
    "clocks": Plot("SM clock: 19 deep-learning workloads on a V100 (dots) and the model (lines)", 3, clocks),
    "caps": Plot("Power caps: Zeus' curves, and the clock model with rho and A fitted to each", 4, caps),
    "sharing": Plot("Two jobs on one GPU: Lucid's 1,091 pairs (RTX 3090)", 1, sharing),
    "pairs": Plot("Pairs that were not seen: latent factors against Gavel's measurements", 2, pairs),
    "mig": Plot("MIG slices of an A100: MISO's measurements (dots) and the model (lines)", 2, slices),
    "cores": Plot("CPU cores: Synergy's profiles (dots) and min(G, 0.40 c^0.83)", 2, core_speeds),
    "catalogue": Plot("The catalogue's utilisation", 2, catalogue),
}


def main(arguments: Iterable[str] | None = None) -> int:
    """Draw the figures; 2, with one line, if a requirement is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(PLOTS), help="default: all")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/figures"), help="folder (default: runs/figures)"
    )
    chosen = parser.parse_args(None if arguments is None else list(arguments))
    folder = fit_sharing.data_folder()
    if not (folder / "pair_speeds_gavel.csv").is_file():
        return refuse(f"expected measured data in {folder}: set RLSCHED_DATA to the shared data")
    if find_spec("matplotlib") is None:
        return refuse("expected matplotlib: pip install 'rlsched[report]'")
    from studies.figure_style import draw

    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in chosen.only or PLOTS:
        plot = PLOTS[name]
        path = chosen.out / f"{name}.svg"
        with threadpool_limits(1):  # the fits are small: threads waiting for each other would take minutes
            draw(path, plot.title, plot.panels, lambda axes, plot=plot: plot.fill(axes, folder))
        print(f"{path} ({os.path.getsize(path) / 1000:.0f} kB)")
    return 0


def refuse(message: str) -> int:
    """Print in one line what is missing."""
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
