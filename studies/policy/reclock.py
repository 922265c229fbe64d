"""What it is worth to change the clocks of running jobs as the queue grows and shrinks.

Rules of the dial with `+reclock=TIME` against the same without, on the validation and the tuning parts:

    RLSCHED_DATA=../shared .venv/bin/python -m studies.policy.reclock            # some minutes on one core
    RLSCHED_DATA=../shared .venv/bin/python -m studies.policy.reclock --part validation

Each result is a file in OUT/reclock; what is there already is not run again."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.policy.bar_studies import GATE, STUDIES, WEIGHTS, setting_of, usable_of
from studies.policy.cases import MIN_TUNING_JOBS, TRACES, Case, measured_jobs
from studies.policy.dial_tables import Point, gpu_kwh
from studies.policy.opponents import TUNED_FILE, read_tuned
from studies.policy.options import add_common, reported
from studies.policy.runs import Job, Result, read_result, run_missing
from studies.policy.tables import header, row

STUDY: Final = STUDIES["dial"]
PARTS: Final = ("validation", "train3", "train2", "train1")
BASE: Final = "qssf-backfill"
RESAMPLES: Final = 4_000


class Pair(NamedTuple):
    """One rule on one case, without and with changes; both over `qssf-backfill` at full clocks."""

    weight: float
    kept: Point
    changed: Point

    @property
    def ratios(self) -> tuple[float, float, float]:
        """ln of with over without: mean JCT, GPU energy, (1 - W) x the one + W x the other."""
        w = self.weight
        costs = [(1.0 - w) * one.jct + w * one.energy for one in (self.changed, self.kept)]
        return (
            math.log(self.changed.jct / self.kept.jct),
            math.log(self.changed.energy / self.kept.energy),
            math.log(costs[0] / costs[1]),
        )


def interval(by_case: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high) of exp(x), 95 %, over cases drawn again and again. `by_case`: (cases,)."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(by_case), (RESAMPLES, len(by_case)))
    low, high = np.percentile(by_case[drawn].mean(axis=1), [2.5, 97.5])
    return math.exp(float(by_case.mean())), math.exp(float(low)), math.exp(float(high))


def table(pairs: dict[str, dict[str, list[Pair]]]) -> list[str]:
    """A line for each rule and weight, and one over all weights; `pairs`: by rule and case, by weight."""
    lines = header("rule", "weight", "cases", "mean JCT", "GPU energy", "weighed")
    for rule, by_case in pairs.items():
        ratios = np.array([[pair.ratios for pair in found] for found in by_case.values()])  # (cases, W, 3)
        weights = [pair.weight for pair in next(iter(by_case.values()))]
        for at, weight in enumerate(weights):
            means = np.exp(ratios[:, at].mean(axis=0))
            lines.append(row(f"`{rule}`", f"{weight:g}", str(len(ratios)), *(f"{one:.3f}" for one in means)))
        spans = [interval(ratios.mean(axis=1)[:, column]) for column in range(3)]
        lines.append(
            row(f"`{rule}`", "all", str(len(ratios)), *(f"{m:.3f} [{a:.3f}, {b:.3f}]" for m, a, b in spans))
        )
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run what is missing, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="reclock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy"))
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--reclock", default="10m", metavar="TIME", help="how long a clock is kept")
    return reported(_measure, parser.parse_args(words))


def _measure(arguments: argparse.Namespace) -> int:
    rules = [f"{one}+share={GATE:g}" for one in (BASE, _gittins())]
    cases = [
        case
        for part in arguments.part or PARTS
        for case in STUDY.cases(arguments.trace or list(TRACES), part)
        if part == "validation" or measured_jobs(arguments.traces, case) >= MIN_TUNING_JOBS
    ]
    folder = arguments.out / "reclock"
    jobs = [_job(case, BASE) for case in cases]
    jobs += [_job(case, name) for case in cases for one in _names(rules, arguments.reclock) for name in one]
    jobs.sort(key=lambda job: cases.index(job.case))
    if code := run_missing(jobs, arguments, folder):
        return code
    results = {(job.case, job.policy): read_result(job.path(folder)) for job in jobs}
    print("\n".join(table(_pairs(rules, cases, results, arguments.reclock))))
    return 0


def _gittins() -> str:
    one = usable_of(read_tuned(TUNED_FILE), setting_of(STUDY, "gittins"), "gittins")
    return one.chosen if one is not None else "gittins"


def _job(case: Case, policy: str) -> Job:
    return Job(case=case, policy=policy, models=True)


def _names(rules: Sequence[str], reclock: str) -> list[tuple[str, str]]:
    """Without and with changes, for each weight at which both time and energy count."""
    plain = [f"{rule}+weight={weight}" for rule in rules for weight in WEIGHTS[1:-1]]
    return [(name, f"{name}+reclock={reclock}") for name in plain]


def _pairs(
    rules: Sequence[str], cases: Sequence[Case], results: dict[tuple[Case, str], Result], reclock: str
) -> dict[str, dict[str, list[Pair]]]:
    until_s = {
        case: max(one.measured.replay_s or 0.0 for (of, _), one in results.items() if of == case)
        for case in cases
    }

    def point(case: Case, name: str) -> Point:
        one, base = results[case, name], results[case, BASE]
        return Point(
            (one.metrics.jct_mean_s or 0.0) / (base.metrics.jct_mean_s or 1.0),
            gpu_kwh(one, until_s[case]) / gpu_kwh(base, until_s[case]),
        )

    return {
        rule: {
            case.name: [
                Pair(float(weight), point(case, kept), point(case, changed))
                for weight, (kept, changed) in zip(WEIGHTS[1:-1], _names([rule], reclock), strict=True)
            ]
            for case in cases
        }
        for rule in rules
    }


if __name__ == "__main__":
    sys.exit(main())
