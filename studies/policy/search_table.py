"""Value of search: the default policy, without and with look-ahead, and `rollout`.

    .venv/bin/python -m studies.policy.search_table --out runs/search
    .venv/bin/python -m studies.policy.search_table --out runs/search --budget-s 600   # call again

The cases are cut as in `studies.policy.results` (`workload_of`): validation windows of real traces with
causal predictions, and helios-like sequences with informative ones; only the first jobs of each are
measured (`--jobs`). One run at a time, so that a time budget is not shared. Each case is a file in OUT;
existing files are not made again.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import msgspec
import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched_agents.evaluate.build import build_report
from rlsched_agents.evaluate.pairs import Ratio, geometric_mean
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_agents.evaluate.run import replay_tasks, run_tasks
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import predict_trace
from studies.policy.results import REAL, Case, workload_of

ALONE = Policy("ppo")
POLICIES = (
    ALONE,
    Policy("qssf-backfill"),
    Policy("ppo", name="ppo, 8 futures", search={"samples": 8}),
    Policy("ppo", name="ppo, 5 ms", search={"time_ms": 5.0}),
    Policy("rollout"),
)
NAMES = tuple(policy.name for policy in POLICIES)
FIRST_SEED = 97_000
"""Seeds of the synthetic sequences: used by no other page, and not in the policy's training."""


def cases(seeds: int, loads: list[float]) -> list[Case]:
    """All cases, alternating real windows and synthetic sequences."""
    what = "search"
    real = [
        Case(family="real", workload=workload, vc=vc, load=load, policy=ALONE, policy_id=what)
        for load in loads
        for workload, vc in REAL
    ]
    synthetic = [
        Case(
            family="synthetic",
            workload="helios",
            load=load,
            seed=FIRST_SEED + k,
            policy=ALONE,
            policy_id=what,
        )
        for k in range(seeds)
        for load in loads
    ]
    return [one for pair in zip(real, synthetic, strict=False) for one in pair] + synthetic[len(real) :]


def run_case(case: Case, traces: Path, path: Path, jobs: int) -> None:
    """Run one case and write its report atomically.

    At most this many jobs are measured, and half as many follow: the replay continues until all measured jobs
    have started, which with all arrivals may take months.
    """
    trace, spec, window, seeds = workload_of(case, traces)
    submit_s = trace.submit_s[window.measured(trace)]
    if len(submit_s) > jobs:
        window = MeasuredWindow(window.since_s, float(submit_s[jobs]))
    behind = np.flatnonzero(trace.submit_s >= window.until_s)[: jobs // 2]
    trace = trace.select(slice(0, int(behind[-1]) + 1 if len(behind) else len(trace)))
    predictions = predict_trace(trace, spec, recorded_until_s=window.replay_from_s)
    tasks = replay_tasks(trace, spec, window, predictions, list(POLICIES), seeds[:1])
    outcomes = run_tasks(tasks, workers=1)
    report = build_report(trace, spec, window, seeds[:1], outcomes, ALONE.name)
    half_written = path.with_suffix(".part")
    half_written.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    half_written.replace(path)


def ratio_text(ratio: Ratio | None) -> str:
    """A ratio with its interval."""
    if ratio is None:
        return ""
    return f"{ratio.ratio:.2f}" + ("" if ratio.low is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]")


def changed_frac(report: EvaluationReport, name: str) -> str:
    """Share of the network's decisions that the search changed, per cent."""
    by = report.policies[name].by_source
    asked = by.get("search", 0) + by.get("policy", 0)
    return f"{100 * by.get('search', 0) / asked:.1f} %" if asked else ""


def table(found: list[tuple[Case, EvaluationReport]]) -> str:
    """Both families as Markdown: mean queueing over that of the network without search."""
    others = [name for name in NAMES if name != ALONE.name]
    head = "| workload | load | plain `ppo`, s | " + " | ".join(f"`{name}`" for name in others) + " |"
    lines = [head, "|---|---:|---:|" + "---:|" * len(others)]
    for case, report in found:
        if case.family == "real":
            alone = report.policies[ALONE.name].queue_mean_s or 0.0
            cells = [
                f"{ratio_text(report.paired[name].queue_mean_ratio)} {changed_frac(report, name)}".strip()
                for name in others
            ]
            title = f"{case.workload} {case.vc}".strip()
            lines.append(f"| {title} | {case.load:g} | {alone:,.0f} | " + " | ".join(cells) + " |")
    for load in sorted({case.load for case, _ in found}):
        some = [report for case, report in found if case.family == "synthetic" and case.load == load]
        if not some:
            continue
        alone = float(np.mean([report.policies[ALONE.name].queue_mean_s or 0.0 for report in some]))
        cells = []
        for name in others:
            ratios = [paired.ratio for report in some if (paired := report.paired[name].queue_mean_ratio)]
            better = sum(ratio < 1 for ratio in ratios)
            cells.append(f"{ratio_text(geometric_mean(np.array(ratios)))} ({better} of {len(ratios)})")
        lines.append(
            f"| helios-like, {len(some)} seeds | {load:g} | {alone:,.0f} | " + " | ".join(cells) + " |"
        )
    lines += ["", "| policy, synthetic | decision, p50 ms | p99 ms |", "|---|---:|---:|"]
    for name in NAMES:
        times = [report.policies[name] for case, report in found if case.family == "synthetic"]
        p50, p99 = (
            [getattr(one, field) for one in times if getattr(one, field) is not None]
            for field in ("decision_p50_us", "decision_p99_us")
        )
        if p50:
            lines.append(f"| `{name}` | {np.median(p50) / 1e3:.1f} | {np.median(p99) / 1e3:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing cases, print the table of all available ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/search"), help="folder of the cases")
    parser.add_argument("--seeds", type=int, default=8, help="synthetic sequences a load")
    parser.add_argument("--jobs", type=int, default=2000, help="most measured jobs of a case")
    parser.add_argument("--load", type=float, action="append", help="offered load [default: 1.0]")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="start no case after this long")
    arguments = parser.parse_args()
    traces = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "traces"
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.budget_s
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    found = []
    for case in cases(arguments.seeds, arguments.load or [1.0]):
        path = arguments.out / case.file_name
        if not path.exists() and time.monotonic() < deadline and (traces.is_dir() or case.family != "real"):
            run_case(case, traces, path, arguments.jobs)
        if path.exists():
            found.append((case, msgspec.json.decode(path.read_bytes(), type=EvaluationReport)))
    print(table(found))


if __name__ == "__main__":
    main()
