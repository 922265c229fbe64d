"""Rules with sharing, clocks and cores, on real traces under the models of speed and power.

    nice -n 10 .venv/bin/python -m studies.policy.energy_table --out runs/energy

For each trace, jobs of the last fifth of its time, at load 0.9, after 7 days of warm-up. All choices run
under models with the same draw of workloads; the main ones again with the catalogue's assumed figures at 0.7
and 1.3 of their value, and with two other draws. OUT/NAME.json has every choice, OUT/tables.md the tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.load import offered_load
from rlsched.workload.split import time_split
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import Metrics, schedule_metrics
from rlsched_agents.evaluate.modelled import Basis
from rlsched_agents.evaluate.pairs import compare
from rlsched_agents.evaluate.run import replay_tasks, run_task, say_nothing
from rlsched_agents.evaluate.windows import MeasuredWindow, scaled_cluster
from rlsched_envs.sim.engine import predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from studies.policy.abilities import CORES, SHARING, able, fixed_clock, lull, share, slowdown, weighed
from studies.policy.energy_rows import (
    CROWDED,
    MAIN,
    REFERENCE,
    Case,
    ChoiceResult,
    Some,
    best_choices,
    section,
)

TRACES = ("philly", "helios_venus", "ms_itp_02")
LOAD = 0.9
RULES = ("fifo-backfill", "sjf-backfill", "easy", "reserve")
"""Rules in addition to the reference."""
CLOCKS: tuple[Some, ...] = ((), (fixed_clock(0.75),), (slowdown(0.05),), (lull(0.05),))
MORE_CLOCKS: tuple[Some, ...] = (
    (fixed_clock(0.87),),
    (slowdown(0.02),),
    (slowdown(0.1),),
    (lull(0.1),),
    (weighed(0.2),),
    (weighed(0.5),),
)
"""Abilities of the reference rule and Lucid's, which also have *cores*; the reference also shares at 0.7."""
ALONE = ("tiresias", "srtf")
"""Rules that preempt; they take no abilities."""
PROFILED = {"philly": Policy("lucid", name="lucid 80", profile={"run": "80s"})}
"""Lucid's profiling time on Philly; 200 s elsewhere."""
VARIATIONS = (
    ("assumed figures x 0.7", Models(assumed_scale=0.7)),
    ("assumed figures x 1.3", Models(assumed_scale=1.3)),
    ("workloads drawn with seed 1", Models(workload_seed=1)),
    ("workloads drawn with seed 2", Models(workload_seed=2)),
)


def choices(trace: str) -> Iterator[tuple[Policy, Some]]:
    """All static choices, the reference first: the rule, and its abilities."""
    every = (*CLOCKS, *MORE_CLOCKS)
    grids: list[tuple[Policy, Iterable[tuple[Some, ...]]]] = [
        (REFERENCE, product(((), (SHARING,), (share(0.7),)), every, ((), (CORES,)))),
        (lucid_on(trace), product(every, ((), (CORES,)))),
        *((Policy(rule), product(((), (SHARING,)), CLOCKS)) for rule in RULES),
        (REFERENCE, (((CROWDED,),), ((CROWDED,), (slowdown(0.05),)))),
        *((Policy(rule), ((),)) for rule in ALONE),
    ]
    for rule, grid in grids:
        for parts in grid:
            yield rule, tuple(one for part in parts for one in part)


def lucid_on(trace: str) -> Policy:
    """Lucid's rule, with its profiling time on this trace."""
    return PROFILED.get(trace, Policy("lucid"))


class Workload:
    """One trace at one load, and its reference run under some models."""

    def __init__(self, folder: Path, name: str, models: Models) -> None:
        self.trace = Trace.read(folder / f"{name}.csv.gz")
        self.window = MeasuredWindow(since_s=time_split(self.trace).test[0])
        spec = ClusterSpec.read(folder / f"{name}.cluster.toml")
        self.spec = scaled_cluster(self.trace, spec, self.window, nodes=None, load=LOAD)
        self.load = offered_load(self.trace.select(self.window.measured(self.trace)), self.spec)
        self.predictions = predict_trace(self.trace, self.spec, recorded_until_s=self.window.replay_from_s)
        self.use(models)

    def use(self, models: Models) -> None:
        """Run the reference under other models."""
        self.models = models
        first = self._replay(REFERENCE)
        self.measured = self.window.measured(first.trace)
        self.basis = Basis(first.trace, self.spec, self.measured, models)
        self.reference = first

    def _replay(self, policy: Policy) -> JobTable:
        [task] = replay_tasks(
            self.trace, self.spec, self.window, self.predictions, [policy], [0], models=self.models
        )
        return run_task(task, partial(say_nothing, policy.name, 0)).table

    def run(self, rule: Policy, more: Some) -> ChoiceResult:
        """Results of a rule with abilities."""
        policy, scheduler = able(rule, *more), load_scheduler(rule)
        table = self._replay(policy)
        metrics: Metrics = schedule_metrics(table, self.spec.num_gpus, self.measured, basis=self.basis)
        return ChoiceResult(
            policy=policy.name,
            rule=rule.name,
            deployable=not (scheduler.oracle or scheduler.abilities.preempts),
            metrics=msgspec.structs.replace(metrics, by_vc={}, over_time=None),
            against=compare([table], [self.reference], self.measured),
        )


def run_case(folder: Path, name: str) -> Case:
    """All choices on one trace, and the main ones under other models."""
    work, began = Workload(folder, name, Models()), time.monotonic()
    results = []
    by_name = {able(rule, *more).name: (rule, more) for rule, more in choices(name)}
    for chosen, choice in by_name.items():
        results.append(work.run(*choice))
        print(f"{name}: {time.monotonic() - began:5.0f} s  {chosen}", file=sys.stderr, flush=True)
    main = [policy.name for policy in (*MAIN, lucid_on(name))]
    main += [one.policy for one in best_choices(results) if one is not None]
    varied: dict[str, list[ChoiceResult]] = {}
    for what, models in VARIATIONS:
        work.use(models)
        varied[what] = [work.run(*by_name[chosen]) for chosen in dict.fromkeys(main)]
        print(f"{name}: {time.monotonic() - began:5.0f} s  {what}", file=sys.stderr, flush=True)
    return Case(
        trace=name,
        nodes=work.spec.num_nodes,
        gpus=work.spec.num_gpus,
        gpu_types=sorted({group.gpu_type for group in work.spec.nodes}),
        load_frac=work.load,
        since_s=work.window.since_s,
        results=results,
        varied=varied,
    )


def main() -> None:
    """Read the command line, run, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", action="append", choices=TRACES, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/energy"), help="folder for the JSON files")
    parser.add_argument("--again", action="store_true", help="run traces again that are already in OUT")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    if not traces.is_dir():
        parser.error(f"no real traces in {traces}: set RLSCHED_DATA")
    arguments.out.mkdir(parents=True, exist_ok=True)
    cases = []
    for name in arguments.trace or TRACES:
        path = arguments.out / f"{name}.json"
        if arguments.again or not path.exists():
            case = run_case(traces, name)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1))
        cases.append(msgspec.json.decode(path.read_bytes(), type=Case))
    text = section(cases)
    print(text)
    (arguments.out / "tables.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
