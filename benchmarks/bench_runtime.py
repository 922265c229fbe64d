"""Cost of serving the policy: a broker's start, the latency of a decision.

    .venv/bin/python -m benchmarks.bench_runtime               # 4 minutes on one core
    .venv/bin/python -m benchmarks.bench_runtime --only decision --json

Parts (`--only NAME`). `cold`: CPU seconds of `load_policy`, which compiles the kernels of a broker, from an
empty kernel cache, and the number of kernels. `broker`: a fresh `rlsched broker --policy ppo` on an empty
directory, from its start until a client has its first answer, kernels compiled before. `decision`:
`Scheduler.decide` of `ppo` on a live cluster, where one job ends and others come before each round of
decisions, from reading the queue to the action. `plans`: the same for the rule `tuned` on GPUs of three types
under models, half of the jobs preemptible: all plans of every examined job, up to four tenants on a GPU.
`questions`: the time that the broker's loop spends on `queue`, `nodes`, `why` and `top` with 12,000 live jobs
on 10,000 GPUs.

Times are wall times. If the load average, which is printed first, exceeds the number of cores, wall times are
mostly waiting for a core; the CPU time of the thread is then closer to that of an idle machine. Memory is the
peak of a process's resident set, shared libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_scale import SIZE_ODDS, SIZES
from benchmarks.questions import TARGET_MS, asked
from rlsched.broker.journal.mark import ADDRESS_FILE
from rlsched.broker.server.broker_policy import load_policy
from rlsched.client.client import Client
from rlsched.cluster.arrays import MAX_TENANTS
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.loop import apply, has_fitting
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler, permit
from rlsched.errors import BrokerUnavailableError
from rlsched.models.catalogue import load_catalogue
from rlsched_envs.training.sources import GPU_TYPES

COMMAND = "python -m benchmarks.bench_runtime"
PARTS = ("cold", "broker", "decision", "plans", "questions")
READY_TARGET = (2.0, 200.0)  # seconds, MB
DECISION_TARGET_MS = {512: 1.0, 10_000: 10.0}
"""p99 of a decision, by the number of waiting jobs."""
PLANNED = ((128, 512), (10_000, 10_000))
"""GPUs and waiting jobs of `plans`."""
WAITING, GPUS = (16, 64, 512, 4_096), (128, 10_000)
GPUS_A_NODE = 8
START_TIMEOUT_S = 120.0
BUDGET_MS = 100.0
WORKLOADS = 30
"""Indices of the catalogue's workloads from which jobs are drawn."""
COLD_POLICIES = ("tuned", "ppo", "fifo-backfill")
COLD = """
import sys, time
from rlsched.broker.server.broker_policy import load_policy
from rlsched.compile.compiling import COMPILING
from rlsched.decide.policies.policy import Policy
before_s = time.process_time()
load_policy(Policy(sys.argv[1]), None, 60_000.0)
print(time.process_time() - before_s, COMPILING.compiled)
"""
Row = dict[str, Any]


def cold() -> Iterator[Row]:
    """Run a fresh process with an empty kernel cache for each policy."""
    for name in COLD_POLICIES:
        with tempfile.TemporaryDirectory() as cache:
            cpu_s, kernels = subprocess.run(
                [sys.executable, "-c", COLD, name],
                env=os.environ | {"XDG_CACHE_HOME": cache},
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
        yield {"policy": name, "cpu_s": float(cpu_s), "kernels": int(kernels)}


def start_broker(home: Path) -> Row:
    """Start a broker, send it a question, stop it."""
    command = [sys.executable, "-m", "rlsched", "broker", "--policy", "ppo", "--address", "tcp://127.0.0.1:0"]
    command += ["--dir", str(home / "broker"), "--keys", str(home)]
    began_s = time.perf_counter()
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        address = _address(home / "broker" / ADDRESS_FILE, broker)
        with Client(address, home=home) as client:
            client.nodes()
        ready_s = time.perf_counter() - began_s
        status = Path(f"/proc/{broker.pid}/status").read_text(encoding="utf-8")
        peak_kib = int(status.partition("VmHWM:")[2].split()[0])
        ticks = Path(f"/proc/{broker.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        cpu_s = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        return {"ready_s": ready_s, "cpu_s": cpu_s, "peak_mb": peak_kib * 1024 / 1e6}
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait(timeout=START_TIMEOUT_S)


def _address(path: Path, broker: subprocess.Popen[bytes]) -> str:
    """Wait for the file that a broker writes when it is ready for clients, and return its content."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and broker.poll() is None:
        try:
            address = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            address = ""
        if address.endswith("\n"):
            return address.strip()
        time.sleep(0.002)
    raise BrokerUnavailableError(f"no broker within {START_TIMEOUT_S:g} s: exit code {broker.returncode}")


def ready(repeats: int) -> Row:
    """Medians over fresh brokers, after one that compiles the missing kernels."""
    found = []
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory() as home:
            found.append(start_broker(Path(home)))
    return {name: statistics.median(each[name] for each in found[1:]) for name in found[0]}


class Crowd:
    """A full cluster. Jobs end and arrive, so that the same number waits before each round of decisions.

    Args:
        scheduler: The scheduler to measure.
        gpus: GPUs of the cluster, eight a node.
        waiting: Number of waiting jobs.
        modelled: The cluster has three GPU types and models of speed, and half of the jobs are preemptible.
    """

    def __init__(self, scheduler: Scheduler, gpus: int, waiting: int, *, modelled: bool) -> None:
        self._rng = np.random.default_rng([gpus, waiting, 2])
        self._scheduler, self._waiting, self._modelled = scheduler, waiting, modelled
        spec = ClusterSpec.uniform(gpus // GPUS_A_NODE, GPUS_A_NODE)
        if modelled:
            count = -(-gpus // GPUS_A_NODE // len(GPU_TYPES))
            groups = [NodeGroup(count=count, gpus=GPUS_A_NODE, gpu_type=kind) for kind in GPU_TYPES]
            spec = ClusterSpec(name="crowd", nodes=tuple(groups))
            gpus = spec.num_gpus
        self.state = ClusterState.from_spec(
            spec, OrderedQueue(scheduler.order), slots=waiting + (MAX_TENANTS if modelled else 1) * gpus + 16
        )
        if modelled:
            self.state.use_models(load_catalogue().arrays(self.state.kind_names))
        permit(self.state, scheduler)
        self._now_s = 1e5
        self._running: list[int] = []
        for node in range(gpus // GPUS_A_NODE):
            free = list(range(GPUS_A_NODE * node, GPUS_A_NODE * (node + 1)))
            while free:
                seq, size = self._submit(len(free))
                self.state.start(seq, free[:size], float(self._rng.uniform(0, self._now_s)))
                self._running.append(seq)
                del free[:size]

    def _submit(self, most: int = GPUS_A_NODE) -> tuple[int, int]:
        size = min(int(self._rng.choice(SIZES, p=SIZE_ODDS)), most)
        seq = self.state.add_job(
            num_gpus=size,
            submit_s=float(self._rng.uniform(self._now_s - 1e4, self._now_s)),
            predicted_s=float(self._rng.lognormal(7, 2)),
            spread=float(self._rng.uniform(0.5, 2.0)),
            preemptible=self._modelled and bool(self._rng.random() < 0.5),
            workload=int(self._rng.integers(1, WORKLOADS)) if self._modelled else 0,
        )
        return seq, size

    def round(self, *, record: bool) -> Iterator[tuple[float, float]]:
        """End a job and add others; yield (wall us, CPU us) of each decision, until a decision is to wait."""
        self._now_s += 10.0
        ended = int(self._rng.integers(len(self._running)))
        self._running[ended], self._running[-1] = self._running[-1], self._running[ended]
        self.state.release(self._running.pop(), self._now_s)
        for _ in range(self._waiting - len(self.state.queue(0))):
            self._submit()
        while self._modelled or has_fitting(self.state, 0):
            cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
            decision = self._scheduler.decide(self.state, 0, self._now_s, record=record)
            wall_us = (time.perf_counter_ns() - wall_ns) / 1e3
            cpu_us = (time.thread_time_ns() - cpu_ns) / 1e3
            apply(self.state, decision, self._now_s)
            yield wall_us, cpu_us
            if isinstance(decision.action, Wait):
                break
            if isinstance(decision.action, Start):
                self._running.append(decision.action.seq)
            else:
                self._running.remove(decision.action.seq)


def latency(
    scheduler: Scheduler, gpus: int, waiting: int, count: int, *, record: bool, modelled: bool = False
) -> Row:
    """Return percentiles of the times of `count` decisions, after a tenth as many that do not count."""
    crowd = Crowd(scheduler, gpus, waiting, modelled=modelled)
    asked: list[tuple[float, float]] = []
    while len(asked) < count + count // 10:
        asked += crowd.round(record=record)
    wall_us, cpu_us = np.array(asked[count // 10 :]).T
    return {
        "gpus": gpus,
        "waiting": waiting,
        "recorded": record,
        "decisions": count,
        "wall_us": dict(zip(("p50", "p99", "p99.9"), np.quantile(wall_us, (0.5, 0.99, 0.999)), strict=True)),
        "cpu_us": dict(zip(("p50", "p99", "p99.9"), np.quantile(cpu_us, (0.5, 0.99, 0.999)), strict=True)),
    }


def decisions(count: int) -> Iterator[Row]:
    """Yield a row for every size: with the bare policy, and as in a broker (guarded, with records)."""
    for scheduler, record in (
        (load_scheduler("ppo"), False),
        (load_policy(Policy("ppo"), None, BUDGET_MS)[0], True),
    ):
        for gpus in GPUS:
            for waiting in WAITING:
                yield latency(scheduler, gpus, waiting, count, record=record)


def plan_decisions(count: int) -> Iterator[Row]:
    """Yield rows for the rule `tuned` with all its abilities, without and with decision records."""
    for record in (False, True):
        for gpus, waiting in PLANNED:
            yield latency(load_scheduler("tuned"), gpus, waiting, count, record=record, modelled=True)


def verdict(met: bool) -> str:
    """The verdict for the last column."""
    return "met" if met else "**missed**"


def show_footprint(what: str, took_s: float, peak_mb: float, target: tuple[float, float], more: str) -> None:
    """One line of the part `broker`."""
    met = took_s < target[0] and peak_mb < target[1]
    print(
        f"| {what} | {took_s:.2f} s{more}, {peak_mb:.0f} MB | {target[0]:g} s, {target[1]:g} MB "
        f"| {verdict(met)} |",
        flush=True,
    )


def show_decision(row: Row) -> None:
    """One line of the parts `decision` and `plans`."""
    wall, cpu = row["wall_us"], row["cpu_us"]
    met, target_ms = "-", DECISION_TARGET_MS.get(row["waiting"])
    if target_ms is not None:
        met = f"{verdict(wall['p99'] < target_ms * 1e3)} ({target_ms:g} ms)"
    print(
        f"| {'recorded' if row['recorded'] else 'plain'} | {row['gpus']:,} | {row['waiting']:,} "
        f"| {wall['p50']:,.0f} | {wall['p99']:,.0f} | {wall['p99.9']:,.0f} "
        f"| {cpu['p50']:,.0f} | {cpu['p99']:,.0f} | {met} |",
        flush=True,
    )


def show_question(row: Row) -> None:
    """One line of the last part."""
    print(
        f"| {row['what']} | `{row['policy']}` | {row['answers']} | {row['p50_ms']:.2f} "
        f"| {row['longest_ms']:.2f} | {row['all_ms']:.1f} "
        f"| {verdict(row['longest_ms'] < TARGET_MS)} ({TARGET_MS:g} ms) |",
        flush=True,
    )


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--repeats", type=int, default=7, help="processes of each kind")
    parser.add_argument("--decisions", type=int, default=10_000, help="timed decisions of each size")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    wanted = arguments.only or PARTS
    found: dict[str, Any] = {
        "command": COMMAND,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    quiet = arguments.json
    if not quiet:
        print(f"{found['cores']} cores, load average {found['load_average']:.1f} before\n")
    if "cold" in wanted:
        if not quiet:
            print("| `load_policy`, empty kernel cache | CPU s | kernels |\n|---|---:|---:|")
        found["cold"] = []
        for row in cold():
            found["cold"].append(row)
            if not quiet:
                print(f"| `{row['policy']}` | {row['cpu_s']:.1f} | {row['kernels']} |", flush=True)
        if not quiet:
            print()
    if not quiet and "broker" in wanted:
        print("| what | measured | target | |\n|---|---:|---:|---|")
    if "broker" in wanted:
        row = found["broker"] = ready(arguments.repeats)
        if not quiet:
            more = f" ({row['cpu_s']:.2f} CPU s)"
            show_footprint("broker, first answer", row["ready_s"], row["peak_mb"], READY_TARGET, more)
    if "decision" in wanted:
        if not quiet:
            print(
                "\n| decision | GPUs | waiting | p50, us | p99 | p99.9 | CPU p50 | CPU p99 "
                "| p99 below its target |\n|---|" + "---:|" * 7 + "---|"
            )
        found["decision"] = []
        for row in decisions(arguments.decisions):
            found["decision"].append(row)
            if not quiet:
                show_decision(row)
    if "plans" in wanted:
        if not quiet:
            print(
                "\n| `tuned`, all plans | GPUs | waiting | p50, us | p99 | p99.9 | CPU p50 | CPU p99 "
                "| p99 below its target |\n|---|" + "---:|" * 7 + "---|"
            )
        found["plans"] = []
        for row in plan_decisions(arguments.decisions):
            found["plans"].append(row)
            if not quiet:
                show_decision(row)
    if "questions" in wanted:
        if not quiet:
            print(
                "\n| question, 12,000 live jobs | policy | answers | p50, ms | longest | all | longest below "
                "its target |\n|---|---|" + "---:|" * 4 + "---|"
            )
        found["questions"] = []
        for row in asked("tuned", arguments.repeats):
            found["questions"].append(row)
            if not quiet:
                show_question(row)
    if quiet:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
