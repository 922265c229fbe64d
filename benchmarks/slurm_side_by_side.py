"""The same jobs on plain Slurm and on Slurm with rlsched's decisions, at the same time, on this machine.

    python -m benchmarks.slurm_side_by_side                       # 500 jobs: about 14 minutes
    python -m benchmarks.slurm_side_by_side --jobs 500 --seeds 3  # paired, with intervals

Each side has its own real Slurm with four nodes of four fake GPUs. A second stands for ten
minutes, also in the policy's `reserve_after`. Users run the same programs repeatedly. Plain Slurm orders
by submission, and backfills with the jobs' time limits (a minute is its smallest) over the whole queue, every
second.
The start latency is also measured, on idle clusters: from the decision to the first line of the
script, against `scontrol release` without rlsched; and from sbatch to that line, with and without.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.soak.slurm_gateway import OnSlurm
from tests.support.online.cluster import until
from tests.support.online.real_slurm import RealSlurm, lacking

NODES, GPUS = 4, 4
POLICY = ("--policy", "tuned", "--set", "reserve_after=6s")
"""Options of the policy: `reserve_after` is an hour of `tuned`, at this time scale."""
USERS = (1, 2, 3, 5, 6, 7, 8, 9)
"""User IDs that exist on every Debian system."""
PROGRAMS = ("train", "sweep", "probe")
"""Names of the jobs of each user."""
_SCRIPT = """#!/bin/sh
echo "$2 start $(date +%s.%N)" >> {ran}
sleep $1
echo "$2 end $(date +%s.%N)" >> {ran}
"""


class Planned(NamedTuple):
    """A job: its submission time, user, program, run time and GPUs."""

    at_s: float
    user: int
    program: str
    runs_s: float
    nodes: int
    gpus: int
    limit_min: int

    @property
    def size(self) -> int:
        """GPUs in total."""
        return self.nodes * self.gpus


class Ran(NamedTuple):
    """Times at which a job was submitted, began and ended, Unix seconds."""

    submit_s: float
    start_s: float
    end_s: float


def plan(count: int, load: float, seed: int) -> list[Planned]:
    """Return jobs of users with habits: bursts of submissions, and a few long jobs among many short ones.

    `load`: offered GPU seconds over available GPU seconds.
    """
    rng = np.random.default_rng(seed)
    habits = {
        user: [(float(rng.lognormal(0.9, 1.1)), int(rng.choice((1, 1, 1, 2, 2, 4, 8)))) for _ in range(3)]
        for user in USERS
    }
    found: list[Planned] = []
    at_s = 0.0
    while len(found) < count:
        user = int(rng.choice(USERS))
        which = int(rng.integers(3))
        typical_s, size = habits[user][which]
        burst = min(int(rng.geometric(0.4)), count - len(found))
        for _ in range(burst):
            runs_s = float(np.clip(typical_s * rng.lognormal(0.0, 0.4), 0.3, 90.0))
            nodes = 2 if size == 8 else 1
            limit_min = max(1, int(np.ceil(2 * runs_s / 60.0)))
            found.append(Planned(at_s, user, PROGRAMS[which], runs_s, nodes, size // nodes, limit_min))
            at_s += float(rng.exponential(0.1))
        at_s += float(rng.exponential(1.0))
    work_s = sum(job.runs_s * job.size for job in found)
    scale = work_s / (NODES * GPUS * load) / max(found[-1].at_s, 1e-9)
    return [job._replace(at_s=job.at_s * scale) for job in found]


def replay(slurm: RealSlurm, jobs: list[Planned], place: Path, timeout_s: float) -> list[Ran]:
    """Submit each job at its time, and wait until all have ended."""
    ran, script = place / "ran", place / "job.sh"
    ran.write_text("")
    ran.chmod(0o666)
    script.write_text(_SCRIPT.format(ran=ran))
    script.chmod(0o755)
    submitted: list[float] = []
    began_s = time.time()
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began_s + job.at_s - time.time()))
        submitted.append(time.time())
        options = (f"--job-name={job.program}", f"-N{job.nodes}", f"--gres=gpu:{job.gpus}")
        limit = ("-t", str(job.limit_min))
        slurm.sbatch(
            *options, *limit, script=script, arguments=(f"{job.runs_s:.3f}", str(number)), uid=job.user
        )
    until(lambda: ran.read_text().count(" end ") >= len(jobs), "all have ended", timeout_s)
    said = {(words[0], words[1]): float(words[2]) for words in _words(ran)}
    return [
        Ran(submit_s, said[str(number), "start"], said[str(number), "end"])
        for number, submit_s in enumerate(submitted)
    ]


def _words(ran: Path) -> list[list[str]]:
    return [line.split(" ") for line in ran.read_text().splitlines()]


def side_by_side(jobs: list[Planned], folder: Path, timeout_s: float) -> tuple[list[Ran], list[Ran]]:
    """Replay the jobs on plain Slurm and on Slurm with rlsched, at the same time."""
    found: dict[str, list[Ran]] = {}
    alone = RealSlurm(folder / "alone", NODES, GPUS, exact=False)
    decided = OnSlurm(folder / "decided", nodes=NODES, gpus=GPUS, broker_options=POLICY)
    try:
        works = [
            threading.Thread(target=lambda: found.update(alone=replay(alone, jobs, folder, timeout_s))),
            threading.Thread(
                target=lambda: found.update(
                    decided=replay(decided.slurm, jobs, folder / "decided", timeout_s)
                )
            ),
        ]
        for work in works:
            work.start()
        for work in works:
            work.join()
    finally:
        decided.close()
        alone.close()
    if len(found) != 2:
        raise SystemExit("one of the sides did not finish")
    return found["alone"], found["decided"]


class Latencies(NamedTuple):
    """Seconds to the first line of the script, on idle clusters."""

    released: list[float]
    decided: list[float]
    submitted_alone: list[float]
    submitted_decided: list[float]


def latencies(folder: Path, count: int) -> Latencies:
    """Measure the latencies of single jobs on idle clusters."""
    found = Latencies([], [], [], [])
    rng = random.Random(1)
    alone = RealSlurm(folder / "alone-idle", NODES, GPUS, exact=False)
    decided = OnSlurm(folder / "decided-idle", nodes=NODES, gpus=GPUS)
    ran, script = folder / "idle", folder / "idle.sh"
    ran.write_text("")
    script.write_text(_SCRIPT.format(ran=ran))
    script.chmod(0o755)

    def first_line(name: str) -> float:
        until(lambda: f"{name} start" in ran.read_text(), f"{name} began")
        return float(next(words[2] for words in _words(ran) if words[:2] == [name, "start"]))

    def submit(slurm: RealSlurm, name: str, *options: str) -> tuple[str, float]:
        at_s = time.time()
        words = (f"--job-name={name}", "--gres=gpu:1", *options)
        return slurm.sbatch(*words, script=script, arguments=("0", name)), at_s

    try:
        with decided.client(timeout_s=30.0) as client:
            for k in range(count):
                time.sleep(rng.random())
                number, _ = submit(alone, f"held{k}", "--hold")
                time.sleep(rng.random())
                at_s = time.time()
                alone.ask("scontrol", "release", number)
                found.released.append(first_line(f"held{k}") - at_s)
                time.sleep(rng.random())  # Slurm checks its queue once a second: randomises the phase
                _, at_s = submit(alone, f"free{k}")
                found.submitted_alone.append(first_line(f"free{k}") - at_s)
                time.sleep(rng.random())
                _, at_s = submit(decided.slurm, f"ours{k}")
                began_s = first_line(f"ours{k}")
                found.submitted_decided.append(began_s - at_s)
                start_s = max(job.start_s or 0.0 for job in client.jobs(finished=True))
                found.decided.append(began_s - start_s)
    finally:
        decided.close()
        alone.close()
    return found


def ratio(jobs: list[Planned], alone: list[Ran], decided: list[Ran], what: str, size: str = "") -> float:
    """Return the mean waiting time or JCT with rlsched / the mean without, for jobs of one size."""
    chosen = [k for k, job in enumerate(jobs) if not size or _size(job) == size]
    sums = [sum(_took(one[k], what) for k in chosen) for one in (decided, alone)]
    return sums[0] / sums[1] if sums[1] > 0 else float("nan")


def _took(one: Ran, what: str) -> float:
    return (one.start_s if what == "waiting" else one.end_s) - one.submit_s


def _size(job: Planned) -> str:
    return "1 GPU" if job.size == 1 else f"{job.size} GPUs"


def report(jobs: list[Planned], alone: list[Ran], decided: list[Ran]) -> None:
    """Print one sequence."""
    print(f"{'':10s}{'jobs':>6s}{'plain Slurm':>24s}{'with rlsched':>24s}   waiting, JCT: mean seconds")
    sizes = sorted({_size(job) for job in jobs}, key=lambda name: int(name.split()[0]))
    for name in ["all", *sizes]:
        chosen = [k for k, job in enumerate(jobs) if name == "all" or _size(job) == name]
        columns = [
            f"{statistics.fmean(_took(side[k], what) for k in chosen):11.2f}"
            for side in (alone, decided)
            for what in ("waiting", "JCT")
        ]
        print(f"{name:10s}{len(chosen):6d} {' '.join(columns)}")
    for name, side in (("alone", alone), ("rlsched", decided)):
        waits = sorted(_took(one, "waiting") for one in side)
        last_s = max(one.end_s for one in side) - min(one.submit_s for one in side)
        print(
            f"{name}: waiting p50 {waits[len(waits) // 2]:.2f} p90 {waits[len(waits) * 9 // 10]:.2f} s, ",
            end="",
        )
        print(f"makespan {last_s:.0f} s")


def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--load", type=float, default=0.95)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--starts", type=int, default=20, help="Starts on idle clusters.")
    options = parser.parse_args()
    if lacking():
        raise SystemExit(lacking())
    ratios: dict[str, list[float]] = {"waiting": [], "JCT": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ["SLURM_CONF"] = ""
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            jobs = plan(options.jobs, options.load, seed)
            here = folder / f"seed{seed}"
            here.mkdir(mode=0o755)
            alone, decided = side_by_side(jobs, here, timeout_s=1800.0)
            print(f"seed {seed}: {len(jobs)} jobs within {jobs[-1].at_s:.0f} s")
            report(jobs, alone, decided)
            for what, known in ratios.items():
                known.append(ratio(jobs, alone, decided, what))
        for what, known in ratios.items():
            print(f"{what}: with rlsched, over plain Slurm: {_interval(known)}")
        if options.starts:
            idle = latencies(folder, options.starts)
            for kind, seconds in idle._asdict().items():
                print(f"{kind}: p50 {statistics.median(seconds):.3f} s of {len(seconds)}")


def _interval(ratios: list[float]) -> str:
    """Geometric mean, with a 95 % interval of Student's t over the seeds."""
    logs = np.log(ratios)
    mean = float(np.exp(logs.mean()))
    if len(ratios) < 2:
        return f"{mean:.3f}"
    from scipy.stats import t

    half = float(t.ppf(0.975, len(ratios) - 1) * logs.std(ddof=1) / np.sqrt(len(ratios)))
    return f"{mean:.3f} [{mean * np.exp(-half):.3f}, {mean * np.exp(half):.3f}], {len(ratios)} seeds"


if __name__ == "__main__":
    main()
