"""Forecasts of a real broker against the outcome: short jobs on simulated GPUs, an hour in seconds.

    .venv/bin/python -m studies.predict.live --minutes 10

Starts `rlsched broker` and nodes of simulated GPUs, and submits jobs that sleep for seconds, at the given
load. Jobs of one name have similar lengths. The broker's own forecaster predicts starts and ends;
the store of decisions has the outcome. The first jobs are for learning, and not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rlsched.client.client import Client
from rlsched.decisions.reading import last_forecasts
from rlsched.transport.keys import KeyHome
from studies.predict.forecasts import print_scores, print_title

NODES, GPUS = 2, 8
PROGRAMS = {"probe": (2.0, 0.6), "sweep": (6.0, 0.8), "train": (20.0, 0.5)}
"""By name: median length, s, and standard deviation of its logarithm."""
ODDS = (0.4, 0.4, 0.2)
SIZES, SIZE_ODDS = (1, 2, 4, 8), (0.5, 0.2, 0.2, 0.1)
MOST_S = 120.0
TEACHES = 0.25
"""Share of the time whose jobs are for learning."""


def run(folder: Path, minutes: float, load: float, policy: str, seed: int) -> tuple[Path, float, int]:
    """Run a broker for this time.

    Returns:
        Its store, the time from which jobs count, and the number of submissions.
    """
    keys = folder / "home"
    KeyHome(keys).broker()
    rlsched = [sys.executable, "-m", "rlsched"]
    broker = subprocess.Popen(
        [
            *rlsched, "broker", "--dir", str(folder / "broker"), "--keys", str(keys), "--policy", policy,
            "--address", "tcp://127.0.0.1:0",
        ],
        stdout=subprocess.PIPE, stderr=(folder / "broker.log").open("wb"),
    )  # fmt: skip
    running = [broker]
    try:
        assert broker.stdout is not None
        ready = next(line for line in iter(broker.stdout.readline, b"") if b" ready at " in line)
        address = ready.decode().partition(" ready at ")[2].split()[0]
        for number in range(NODES):
            place = ["--broker", address, "--keys", str(keys), "--dir", str(folder / f"n{number}")]
            own = ["--name", f"n{number}", "--gpus", str(GPUS), "--simulated", "--allow-root"]
            running.append(
                subprocess.Popen(
                    [*rlsched, "node", *place, *own, "--end-jobs-on-exit"],
                    stdout=subprocess.DEVNULL, stderr=(folder / f"n{number}.log").open("wb"),
                )
            )  # fmt: skip
        with Client(address, home=keys) as client:
            while sum(node.state == "up" for node in client.nodes()) < NODES:
                time.sleep(0.1)
            began_s, jobs = time.time(), submit(client, minutes, load, seed)
            until_s = time.monotonic() + 4 * MOST_S
            while client.list_jobs().jobs and time.monotonic() < until_s:
                time.sleep(1.0)
            settle_s = time.monotonic() + 10.0
            while time.monotonic() < settle_s:
                time.sleep(1.0)
    finally:
        for child in reversed(running):
            child.terminate()
            child.wait(60.0)
    return folder / "broker" / "decisions", began_s + TEACHES * minutes * 60.0, jobs


def submit(client: Client, minutes: float, load: float, seed: int) -> int:
    """Submit jobs for this time, each when it is due. Return the number of jobs."""
    draws = np.random.default_rng(seed)
    length_s = sum(
        odds * median_s * np.exp(spread**2 / 2)
        for odds, (median_s, spread) in zip(ODDS, PROGRAMS.values(), strict=True)
    )
    gap_s = length_s * float(np.dot(SIZES, SIZE_ODDS)) / (load * NODES * GPUS)
    due_s = time.monotonic()
    until_s, jobs = due_s + minutes * 60.0, 0
    while due_s < until_s:
        time.sleep(max(due_s - time.monotonic(), 0.0))
        name = str(draws.choice(list(PROGRAMS), p=ODDS))
        median_s, spread = PROGRAMS[name]
        length = min(float(median_s * np.exp(spread * draws.standard_normal())), MOST_S)
        gpus = int(draws.choice(SIZES, p=SIZE_ODDS))
        client.submit(["sleep", f"{length:.2f}"], num_gpus=gpus, name=name)
        jobs += 1
        due_s += float(draws.exponential(gap_s))
    return jobs


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--policy", default="tuned")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlsched-forecasts-") as folder:
        store, since_s, jobs = run(Path(folder), options.minutes, options.load, options.policy, options.seed)
        seen = [one for one in last_forecasts(store, 0.0) if one.said_s >= since_s]
    print(f"{jobs:,} jobs on {NODES * GPUS} GPUs in {options.minutes:g} minutes")
    print_title()
    print_scores("live", seen, least=30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
