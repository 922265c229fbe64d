"""Effect of sharing on an LLM cluster: a few gangs of hundreds of GPUs, and many small jobs.

    .venv/bin/python -m studies.policy.large_gangs                       # six minutes on one core
    .venv/bin/python -m studies.policy.large_gangs --gpus 512 --seeds 10 --workloads named

Acme-like sequences (`rlsched trace synth --like acme`) under models, by rules that share and by the same
rules without. Ratios are geometric means over the sequences, with a 95 % bootstrap over them. The largest
gang has half of the cluster. Workloads are `named` by the sequence, language models that seldom share, or
`drawn` from the catalogue, which share more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.metrics import jct_s
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from studies.policy.options import reported
from studies.policy.synthetic import MEASURED
from studies.policy.tables import header, of_ratios, ratio_text, row

LARGE_GPUS: Final = 128
"""Gangs of this size or more are pretraining in an acme-like sequence."""
MUCH_WORSE: Final = 1.02
"""Sequences whose mean JCT of gangs is higher by more than this are counted."""
PLAIN: Final = {"max_jobs": 2, "min_gain": -1.0, "by_hold": 0.0}
SHARES: Final[dict[str, dict[str, dict[str, Any] | None]]] = {
    "pack": {
        "no sharing": None,
        "speed 0.85": PLAIN | {"min_speed": 0.85},
        "speed 0.7": PLAIN | {"min_speed": 0.7},
        "speed 0.5": PLAIN | {"min_speed": 0.5},
        "speed 0.5, priced": {"max_jobs": 2, "min_speed": 0.5, "min_gain": 0.0, "by_hold": 5.0},
    },
    "tuned": {
        "no sharing": None,
        "no price": {"by_hold": 0.0},
        "gain 0.3, priced": {"min_gain": 0.3},
        "priced (as shipped)": {},
    },
}
"""Settings of sharing, by rule and label. The first setting of a rule is the reference of the others."""


class Run(NamedTuple):
    """Result of one rule on one sequence, s.

    Attributes:
        jct_s: Mean JCT of the measured jobs.
        large_s: Mean JCT of the gangs among them.
        other_s: Mean JCT of all others.
        longest_hold_s: The longest time for which a GPU had a gang without a break, also by successive gangs
            that shared it.
    """

    jct_s: float
    large_s: float
    other_s: float
    longest_hold_s: float


def policies() -> dict[tuple[str, str], Policy]:
    """By rule and label."""
    return {
        (rule, label): Policy(rule, share=share).named(f"{rule}, {label}")
        for rule, shares in SHARES.items()
        for label, share in shares.items()
    }


def longest_hold_s(table: JobTable) -> float:
    """Return the longest time for which a GPU had a gang without a break, seconds.

    The time continues if a gang starts on the GPUs of a running gang. Gangs that share have the same GPUs, so
    the GPU with the lowest number represents them.
    """
    gangs = np.flatnonzero((table.trace.num_gpus >= LARGE_GPUS) & ~np.isnan(table.end_s))
    held: dict[int, tuple[float, float]] = {}
    longest_s = 0.0
    for job in gangs[np.argsort(table.start_s[gangs], kind="stable")].tolist():
        first, start_s, end_s = min(table.gpus[job]), float(table.start_s[job]), float(table.end_s[job])
        since_s, until_s = held.get(first, (start_s, start_s))
        if start_s >= until_s:
            since_s, until_s = start_s, start_s
        held[first] = since_s, max(until_s, end_s)
        longest_s = max(longest_s, held[first][1] - since_s)
    return longest_s


def run(jobs: int, load: float, gpus: int, seed: int, named: bool) -> dict[tuple[str, str], Run]:
    """Every rule on one sequence."""
    trace, spec = synthesize("acme", jobs, load, gpus, seed=seed, predictability="informative")
    if not named:
        trace = replace(trace, extra={})
    chosen = policies()
    tasks = replay_tasks(
        trace, spec, MeasuredWindow(), predict_trace(trace, spec), list(chosen.values()), [0], models=Models()
    )
    tables = {one.policy.name: one.table for one in run_tasks(tasks, workers=1)}
    since_s, until_s = (part * float(trace.submit_s[-1]) for part in MEASURED)
    measured = (trace.submit_s >= since_s) & (trace.submit_s < until_s)
    large = trace.num_gpus >= LARGE_GPUS
    found = {}
    for key, policy in chosen.items():
        table = tables[policy.name]
        spent_s = jct_s(table)
        jct, of_large, of_others = (
            float(np.mean(spent_s[which])) for which in (measured, measured & large, measured & ~large)
        )
        found[key] = Run(jct, of_large, of_others, longest_hold_s(table))
    return found


def lines_of(title: str, runs: Sequence[dict[tuple[str, str], Run]]) -> list[str]:
    """A row for each rule and setting: ratios to the same rule without sharing."""
    lines = header(
        title,
        "JCT",
        "large gangs",
        "other jobs",
        "gangs worse by 2 %",
        "worst sequence, JCT",
        "longest hold, h",
    )
    for rule, shares in SHARES.items():
        first = next(iter(shares))
        for label in shares:
            ours, theirs = ([one[rule, name] for one in runs] for name in (label, first))
            cells = [
                ratio_text(of_ratios(*([one[part] for one in some] for some in (ours, theirs))))
                for part in range(3)
            ]
            pairs = list(zip(ours, theirs, strict=True))
            worse = sum(one.large_s > MUCH_WORSE * other.large_s for one, other in pairs)
            worst = max(one.jct_s / other.jct_s for one, other in pairs)
            hold_h = float(np.mean([one.longest_hold_s for one in ours])) / 3600.0
            lines.append(row(f"`{rule}`, {label}", *cells, str(worse), f"{worst:.2f}", f"{hold_h:.0f}"))
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="large_gangs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", action="append", type=int, help="default: 512 and 1024")
    parser.add_argument("--load", type=float, default=0.9, help="[default: %(default)s]")
    parser.add_argument("--jobs", type=int, default=5000, help="[default: %(default)s]")
    parser.add_argument("--seeds", type=int, default=40, help="sequences [default: %(default)s]")
    parser.add_argument("--first-seed", type=int, default=100, help="[default: %(default)s]")
    parser.add_argument("--workloads", action="append", choices=("drawn", "named"), help="default: both")
    return reported(_large_gangs, parser.parse_args(words))


def _large_gangs(arguments: argparse.Namespace) -> int:
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for workloads in arguments.workloads or ("drawn", "named"):
        for gpus in arguments.gpus or (512, 1024):
            runs = [run(arguments.jobs, arguments.load, gpus, seed, workloads == "named") for seed in seeds]
            title = f"{gpus} GPUs, load {arguments.load:g}, workloads {workloads}, {len(runs)} sequences"
            print("\n".join([*lines_of(title, runs), ""]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
