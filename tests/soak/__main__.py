"""`python -m tests.soak --rounds 100`: exit code 1 if it found a fault."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.soak import sharing
from tests.soak.endurance import endure
from tests.soak.slurm import Slurm
from tests.soak.sweep import Sweep
from tests.soak.systems import Ours, System
from tests.support.online.real_slurm import lacking


def main() -> int:
    """Run a trial and print a line per round."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="each kills or stops at least one process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="folder for all files; default: a temporary folder")
    parser.add_argument("--short-jobs", type=int, default=0, help="run this number of short jobs instead")
    parser.add_argument(
        "--share",
        action="store_true",
        help="jobs share GPUs of a fake NVML at lower clocks: on one node under a fake MPS, on the other by "
        "time slicing; needs gcc",
    )
    parser.add_argument("--only", default="", help="hit only this target in each round, such as `node`")
    parser.add_argument("--slurm", action="store_true", help="test a Slurm on this machine instead")
    args = parser.parse_args()
    if args.slurm and lacking():
        print(f"skipped: {lacking()}", file=sys.stderr)
        return 0
    if args.share and sharing.lacking():
        print(f"skipped: {sharing.lacking()}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as made:
        directory = args.dir or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        if args.short_jobs:
            return _short_jobs(directory, args.short_jobs)
        ours = partial(Ours, shares=args.share, only=args.only)
        system: System = Slurm(directory) if args.slurm else ours(directory)
        if isinstance(system, Ours) and system.left_out:
            print(f"skipped: {system.left_out}", file=sys.stderr)
        try:
            sweep = Sweep(directory, system, args.seed, say=lambda line: print(line, flush=True))
            for number in range(args.rounds):
                sweep.round(number)
            gpus = system.gpus if isinstance(system, Ours) else None
            if gpus is not None:
                sweep.adoption(args.rounds, lambda: gpus.counts.adopted)
        finally:
            system.close()
        found, faults = sweep.outcome, len(sweep.outcome.faults)
        print(f"{found.injections} kills and stops, {found.jobs} jobs acknowledged, {faults} faults")
        if isinstance(system, Ours) and system.gpus is not None:
            counts = system.gpus.counts
            print(f"{counts.locks} clock locks, {counts.daemons} MPS control daemons")
            print(f"adopted: {counts.adopted_jobs} ranks, {counts.adopted_daemons} MPS control daemons")
            print(f"GPUs out of service because of processes of jobs: {counts.foreign}")
    return int(faults > 0)


def _short_jobs(directory: Path, jobs: int) -> int:
    """Run them and print their costs."""
    found = endure(directory, jobs, say=lambda line: print(line, flush=True))
    print(f"{found.jobs} jobs, {found.failed} did not complete, {found.per_s:.0f} a second")
    for name in found.readings[-1].rss_mib:
        grown = f"{found.growth_mib(name):+.1f} MiB, {found.growth_files(name):+d} files"
        print(f"{name}: {grown} since the first third")
    print(f"journal {found.readings[-1].journal_mib:.1f} MiB, compacted {found.compacted_mib:.1f}")
    return int(bool(found.failed) or found.jobs < jobs)


if __name__ == "__main__":
    sys.exit(main())
