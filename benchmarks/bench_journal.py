"""Start of a broker on a long journal: time, memory and disk by the number of ended jobs.

    python benchmarks/bench_journal.py                        # 24,000 ended jobs: a minute on one core
    python benchmarks/bench_journal.py --jobs 50000 --behind 950000
    python benchmarks/bench_journal.py --jobs 1000000         # writes 2 GB below the temporary folder: 40 min

The journal is written as brokers write it: jobs of one GPU, each submitted, started, acknowledged, ended by
itself, with a command of six words, two environment variables and a prediction by the running mean. A fresh
process loads it as a broker does before it listens:

    all entries     without a snapshot, as after a change of policy; also writes the table of ended jobs
    snapshot        the next start: from the snapshot written by the first one
    tail            the same, after a killed broker has left 20,000 entries after its snapshot
    base            another policy, with a journal at the upper end of its default bounds: a base, 12,000
                    entries after it, and no snapshot; with the running mean and with the hedge

With --behind N, the table of ended jobs has N more rows, for jobs that ended earlier. The rows are written
straight into the table, because after a base the journal keeps nothing else of such jobs.

`start` is the time of `recover_state`, `process` the time of the whole process, with imports and kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

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
from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.compaction.keeping import GROWN, KEEP_ENTRIES
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.recovery import keep_snapshot, recover_state
from rlsched.broker.state.predictions import Predictions
from rlsched.decide.actions import Start
from rlsched.decide.registry import load_scheduler
from rlsched.workload.predict.kinds import RUNNING_MEAN

COMMAND = "python benchmarks/bench_journal.py"
BATCH = 200
TAIL_JOBS = 4_000
"""Number of jobs in the tail of the journal; each has five entries."""
FIRST_BEHIND = 100_000_000
Row = dict[str, Any]


def entries_of(job: int, now_s: float) -> list[Entry]:
    """The entries of a job from submission to end."""
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
            cwd="/srv/project",
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


def write(path: Path, jobs: int, first_job: int = 1) -> None:
    """Write a journal of this many ended jobs, or append this many."""
    journal = Journal(path)
    if first_job == 1:
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
    for first in range(first_job, first_job + jobs, BATCH):
        now_s = 1.0 + first
        last = min(first + BATCH, first_job + jobs)
        journal.commit([one for job in range(first, last) for one in entries_of(job, now_s)], now_s)
    journal.close()


class Load(NamedTuple):
    """Cost of a load, measured within its process."""

    start_s: float
    cpu_s: float
    process_cpu_s: float
    rss_kib: int
    peak_kib: int
    last_job: int


def load(path: Path, prediction: str, *, keep: bool) -> Load:
    """Load a journal as a broker does before it listens; with `keep`, store a snapshot afterwards."""
    scheduler = load_scheduler("fifo-backfill")
    predictions = Predictions(prediction)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    journal = Journal(path)
    state = recover_state(journal, predictions, scheduler)
    start_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rss_kib, peak_kib = (int(status[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    process_cpu_s = time.process_time()
    if keep:
        keep_snapshot(journal, state, scheduler)
    journal.close()
    return Load(start_s, cpu_s, process_cpu_s, rss_kib, peak_kib, state.last_number)


def start(path: Path, jobs: int, how: str, prediction: str = RUNNING_MEAN) -> Row:
    """Return the cost of loading the journal in a new process."""
    keep = how == "all entries"
    began_s = time.perf_counter()
    output = subprocess.run(
        [sys.executable, __file__, "--load", str(path), prediction, *(["--keep"] if keep else [])],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    process_s = time.perf_counter() - began_s
    cost = Load(*json.loads(output))
    assert cost.last_job == jobs
    return {
        "jobs": jobs,
        "how": how,
        "start_s": cost.start_s,
        "cpu_s": cost.cpu_s,
        "process_s": None if keep else process_s,
        "process_cpu_s": cost.process_cpu_s,
        "rss_mb": cost.rss_kib * 1024 / 1e6,
        "peak_mb": cost.peak_kib * 1024 / 1e6,
        "disk_mb": path.stat().st_size / 1e6,
    }


def fill_table(path: Path, behind: int) -> None:
    """Add this many rows of jobs, copied from the last row with other numbers."""
    journal = Journal(path)
    like = journal.ended.row(1)
    assert like is not None
    for first in range(FIRST_BEHIND, FIRST_BEHIND + behind, 10_000):
        numbers = range(first, min(first + 10_000, FIRST_BEHIND + behind))
        journal.add_ended(
            [like._replace(job=number, token=f"{number:032x}", end_s=number / 1e3) for number in numbers]
        )
    journal.close()


def starts(directory: Path, jobs: int, behind: int) -> list[Row]:
    """Return the cost of each kind of start on a journal of this many jobs."""
    path = directory / f"{jobs}.sqlite"
    write(path, jobs)
    rows = [start(path, jobs, "all entries"), start(path, jobs, "snapshot")]
    write(path, TAIL_JOBS, jobs + 1)
    rows.append(start(path, jobs + TAIL_JOBS, "tail"))
    bound(path)
    if jobs:
        fill_table(path, behind)
    return [
        *rows,
        start(path, jobs + TAIL_JOBS, "base"),
        start(path, jobs + TAIL_JOBS, "base, hedge", "hedge"),
    ]


def bound(path: Path) -> None:
    """Replace the earlier entries by a base. Keep as many entries as a journal has before its next base."""
    began_s = time.perf_counter()
    cut = made(path, math.inf, keep_entries=GROWN * KEEP_ENTRIES)
    journal = Journal(path)
    if cut is not None and put(journal, cut):
        while journal.drop():
            pass
    journal.snapshots.clear()
    journal.compact()
    journal.close()
    print(f"a base was written in {time.perf_counter() - began_s:.1f} s", file=sys.stderr)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=24_000)
    parser.add_argument("--behind", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--load", nargs=2, metavar=("JOURNAL", "PREDICTION"), help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        journal, prediction = arguments.load
        print(json.dumps(load(Path(journal), prediction, keep=arguments.keep)))
        return
    with tempfile.TemporaryDirectory() as directory:
        rows = [
            row for jobs in (0, arguments.jobs) for row in starts(Path(directory), jobs, arguments.behind)
        ]
    if arguments.json:
        print(json.dumps({"command": COMMAND, "rows": msgspec.to_builtins(rows)}))
        return
    columns = ("start_s", "cpu_s", "process_s", "process_cpu_s", "rss_mb", "peak_mb", "disk_mb")
    print("| ended jobs | from | start, s | CPU, s | process, s | its CPU | memory, MB | peak, MB | disk |")
    print("|---:|---|" + "---:|" * len(columns))
    for row in rows:
        cells = ("" if row[name] is None else f"{row[name]:.1f}" for name in columns)
        print(f"| {row['jobs']:,} | {row['how']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
