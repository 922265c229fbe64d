"""Synthetic sequences and validation windows: the default policy against rules, and the rule without dials.

    .venv/bin/python -m studies.policy.results --out runs/results
    .venv/bin/python -m studies.policy.results --out runs/results --budget-s 600   # call again for the rest

Two families of cases. `synthetic`: sequences of 4,000 jobs with informative predictions after 1,000 jobs of
warm-up, one sequence a seed, on 64 GPUs, with submissions stretched so that the measured jobs have exactly
the target load. `real`: the validation window (70 to 80 % of the time) of real
traces, with causal predictions, after 7 days of warm-up. Each case is a file in OUT/cases; existing cases of
this policy are not run again. OUT/synthetic.md, OUT/real.md and OUT/results.json are
written from all available cases.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.signals import exit_with_parent
from rlsched.workload.load import nodes_for_load, offered_load
from rlsched.workload.split import time_split
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.build import build_report, paired_runs
from rlsched_agents.evaluate.pairs import compare
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import predict_trace
from studies.policy.opponents import policy_id
from studies.policy.options import add_policy, policies_of
from studies.policy.results_tables import PLAIN, REFERENCE, CaseResult, write_tables

CONTEXT = ("qssf", "fifo-backfill", "sjf-backfill")
LOADS = (0.85, 1.0)
LIKES = ("helios", "philly", "itp")
SYNTHETIC_JOBS, SYNTHETIC_WARMUP, SYNTHETIC_GPUS = 4000, 1000, 64
FIRST_SEED = 95_000
"""Traces not used while the default policy was made."""
REAL = (("helios_venus", ""), ("philly", "6214e9"), ("philly", "11cb48"), ("ms_itp_02", ""))
DRAW_SEEDS = (0, 1, 2)
"""Seeds of the policies' draws on a real window, which is only one sequence."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one load.

    Attributes:
        family: `synthetic` or `real`.
        workload: Profile of the generator, or name of the trace.
        vc: VC of the trace, "" for all of it.
        load: Target load.
        seed: Seed of the synthetic trace and of the draws.
        policy: Policy under test.
        policy_id: Its name and content.
    """

    family: str
    workload: str
    vc: str = ""
    load: float
    seed: int = 0
    policy: Policy
    policy_id: str

    @property
    def file_name(self) -> str:
        """Name of its result file."""
        parts = [self.family, self.workload, self.vc, f"{self.load:g}", str(self.seed), self.policy_id]
        return "-".join(part.replace("/", "_").replace(":", "_") for part in parts if part) + ".json"


def cases(families: list[str], seeds: int, policy: Policy) -> Iterator[Case]:
    """All cases, the loads and profiles of one seed before the next seed."""
    what = policy_id(policy)
    for workload, vc in REAL if "real" in families else ():
        for load in LOADS:
            yield Case(family="real", workload=workload, vc=vc, load=load, policy=policy, policy_id=what)
    for seed in range(FIRST_SEED, FIRST_SEED + seeds) if "synthetic" in families else ():
        for like in LIKES:
            for load in LOADS:
                yield Case(
                    family="synthetic",
                    workload=like,
                    load=load,
                    seed=seed,
                    policy=policy,
                    policy_id=what,
                )


def workload_of(case: Case, traces: Path) -> tuple[Trace, ClusterSpec, MeasuredWindow, list[int]]:
    """Trace, cluster, window and seeds of the draws."""
    if case.family == "synthetic":
        trace, spec = synthesize(
            case.workload,
            SYNTHETIC_WARMUP + SYNTHETIC_JOBS,
            case.load,
            SYNTHETIC_GPUS,
            seed=case.seed,
            predictability="informative",
        )
        window = MeasuredWindow(since_s=float(trace.submit_s[SYNTHETIC_WARMUP]))
        stretch = offered_load(trace.select(window.measured(trace)), spec) / case.load
        stretched = replace(trace, submit_s=np.rint(trace.submit_s * stretch))
        return (
            stretched,
            spec,
            MeasuredWindow(since_s=float(stretched.submit_s[SYNTHETIC_WARMUP])),
            [case.seed],
        )
    trace = Trace.read(traces / f"{case.workload}.csv.gz")
    spec = ClusterSpec.read(traces / f"{case.workload}.cluster.toml")
    window = MeasuredWindow(*time_split(trace).validation)
    if case.vc:
        trace = trace.select(trace.vc == case.vc)
        spec = ClusterSpec(
            name=f"{spec.name} {case.vc}", nodes=tuple(group for group in spec.nodes if group.vc == case.vc)
        )
    spec = nodes_for_load(trace.select(window.measured(trace)), spec, case.load)
    return trace, spec, window, list(DRAW_SEEDS)


def run_case(case: Case, traces: Path, folder: Path) -> Path:
    """Run one case and write its file atomically."""
    trace, spec, window, seeds = workload_of(case, traces)
    policies = [Policy(REFERENCE), case.policy, PLAIN, *map(Policy, CONTEXT)]
    policies = list({one.name: one for one in policies}.values())
    predictions = predict_trace(trace, spec, recorded_until_s=window.replay_from_s)
    tasks = replay_tasks(trace, spec, window, predictions, policies, seeds)
    outcomes = run_tasks(tasks, workers=1)
    tables = {
        policy.name: [one.table for one in outcomes if one.policy.name == policy.name] for policy in policies
    }
    measured = window.measured(outcomes[0].table.trace)
    result = CaseResult(
        family=case.family,
        workload=f"{case.workload} {case.vc}".strip(),
        load=case.load,
        seed=case.seed,
        policy=case.policy.name,
        policy_id=case.policy_id,
        report=build_report(trace, spec, window, seeds, outcomes, REFERENCE),
        against_plain=compare(*paired_runs(tables[case.policy.name], tables[PLAIN.name]), measured),
    )
    path = folder / case.file_name
    half_written = path.with_suffix(".part")
    half_written.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    half_written.replace(path)
    return path


def run_all(todo: list[Case], traces: Path, folder: Path, *, workers: int, budget_s: float) -> int:
    """Run cases in processes until all are done or the budget is spent; returns the number of runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    deadline = time.monotonic() + budget_s
    queue, running, done = list(todo), set[Future[Path]](), 0
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    with (
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), exit_with_parent) as pool,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        ) as bars,
    ):
        bar = bars.add_task("cases", total=len(todo))
        while running or (queue and time.monotonic() < deadline):
            while queue and len(running) < workers and time.monotonic() < deadline:
                running.add(pool.submit(run_case, queue.pop(0), traces, folder))
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                future.result()
                done += 1
                bars.advance(bar)
    return done


def main() -> None:
    """Read the command line, run the missing cases, write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of cases and tables")
    add_policy(parser, default="ppo")
    parser.add_argument("--family", action="append", choices=("synthetic", "real"), help="default: both")
    parser.add_argument("--seeds", type=int, default=20, help="synthetic sequences of each kind and load")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="start no case after this long")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    families = arguments.family or ["synthetic", "real"]
    if "real" in families and not traces.is_dir():
        print(f"no real traces in {traces} (set RLSCHED_DATA): synthetic cases only", file=sys.stderr)
        families = ["synthetic"]
    folder = arguments.out / "cases"
    folder.mkdir(parents=True, exist_ok=True)
    policies = policies_of(arguments) or [Policy("ppo")]
    wanted = [case for policy in policies for case in cases(families, arguments.seeds, policy)]
    todo = [case for case in wanted if not (folder / case.file_name).exists()]
    done = run_all(todo, traces, folder, workers=arguments.workers, budget_s=arguments.budget_s)
    there = [folder / case.file_name for case in wanted if (folder / case.file_name).exists()]
    print(f"{done} cases run, {len(there)} of {len(wanted)} available", file=sys.stderr)
    for path in write_tables(
        [msgspec.json.decode(file.read_bytes(), type=CaseResult) for file in there],
        arguments.out,
        command=" ".join(["python", *sys.argv]),
    ):
        print(path)


if __name__ == "__main__":
    main()
