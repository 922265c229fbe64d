"""Value of users and job names, on the generator: users with habits, and the same jobs without names.

    .venv/bin/python -m studies.policy.information_users
    .venv/bin/python -m studies.policy.information_users --habit 0.5 --habit 0.7 --habit 0.9 --seeds 5

Helios-like sequences in which a job's name explains a given share of its run time. Each is predicted by the
running mean, by the hedge, by the hedge of the same jobs without users and names, and by the best prediction
from names (`studies.policy.habits`), all from the same reference history. Under each run EASY by size with
reservations after an hour, and QSSF with backfill; `--counted` appends the run's number to every name, as
users do. Rank correlations and mean waiting are of the jobs after the first third.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.describe import spearman
from rlsched.workload.predict import causal_predictions
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import spread_around
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes, reference_end_s
from studies.policy.habits import best_by_name
from studies.policy.options import reported

LIKE, JOBS, LOAD, GPUS = "helios", 6000, 0.95, 128
LEARNING: Final = 1 / 3
"""The first jobs are not measured: no user is known yet."""
EASY: Final = Policy("easy", order="area^0.7", reserve_after="1h")
QSSF: Final = Policy("qssf-backfill")


class Row(NamedTuple):
    """Result of one predictor on one sequence.

    Attributes:
        rank: Spearman's correlation of predicted and true run times.
        off: Mean |ln(true / predicted)|: twice the pinball loss of the median of the logarithm.
        easy: Mean waiting time under EASY / mean waiting time under QSSF with the running mean.
        qssf: Mean waiting time under QSSF / mean waiting time under QSSF with the running mean.
    """

    rank: float
    off: float
    easy: float
    qssf: float


def rows_of(trace: Trace, spec: ClusterSpec, habit: float, *, counted: bool = False) -> dict[str, Row]:
    """Return the results by predictor; `counted`: predictors see names followed by the run's number."""
    end_s = reference_end_s(trace, spec)
    nobody = np.full(len(trace), "")
    nameless = replace(trace, user=nobody, job_name=nobody)
    numbered = np.array([f"{name}_{run}" for run, name in enumerate(trace.job_name.tolist())])
    named = replace(trace, job_name=numbered) if counted else trace
    stamps = {"running mean": PredictedTimes(*causal_predictions(trace, end_s))}
    for name, jobs in (("hedge without names", nameless), ("hedge", named)):
        said = predict_at_submission(jobs, end_s)
        stamps[name] = PredictedTimes(said.median_s, spread_around(said.probabilities, said.median_s))
    best_s = best_by_name(trace, end_s, LIKE, habit)
    stamps["best by name"] = PredictedTimes(best_s, np.zeros(len(trace)))
    stamps["true"] = PredictedTimes(trace.duration_s, np.zeros(len(trace)))
    measured = _measured(trace)
    base = _waiting_s(trace, spec, QSSF, stamps["running mean"])
    return {
        name: Row(
            spearman(one.predicted_s[measured], trace.duration_s[measured]) or 0.0,
            float(np.abs(np.log(trace.duration_s / one.predicted_s))[measured].mean()),
            _waiting_s(trace, spec, EASY, one) / base,
            _waiting_s(trace, spec, QSSF, one) / base,
        )
        for name, one in stamps.items()
    }


def _measured(trace: Trace) -> slice:
    return slice(int(len(trace) * LEARNING), None)


def _waiting_s(trace: Trace, spec: ClusterSpec, policy: Policy, predictions: PredictedTimes) -> float:
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
    parser.add_argument("--counted", action="store_true", help="names end in the number of the run")
    return reported(_tell, parser.parse_args(words))


def _tell(arguments: argparse.Namespace) -> int:
    print(
        f"{arguments.jobs:,} helios-like jobs on {GPUS} GPUs, load {LOAD:g}, {arguments.seeds} seeds each; "
        "waiting over that of QSSF by the running mean\n"
    )
    print("| habit | predictions | rank correlation | mean abs ln | EASY | QSSF |")
    print("|---:|---|---:|---:|---:|---:|")
    for habit in arguments.habit or (0.4, 0.7):
        found: dict[str, list[Row]] = {}
        for seed in range(arguments.seeds):
            trace, spec = synthesize(LIKE, arguments.jobs, LOAD, GPUS, seed=seed, habit=habit)
            for name, row in rows_of(trace, spec, habit, counted=arguments.counted).items():
                found.setdefault(name, []).append(row)
        for name, some in found.items():
            rank, off, easy, qssf = zip(*some, strict=True)
            print(
                f"| {habit:g} | {name} | {np.mean(rank):.2f} | {np.mean(off):.2f} | "
                f"{_ratio(easy)} | {_ratio(qssf)} |",
                flush=True,
            )
    return 0


def _ratio(found: Sequence[float]) -> str:
    """The geometric mean, with a 95 % bootstrap interval over the sequences."""
    logs = np.log(np.array(found))
    drawn = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return f"{np.exp(logs.mean()):.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    sys.exit(main())
