"""Any policies on synthetic sequences: waiting compared with `qssf-backfill`, over seeds.

    .venv/bin/python -m studies.policy.sequences --like helios --load 1 --policy easy --set reserve_after=6h
    .venv/bin/python -m studies.policy.sequences --jobs 600 --load 1 --first-seed 11 --policy tuned

Each sequence is a separate trace, from an idle cluster to the last job; all policies get the same sequences.
The study is like `rlsched trace synth` and `rlsched evaluate` for each seed, with geometric means over the
seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.predictability import Predictability
from rlsched.workload.profiles import PROFILES
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.build import build_report
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import predict_trace
from studies.policy.options import add_policy, policies_of, reported
from studies.policy.tables import header, of_ratios, ratio_text, row

REFERENCE = Policy("qssf-backfill")
LARGE_GPUS = 8
MEASURES = ("queue_mean_s", "queue_p99_s", "queue_p999_s", "queue_max_s", "jct_mean_s")


def run(
    like: str, jobs: int, load: float, gpus: int, seed: int, known: Predictability, policies: list[Policy]
) -> EvaluationReport:
    """All policies on one sequence, the reference first."""
    trace, spec = synthesize(like, jobs, load, gpus, seed=seed, predictability=known)
    window = MeasuredWindow()
    others = [policy for policy in policies if policy != REFERENCE]
    tasks = replay_tasks(trace, spec, window, predict_trace(trace, spec), [REFERENCE, *others], [0])
    return build_report(trace, spec, window, [0], run_tasks(tasks, workers=1), REFERENCE.name)


def gangs_wait_s(one: Metrics) -> float | None:
    """Mean queueing delay of jobs of `LARGE_GPUS` and more, s; None: no such job."""
    large = [group for size, group in one.by_gpus.items() if float(size) >= LARGE_GPUS and group.jobs]
    if not large:
        return None
    waits_s = [group.queue_mean_s or 0.0 for group in large]
    return float(np.average(waits_s, weights=[group.jobs for group in large]))


def table(title: str, reports: Sequence[EvaluationReport], policies: Sequence[str]) -> list[str]:
    """Ratios to the reference, geometric means over the sequences; a row a policy."""
    lines = header(title, "queue mean", "p99", "p99.9", "longest", "JCT mean", "gangs' mean", "less : more")
    theirs = [report.policies[REFERENCE.name] for report in reports]
    for name in policies:
        ours = [report.policies[name] for report in reports]
        cells = []
        for measure in MEASURES:
            mine, base = ([getattr(one, measure) for one in some] for some in (ours, theirs))
            cells.append(ratio_text(of_ratios(mine, base)))
        cells.append(ratio_text(of_ratios(map(gangs_wait_s, ours), map(gangs_wait_s, theirs))))
        pairs = zip(ours, theirs, strict=True)
        ahead = [(one.queue_mean_s or 0.0) - (other.queue_mean_s or 0.0) for one, other in pairs]
        cells.append(f"{sum(one < 0 for one in ahead)} : {sum(one > 0 for one in ahead)}")
        lines.append(row(f"`{name}`", *cells))
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, run, print the tables; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sequences", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--like", action="append", choices=tuple(PROFILES), help="default: helios")
    parser.add_argument("--load", action="append", type=float, help="default: 0.9")
    parser.add_argument("--jobs", type=int, default=4000, help="[default: %(default)s]")
    parser.add_argument("--gpus", type=int, default=64, help="[default: %(default)s]")
    parser.add_argument("--seeds", type=int, default=8, help="sequences [default: %(default)s]")
    parser.add_argument("--first-seed", type=int, default=90_000, help="[default: %(default)s]")
    parser.add_argument("--predictability", default="informative", help="as of `trace synth`")
    add_policy(parser, default="none", required=True)
    return reported(_sequences, parser.parse_args(words))


def _sequences(arguments: argparse.Namespace) -> int:
    known: Predictability = _known(arguments.predictability)
    policies = policies_of(arguments)
    for like in arguments.like or ["helios"]:
        for load in arguments.load or [0.9]:
            reports = [
                run(like, arguments.jobs, load, arguments.gpus, seed, known, policies)
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            ]
            title = f"{like}-like, load {load:g}, {len(reports)} sequences"
            print("\n".join([*table(title, reports, [policy.name for policy in policies]), ""]), flush=True)
    return 0


def _known(word: str) -> Predictability:
    if word in ("none", "causal", "informative"):
        return word  # type: ignore[return-value]
    try:
        return float(word)
    except ValueError:
        raise InputError(
            f"expected causal, informative or a number for --predictability, got {word}"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
