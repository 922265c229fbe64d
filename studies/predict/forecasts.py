"""Accuracy of forecasts of starts and ends, on the validation parts of four traces.

    .venv/bin/python -m studies.predict.forecasts --policy tuned --load 0.95

A trace is replayed under a policy with causal predictions. At regular times the state is
simulated forward, as the forecaster of a broker does; a job's first forecast counts, the one at the first
time after its submission. Corrections are learned on the way, from earlier outcomes; forecasts of the two
weeks before the part are used for learning, and not counted. Choices are made on `--part train3`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.decisions.schema import ForecastSeen as Seen
from rlsched.forecast.arrivals import RecentJobs
from rlsched.forecast.keeping import Keeping, LiveJob
from rlsched.forecast.record import RULES, SIZES, Score, score, size_class, size_words
from rlsched.forecast.world import World
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.play_forward import PlayForward
from studies.policy.cases import PARTS, TRACES, Case, Workload, workload_of

BEFORE_S = 14 * 86_400.0
LEAST_JOBS = 100
"""Minimum number of jobs of a size class that is shown."""


def forecasts_of(
    work: Workload, policy: Policy, every_s: float, futures: int
) -> tuple[list[Seen], float, int]:
    """Return (forecasts of a part's jobs with outcomes, CPU seconds of refreshes, number of refreshes)."""
    since_s = work.window.since_s
    begin = int(np.searchsorted(work.trace.submit_s, since_s - BEFORE_S))
    trace = work.trace.select(slice(begin, None))
    predictions = predict_trace(work.trace, work.spec)
    mine = type(predictions)(*(part[begin:] for part in predictions))
    rule = policy.rule
    engine = Engine(trace, work.spec, order=rule.order, predictions=mine, keep_placements=False)
    truth = engine.arrays.truth
    player, keeping, past = PlayForward(futures), Keeping(), RecentJobs()
    cpu_s, refreshes, known = 0.0, 0, 0
    settled: list[Seen] = []
    for row in engine.looks(rule, every_s):
        now_s = engine.now_s
        for k in range(known, row):
            one = truth[k]
            past.add(
                (
                    k,
                    one.submit_s,
                    math.nan,
                    one.predicted_s,
                    one.spread,
                    one.limit_s,
                    one.demand,
                    one.vc,
                    one.pinned,
                )
            )
        known = row
        outcome = engine.arrays.progress.outcome
        for job in keeping.open_jobs():
            keeping.saw(job, outcome.start_s[int(job)], outcome.end_s[int(job)])
        for k in past.unfinished():
            if not math.isnan(outcome.end_s[k]):
                past.ran(k, float(outcome.end_s[k] - outcome.start_s[k]))
        settled += [one for one in keeping.take_outcomes() if one.said_s >= since_s]
        ends = engine.arrays.progress.ends.row
        live = {
            int(engine.state.arrays.job.seq[slot]): LiveJob(
                str(int(ends[slot])), float(truth.gpus[ends[slot]])
            )
            for slot in np.flatnonzero(engine.state.arrays.job.status > 0)
        }
        numbers = {seq: int(one.job) for seq, one in live.items()}
        world = World(engine.state, rule, now_s, {}, past, numbers)
        if keeping.has_new(live):
            began = time.process_time()
            keeping.correct(player.play(world), player.list_schedule(world), live, now_s)
            cpu_s += time.process_time() - began
            refreshes += 1
    return settled, cpu_s, refreshes


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="tuned")
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--every-s", type=float, default=1800.0)
    parser.add_argument("--futures", type=int, default=64)
    parser.add_argument("--traces", nargs="*", default=list(TRACES))
    parser.add_argument("--part", choices=PARTS, default="validation")
    options = parser.parse_args()
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    print_title()
    for name in options.traces:
        case = Case(trace=name, part=options.part, load=options.load)
        work = workload_of(folder, case)
        seen, cpu_s, refreshes = forecasts_of(
            work, Policy.of(options.policy), options.every_s, options.futures
        )
        print_scores(name, seen)
        print(f"{name}: {refreshes:,} refreshes, {cpu_s / max(refreshes, 1):.2f} CPU s each", flush=True)
    return 0


def print_title() -> None:
    """Print the head of the table."""
    cells = [
        "trace",
        "what",
        "GPUs",
        "forecasts",
        "in 10-90 %",
        "pinball loss, s",
        *(f"{r}, s" for r in RULES),
    ]
    print("| " + " | ".join([*cells, "of best"]) + " |")
    print("|" + "---|" * (len(cells) + 1))


def print_scores(name: str, seen: Sequence[Seen], least: int = LEAST_JOBS) -> None:
    """Print the rows of a trace: for all jobs, and for each size class with at least `least` jobs."""
    of: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for one in seen:
        of[one.what, "all"].append(one)
        of[one.what, size_words(size_class(one.num_gpus))].append(one)
    for what in ("start", "end", "end-running"):
        for size in ("all", *map(size_words, range(len(SIZES)))):
            found = score(of.get((what, size), []))
            if found is not None and (size == "all" or found.jobs >= least):
                print(_row(name, what, size, found), flush=True)


def _row(name: str, what: str, size: str, found: Score) -> str:
    rules = [found.rules[rule] for rule in RULES]
    best = min((value for value in rules if value is not None), default=math.nan)
    cells = [name, what, size, f"{found.jobs:,}", f"{found.covered_frac:.1%}", f"{found.loss_s:,.0f}"]
    cells += ["-" if value is None else f"{value:,.0f}" for value in rules]
    return "| " + " | ".join([*cells, f"{found.loss_s / best:.2f}"]) + " |"


if __name__ == "__main__":
    sys.exit(main())
