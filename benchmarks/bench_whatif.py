"""Cost of `rlsched whatif`: one Markdown row, with its target.

    .venv/bin/python benchmarks/bench_whatif.py             # about a minute on a free core, kernels compiled

The history has 100,000 synthetic jobs on 512 GPUs at load 0.8. The start times are from EASY with requested
limits, which notices each job up to 30 s after its submission; so every rule is replayed in one run and day
by day. Then the three default policies are replayed. Wall time, CPU time and peak memory are figures of the
whole command, including the time to read the file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlsched.decide.policies.policy import Policy
from rlsched.workload.predictability import parse_predictability
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine, PredictedTimes

COMMAND = "python benchmarks/bench_whatif.py"
JOBS, GPUS, LOAD, LATE_S = 100_000, 512, 0.8, 30.0
TARGET_S, TARGET_MIB = 60.0, 1024


def write_history(folder: Path, jobs: int) -> None:
    """Write `h.csv` and `c.toml`."""
    causal = parse_predictability("causal")
    trace, spec = synthesize("helios", jobs, LOAD, GPUS, seed=3, predictability=causal)
    rng = np.random.default_rng(0)
    limit_s = np.ceil((trace.duration_s * np.exp(rng.exponential(1.0, jobs)) + 600) / 60) * 60
    noticed_s = trace.submit_s + LATE_S * rng.random(jobs)
    order = np.argsort(noticed_s, kind="stable")
    seen = replace(trace.select(order), submit_s=noticed_s[order])
    rule = Policy("easy").rule
    predictions = PredictedTimes(limit_s[order], np.zeros(jobs))
    table = Engine(seen, spec, order=rule.order, predictions=predictions).run_rule(rule)
    wait_s = np.empty(jobs)
    wait_s[order] = table.start_s - trace.submit_s[order]
    unknown = np.full(jobs, np.nan)
    replace(
        trace,
        extra={"queue_s": np.round(wait_s)},
        time_limit_s=limit_s,
        predicted_s=unknown,
        predicted_spread=unknown,
    ).write(folder / "h.csv")
    spec.write(folder / "c.toml")


def whole_process(command: list[str], out: Path) -> tuple[float, float, float]:
    """Wall and CPU seconds and peak MiB of a process that succeeds; its output goes to a file."""
    began_s = time.perf_counter()
    with out.open("wb") as file:
        child = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 1)]
        )
        _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: exit code {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=JOBS)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        child = os.fork()  # a process inherits its parent's peak memory, so a child makes the history
        if not child:
            write_history(folder, jobs)
            os._exit(0)
        os.waitpid(child, 0)
        command = [sys.executable, "-m", "rlsched", "whatif", str(folder / "h.csv")]
        command += ["--cluster", str(folder / "c.toml"), "--json", "--quiet"]
        wall_s, cpu_s, peak_mib = whole_process(command, folder / "out.json")
        found = json.loads((folder / "out.json").read_text())
    met = "met" if wall_s <= TARGET_S and peak_mib <= TARGET_MIB else "**missed**"
    print(
        f"| `rlsched whatif` | {jobs:,} jobs, {len(found['fits'])} rules, {len(found['policies'])} policies, "
        f"{found['fits'][0]['rule']} found, grade {found['grade']} | {wall_s:.1f} s, {cpu_s:.1f} CPU s, "
        f"{peak_mib:,.0f} MiB | {TARGET_S:.0f} s, {TARGET_MIB} MiB | {met} | `{COMMAND}` |"
    )


if __name__ == "__main__":
    main()
