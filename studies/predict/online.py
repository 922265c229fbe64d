"""Cost of predictions for a serving broker: start from a long journal, and replies during a fit.

    .venv/bin/python -m studies.predict.online [--jobs 20000] [--prediction hedge]

Writes a journal of ended jobs, starts `rlsched broker` on it, and submits jobs one after another,
each as soon as the one before is acknowledged, first during the fit of boosting and as long again afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from rlsched.broker.base.entries import (
    AttemptOver,
    BrokerStarted,
    Decided,
    Entry,
    JobSubmitted,
    NodeUp,
    RankEnded,
    RankLaunched,
)
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.replay import JOURNAL_FILE
from rlsched.broker.state.predictions import Predictions
from rlsched.client.client import Client
from rlsched.cluster.spec import SHARED_PARTITION
from rlsched.decide.actions import Start
from rlsched.terminal.show import print_table
from rlsched.workload.predict.kinds import KINDS

GPUS = 64
PROGRAMS = {"probe": (90.0, 1.2), "sweep": (1200.0, 1.3), "train": (9000.0, 1.2), "huge": (90_000.0, 1.0)}
MIN_S, MAX_S = 5.0, 120.0


def write_journal(path: Path, jobs: int, kind: str) -> None:
    """Jobs of one GPU on one node, in order of submission, each on the first free GPU."""
    journal, predictions = Journal(path), Predictions(kind)
    journal._db.execute("PRAGMA synchronous=OFF")  # this journal may be lost
    rng = np.random.default_rng(0)
    names = rng.choice(list(PROGRAMS), size=jobs, p=[0.4, 0.3, 0.2, 0.1])
    gaps_s = rng.exponential(200.0, size=jobs)
    now_s = time.time() - float(gaps_s.sum()) - 40 * 86400.0
    free_s = [now_s] * GPUS
    at: list[tuple[float, int, int]] = []
    duration_s, gpu_of = {}, {}
    for job, gap_s in enumerate(gaps_s, start=1):
        now_s += float(gap_s)
        median_s, spread = PROGRAMS[names[job - 1]]
        duration_s[job] = float(np.exp(np.log(median_s) + spread * rng.standard_normal()))
        gpu_of[job] = gpu = int(np.argmin(free_s))
        start_s = max(now_s, free_s[gpu]) + 0.01
        free_s[gpu] = start_s + duration_s[job]
        at += [(now_s, 1, job), (start_s, 2, job), (free_s[gpu], 0, job)]
    first: list[Entry] = [
        BrokerStarted(epoch=1, cluster="c", version="0", policy="fifo", fallback="", order="submit"),
        NodeUp(name="n0", gpus=GPUS, gpu_type="", gpu_uuids=[], cpus=0, memory_mib=0, vc="", boot_id=""),
    ]
    journal.commit(first, min(at)[0] - 1.0)
    decisions = 0
    for when_s, what, job in sorted(at):
        entries: list[Entry]
        if what == 1:
            draft = submission(job, names[job - 1])
            (predicted,) = predictions.predict([draft], when_s)
            predictions.record_submission(predicted, when_s)
            entries = [predicted]
        elif what == 2:
            predictions.record_start(job, when_s)
            action = Start(job - 1, (gpu_of[job],))
            entries = [
                Decided(
                    number=decisions, partition=SHARED_PARTITION, source="automatic", action=action,
                    contested=False, guard="", marks_hold=False,
                ),
                RankLaunched(job=job, attempt=1, rank=0, pid=1),
            ]  # fmt: skip
            decisions += 1
        else:
            predictions.record_run_time(submission(job, names[job - 1]), duration_s[job], when_s)
            entries = [
                RankEnded(job=job, attempt=1, rank=0, exit_code=0, reason=""),
                AttemptOver(job=job, attempt=1, outcome="completed", exit_code=0, reason=""),
            ]
        journal.commit(entries, when_s)
    journal.close()


def submission(job: int, name: str) -> JobSubmitted:
    return JobSubmitted(
        job=job, token=f"t{job}", command=[f"/opt/{name}", str(job)], num_gpus=1, name=f"{name}-{job}", vc="",
        user=f"u{job % 7}", num_cpus=0, time_limit_s=None, env={}, cwd="", predicted_s=0.0, spread=0.0,
    )  # fmt: skip


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def times(took_ms: list[float]) -> list[str]:
    """p50, p99 and the longest, ms."""
    return [f"{len(took_ms):,}", *(f"{np.quantile(took_ms, at):.1f}" for at in (0.5, 0.99, 1.0))]


@click.command()
@click.option("--jobs", default=20_000, show_default=True, help="Ended jobs in the journal.")
@click.option("--prediction", type=click.Choice(KINDS), default="hedge", show_default=True)
def main(jobs: int, prediction: str) -> None:
    """Print start-up time and reply times."""
    with tempfile.TemporaryDirectory(prefix="rlsched-predict-") as folder:
        directory = Path(folder)
        path = directory / "broker" / JOURNAL_FILE
        write_journal(path, jobs, prediction)
        size_mib = sum(part.stat().st_size for part in path.parent.iterdir()) / 2**20
        began_s = time.monotonic()
        broker = subprocess.Popen(
            [
                sys.executable, "-m", "rlsched", "broker", "--dir", str(path.parent), "--keys", folder,
                "--address", "tcp://127.0.0.1:0", "--policy", "fifo", "--prediction", prediction,
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline().decode()
            print(
                f"journal of {jobs:,} jobs, {size_mib:.0f} MiB: ready after "
                f"{time.monotonic() - began_s:.1f} s, {cpu_s(broker.pid):.1f} CPU s"
            )
            with Client(ready.split()[4], home=directory) as client:
                before_s = cpu_s(broker.pid)
                during, after = measure(client)
                cpu_ms = 1e3 * (cpu_s(broker.pid) - before_s) / (len(during) + len(after))
            print_table(
                f"replies to submissions, {prediction}, ms",
                ("", "replies", "p50", "p99", "longest"),
                [("while boosting is fitted", *times(during)), ("afterwards", *times(after))]
                if during
                else [("no fit", *times(after))],
            )
            print(f"CPU time of the broker per job submitted: {cpu_ms:.2f} ms")
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(60)


def measure(client: Client) -> tuple[list[float], list[float]]:
    """(ms of each reply during a fit, ms of each reply after it)."""
    during: list[float] = []
    after: list[float] = []
    began_s = time.monotonic()
    fitted_s: float | None = None
    count = 0
    while True:
        if count % 20 == 0:
            report = client.stats().prediction
            assert report is not None
            if fitted_s is None and not (report.fitting or report.fits == 0):
                fitted_s = time.monotonic()
        sent_s = time.perf_counter()
        client.submit(["/opt/probe", str(count)], name=f"probe-{count}", user="u1")
        (during if fitted_s is None else after).append(1e3 * (time.perf_counter() - sent_s))
        count += 1
        now_s = time.monotonic()
        if now_s - began_s > MAX_S:
            return during, after
        if fitted_s is not None and now_s - fitted_s > max(MIN_S, fitted_s - began_s):
            return during, after


if __name__ == "__main__":
    main()
