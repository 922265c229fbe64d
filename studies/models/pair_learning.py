"""Value of learning from observed pairs in a run: errors of predicted speeds as pairs are observed, the gate
that both jobs keep 85 %, and JCT.

    RLSCHED_DATA=../shared .venv/bin/python -m studies.models.pair_learning     # five minutes on one core

Cases as in `energy_table.py`: jobs of the last fifth of the trace's time at load 0.9, after 7 days of
warm-up, under `qssf-backfill` with sharing; ten seeds of the models, each with learning and without; JCT
also with a lower gate. Whenever a job joins another, the speeds predicted for the decision are compared with
their actual speeds; pairs of the catalogue's table, which run as predicted, are left out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.speed import gpu_kind
from rlsched.decide.actions import Action, Start
from rlsched.decide.options import KEEP_FRAC
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched_agents.evaluate.run import Task, replay_tasks, run_task, say_nothing
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.physics import true_share
from studies.policy.abilities import SHARING, able, share
from studies.policy.energy_table import Workload

TRACES = ("helios_venus", "philly")
POLICY = able(Policy("qssf-backfill"), SHARING)
LOWER_GATES = (able(Policy("qssf-backfill"), share(0.7)),)
PAIR_BANDS = (0, 1, 2, 4, 10)
RUN_BANDS = (0, 100, 300, 1000, 3000)
SEEDS = 10
NOTED = 3
"""Seeds whose joins are recorded, decision by decision."""
Floats = NDArray[np.float64]


class Join(NamedTuple):
    """One direction of a pair that began to share.

    Attributes:
        before: Number of directions of pairs that were observed earlier in the run.
        seen: Number of earlier observations of this pair of workloads.
        predicted: Speed predicted for the decision.
        modelled: Speed predicted by the models without learning.
        true: Actual speed.
    """

    before: int
    seen: int
    predicted: float
    modelled: float
    true: float


class Noting(Engine):
    """An engine that records every pair that begins to share.

    Attributes:
        joins: All recorded pairs, both directions.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.joins: list[Join] = []

    def _note(self, action: Action) -> None:
        super()._note(action)
        if isinstance(action, Start) and action.share_with >= 0:
            slots = [self.state.slot_of(action.seq), self.state.slot_of(action.share_with)]
            self.joins += [self._join(*pair) for pair in (slots, slots[::-1]) if not self._is_measured(*pair)]

    def _is_measured(self, mine: int, theirs: int) -> bool:
        s = self.state.arrays
        kind = gpu_kind(s, s.job.head[mine] // MAX_TENANTS)
        return not np.isnan(s.models.pair[kind, s.job.workload[mine], s.job.workload[theirs]])

    def _join(self, mine: int, theirs: int) -> Join:
        s = self.state.arrays
        g = int(s.job.head[mine]) // MAX_TENANTS
        cell = int(s.job.workload[mine]), int(gpu_kind(s, g)), int(s.job.workload[theirs])
        t = s.models.trait
        true = float(true_share(self.arrays.progress, s, mine, g))
        return Join(int(t.times_seen.sum()), int(t.times_seen[cell]), t.beside[cell], t.modelled[cell], true)


def joins_of(task: Task) -> list[Join]:
    """Every join of a replay, decision by decision."""
    scheduler = load_scheduler(task.policy, seed=task.seed)
    engine = Noting(
        task.trace,
        task.spec,
        order=scheduler.order,
        predictions=task.predictions,
        rules=task.rules,
        models=task.models,
        keep_placements=False,
    )
    engine.run(scheduler, until_started=task.trace.submit_s < task.window.until_s)
    return engine.joins


def error_rows(joins: list[Join], of: str, edges: tuple[int, ...]) -> Iterator[str]:
    """A row for each band of the number of observations (`seen` or `before`)."""
    seen, predicted, modelled, true = (column(joins, name) for name in (of, "predicted", "modelled", "true"))
    for low, high in zip(edges, (*edges[1:], np.inf), strict=True):
        mine = (seen >= low) & (seen < high)
        if mine.any():
            band = f"from {low:,}" if high == np.inf else f"{low:,}" + f" to {high - 1:,}" * (high > low + 1)
            told, alone = abs(predicted - true)[mine].mean(), abs(modelled - true)[mine].mean()
            yield f"| {band} | {mine.sum():,} | {told:.3f} | {alone:.3f} |"


def column(joins: list[Join], name: str) -> Floats:
    """One attribute of all joins."""
    return np.array([getattr(join, name) for join in joins], np.float64)


def kept(joins: list[Join]) -> float:
    """Return the share of joins in which the job keeps the speed that the gate requires."""
    return float((column(joins, "true") >= KEEP_FRAC).mean())


def jct_s(work: Workload, policy: Policy, models: Models) -> float:
    """Mean JCT of the measured jobs."""
    [task] = tasks(work, policy, models)
    table = run_task(task, partial(say_nothing, policy.name, 0)).table
    return float(np.nanmean((table.end_s - table.trace.submit_s)[work.measured]))


def tasks(work: Workload, policy: Policy, models: Models) -> list[Task]:
    """The one task of a policy under these models."""
    return replay_tasks(work.trace, work.spec, work.window, work.predictions, [policy], [0], models=models)


def show(folder: Path, name: str) -> None:
    """The tables of one trace."""
    work = Workload(folder, name, Models())
    joins: dict[bool, list[Join]] = {True: [], False: []}
    for seed in range(NOTED):
        for learning, found in joins.items():
            found += joins_of(*tasks(work, POLICY, Models(workload_seed=seed, learning=learning)))
    head = "directions | mean abs. error | of the plain models |\n|---|---|---|---|"
    print(f"\n### {name}\n\n| observations of the pair before | {head}")
    print(*error_rows(joins[True], "seen", PAIR_BANDS), sep="\n")
    print(f"\n| directions observed in the run before | {head}")
    print(*error_rows(joins[True], "before", RUN_BANDS), sep="\n")
    with_it, without = kept(joins[True]), kept(joins[False])
    print(f"\nkept {KEEP_FRAC:g} of their speed: {with_it:.3f}, without learning {without:.3f}")
    print(f"joins: {len(joins[True]) // 2:,}, without learning {len(joins[False]) // 2:,}", flush=True)
    for policy in (POLICY, *LOWER_GATES):
        both = [
            [jct_s(work, policy, Models(workload_seed=seed, learning=learning)) for learning in joins]
            for seed in range(SEEDS)
        ]
        ratios = np.log([one / other for one, other in both])
        means = " / ".join(f"{mean:,.0f}" for mean in np.mean(both, 0))
        print(f"\n{policy.name}: mean JCT with / without, s: {means}")
        print("ratios by seed: " + " ".join(f"{r:.3f}" for r in np.exp(ratios)))
        error = ratios.std(ddof=1) / np.sqrt(SEEDS)
        print(f"geometric mean {np.exp(ratios.mean()):.3f}, standard error {error:.3f}", flush=True)


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", action="append", choices=TRACES, help="default: both")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    if not traces.is_dir():
        parser.error(f"no real traces in {traces}: set RLSCHED_DATA")
    for name in arguments.trace or TRACES:
        show(traces, name)


if __name__ == "__main__":
    main()
