"""Effect of the weight of energy on a policy if models only choose clocks, as in a broker.

    .venv/bin/python -m studies.policy.online_dial                       # two minutes on one core
    .venv/bin/python -m studies.policy.online_dial --policy ppo:PATH --jobs 4000

Synthetic jobs on 32 V100s, decision by decision; no job shares GPUs, and every job has its requested
cores. Next to the policy's mean JCT and energy: the values of `qssf-backfill` with clocks weighed by the
reference rule, and the share of choices in which the policy agrees with that rule (job, then clock and
place)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlsched.cluster.arrays import CLOCKS_ALONE
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.modelling import Models
from studies.policy.options import add_policy, policies_of, reported
from studies.policy.tables import header, row

LIKE = ("helios", "philly")
WEIGHTS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
SPEC = ClusterSpec(name="v100", nodes=(NodeGroup(count=4, gpus=8, gpu_type="V100", cpus=48),))
RULE = Policy("qssf-backfill")


class Run(NamedTuple):
    """One policy at one weight."""

    jct_s: float
    energy_j: float
    records: list[DecisionRecord]


def play(trace: Trace, predictions: PredictedTimes, policy: Policy, weight: float) -> Run:
    """Replay a policy with models that only choose clocks."""
    scheduler = load_scheduler(policy)
    models = Models(energy_weight=weight, noise=False)
    engine = Engine(trace, SPEC, order=scheduler.order, predictions=predictions, models=models)
    engine.state.arrays.config[0].modelled = CLOCKS_ALONE
    records: list[DecisionRecord] = []
    table = engine.run(scheduler, on_record=records.append)
    assert table.energy is not None
    return Run(float(np.nanmean(table.end_s - trace.submit_s)), float(table.energy.job_j.sum()), records)


def agreement(records: Sequence[DecisionRecord], kind: str) -> str:
    """Share of choices of this kind that match the reference's row, and their number."""
    same = [half.choice == half.reference for one in records for half in one.halves if half.kind == kind]
    return f"{np.mean(same):.1%} of {len(same):,}" if same else ""


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_policy(parser, default="ppo")
    parser.add_argument("--jobs", type=int, default=1500)
    return reported(_dial, parser.parse_args(words))


def _dial(arguments: argparse.Namespace) -> int:
    tested = (policies_of(arguments) or [Policy("ppo")])[0]
    head = ("jobs", "weight", f"JCT, `{RULE.name}`", "job energy", f"JCT, `{tested.name}`", "job energy")
    print("\n".join(header(*head, "job as the reference", "clock, place as the reference")))
    for like in LIKE:
        trace, _ = synthesize(like, jobs=arguments.jobs, load=0.9, gpus=SPEC.num_gpus, seed=3)
        predictions = predict_trace(trace, SPEC)
        full: Run | None = None
        for weight in WEIGHTS:
            rule, policy = (play(trace, predictions, one, weight) for one in (RULE, tested))
            full = full or rule
            pairs = [(one.jct_s / full.jct_s, one.energy_j / full.energy_j) for one in (rule, policy)]
            cells = [f"{ratio:.3f}" for pair in pairs for ratio in pair]
            shares = [agreement(policy.records, kind) for kind in ("job", "how")]
            print(row(like, f"{weight:g}", *cells, *shares), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
