"""Value of learned predictions to the rules: the hedge against the running mean, policy by policy.

    .venv/bin/python -m studies.policy.information choose     # on windows of the training part
    .venv/bin/python -m studies.policy.information confirm    # on validation parts, also of other clusters

`choose` compares points (mean, median) and uses of the spread on the training part, and prints the
best; `confirm` compares the choice with the running mean on held-out windows. Both sides
get the same jobs, the same cluster and the same reference history. Results are files in OUT/cases, and
existing ones are not run again; Ctrl-C and `--budget-s` keep finished ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.pairs import Ratio, geometric_mean
from studies.policy.abilities import REVISED, able
from studies.policy.cases import TRACES, UNSEEN, Case, Foresight, cases
from studies.policy.options import add_common, reported
from studies.policy.runs import Job, Result, missing, result_of, run_missing
from studies.policy.tables import LEAST_RATIO
from studies.policy.tune import tuning_cases

CHOOSING: Final = ("train2", "train3")
LOADS: Final = (0.85, 0.95, 1.05)
SKIPPED_LOAD: Final = 0.95
"""The middle load is not used for choosing: it adds little to its neighbours."""
LEAST_JOBS: Final = 1000
PREDICTORS: Final[tuple[Foresight, ...]] = ("causal", "hedge-mean", "hedge-median")
FITTED: Final[Foresight] = "hedge-fitted"
SPREADS: Final = ((1.5, 0.0), (1.0, 0.5), (0.5, 1.0), (0.1, 1.0))
"""(added spread, trust in a prediction's own) of the Gittins index; the first is the present value."""


def _gittins(spread: float, trust: float, *, of_mean: bool = False) -> Policy:
    name = f"gittins {spread:g} {trust:g}{' of mean' if of_mean else ''}"
    return Policy("gittins", name=name, preempt={"spread": spread, "trust": trust, "of_mean": of_mean})


EASY: Final = Policy("easy", name="easy area^0.7 1h", order="area^0.7", reserve_after="1h")
INDEXED: Final = tuple(_gittins(*one) for one in SPREADS)
OF_MEAN: Final = tuple(_gittins(*one, of_mean=True) for one in ((0.5, 1.0), (1.0, 0.5), (1.0, 1.0)))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions, and the compared policies.

    Attributes:
        name: Name in the tables.
        preemptible_frac: Share of the jobs that may be preempted.
        measure: Mean delay, or mean JCT.
        policies: The policies; the first is the present one, under the running mean.
        of_mean: Policies that treat a prediction as a mean.
    """

    name: str
    preemptible_frac: float
    measure: Literal["delay", "jct"]
    policies: tuple[Policy, ...]
    of_mean: tuple[Policy, ...] = ()

    def jobs(self, every: Sequence[Case], arms: Sequence[Arm]) -> list[Job]:
        """A job for every case and arm."""
        return [self.job(case, arm) for case in every for arm in arms]

    def job(self, case: Case, arm: Arm) -> Job:
        """One policy on one case under one predictor."""
        policy, predictions = arm
        changed = msgspec.structs.replace(
            case, preemptible_frac=self.preemptible_frac, predictions=predictions
        )
        return Job(case=changed, policy=policy)

    @property
    def arms(self) -> list[Arm]:
        """All policies under all predictors, the present one first."""
        plain = [(policy, predictions) for predictions in PREDICTORS for policy in self.policies]
        return plain + [(policy, FITTED) for policy in self.of_mean]


Arm = tuple[Policy, Foresight]
SETTINGS: Final = (
    Setting(
        name="no preemption", preemptible_frac=1.0, measure="delay", policies=(able(EASY, REVISED), EASY)
    ),
    Setting(name="all preemptible", preemptible_frac=1.0, measure="jct", policies=INDEXED, of_mean=OF_MEAN),
    Setting(
        name="half preemptible",
        preemptible_frac=0.5,
        measure="jct",
        policies=tuple(one for plain in (INDEXED[0], INDEXED[2]) for one in (able(plain, REVISED), plain)),
        of_mean=tuple(one for plain in OF_MEAN for one in (able(plain, REVISED), plain)),
    ),
)


def value_of(result: Result, setting: Setting) -> float:
    """Measure of a setting for one result, seconds."""
    found = result.measured.delay_mean_s if setting.measure == "delay" else result.metrics.jct_mean_s
    return float(found) if found is not None else float("nan")


def ratios(setting: Setting, every: Sequence[Case], arm: Arm, folder: Path) -> dict[str, float]:
    """Return by case: the arm's measure / the measure of the present policy under the running mean."""
    found = {}
    for case in every:
        mine, base = (setting.job(case, one) for one in (arm, setting.arms[0]))
        if mine.path(folder).exists() and base.path(folder).exists():
            ours, theirs = (value_of(result_of(job, folder), setting) for job in (mine, base))
            if theirs > 0.0:
                found[case.name] = max(ours / theirs, LEAST_RATIO)
    return found


def table(title: str, rows: Sequence[tuple[str, dict[str, float]]], groups: dict[str, list[str]]) -> str:
    """Geometric means of ratios: over all cases, with an interval, and over groups of them."""
    lines = [
        f"### {title}\n",
        "| policy, predictions | all | better in | " + " | ".join(groups) + " |",
        "|---|---:|---:|" + "---:|" * len(groups),
    ]
    for label, found in rows:
        whole = geometric_mean(np.array(list(found.values())))
        better = f"{sum(one < 1.0 for one in found.values())} of {len(found)}"
        parts = [
            geometric_mean(np.array([found[one] for one in names if one in found]))
            for names in groups.values()
        ]
        cells = [f"{part.ratio:.3f}" if part is not None else "-" for part in parts]
        interval = (
            f" [{whole.low:.3f}, {whole.high:.3f}]" if whole is not None and whole.low is not None else ""
        )
        mean = f"{whole.ratio:.3f}{interval}" if whole is not None else "-"
        lines.append(f"| {label} | {mean} | {better} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(found: Ratio | None) -> str:
    if found is None:
        return "-"
    return f"{found.ratio:.3f}" + (f" [{found.low:.3f}, {found.high:.3f}]" if found.low is not None else "")


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing results, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="information", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=("choose", "confirm"))
    add_common(parser, out=Path("runs/information"))
    return reported(_information, parser.parse_args(words))


def _information(arguments: argparse.Namespace) -> int:
    folder = arguments.out / "cases"
    todo, _, _ = tuning_cases(arguments.traces, arguments.trace or list(TRACES), LEAST_JOBS)
    chosen_on = [case for case in todo if case.part in CHOOSING and case.load != SKIPPED_LOAD]
    if arguments.stage == "choose":
        return _report(arguments, chosen_on, {one.name: one.arms for one in SETTINGS}, folder)
    best = {one.name: _best(one, chosen_on, folder) for one in SETTINGS}
    traces = arguments.trace or [*TRACES, *UNSEEN]
    fresh = cases(traces, ["validation"], LOADS)
    return _report(arguments, fresh, best, folder)


def _best(setting: Setting, every: Sequence[Case], folder: Path) -> list[Arm]:
    """Return the present arm, the best arm under the hedge, and its policy under the running mean.

    The best arm is chosen on the training part.
    """
    if missing(setting.jobs(every, setting.arms), folder):
        print(f"{setting.name}: the training part is incomplete; run `choose` first", file=sys.stderr)
    scores = {}
    for arm in setting.arms[len(setting.policies) :]:
        found = ratios(setting, every, arm, folder)
        if found:
            scores[arm] = float(np.log(list(found.values())).mean())
    best = min(scores, key=lambda arm: scores[arm])
    return list(dict.fromkeys([setting.arms[0], best, (best[0], "causal")]))


def _report(
    arguments: argparse.Namespace, every: Sequence[Case], arms: dict[str, list[Arm]], folder: Path
) -> int:
    jobs = [job for setting in SETTINGS for job in setting.jobs(every, arms[setting.name])]
    jobs.sort(key=lambda job: (job.case.trace, job.case.part, job.case.load, job.case.name))
    code = run_missing(jobs, arguments, folder)
    groups: dict[str, list[str]] = {}
    for case in every:
        groups.setdefault(case.trace, []).append(case.name)
    text = []
    for setting in SETTINGS:
        rows = [
            (f"{policy.name}, {predictions}", ratios(setting, every, (policy, predictions), folder))
            for policy, predictions in arms[setting.name]
        ]
        first = setting.arms[0][0].name
        title = f"{setting.name}: mean {setting.measure} over that of {first} under the running mean"
        text.append(table(title, rows, groups))
    print("\n\n".join(text))
    (arguments.out / f"{arguments.stage}.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
