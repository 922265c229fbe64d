"""Cost of `rlsched evaluate` from start to end: a million jobs on 10,000 GPUs, one Markdown row.

    .venv/bin/python benchmarks/bench_evaluate.py                    # a minute and a half on one core
    .venv/bin/python benchmarks/bench_evaluate.py --jobs 100000 --policy qssf-backfill

Every run is a separate process, measured from its start to its end; the kernels are compiled before. CPU
seconds include all child processes; memory is the peak of the process's resident set. A further run measures
the CPU seconds of each phase of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

COMMAND = "python benchmarks/bench_evaluate.py"
RLSCHED = (sys.executable, "-m", "rlsched")
JOBS, GPUS, LOAD, POLICY = 1_000_000, 10_000, 0.9, "fifo"
WARM_JOBS = 64
TARGET_CPU_S, TARGET_MIB = 12.0, 1024.0
PHASES = {
    "rlsched.workload.trace.read_table": "file into cells",
    "rlsched.workload.trace.check_columns": "cells into columns, checked",
    "rlsched_agents.evaluate.simulate.predictions_for": "predictions",
    "rlsched_envs.sim.engine.Engine.__init__": "jobs and cluster as arrays",
    "rlsched_envs.sim.engine.Engine.run_rule": "replay",
    "rlsched_agents.evaluate.simulate.build_report": "metrics",
    "rlsched_agents.evaluate.tables.print_report": "tables",
}
"""Functions of the command, and the phase of each. No function calls another one of them."""


class Spent(NamedTuple):
    """Cost of one process and its children. The peak memory is at least the memory of the parent process."""

    cpu_s: float
    wall_s: float
    peak_mib: float


def spent_by(command: list[str]) -> Spent:
    """Run a command to its end.

    Raises:
        RuntimeError: The command failed.
    """
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    wall_s = time.perf_counter() - began_s
    return Spent(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss / 1024)


def make_trace(folder: Path, jobs: int, gpus: int) -> tuple[str, str]:
    """Write a synthetic trace and its cluster into this folder. Return the paths of both files."""
    trace, cluster = str(folder / f"t{jobs}.csv.gz"), str(folder / f"c{jobs}.toml")
    command = [
        *RLSCHED,
        "trace",
        "synth",
        "--like",
        "helios",
        "--predictability",
        "informative",
        "--seed",
        "1",
    ]
    command += ["--jobs", str(jobs), "--load", str(LOAD), "--gpus", str(gpus)]
    spent_by([*command, "-o", trace, "--cluster-out", cluster])
    return trace, cluster


def evaluate(trace: str, cluster: str, policy: str) -> list[str]:
    """Arguments of the measured command."""
    return ["evaluate", "--trace", trace, "--cluster", cluster, "--policy", policy]


def phases(arguments: list[str]) -> dict[str, float]:
    """CPU seconds of each phase of a command line, run in this process, which must be fresh."""
    from rlsched.cli.main import run

    spent: defaultdict[str, float] = defaultdict(float)
    with ExitStack() as undo:
        for path, phase in PHASES.items():
            of, _, name = path.rpartition(".")
            holder = resolve_name(of)
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, timed(getattr(holder, name), phase, spent))
        before_s = time.process_time()
        code = run(arguments)
    if code:
        raise RuntimeError(f"{' '.join(arguments)}: exit code {code}")
    known = {"imports": before_s} | {phase: spent[phase] for phase in PHASES.values()}
    return known | {"everything else": time.process_time() - sum(known.values())}


def timed(function: Callable[..., Any], phase: str, spent: defaultdict[str, float]) -> Callable[..., Any]:
    """Wrap a function so that its CPU seconds are added to its phase."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began_s = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[phase] += time.process_time() - began_s

    return call


def row(jobs: int, gpus: int, policy: str, runs: list[Spent]) -> str:
    """The Markdown row of some runs, medians."""
    cpu_s, wall_s, peak_mib = (statistics.median(column) for column in zip(*runs, strict=True))
    met = "met" if cpu_s < TARGET_CPU_S and peak_mib < TARGET_MIB else "**missed**"
    usual = (jobs, gpus, policy) == (JOBS, GPUS, POLICY)
    options = "" if usual else f" --jobs {jobs} --gpus {gpus} --policy {policy}"
    return (
        f"| `evaluate --policy {policy}`, whole process | {jobs:,} jobs, {gpus:,} GPUs, load {LOAD}, "
        f"median of {len(runs)} | {cpu_s:.1f} CPU s, {wall_s:.1f} s, {peak_mib:,.0f} MiB | "
        f"{TARGET_CPU_S:.0f} CPU s, {TARGET_MIB:.0f} MiB | {met} | `{COMMAND}{options}` |"
    )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs of the trace")
    parser.add_argument("--gpus", type=int, default=GPUS, help="GPUs of the cluster")
    parser.add_argument("--policy", default=POLICY, help="the policy")
    parser.add_argument("--repeats", type=int, default=3, help="number of runs; their medians are printed")
    parser.add_argument("--inner", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        print("\n" + json.dumps(phases(arguments.inner)))
        return
    jobs, gpus, policy = arguments.jobs, arguments.gpus, arguments.policy
    with tempfile.TemporaryDirectory() as folder:
        few = make_trace(Path(folder), WARM_JOBS, gpus)
        spent_by([*RLSCHED, *evaluate(*few, policy)])
        command = evaluate(*make_trace(Path(folder), jobs, gpus), policy)
        runs = [spent_by([*RLSCHED, *command]) for _ in range(arguments.repeats)]
        print("| what | setting | measured | target | | command |\n|---|---|---:|---:|---|---|")
        print(row(jobs, gpus, policy, runs), flush=True)
        done = subprocess.run(
            [sys.executable, __file__, "--inner", *command], check=True, capture_output=True, text=True
        )
    print("\n| phase | CPU s |\n|---|---:|")
    for phase, cpu_s in json.loads(done.stdout.splitlines()[-1]).items():
        print(f"| {phase} | {cpu_s:.2f} |")


if __name__ == "__main__":
    main()
