"""How near the best plans come to the best that can be done: small instances, searched through.

    .venv/bin/python -m studies.policy.small_optimum --instances 200

Three or four jobs of one or two GPUs on a node of V100s and one of A100s, two GPUs each; run times are known,
models have no noise, nobody preempts. The optimum is the least mean JCT of all sequences of plans: at every
instant, which of the waiting jobs start, and on which GPUs, free or shared. The same engine plays them all.
The rule is `tuned` under several prices, with the true run times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start, Wait
from rlsched.decide.options import BLOCKED, PLAIN_START
from rlsched.decide.order.keys import Order
from rlsched.decide.plans.listing import plans_of
from rlsched.decide.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import join_action, start_action
from rlsched.models.catalogue import load_catalogue
from rlsched.workload.trace import Trace
from rlsched_envs.engine import Engine, Predictions
from rlsched_envs.modelling import Models
from studies.policy.options import reported

SPEC: Final = ClusterSpec(
    name="small",
    nodes=tuple(NodeGroup(count=1, gpus=2, gpu_type=kind, cpus=48) for kind in ("V100", "A100")),
)
MODELS: Final = Models(noise=False, learning=False)
ANY: Final = PLAIN_START._replace(share=BLOCKED, min_speed=0.0, chooses_type=True, cores=True)
"""Every plan of two jobs on a GPU is open."""
PRICES: Final = tuple(product((0.0, 0.3, 1.0), (0.5, 2.0), (0.0, 0.3, 0.6)))
"""Of GPU types, of a second's wait, and of sharing."""
MOST_RUNS: Final = 20_000
"""An instance with more sequences than this is left out, and counted."""


class Scripted(Scheduler):
    """Takes the options that a script names, the first where that ends; notes how many there were.

    Of the jobs that start at one instant the later ones of the order come later: other orders end alike.
    """

    name = policy_id = "scripted"
    order = Order()
    abilities = Abilities(shares=True, needs_models=True)

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.counts = script, list[int]()
        self._now_s, self._last = -1.0, -1

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:  # noqa: ARG002
        """The option of the script."""
        if now_s != self._now_s:
            self._now_s, self._last = now_s, -1
        found = self._options(state, partition, now_s)
        number = len(self.counts)
        self.counts.append(len(found))
        action = found[self.script[number] if number < len(self.script) else 0]
        if isinstance(action, Start):
            self._last = action.seq
        return Decision(action=action, source="rule")

    def _options(self, state: ClusterState, partition: int, now_s: float) -> list[Action]:
        found: list[Action] = []
        for seq in state.waiting(partition):
            if seq > self._last:
                for plan in plans_of(state, partition, seq, ANY, now_s, None):
                    if plan.verdict == "" and plan.how == "free":
                        over_both = state.arrays.job.gpus[state.slot_of(seq)] > SPEC.nodes[0].gpus
                        node = -1 if over_both else state.node_names.index(plan.node)
                        found.append(start_action(state, partition, seq, node, start=ANY))
                    elif plan.verdict == "" and plan.how == "share":
                        found.append(join_action(state, partition, seq, plan.share_with, ANY))
        if not found or state.running():
            found.append(Wait())
        return found


def instance(jobs: int, rng: np.random.Generator) -> Trace:
    """Jobs that come within ten minutes."""
    names = load_catalogue().names
    submit_s = np.sort(np.round(rng.uniform(0.0, 600.0, jobs)))
    return Trace.from_columns(
        name="small",
        submit_s=submit_s - submit_s[0],
        duration_s=np.round(np.exp(rng.normal(7.0, 1.0, jobs))) + 1.0,
        num_gpus=rng.integers(1, 3, jobs),
        extra={"workload": [names[int(rng.integers(1, len(names)))] for _ in range(jobs)]},
    )


def jct_s(trace: Trace, scheduler: Scheduler) -> float:
    """Mean JCT under a scheduler."""
    known = Predictions(np.maximum(trace.duration_s, 1.0), np.full(len(trace), 0.1))
    engine = Engine(trace, SPEC, order=scheduler.order, predictions=known, models=MODELS)
    return float((engine.run(scheduler).end_s - trace.submit_s).mean())


def optimum_s(trace: Trace) -> float:
    """The least mean JCT of all sequences of plans; infinite where there are too many."""
    best, script = np.inf, list[int]()
    for _ in range(MOST_RUNS):
        player = Scripted(script)
        best = min(best, jct_s(trace, player))
        script = [*script, *[0] * (len(player.counts) - len(script))]
        while script and script[-1] + 1 == player.counts[len(script) - 1]:
            script.pop()
        if not script:
            return best
        script[-1] += 1
    return np.inf


def prices(type_price: float, later: float, gain: float) -> Policy:
    """`tuned` at these prices, with the true run times."""
    share = {"when": "better", "max_jobs": 2, "min_speed": 0.0, "min_gain": gain}
    return Policy(
        "tuned", predictions="oracle", preempt=None, share=share, types={"price": type_price, "later": later}
    )


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, search, print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="small_optimum", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=100, help="of each size")
    parser.add_argument("--jobs", type=int, nargs="+", default=[3, 4])
    parser.add_argument("--seed", type=int, default=0)
    return reported(_small_optimum, parser.parse_args(words))


def _small_optimum(arguments: argparse.Namespace) -> int:
    print("| jobs | instances | as shipped | best prices | 10th percentile | optimal | type, later, gain |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for jobs in arguments.jobs:
        rng, rows, began = np.random.default_rng([arguments.seed, jobs]), [], time.monotonic()
        shipped = RuleScheduler(Policy("tuned", predictions="oracle", preempt=None))
        tried = [RuleScheduler(prices(*each)) for each in PRICES]
        while len(rows) < arguments.instances:
            trace = instance(jobs, rng)
            least_s = optimum_s(trace)
            if np.isfinite(least_s):
                rows.append([least_s / jct_s(trace, one) for one in (shipped, *tried)])
            if len(rows) % 10 == 0:
                took_s = time.monotonic() - began
                print(f"{jobs} jobs: {len(rows)} of {arguments.instances}, {took_s:.0f} s", file=sys.stderr)
        share = np.array(rows)
        mean = np.exp(np.log(share).mean(axis=0))
        best = 1 + int(np.argmax(mean[1:]))
        print(
            f"| {jobs} | {len(rows)} | {mean[0]:.3f} | {mean[best]:.3f} | "
            f"{np.quantile(share[:, best], 0.1):.3f} | {(share[:, best] > 0.9999).mean():.0%} | "
            f"{', '.join(f'{one:g}' for one in PRICES[best - 1])} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
