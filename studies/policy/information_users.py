"""What users and job names are worth, on the generator: users with habits, and the same jobs without names.

    .venv/bin/python -m studies.policy.information_users
    .venv/bin/python -m studies.policy.information_users --habit 0.5 --habit 0.7 --habit 0.9 --seeds 5

Helios-like sequences in which a job's name says a given share of its run time. Each is predicted by the
running mean, by the hedge, and by the hedge of the same jobs without users and names, all from the same
reference history; EASY by size runs under each, with reservations after an hour. Rank correlations and mean
waiting are of the jobs after the first third.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policy import Policy
from rlsched.workload.describe import spearman
from rlsched.workload.predict import causal_predictions
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import spread_around
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.engine import Engine, Predictions, reference_end_s
from studies.policy.options import reported

JOBS, LOAD, GPUS = 6000, 0.95, 128
LEARNING: Final = 1 / 3
"""The first jobs are not measured: nobody is known yet."""
EASY: Final = Policy("easy", order="area^0.7", reserve_after="1h")
QSSF: Final = Policy("qssf-backfill")


class Row(NamedTuple):
    """What one predictor came to on one sequence.

    Attributes:
        rank: Spearman's correlation of predicted and true run times.
        waiting: Mean waiting under EASY / under best QSSF by the running mean.
    """

    rank: float
    waiting: float


def rows_of(trace: Trace, spec: ClusterSpec) -> dict[str, Row]:
    """By predictor."""
    end_s = reference_end_s(trace, spec)
    nobody = np.full(len(trace), "")
    nameless = replace(trace, user=nobody, job_name=nobody)
    stamps = {"running mean": Predictions(*causal_predictions(trace, end_s))}
    for name, jobs in (("hedge without names", nameless), ("hedge", trace)):
        said = predict_at_submission(jobs, end_s)
        stamps[name] = Predictions(said.median_s, spread_around(said.probabilities, said.median_s))
    stamps["true"] = Predictions(trace.duration_s, np.zeros(len(trace)))
    base = _waiting_s(trace, spec, QSSF, stamps["running mean"])
    return {
        name: Row(
            spearman(one.predicted_s[_measured(trace)], trace.duration_s[_measured(trace)]) or 0.0,
            _waiting_s(trace, spec, EASY, one) / base,
        )
        for name, one in stamps.items()
    }


def _measured(trace: Trace) -> slice:
    return slice(int(len(trace) * LEARNING), None)


def _waiting_s(trace: Trace, spec: ClusterSpec, policy: Policy, predictions: Predictions) -> float:
    rule = policy.rule
    table = Engine(trace, spec, order=rule.order, predictions=predictions).run_rule(rule)
    return float((table.start_s - trace.submit_s)[_measured(trace)].mean())


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="information_users", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--habit", action="append", type=float, help="may be repeated; default: 0.4 and 0.7")
    parser.add_argument("--seeds", type=int, default=3, help="sequences of each habit")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of each sequence")
    return reported(_tell, parser.parse_args(words))


def _tell(arguments: argparse.Namespace) -> int:
    print(
        f"{arguments.jobs:,} helios-like jobs on {GPUS} GPUs, load {LOAD:g}, {arguments.seeds} seeds each\n"
    )
    print("| habit | predictions | rank correlation | waiting of EASY / of QSSF by the running mean |")
    print("|---:|---|---:|---:|")
    for habit in arguments.habit or (0.4, 0.7):
        found: dict[str, list[Row]] = {}
        for seed in range(arguments.seeds):
            trace, spec = synthesize("helios", arguments.jobs, LOAD, GPUS, seed=seed, habit=habit)
            for name, row in rows_of(trace, spec).items():
                found.setdefault(name, []).append(row)
        for name, some in found.items():
            rank = float(np.mean([one.rank for one in some]))
            waiting = float(np.exp(np.mean(np.log([one.waiting for one in some]))))
            print(f"| {habit:g} | {name} | {rank:.2f} | {waiting:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
