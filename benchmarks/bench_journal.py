"""What a long journal costs a broker that starts: time, memory and disk by the number of ended jobs.

    python benchmarks/bench_journal.py                        # 24,000 ended jobs: 10 s on one core
    python benchmarks/bench_journal.py --jobs 1000000         # writes 1 GB below the temporary folder

A journal is written as brokers write it: jobs of one GPU, each submitted, started, acknowledged, ended by
itself, with a command of six words, two environment variables and a prediction by the running mean. A fresh
process then takes it up as a broker does before it listens. The first row is an empty journal; a job's share
is what the others add to it, and the last row is that, extrapolated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from rlsched.broker.entries import (
    AttemptOver,
    BrokerStarted,
    Decided,
    Entry,
    JobSubmitted,
    NodeUp,
    RankEnded,
    RankLaunched,
)
from rlsched.broker.journal import Journal
from rlsched.decide.actions import Start

COMMAND = "python benchmarks/bench_journal.py"
BATCH = 200
EXTRAPOLATED = 1_000_000
CHILD = """
import sys, time
from pathlib import Path
from rlsched.broker.book import Book
from rlsched.broker.journal import Journal
from rlsched.broker.predictions import Predictions
from rlsched.decide.registry import load_scheduler
scheduler = load_scheduler("fifo-backfill")
began_s, began_cpu_s = time.perf_counter(), time.process_time()
journal = Journal(Path(sys.argv[1]))
book = Book(Predictions("running-mean"), scheduler.order)
book.replay(journal.rows(), scheduler)
took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(took_s, cpu_s, int(status["VmRSS"].split()[0]), book.ended)
"""
Row = dict[str, Any]


def entries_of(job: int, now_s: float) -> list[Entry]:
    """A job's life."""
    return [
        JobSubmitted(
            job=job,
            token=f"{job:032x}",
            command=["python", "train.py", "--epochs", str(job), "--lr", "0.001"],
            num_gpus=1,
            name=f"resnet50-run-{job % 50}",
            vc="",
            user=f"user{job % 20}",
            num_cpus=0,
            time_limit_s=None,
            env={"WANDB_PROJECT": "abc", "DATA": "/data/imagenet"},
            cwd="/home/user/project",
            predicted_s=600.0,
            spread=1.0,
        ),
        Decided(
            number=job - 1,
            partition="shared",
            source="rule",
            action=Start(seq=job - 1, gpus=(0,)),
            contested=False,
            guard="",
            marks_hold=False,
        ),
        RankLaunched(job=job, attempt=1, rank=0, pid=job),
        RankEnded(job=job, attempt=1, rank=0, exit_code=0, reason="", ended_s=now_s, ran_s=1.0),
        AttemptOver(job=job, attempt=1, outcome="completed", exit_code=0, reason=""),
    ]


def write(path: Path, jobs: int) -> None:
    """A journal of so many ended jobs."""
    journal = Journal(path)
    started = BrokerStarted(
        epoch=1, cluster="c", version="0", policy="fifo-backfill", fallback="", order="submit"
    )
    node = NodeUp(
        name="n0",
        gpus=8,
        gpu_type="generic",
        gpu_uuids=[],
        cpus=8,
        memory_mib=1024,
        vc="",
        boot_id="b",
    )
    journal.commit([started, node], 1.0)
    for first in range(1, jobs + 1, BATCH):
        now_s = 1.0 + first
        batch = [one for job in range(first, min(first + BATCH, jobs + 1)) for one in entries_of(job, now_s)]
        journal.commit(batch, now_s)
    journal.close()


def start(path: Path, jobs: int) -> Row:
    """What a fresh process needs to take it up."""
    said = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
    ).stdout.split()
    assert int(said[3]) == jobs
    return {
        "jobs": jobs,
        "start_s": float(said[0]),
        "cpu_s": float(said[1]),
        "rss_mb": int(said[2]) * 1024 / 1e6,
        "disk_mb": path.stat().st_size / 1e6,
    }


def extrapolated(empty: Row, full: Row) -> Row:
    """A row of `EXTRAPOLATED` jobs, each of them costing what one did here."""
    times = EXTRAPOLATED / full["jobs"]
    return {
        name: empty[name] + times * (full[name] - empty[name])
        for name in ("jobs", "start_s", "cpu_s", "rss_mb", "disk_mb")
    }


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=24_000)
    parser.add_argument("--json", action="store_true", help="print JSON in the place of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rows = []
        for jobs in (0, arguments.jobs):
            path = Path(directory) / f"{jobs}.sqlite"
            write(path, jobs)
            rows.append(start(path, jobs))
    rows.append(extrapolated(*rows))
    if arguments.json:
        print(json.dumps({"command": COMMAND, "rows": msgspec.to_builtins(rows)}))
        return
    print("| ended jobs | start, s | CPU, s | memory, MB | journal, MB |\n|---:|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['jobs']:,.0f}{' (extrapolated)' if row is rows[-1] else ''} | {row['start_s']:.1f} "
            f"| {row['cpu_s']:.1f} | {row['rss_mb']:.0f} | {row['disk_mb']:.1f} |"
        )


if __name__ == "__main__":
    main()
