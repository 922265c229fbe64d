"""Accuracy of predictions from history, and their value.

    .venv/bin/python -m studies.predict.results --out runs/predict
    .venv/bin/python -m studies.predict.results --out runs/predict --only philly --load 1.0

Each case is a trace at a load. The nodes are scaled to the load of the test window (the last 20 % of the
time, `workload.split`), as `rlsched evaluate --load` does, and the replay starts 7 days before it. Every job
is predicted at its arrival from the jobs that had ended by then: before the replay as recorded, in it by
`fifo-backfill`; with --as-recorded, as recorded throughout, for the running mean too.
`qssf-backfill` then runs under the predictions of the running mean (0 % of the gap), under true durations
(100 %), and under the predictions of each predictor. A case's result is a file in OUT/cases; existing ones
are not run again. OUT/prediction.md and OUT/prediction.json are written from all available cases.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.workload.load import nodes_for_load, offered_load
from rlsched.workload.predict import causal_predictions
from rlsched.workload.predict.at_submission import predict_at_submission
from rlsched.workload.predict.distribution import mean_s, quantile_s, spread_around
from rlsched.workload.predict.predictor import EXPERTS
from rlsched.workload.predict.quality import quality
from rlsched.workload.predict.reference import recorded_end_s
from rlsched.workload.split import time_split
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import queue_s
from rlsched_agents.evaluate.pairs import compare
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import PredictedTimes, predict_trace, reference_end_s
from rlsched_envs.sim.job_table import JobTable
from studies.predict.tables import CaseResult, Worth, write_tables

POLICY = Policy("qssf-backfill")
LOADS = (0.85, 1.0)
REAL = (
    "philly", "helios_venus", "ms_itp_02", "ms_itp_06", "ms_itp_07", "ms_itp_08", "ms_itp_09",
)  # fmt: skip
"""ms_itp_01, 05 and 10 are left out: their test windows hold 23, 583 and 121 jobs on 8, 1 and 2 nodes."""
SYNTHETIC = ("helios-like", "philly-like", "itp-like")
SYNTHETIC_JOBS, SYNTHETIC_GPUS = 12_000, 256
FIRST_SEED = 70_000


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one load.

    Attributes:
        workload: Name of a real trace, or of a kind of synthetic one.
        load: Target load.
        seed: Seed of a synthetic trace; -1: a real trace.
        owners: Whether a synthetic trace keeps its users and names.
        recorded: Whether jobs ended as recorded within the replay too.
    """

    workload: str
    load: float
    seed: int = -1
    owners: bool = True
    recorded: bool = False

    @property
    def name(self) -> str:
        """Name of the case in the tables."""
        if self.seed < 0:
            return f"{self.workload}, recorded" if self.recorded else self.workload
        return f"{self.workload}, {'with' if self.owners else 'without'} users and names"

    @property
    def file_name(self) -> str:
        """Path of its result."""
        tail = "" if self.seed < 0 else f"-s{self.seed}-{'owners' if self.owners else 'bare'}"
        return f"{self.workload}-{self.load:g}{tail}{'-recorded' if self.recorded else ''}.json"


def workload_of(case: Case, traces: Path) -> tuple[Trace, ClusterSpec, MeasuredWindow]:
    """The trace, the cluster for its load, and the test window."""
    if case.seed < 0:
        trace = Trace.read(traces / f"{case.workload}.csv.gz")
        spec = ClusterSpec.read(traces / f"{case.workload}.cluster.toml")
        window = MeasuredWindow(*time_split(trace).test)
        return trace, nodes_for_load(trace.select(window.measured(trace)), spec, case.load), window
    trace, spec = synthesize(
        case.workload.removesuffix("-like"), SYNTHETIC_JOBS, case.load, SYNTHETIC_GPUS, seed=case.seed
    )
    if not case.owners:
        blank = np.full(len(trace), "")
        trace = dataclasses.replace(trace, user=blank, job_name=blank)
    window = MeasuredWindow(*time_split(trace).test)
    return trace, nodes_for_load(trace.select(window.measured(trace)), spec, case.load), window


def run_case(case: Case, traces: Path) -> CaseResult:
    """Predict the trace, replay the window under every predictor, and measure."""
    trace, spec, window = workload_of(case, traces)
    measured = window.measured(trace)
    if case.recorded:
        end_s = recorded_end_s(trace)
        zero = PredictedTimes(*causal_predictions(trace, end_s))
    else:
        end_s = reference_end_s(trace, spec, window.replay_from_s)
        zero = predict_trace(trace, spec, recorded_until_s=window.replay_from_s)
    began = time.process_time()
    predictions = predict_at_submission(trace, end_s)
    cpu_s = time.process_time() - began
    of = {"hedge": predictions.probabilities} | {
        name: predictions.experts[:, k].astype(np.float64) for k, name in enumerate(EXPERTS)
    }
    base = run(trace, spec, window, zero)
    truth = run(trace, spec, window, predict_trace(trace, spec, oracle=True))
    none, full = mean_queue_s(base, window), mean_queue_s(truth, window)
    worth = {}
    for name, probabilities in of.items():
        for point, predicted_s in (
            ("mean", mean_s(probabilities)),
            ("median", quantile_s(probabilities, 0.5)),
        ):
            prediction = PredictedTimes(predicted_s, spread_around(probabilities, predicted_s))
            table = run(trace, spec, window, prediction)
            got = mean_queue_s(table, window)
            ratio = compare([table], [base], window.measured(table.trace)).queue_mean_ratio
            share = (none - got) / (none - full) if none > full else None
            worth[f"{name}, {point}"] = Worth(queue_mean_s=got, gap_frac=share, ratio=ratio)
    return CaseResult(
        workload=case.name,
        real=case.seed < 0,
        load=case.load,
        load_got=offered_load(trace.select(measured), spec),
        nodes=spec.num_nodes,
        jobs=int(measured.sum()),
        seed=case.seed,
        stamp_cpu_s=cpu_s,
        trace_jobs=len(trace),
        fits=predictions.fits,
        weights=dict(zip(EXPERTS, predictions.weights[measured].mean(axis=0).tolist(), strict=True)),
        running_mean_queue_s=none,
        true_queue_s=full,
        worth=worth,
        quality={
            name: quality(one[measured], trace.duration_s[measured], trace.num_gpus[measured])
            for name, one in of.items()
        },
    )


def run(trace: Trace, spec: ClusterSpec, window: MeasuredWindow, predictions: PredictedTimes) -> JobTable:
    """`qssf-backfill` over the window under these predictions."""
    tasks = replay_tasks(trace, spec, window, predictions, [POLICY], [0])
    return run_tasks(tasks, workers=1)[0].table


def mean_queue_s(table: JobTable, window: MeasuredWindow) -> float:
    """Mean queueing delay of the measured jobs that can run, s."""
    return float(np.mean(queue_s(table)[window.measured(table.trace) & ~table.rejected]))


def cases(loads: list[float], seeds: int, only: list[str], *, recorded: bool) -> list[Case]:
    """The cases to run: real traces first."""
    real = [Case(workload=name, load=load, recorded=recorded) for name in REAL for load in loads]
    synthetic = [
        Case(workload=like, load=load, seed=FIRST_SEED + seed, owners=owners)
        for like in SYNTHETIC
        for load in loads
        for seed in range(seeds)
        for owners in (False, True)
    ]
    return [case for case in real + ([] if recorded else synthetic) if not only or case.workload in only]


def main() -> None:
    """Read the command line, run the missing cases, write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/predict"), help="folder of cases and tables")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only these workloads")
    parser.add_argument("--load", action="append", type=float, default=[], help="default: 0.85 and 1.0")
    parser.add_argument("--as-recorded", action="store_true", help="the other history; only real traces")
    parser.add_argument("--seeds", type=int, default=2, help="synthetic traces of each kind and load")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="start no case after this long")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    folder = arguments.out / "cases"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = cases(
        arguments.load or list(LOADS), arguments.seeds, arguments.only, recorded=arguments.as_recorded
    )
    if not traces.is_dir():
        print(f"no real traces in {traces} (set RLSCHED_DATA): synthetic cases only", file=sys.stderr)
        wanted = [case for case in wanted if case.seed >= 0]
    deadline = time.monotonic() + arguments.budget_s
    for case in wanted:
        path = folder / case.file_name
        if path.exists() or time.monotonic() > deadline:
            continue
        result = run_case(case, traces)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
        hedge = result.worth["hedge, mean"]
        share = "-" if hedge.gap_frac is None else f"{hedge.gap_frac:.0%}"
        print(f"{case.name} at {case.load:g}: {share} of the gap", file=sys.stderr)
    there = [folder / case.file_name for case in wanted if (folder / case.file_name).exists()]
    print(f"{len(there)} of {len(wanted)} cases available", file=sys.stderr)
    for path in write_tables(
        [msgspec.json.decode(file.read_bytes(), type=CaseResult) for file in there],
        arguments.out,
        command=" ".join(["python", *sys.argv]),
    ):
        print(path)


if __name__ == "__main__":
    main()
