"""Speed of the simulator and the policies: one Markdown row a measurement, with its command.

    .venv/bin/python benchmarks/bench_simulator.py         # 10 s on one core, more with nothing compiled yet

Compiled rules and policies replay a synthetic trace. Everything is compiled before the timing, and runs in
one thread. Speeds are per CPU second of this process, so that other load counts less; the time of a
single decision is wall time. The vector environment has its own benchmark, `bench_environment.py`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import RlschedError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models

RULES = ("fifo", "qssf", "fifo-backfill", "qssf-backfill", "tiresias", "gittins")
POLICIES = ("qssf-backfill", "random", "ppo")
PARTS = ("rules", "models", "decisions")
MODELLED = ("pack", "tuned")
LOAD, REPEATS = 0.95, 3


COMMAND = "python benchmarks/bench_simulator.py"


def row(what: str, setting: str, value: str, cpu_s: float, options: str) -> None:
    """Print one measurement."""
    print(f"| {what} | {setting} | {value} | {cpu_s:.2f} | `{COMMAND} {options}` |", flush=True)


def rules(jobs: int) -> None:
    """Jobs a second of the compiled rules, placements kept."""
    trace, spec = synthesize("helios", jobs, LOAD, 512, seed=1, predictability="informative")
    predictions = predict_trace(trace, spec)
    for name in RULES:
        rule = Policy(name).rule
        few = trace.select(slice(0, 64))
        Engine(few, spec, order=rule.order).run_rule(rule)
        engine = Engine(trace, spec, order=rule.order, predictions=predictions)
        began_s = time.process_time()
        engine.run_rule(rule)
        cpu_s = time.process_time() - began_s
        row(
            f"compiled rule `{name}`",
            f"{len(trace):,} jobs, {spec.num_gpus} GPUs, load {LOAD}",
            f"{len(trace) / cpu_s:,.0f} jobs/s",
            cpu_s,
            f"--only rules --jobs {jobs}",
        )


def modelled(jobs: int) -> None:
    """Jobs a second of rules that share, set clocks and cores, under models on 1,024 GPUs."""
    trace, spec = synthesize("helios", jobs, LOAD, 1_024, seed=1, predictability="informative")
    predictions = predict_trace(trace, spec)
    for name in MODELLED:
        rule = Policy(name).rule
        Engine(trace.select(slice(0, 64)), spec, order=rule.order, models=Models()).run_rule(rule)
        took_s = []
        for _ in range(REPEATS):
            engine = Engine(trace, spec, order=rule.order, predictions=predictions, models=Models())
            began_s = time.process_time()
            engine.run_rule(rule)
            took_s.append(time.process_time() - began_s)
        row(
            f"compiled rule `{name}`, models, best of {REPEATS}",
            f"{len(trace):,} jobs, {spec.num_gpus} GPUs, load {LOAD}",
            f"{len(trace) / min(took_s):,.0f} jobs/s",
            min(took_s),
            f"--only models --modelled {jobs}",
        )


def decisions(jobs: int) -> None:
    """Time of single decisions through the `Scheduler` interface, as the broker takes them."""
    trace, spec = synthesize("helios", jobs, LOAD, 64, seed=2, predictability="informative")
    predictions = predict_trace(trace, spec)
    for name in POLICIES:
        try:
            scheduler = load_scheduler(name)
        except RlschedError as error:
            print(f"<!-- {name}: {error} -->")
            continue
        _replay(trace.select(slice(0, 64)), spec, name)
        engine = Engine(trace, spec, order=scheduler.order, predictions=predictions)
        cpu = time.process_time()
        table = engine.run(scheduler)
        p50, p99, p999 = np.percentile(table.decision_us, [50, 99, 99.9])
        row(
            f"one decision of `{name}`",
            f"{table.decisions:,} decisions, {spec.num_gpus} GPUs, load {LOAD}",
            f"p50 {p50:,.0f} us, p99 {p99:,.0f} us, p99.9 {p999:,.0f} us",
            time.process_time() - cpu,
            f"--only decisions --decisions {jobs}",
        )


def _replay(trace: Trace, spec: ClusterSpec, name: str) -> JobTable:
    scheduler = load_scheduler(name)
    return Engine(trace, spec, order=scheduler.order).run(scheduler)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs of the trace for the compiled rules")
    parser.add_argument("--decisions", type=int, default=4_000, help="jobs of the trace for single decisions")
    parser.add_argument("--modelled", type=int, default=20_000, help="jobs of the trace under models")
    parser.add_argument("--only", action="append", choices=PARTS, help="default: all")
    arguments = parser.parse_args()
    wanted = arguments.only or PARTS
    print("| what | setting | speed | CPU s | command |\n|---|---|---|---:|---|")
    if "rules" in wanted:
        rules(arguments.jobs)
    if "models" in wanted:
        modelled(arguments.modelled)
    if "decisions" in wanted:
        decisions(arguments.decisions)


if __name__ == "__main__":
    main()
