"""`make demo`: a trace, the heuristics and the default policy in one table, then real processes placed by it.

    .venv/bin/python benchmarks/demo.py

Ends with exit code 0 only if every process ran and ended, and the policy itself, not a fallback, made at
least eight choices between several legal actions. Needs no torch, no GPU and no downloads.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from rlsched.cli.shared.job_tables import job_lines
from rlsched.client.client import Client
from rlsched.terminal.show import console, print_lines, print_table
from rlsched.wire.messages import JobInfo, StatsReport
from rlsched.wire.states import FINISHED

NODES, GPUS_PER_NODE = 2, 4
POLICIES = ("fifo", "fifo-backfill", "qssf", "qssf-backfill", "tuned")
# (GPUs, seconds of work, count): 33 processes that request 76 GPUs where 8 fit at once; six gangs span
# both nodes.
JOBS = ((1, 2.0, 9), (2, 3.0, 8), (1, 6.0, 6), (4, 2.0, 4), (6, 2.0, 3), (8, 1.5, 3))
MIN_CONTESTED = 8
DEADLINE_S = 180.0
LOOK_EVERY_S = 4.0
RLSCHED = (sys.executable, "-m", "rlsched")
UP = f"up --nodes {NODES} --gpus {GPUS_PER_NODE} --address tcp://127.0.0.1:0".split()


def main() -> int:
    """Run the offline part, then the online part. The cluster starts meanwhile, on another core."""
    out = console()
    with tempfile.TemporaryDirectory(prefix="rlsched-demo-") as made:
        folder = Path(made)
        cluster = up(folder)
        try:
            out.rule("1. Offline: replay a synthetic trace of 4,000 jobs")
            offline(folder)
            out.rule("2. Online: the same policy places real processes on two nodes")
            return online(folder, cluster)
        finally:
            cluster.send_signal(signal.SIGTERM)
            cluster.wait(timeout=60)


def offline(folder: Path) -> None:
    """Draw a trace and run every policy on it."""
    trace, cluster = str(folder / "trace.csv.gz"), str(folder / "cluster.toml")
    run(
        "trace",
        "synth",
        "--like",
        "helios",
        "--jobs",
        "4000",
        "--load",
        "0.95",
        "--gpus",
        "64",
        "--seed",
        "7",
        "--predictability",
        "informative",
        "-o",
        trace,
        "--cluster-out",
        cluster,
    )
    chosen = [word for name in POLICIES for word in ("--policy", name)]
    run("evaluate", "--trace", trace, "--cluster", cluster, *chosen, "--baseline", "qssf-backfill")


def run(*words: str) -> None:
    """Run a verb as a user would, and show its output."""
    click.echo("$ rlsched " + " ".join(words))
    subprocess.run([*RLSCHED, *words], check=True)


def up(folder: Path) -> subprocess.Popen[bytes]:
    """Start a local cluster; its output goes to a file."""
    words = [*UP, "--dir", str(folder / "up"), "--keys", str(folder / "keys")]
    click.echo("$ rlsched " + " ".join(words) + " &")
    with (folder / "up.log").open("wb") as log:
        return subprocess.Popen([*RLSCHED, *words], stdout=log, stderr=log, start_new_session=True)


def online(folder: Path, cluster: subprocess.Popen[bytes]) -> int:
    """Submit everything to the cluster, watch, and check the result."""
    with connect(cluster, folder) as client:
        numbers = submit_all(client)
        jobs = watch(client, set(numbers))
        return judge(jobs, client.stats())


def connect(cluster: subprocess.Popen[bytes], folder: Path) -> Client:
    """Wait until the cluster is ready, print its output meanwhile, and return a client."""
    deadline, shown, log = time.monotonic() + 120, 0, folder / "up.log"
    while time.monotonic() < deadline:
        said = log.read_text()
        click.echo(said[shown:], nl=False)
        shown = len(said)
        if "ready" in said:
            address = (folder / "up" / "broker" / "address").read_text().strip()
            return Client(address, home=folder / "keys")
        if cluster.poll() is not None:
            break
        time.sleep(0.2)
    raise SystemExit("error: the local cluster did not come up within two minutes")


def submit_all(client: Client) -> list[int]:
    """Submit all jobs at once, small and large ones mixed, and return their numbers."""
    waves = [(gpus, seconds) for gpus, seconds, count in JOBS for _ in range(count)]
    waves.sort(key=lambda job: (job[0] * 7 + job[1] * 3) % 5)  # mixed, and the same in every run
    numbers = [
        client.submit(worker(seconds), num_gpus=gpus, name=f"train-{gpus}gpu", time_limit_s=60.0)
        for gpus, seconds in waves
    ]
    asked = sum(gpus for gpus, _ in waves)
    click.echo(
        f"submitted {len(numbers)} jobs that request {asked} GPUs; the cluster has {NODES * GPUS_PER_NODE}"
    )
    return numbers


def worker(seconds: float) -> list[str]:
    """A real process that prints where it runs, works in steps and exits."""
    script = (
        "echo job $RLSCHED_JOB rank $RLSCHED_RANK of $RLSCHED_NUM_RANKS on GPUs $CUDA_VISIBLE_DEVICES; "
        f"for step in 1 2 3 4; do sleep {seconds / 4}; echo step $step; done"
    )
    return ["sh", "-c", script]


def watch(client: Client, numbers: set[int]) -> list[JobInfo]:
    """Show the queue, and why one job waits, until all have ended."""
    deadline = time.monotonic() + DEADLINE_S
    look_at = 0.0
    while True:
        jobs = [job for job in client.jobs(finished=True) if job.job in numbers]
        if all(job.state in FINISHED for job in jobs) or time.monotonic() > deadline:
            return jobs
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK_EVERY_S
            show(client, jobs)
        time.sleep(0.3)


def show(client: Client, jobs: list[JobInfo]) -> None:
    """Print running and waiting jobs, and why the largest waiting job waits."""
    active = [job for job in jobs if job.state not in FINISHED]
    waiting = [job for job in active if job.state == "queued"]
    done = len(jobs) - len(active)
    click.echo(
        f"\n$ rlsched queue      # {done} ended, {len(active) - len(waiting)} running, {len(waiting)} waiting"
    )
    shown = [job for job in active if job.state != "queued"] + waiting[:4]
    print_lines(lambda width: job_lines(shown, width))
    if waiting:
        largest = max(waiting, key=lambda job: job.num_gpus)
        explanation = client.why(largest.job)
        click.echo(f"$ rlsched why {largest.job}\njob {largest.job}: {explanation.summary}")
        for line in explanation.details[:6]:
            click.echo(f"  {line}")


def judge(jobs: list[JobInfo], stats: StatsReport) -> int:
    """Print the sources of decisions, and any problem."""
    by_policy = stats.contested.get("rule", 0)
    gangs = sum(len(job.nodes) > 1 for job in jobs)
    print_table(
        "Who decided",
        ("source", "decisions"),
        [
            (source, str(stats.decisions.get(source, 0)))
            for source in ("policy", "rule", "guard", "automatic")
        ],
        note="rule: the default policy, `tuned`; policy: a network; automatic: there was only one choice",
    )
    completed = sum(job.state == "completed" and job.exit_code == 0 for job in jobs)
    click.echo(
        f"{completed} of {len(jobs)} jobs completed, {gangs} of them gangs over both nodes; "
        f"policy {stats.policy}"
    )
    problems = []
    if completed < len(jobs):
        problems.append("not every job ran and completed")
    if by_policy < MIN_CONTESTED:
        problems.append(f"the policy made {by_policy} contested choices, expected {MIN_CONTESTED} or more")
    if not gangs:
        problems.append("no gang ran over both nodes")
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
