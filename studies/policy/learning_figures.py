"""All plots about learning and scheduling, redrawn from results on disk, as SVG.

    python -m studies.policy.bar                                  # leaves results in runs/policy
    python -m studies.policy.learning_figures [--only NAME] [--out DIR]  # runs/figures
    python -m studies.policy.learning_figures --only curves --logdir runs/default --logdir runs/mine

`preemption`, `everything`, `sharing`, `good`: each case of a study as a dot, the geometric mean as a line,
over the better of `qssf` and `qssf-backfill`. `dial`: GPU energy against mean JCT. `curves`: validation of
training runs. Needs matplotlib (extra `report`), and `curves` tensorboard. Missing results are not drawn.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsched.errors import InputError, RlschedError
from studies.policy.bar_studies import STUDIES, Study, is_hand_rule, rows_of
from studies.policy.bar_tables import labels, ratio_of, result_of
from studies.policy.cases import TRACES
from studies.policy.compare import jobs_of, read_results
from studies.policy.dial_tables import beaten_by, mean_points, points
from studies.policy.opponents import read_tuned
from studies.policy.tables import best_reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TAG: Final = "validation/ppo/queue_ratio_frac"
GREY: Final = "C6"
TICKS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
STUDY_FIGURES: Final = {
    "preemption": ("preempt100", "preempt50"),
    "everything": ("everything",),
    "sharing": ("sharing",),
    "good": ("good",),
    "unseen": ("unseen100", "unseen50", "unseen"),
    "sizes": ("sizes",),
}


def study_ratios(study: Study, folder: Path) -> dict[str, list[float]]:
    """By row: the study's measure over best QSSF, one value a case that is on disk and above 0."""
    traces = study.traces([], TRACES)
    cases = study.cases(traces, "validation", None)
    rows = {trace: rows_of(study, read_tuned(), trace, []) for trace in traces}
    results = read_results(jobs_of(cases, rows), folder)
    found: dict[str, list[float]] = {}
    for label in labels(cases, rows):
        for case in cases:
            ours = result_of(case, label, rows, results)
            best = best_reference(results, case, models=study.models)
            ratio = ratio_of(study, ours, best.policy) if ours is not None and best is not None else None
            if ratio is not None and ratio.ratio > 0:
                found.setdefault(label, []).append(ratio.ratio)
    return found


def draw_study(axes: Axes, study: Study, found: dict[str, list[float]]) -> None:
    """One panel: rows from best to worst."""
    means = {label: math.exp(sum(map(math.log, some)) / len(some)) for label, some in found.items()}
    order = sorted(means, key=lambda label: means[label], reverse=True)
    for at, label in enumerate(order):
        axes.plot(found[label], [at] * len(found[label]), "o", color="C0", alpha=0.5)
        axes.plot([means[label]] * 2, [at - 0.35, at + 0.35], color="C1", linewidth=2.0)
    axes.axvline(1.0, color=GREY, linewidth=1.0)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(order)), order, fontsize=6.0)
    axes.set_xlabel("mean JCT over best QSSF" if study.measure == "jct" else "mean delay over best QSSF")
    axes.set_title(study.name, loc="left")


def draw_dial(axes: Axes, folder: Path) -> int:
    """Energy against JCT, geometric means over the cases; returns the number of rows."""
    study = STUDIES["dial"]
    cases = study.cases(list(TRACES), "validation", None)
    rows = {trace: rows_of(study, read_tuned(), trace, []) for trace in TRACES}
    results = read_results(jobs_of(cases, rows), folder)
    by_case = [found for case in cases if (found := points(case, rows[case.trace], results))]
    means = mean_points(by_case) if by_case else {}
    hand = {label: one for label, one in means.items() if is_hand_rule(label)}
    front = sorted(one for one in hand.values() if not beaten_by(one, hand))
    others = sorted(one for label, one in means.items() if label not in hand)
    axes.plot([one.jct for one in hand.values()], [one.energy for one in hand.values()], "o", color=GREY)
    axes.plot([one.jct for one in front], [one.energy for one in front], color="C0", label="hand rules")
    axes.plot([one.jct for one in others], [one.energy for one in others], "o", color="C1", label="gittins")
    axes.set_xlabel("mean JCT over qssf-backfill")
    axes.set_ylabel("GPU energy over qssf-backfill")
    axes.legend()
    return len(means)


def curve(logdir: Path) -> list[tuple[int, float]]:
    """(decisions, queueing over the reference's) of a training run's validations.

    Raises:
        InputError: The folder has none.
    """
    from rlsched.board.reader import read_runs

    run = read_runs(logdir).get(".")
    if run is None or TAG not in run.scalars:
        raise InputError(f"{logdir}: no {TAG} here; expected the --logdir of `rlsched train-rows`")
    return run.scalars[TAG]


def draw_curves(axes: Axes, logdirs: Sequence[Path]) -> None:
    """Validation of each run."""
    for logdir in logdirs:
        found = curve(logdir)
        axes.plot([step for step, _ in found], [value for _, value in found], "o-", label=logdir.name)
    axes.axhline(1.0, color=GREY, linewidth=1.0)
    axes.set_xlabel("decisions")
    axes.set_ylabel("queueing over the reference's")
    axes.legend()


def main(words: Sequence[str] | None = None) -> int:
    """Draw the requested figures; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="learning_figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (*STUDY_FIGURES, "dial", "curves")
    parser.add_argument("--only", choices=names, help="default: all with results")
    parser.add_argument("--results", type=Path, default=Path("runs/policy/bar/validation"))
    parser.add_argument("--logdir", type=Path, action="append", default=[], help="of a training run")
    parser.add_argument("--out", type=Path, default=Path("runs/figures"))
    arguments = parser.parse_args(words)
    try:
        drawn = draw_all([arguments.only] if arguments.only else names, arguments)
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if not drawn:
        print("error: nothing is on disk to draw; run `python -m studies.policy.bar`", file=sys.stderr)
        return 2
    for path in drawn:
        print(path)
    return 0


def draw_all(names: Sequence[str], arguments: argparse.Namespace) -> list[Path]:
    """Draw the figures that have results; returns their files.

    Raises:
        InputError: matplotlib is missing, or a folder has no training run.
    """
    if find_spec("matplotlib") is None:
        raise InputError("plots need matplotlib: pip install 'rlsched[report]'")
    from studies.figure_style import draw

    arguments.out.mkdir(parents=True, exist_ok=True)
    drawn: list[Path] = []

    def put(name: str, title: str, panels: int, fill: Callable[[list[Axes]], None]) -> None:
        path = arguments.out / f"{name}.svg"
        draw(path, title, panels, fill)
        drawn.append(path)

    for name in names:
        if name in STUDY_FIGURES:
            studies = [STUDIES[one] for one in STUDY_FIGURES[name]]
            there = [(one, found) for one in studies if (found := study_ratios(one, arguments.results))]
            if there:
                put(name, "Validation split, each case a dot", len(there), partial(_fill, there))
        elif name == "dial" and any(arguments.results.glob("*0.85*-models*.json")):
            put(name, "The dial, load 0.85", 1, partial(_dial, arguments.results))
        elif name == "curves" and arguments.logdir:
            put(name, "Validation while training", 1, partial(_curves, arguments.logdir))
    return drawn


def _fill(there: Sequence[tuple[Study, dict[str, list[float]]]], axes: list[Axes]) -> None:
    for one, (study, found) in zip(axes, there, strict=True):
        draw_study(one, study, found)


def _dial(folder: Path, axes: list[Axes]) -> None:
    if not draw_dial(axes[0], folder):
        raise InputError(f"{folder}: nothing of the dial; run `python -m studies.policy.bar --study dial`")


def _curves(logdirs: Sequence[Path], axes: list[Axes]) -> None:
    draw_curves(axes[0], logdirs)


if __name__ == "__main__":
    sys.exit(main())
