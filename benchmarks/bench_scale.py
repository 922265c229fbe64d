"""Scaling of the simulator and of single decisions: one Markdown row a measurement, with its target.

    .venv/bin/python benchmarks/bench_scale.py                      # 2 minutes on one core, kernels compiled
    .venv/bin/python benchmarks/bench_scale.py --plot scale.svg

Three parts (`--only NAME`). `million`: a replay of 1,000,000 synthetic jobs on 10,000 GPUs, each rule in a
separate process; jobs per CPU second of the replay (engine, events, decisions, job table; without the
generation of the trace), and the peak memory of the whole process. `philly`: `rlsched evaluate` of FIFO on
the Philly week at 60 nodes, CPU seconds of the whole process, against the 111 of Lucid's simulator
(PEERS.md); needs RLSCHED_DATA. `cost`: CPU time a job (its arrival, the decision, its end) of compiled rules,
and wall time of one decision of the policy, from 64 to 100,000 GPUs and from 10 to 100,000 waiting jobs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim import loop
from rlsched_envs.sim.constants import NEED_SLOTS
from rlsched_envs.sim.engine import Engine, PredictedTimes

COMMAND = "python benchmarks/bench_scale.py"
MILLION, MILLION_GPUS, MILLION_LOAD = 1_000_000, 10_000, 0.95
TARGET_JOBS_PER_S, TARGET_MIB = 500_000, 1024
LUCID_CPU_S, TARGET_TIMES = 111.0, 100.0
GPUS = (64, 256, 1_024, 4_096, 16_384, 100_000)
WAITING = (10, 100, 1_000, 10_000, 100_000)
FEW_WAITING, SMALL_GPUS = 100, 512
RULES = ("fifo", "qssf", "qssf-backfill")
MEAN_DURATION_S = 3600.0
SIZES, SIZE_ODDS = (1, 2, 4, 8), (0.6, 0.15, 0.1, 0.15)


def replay(trace: Trace, spec: ClusterSpec, name: str) -> float:
    """CPU seconds of a replay under a compiled rule, the job table included."""
    rule = Policy(name).rule
    predictions = PredictedTimes(trace.predicted_s, np.nan_to_num(trace.predicted_spread))
    began_s = time.process_time()
    table = Engine(trace, spec, order=rule.order, predictions=predictions).run_rule(rule)
    cpu_s = time.process_time() - began_s
    assert np.isfinite(table.end_s).all()
    return cpu_s


def million_inner(name: str, jobs: int) -> None:
    """One rule, in a separate process; prints a JSON line."""
    trace, spec = synthesize("helios", jobs, MILLION_LOAD, MILLION_GPUS, seed=1, predictability="informative")
    replay(trace.select(slice(0, 64)), spec, name)
    cpu_s = replay(trace, spec, name)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"jobs": len(trace), "gpus": spec.num_gpus, "cpu_s": cpu_s, "peak_mib": peak_mib}))


def verdict(met: bool) -> str:
    """The verdict for the last column."""
    return "met" if met else "**missed**"


def million(jobs: int) -> None:
    """Replay of many jobs on 10,000 GPUs."""
    for name in RULES:
        done = subprocess.run(
            [sys.executable, __file__, "--inner", name, "--jobs", str(jobs)],
            check=True,
            capture_output=True,
            text=True,
        )
        got = json.loads(done.stdout)
        speed = got["jobs"] / got["cpu_s"]
        met = speed >= TARGET_JOBS_PER_S and got["peak_mib"] < TARGET_MIB
        print(
            f"| replay, `{name}` | {got['jobs']:,} jobs, {got['gpus']:,} GPUs, load {MILLION_LOAD} | "
            f"{speed:,.0f} jobs/CPU s, {got['peak_mib']:,.0f} MiB | "
            f"{TARGET_JOBS_PER_S:,}, {TARGET_MIB} MiB | {verdict(met)} | `{COMMAND} --only million` |",
            flush=True,
        )


def philly() -> None:
    """The Philly week under FIFO, whole process."""
    folder = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "fidelity"
    if not folder.is_dir():
        print(f"<!-- philly: no {folder}; set RLSCHED_DATA -->")
        return
    command = [sys.executable, "-m", "rlsched", "evaluate", "--policy", "fifo"]
    command += ["--trace", str(folder / "philly_week.csv.gz")]
    command += ["--cluster", str(folder / "philly_week.cluster.toml")]
    spent = []
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    cpu_s = float(np.median(spent[1:]))  # the first run may compile
    print(
        f"| Philly week, `fifo` | 10,650 jobs, 60 nodes, whole process, median of 3 | {cpu_s:.2f} CPU s, "
        f"{LUCID_CPU_S / cpu_s:.0f} times less than {LUCID_CPU_S:.0f} | {TARGET_TIMES:.0f} times | "
        f"{verdict(LUCID_CPU_S / cpu_s >= TARGET_TIMES)} | `{COMMAND} --only philly` |",
        flush=True,
    )


def crowd(gpus: int, waiting: int, more: int) -> tuple[Trace, ClusterSpec]:
    """Return a trace and its cluster.

    At time 0, jobs fill the cluster and `waiting` jobs wait. Then `more` jobs arrive as fast as jobs end.
    """
    rng = np.random.default_rng([gpus, waiting])
    mean_size = float(np.dot(SIZES, SIZE_ODDS))
    first = waiting + int(1.1 * gpus / mean_size)
    jobs = first + more
    size = rng.choice(SIZES, jobs, p=SIZE_ODDS)
    duration_s = np.ceil(rng.exponential(MEAN_DURATION_S, jobs))
    gaps_s = rng.exponential(MEAN_DURATION_S * mean_size / gpus, more)
    submit_s = np.concatenate([np.zeros(first), np.cumsum(gaps_s)])
    trace = Trace.from_columns(
        name="crowd", submit_s=submit_s, duration_s=duration_s, num_gpus=size, predicted_s=duration_s
    )
    return trace, ClusterSpec.uniform(gpus // 8, 8)


def cost_of_rule(name: str, gpus: int, waiting: int) -> tuple[float, float]:
    """Return (CPU microseconds per job once the cluster is full, mean number of waiting jobs)."""
    rule = Policy(name).rule
    more = 20_000
    trace, spec = crowd(gpus, waiting, more)
    predictions = PredictedTimes(trace.predicted_s, np.ones(len(trace)))
    engine = Engine(trace, spec, order=rule.order, predictions=predictions, keep_placements=False)
    engine.state.sort_queue(False)

    play = loop.for_run(loop.run_rule, rule.steps, logged=False, modelled=False)

    def run(until_row: int) -> None:
        while play(engine.arrays, rule.options, until_row, loop.NO_CURVE) == NEED_SLOTS:
            engine._grow()

    run(len(trace) - more + 1)
    while engine.state.arrays.job.shape[0] < len(trace):
        engine._grow()
    at = engine.arrays.progress.run
    queued_s, at_s, started = float(at.queued_s[0]), float(at.now_s[0]), int(at.starts[0])
    began_s = time.process_time()
    run(len(trace))
    cpu_s = time.process_time() - began_s
    at = engine.arrays.progress.run
    mean_waiting = (float(at.queued_s[0]) - queued_s) / (float(at.now_s[0]) - at_s)
    return cpu_s / max(int(at.starts[0]) - started, 1) * 1e6, mean_waiting


def cost_of_decision(scheduler: Scheduler, gpus: int, waiting: int) -> float:
    """Median wall microseconds of one decision when a few GPUs are free."""
    rng = np.random.default_rng([gpus, waiting, 1])
    spec = ClusterSpec.uniform(gpus // 8, 8)
    state = ClusterState.from_spec(spec, OrderedQueue(scheduler.order), slots=waiting + gpus + 16)
    permit(state, scheduler)
    now_s = 1e5
    for node in range(gpus // 8):
        used = 8 if node % 8 else 5
        seq = state.add_job(num_gpus=used, submit_s=0.0, predicted_s=float(rng.exponential(9e4)), spread=1.0)
        state.start(seq, range(8 * node, 8 * node + used), float(rng.uniform(0, now_s)))
    for size, predicted_s in zip(
        rng.choice(SIZES, waiting, p=SIZE_ODDS).tolist(), rng.exponential(3600, waiting).tolist(), strict=True
    ):
        state.add_job(
            num_gpus=size, submit_s=float(rng.uniform(0, now_s)), predicted_s=predicted_s, spread=1.0
        )
    took_us = []
    for k in range(30):
        began_s = time.perf_counter()
        scheduler.decide(state, 0, now_s + k)
        took_us.append((time.perf_counter() - began_s) * 1e6)
    return float(np.median(took_us[5:]))


def cost(plot: Path | None) -> None:
    """Cost of a job under rules, and of a decision of the policy, against GPUs and waiting jobs."""
    policy = load_scheduler("ppo")
    cases = [(gpus, FEW_WAITING) for gpus in GPUS] + [(SMALL_GPUS, waiting) for waiting in WAITING]
    print(
        "\n| GPUs | waiting at first | " + " | ".join(f"`{name}` us/job (waiting)" for name in RULES), end=""
    )
    print(" | one decision of `ppo`, us |\n|---:|---:|" + "---:|" * (len(RULES) + 1))
    found: list[list[float]] = []
    for name in RULES:
        cost_of_rule(name, 64, 10)
    for gpus, waiting in cases:
        rules = [cost_of_rule(name, gpus, waiting) for name in RULES]
        decision_us = cost_of_decision(policy, gpus, waiting)
        cells = " | ".join(f"{us:.2f} ({many:,.0f})" for us, many in rules)
        print(f"| {gpus:,} | {waiting:,} | {cells} | {decision_us:,.0f} |", flush=True)
        found.append([us for us, _ in rules] + [decision_us])
    table = np.array(found)
    for part, label, xs in (
        (table[: len(GPUS)], "GPUs", GPUS),
        (table[len(GPUS) :], "waiting jobs", WAITING),
    ):
        logs = math.log(xs[-1]) / math.log(xs[0])
        for name, first, last in zip((*RULES, "ppo"), part[0], part[-1], strict=True):
            met = verdict(last / first <= logs)
            print(
                f"| growth of `{name}` | {xs[0]:,} to {xs[-1]:,} {label} | {last / first:.1f} times | "
                f"{logs:.1f} times, as the logarithm | {met} | `{COMMAND} --only cost` |"
            )
    if plot is not None:
        draw(table, plot)


def draw(table: np.ndarray, path: Path) -> None:
    """Write the plot."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "rlsched"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, part, xs, label in (
        (axes[0], table[: len(GPUS)], GPUS, f"GPUs, {FEW_WAITING} jobs waiting"),
        (axes[1], table[len(GPUS) :], WAITING, f"jobs waiting, {SMALL_GPUS} GPUs"),
    ):
        for column, name in enumerate((*RULES, "ppo, one decision")):
            axis.plot(xs, part[:, column], marker="o", label=name)
        axis.set(xscale="log", yscale="log", xlabel=label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=MILLION, help="jobs of the long replay")
    parser.add_argument("--only", action="append", choices=("million", "philly", "cost"), help="default: all")
    parser.add_argument("--plot", type=Path, help="write the cost against scale as SVG")
    parser.add_argument("--inner", choices=RULES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        million_inner(arguments.inner, arguments.jobs)
        return
    wanted = arguments.only or ("million", "philly", "cost")
    print("| what | setting | measured | target | | command |\n|---|---|---:|---:|---|---|")
    if "million" in wanted:
        million(arguments.jobs)
    if "philly" in wanted:
        philly()
    if "cost" in wanted:
        cost(arguments.plot)


if __name__ == "__main__":
    main()
