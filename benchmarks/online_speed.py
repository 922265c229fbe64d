"""Speed of a whole cluster on this machine: submissions and starts a second, latency of a start.

    .venv/bin/python benchmarks/online_speed.py                       # 2 minutes
    .venv/bin/python benchmarks/online_speed.py --slurm DIR           # and a real Slurm, in the same run
    .venv/bin/python benchmarks/online_speed.py --only submit-cpu     # 20 seconds

A broker with its defaults and four node daemons with four simulated GPUs each, all on loopback, with real
processes; the broker syncs every batch to disk. `submissions`: durable submissions a second from four
processes, of jobs that wait. `p50`, `p99`: from just before a submission until the job's own clock, on an
idle cluster, 40 jobs. `starts`: 400 jobs of one line each from four processes. `next`: from the end of a
job, by its own clock, to the first line of the next job on the freed GPU, with 10,000 jobs waiting and a
process that lists the queue without pause. The k-th end is paired with the k-th start after the first
sixteen, as each job takes one of sixteen GPUs. The first hundred ends are left out: all GPUs became free at
once before them. `submit-cpu`: the CPU time, user and system, of ten processes `rlsched submit -- true`,
and of as many `python -c pass`, in alternation.

With `--slurm` the same jobs go through `sbatch` to an existing Slurm, with all its GPUs free: DIR is the
folder of its `etc/slurm.conf`, from a script that starts one with fake GPUs. Skipped with a note without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rlsched.broker.journal.mark import ADDRESS_FILE
from rlsched.client.client import Client

RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
CLIENTS, NODES, GPUS = 4, 4, 4
IDLE_JOBS, STARTS, SUBMIT_S = 40, 400, 3.0
PROCESSES, MOST_CPU_MS = 10, 60.0
WAITING, ENDS_S, ARRAY, WARM_ENDS = 10_000, 20.0, 1_000, 100
STAMP = ("sh", "-c", 'echo "$(date +%s.%N)" >> "$0"')
SHORT = ("sh", "-c", 'echo "$(date +%s.%N)" >> "$0.start"; sleep "$1"; echo "$(date +%s.%N)" >> "$0.end"')
TARGETS = {
    "submissions/s": ">= 3000",
    "p50_ms": "< 12",
    "p99_ms": "< 40",
    "starts/s": ">= 150",
    "next_p50_ms": "",
    "next_p99_ms": "< 50",
}


def until(look: Callable[[], object], deadline_s: float = 120.0, every_s: float = 0.0005) -> None:
    """Poll until a condition holds.

    Raises:
        TimeoutError: the condition did not hold before the deadline.
    """
    end_s = time.monotonic() + deadline_s
    while not look():
        if time.monotonic() > end_s:
            raise TimeoutError("the cluster makes no progress")
        time.sleep(every_s)


def stamps(path: Path) -> list[float]:
    """Start time of each job, Unix seconds, in the order of its lines."""
    if not path.exists():
        return []
    return [float(line) for line in path.read_text().split("\n")[:-1]]


def latency_ms(submit: Callable[[Path], None], path: Path) -> list[float]:
    """Return the start latency of jobs that are submitted one at a time, at irregular intervals, ms."""
    taken = []
    for number in range(IDLE_JOBS):
        time.sleep(0.05 + 0.037 * (number % 7))
        began_s = time.time()
        submit(path)
        until(lambda wanted=number + 1: len(stamps(path)) >= wanted)  # type: ignore[misc]
        taken.append((stamps(path)[-1] - began_s) * 1e3)
    return taken


def starts_per_s(submit_many: Callable[[Path], None], path: Path) -> float:
    """Return the starts per second, from the first start of many jobs to the last.

    The end is polled seldom, because polling would take CPU time from the jobs.
    """
    submit_many(path)
    until(lambda: len(stamps(path)) >= STARTS, every_s=0.05)
    seen = sorted(stamps(path))
    return (len(seen) - 1) / (seen[-1] - seen[0])


def end_to_launch_ms(path: Path, stop: Callable[[], object]) -> list[float]:
    """Return the times from each end within `ENDS_S` to the next start, ms, while further jobs wait."""
    starts, ends = Path(f"{path}.start"), Path(f"{path}.end")
    until(lambda: len(stamps(ends)) >= WARM_ENDS, every_s=0.05)
    began_s = time.time()
    time.sleep(ENDS_S)
    ended, started = sorted(stamps(ends)), sorted(stamps(starts))[NODES * GPUS :]
    stop()
    return [1e3 * (start - end) for end, start in zip(ended, started, strict=False) if end >= began_s]


def run_for_s(number: int) -> str:
    """Run time of a job, seconds: 0.4 to 0.6, so that ends are spread."""
    return f"{0.4 + 0.0125 * (number % 17):.4f}"


def cpu_ms(words: Sequence[str], env: dict[str, str]) -> float:
    """CPU time of a process from its start to its end, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def submit_cpu_ms(address: str, home: Path) -> dict[str, list[float]]:
    """CPU time of ten submissions and of as many empty processes, in alternation.

    Python's byte code is compiled before, as in an installation.
    """
    env = {**os.environ, "RLSCHED_BROKER": address, "RLSCHED_HOME": str(home)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = {"pass": (sys.executable, "-c", "pass"), "submit": (*RLSCHED, "submit", "--", "true")}
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(PROCESSES + 1):
        for name, words in commands.items():
            found[name].append(cpu_ms(words, env))
    return {name: taken[1:] for name, taken in found.items()}  # the first run may have written the byte code


def clients(task: str, address: str, home: Path, path: Path) -> list[int]:
    """Run several submitting processes, and return the number of submissions of each."""
    words = [sys.executable, __file__, "--client", task, address, str(home), str(path)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    return [int(one.communicate()[0]) for one in running]


def client(task: str, address: str, home: str, path: str) -> int:
    """The loop of a submitting process."""
    with Client(address, home=home, timeout_s=60.0) as asks:
        if task == "starts":
            for _ in range(STARTS // CLIENTS):
                asks.submit([*STAMP, path])
            return STARTS // CLIENTS
        if task == "short":
            for number in range(WAITING // CLIENTS):
                asks.submit([*SHORT, path, run_for_s(number)])
            return WAITING // CLIENTS
        if task == "list":
            while True:
                asks.jobs()
        end_s, done = time.monotonic() + SUBMIT_S, 0
        while time.monotonic() < end_s:
            asks.submit(["true"], num_gpus=NODES * GPUS)
            done += 1
        return done


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[tuple[str, Path, Client]]:
    """Start a cluster that runs a first job; yield its address, the home with its keys, and a client."""
    home = directory / "home"
    words = ["--nodes", str(NODES), "--gpus", str(GPUS), "--dir", str(directory / "up"), "--keys", str(home)]
    directory.mkdir()
    with (directory / "up.log").open("w") as log:
        up = subprocess.Popen(
            [*RLSCHED, "up", "--address", "tcp://127.0.0.1:0", *words], stdout=log, stderr=log
        )
    try:
        until(lambda: "ready" in (directory / "up.log").read_text() or up.poll() is not None)
        where = (directory / "up" / "broker" / ADDRESS_FILE).read_text().strip()
        with Client(where, home=home, timeout_s=60.0) as asks:
            until(lambda: sum(node.state == "up" for node in asks.nodes()) == NODES)
            asks.wait(asks.submit(["true"]))
            yield where, home, asks
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60.0)


def rlsched(directory: Path, only: str | None = None) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return all figures of rlsched on new clusters, or only `submit-cpu`; and CPU times by command."""
    with cluster(directory / "first") as (where, home, asks):
        cpu = submit_cpu_ms(where, home)
        if only is not None:
            return {}, cpu
        until(lambda: not asks.jobs(), every_s=0.05)
        taken = latency_ms(lambda path: _discard(asks.submit([*STAMP, str(path)])), directory / "one")
        rate = starts_per_s(lambda path: _discard(clients("starts", where, home, path)), directory / "many")
        until(lambda: not asks.jobs(), every_s=0.05)
        asks.submit(["sleep", "1000"], num_gpus=NODES * GPUS)
        submissions = sum(clients("submissions", where, home, directory / "none")) / SUBMIT_S
    with cluster(directory / "second") as (where, home, asks):
        blocker = asks.submit(["sleep", "1000"], num_gpus=NODES * GPUS)
        clients("short", where, home, directory / "short")
        words = [sys.executable, __file__, "--client", "list", where, str(home), "none"]
        with subprocess.Popen(words) as lists:
            asks.cancel(blocker)
            gaps = end_to_launch_ms(directory / "short", lists.kill)
    return summary(taken, rate, submissions, gaps), cpu


def slurm(directory: Path, etc: Path) -> dict[str, float]:
    """Return the same figures for an existing Slurm."""
    env = {**os.environ, "SLURM_CONF": str(etc / "etc" / "slurm.conf")}
    script = directory / "stamp.sh"
    script.write_text('#!/bin/sh\necho "$(date +%s.%N)" >> "$1"\n')
    short = directory / "short.sh"
    spread = " ".join(run_for_s(number) for number in range(17))
    short.write_text(
        f'#!/bin/bash\nrun=({spread})\nset -- "$1" "${{run[$((SLURM_ARRAY_TASK_ID % 17))]}}"\n'
        + SHORT[2].replace("$0", "$1").replace('sleep "$1"', 'sleep "$2"')
        + "\n"
    )

    def sbatch(*words: str) -> None:
        base = ("sbatch", "-Q", "-o", "/dev/null", "--gres=gpu:1")
        subprocess.run([*base, *words], env=env, check=True, capture_output=True)

    def many(words: Sequence[str], seconds: float, jobs: int) -> int:
        loop = (
            "import subprocess,sys,time\nend=time.monotonic()+float(sys.argv[1]);n=0\n"
            "while time.monotonic()<end and n<int(sys.argv[2]):\n"
            " n+=subprocess.run(sys.argv[3:],capture_output=True).returncode==0\nprint(n)"
        )
        argv = [sys.executable, "-c", loop, str(seconds), str(jobs), *words]
        running = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
        return sum(int(one.communicate()[0]) for one in running)

    taken = latency_ms(lambda path: sbatch(str(script), str(path)), directory / "slurm-one")
    words = ("sbatch", "-Q", "-o", "/dev/null", "--gres=gpu:1", str(script))
    rate = starts_per_s(
        lambda path: _discard(many([*words, str(path)], 1e3, STARTS // CLIENTS)), directory / "slurm-many"
    )
    began_s = time.monotonic()
    done = many(
        ["sbatch", "-Q", "-H", "-o", "/dev/null", "--gres=gpu:1", str(script), "none"], SUBMIT_S, 10**9
    )
    submissions = done / (time.monotonic() - began_s)
    subprocess.run(["scancel", "-u", str(os.getuid())], env=env, check=False)
    until(lambda: not subprocess.check_output(["squeue", "-h"], env=env), every_s=0.5)
    for _ in range(WAITING // ARRAY):
        sbatch(f"--array=0-{ARRAY - 1}", str(short), str(directory / "slurm-short"))
    with subprocess.Popen(["sh", "-c", "while squeue -r > /dev/null; do :; done"], env=env) as lists:
        gaps = end_to_launch_ms(directory / "slurm-short", lists.kill)
    subprocess.run(["scancel", "-u", str(os.getuid())], env=env, check=False)
    return summary(taken, rate, submissions, gaps)


def summary(taken_ms: list[float], rate: float, submissions: float, gaps_ms: list[float]) -> dict[str, float]:
    """The figures of one system."""
    ordered, gaps = sorted(taken_ms), sorted(gaps_ms)
    return {
        "submissions/s": submissions,
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "starts/s": rate,
        "next_p50_ms": statistics.median(gaps),
        "next_p99_ms": gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))],
    }


def _discard(_: object) -> None:
    return


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--slurm", type=Path, metavar="DIR", help="a running Slurm")
    parser.add_argument("--only", choices=("submit-cpu",), help="the CPU time of a submission only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        print(client(*args.client))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as made:
        figures, cpu = rlsched(Path(made), args.only)
        found = {"rlsched": figures} if figures else {}
        if args.slurm is not None and args.only is None:
            found["slurm"] = slurm(Path(made), args.slurm.absolute())
    if args.json:
        print(json.dumps({"load": load, "cpu_ms": cpu, **found}))
        return
    print(
        f"load average {load:.1f} on {os.cpu_count()} cores; {CLIENTS} clients, {NODES} nodes of {GPUS} GPUs"
    )
    for name, of in (("least", min), ("median", statistics.median)):
        nothing, submits = of(cpu["pass"]), of(cpu["submit"])
        print(
            f"CPU of `rlsched submit -- true`, {name} of {PROCESSES}: {submits:.1f} ms, "
            f"{submits - nothing:.1f} ms more than `python -c pass` ({nothing:.1f} ms); "
            f"target: {MOST_CPU_MS:g} ms more at most"
        )
    if args.only is not None:
        return
    print(f"{'':10}" + "".join(f"{name:>16}" for name in TARGETS))
    for name, figures in found.items():
        print(f"{name:10}" + "".join(f"{figures[column]:16.1f}" for column in TARGETS))
    print(f"{'target':10}" + "".join(f"{target:>16}" for target in TARGETS.values()))
    if args.slurm is None:
        print("slurm: not measured, --slurm was not given")


if __name__ == "__main__":
    main()
