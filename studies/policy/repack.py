"""Value of moving running jobs so that gangs find their GPUs together.

A rule that preempts, with migration and without, on the validation and the tuning parts, with all jobs
preemptible and with half of them:

    RLSCHED_DATA=../shared .venv/bin/python -m studies.policy.repack            # some minutes on one core
    RLSCHED_DATA=../shared .venv/bin/python -m studies.policy.repack --part validation

Each result is a file in OUT/repack; existing ones are not run again."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from studies.policy.abilities import MIGRATING, able
from studies.policy.cases import (
    MIN_TUNING_JOBS,
    TRACES,
    TUNING_LOADS,
    TUNING_PARTS,
    Case,
    cases,
    measured_jobs,
)
from studies.policy.options import add_common, add_policy, policies_of, reported
from studies.policy.runs import Job, Result, result_of, run_missing
from studies.policy.tables import header, row

PARTS: Final = ("validation", *TUNING_PARTS)
SHARES: Final = (1.0, 0.5)
LARGE: Final = "8 and more"


def table(results: dict[tuple[Case, Policy], Result], rule: Policy) -> list[str]:
    """A line for each part and share of preemptible jobs: geometric means of with over without."""
    moving = able(rule, MIGRATING)
    lines = header(
        "part", "preemptible", "cases", "mean JCT", "worst", "better", "delay", "of 8 GPUs and more", "moves"
    )
    found = sorted({case for case, _ in results}, key=lambda case: (PARTS.index(case.part), case.name))
    for part in PARTS:
        for frac in SHARES:
            mine = [case for case in found if (case.part, case.preemptible_frac) == (part, frac)]
            if not mine:
                continue

            def ratios(of: Callable[[Result], float | None], mine: Sequence[Case] = mine) -> list[float]:
                pairs = [(of(results[case, moving]), of(results[case, rule])) for case in mine]
                return [a / b for a, b in pairs if a and b]

            jct = ratios(lambda one: one.metrics.jct_mean_s)
            moves = [
                results[case, moving].metrics.migrations - results[case, rule].metrics.migrations
                for case in mine
            ]
            jobs = sum(results[case, rule].metrics.jobs for case in mine)
            lines.append(
                row(
                    part,
                    f"{frac:.0%}",
                    str(len(mine)),
                    f"{_mean(jct):.3f}",
                    f"{max(jct):.3f}",
                    str(sum(one < 1.0 for one in jct)),
                    f"{_mean(ratios(lambda one: one.measured.delay_mean_s)):.3f}",
                    f"{_mean(ratios(lambda one: one.measured.groups[LARGE].delay_mean_s)):.3f}",
                    f"{sum(moves) / jobs:+.2f} a job",
                )
            )
    return lines


def _mean(ratios: Sequence[float]) -> float:
    """Their geometric mean; nan if there are none."""
    return math.exp(float(np.log(ratios).mean())) if ratios else math.nan


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run the missing results, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="repack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser, out=Path("runs/policy"))
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    add_policy(parser, default="gittins; any policy that preempts by an index")
    return reported(_measure, parser.parse_args(words))


def _measure(arguments: argparse.Namespace) -> int:
    rule = (policies_of(arguments) or [Policy("gittins")])[0]
    if rule.settings.preempt is None:
        raise InputError(f"--policy {rule.name}: expected a rule that preempts, such as gittins")
    traces = arguments.trace or list(TRACES)
    chosen = [
        case
        for frac in SHARES
        for case in cases(traces, arguments.part or PARTS, TUNING_LOADS, preemptible_frac=frac)
        if case.part == "validation" or measured_jobs(arguments.traces, case) >= MIN_TUNING_JOBS
    ]
    jobs = [Job(case=case, policy=one) for case in chosen for one in (rule, able(rule, MIGRATING))]
    folder = arguments.out / "repack"
    if code := run_missing(jobs, arguments, folder):
        return code
    results = {(job.case, job.policy): result_of(job, folder) for job in jobs}
    print("\n".join(table(results, rule)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
