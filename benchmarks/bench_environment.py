"""Speed of the vector environment: one Markdown row per number of clusters, with its command.

    .venv/bin/python benchmarks/bench_environment.py            # 40 s on one core
    .venv/bin/python benchmarks/bench_environment.py --anchor   # and Gymnasium's CartPole on the same machine

Random actions; the time includes new episodes, each with a run of its reference. Everything is compiled, and
every cluster is inside its own episode, before the clock starts. Speeds are per CPU second of this process,
which has one thread.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np

from rlsched.workload.synth import synthesize
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.vector import ClusterVecEnv

COMMAND = "python benchmarks/bench_environment.py"


class Speed(NamedTuple):
    """Speed of a run.

    Attributes:
        per_s: Decisions per CPU second; a decision sets all dials of one cluster.
        episodes_per_s: Episodes that ended, per CPU second.
        cpu_s: Timed CPU seconds.
    """

    per_s: float
    episodes_per_s: float
    cpu_s: float


def measure(env: ClusterVecEnv, seconds: float, burn_in: int) -> Speed:
    """Step with random actions for this many CPU seconds."""
    rng = np.random.default_rng(0)
    shape = (env.num_envs, *(env.action_space.shape or ()))
    env.reset()
    for _ in range(burn_in):
        env.step(rng.uniform(-1.0, 1.0, shape))
    steps, episodes, began_s = 0, 0, time.process_time()
    while time.process_time() - began_s < seconds:
        episodes += int(np.count_nonzero(env.step(rng.uniform(-1.0, 1.0, shape))[2]))
        steps += env.num_envs
    cpu_s = time.process_time() - began_s
    return Speed(steps / cpu_s, episodes / cpu_s, cpu_s)


def cart_pole(seconds: float) -> float:
    """Return the steps per CPU second of Gymnasium's CartPole: random actions, including resets."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    env.reset(seed=0)
    steps, began_s, cpu_s = 0, time.process_time(), 0.0
    while cpu_s < seconds:
        for _ in range(1000):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        steps += 1000
        cpu_s = time.process_time() - began_s
    return steps / cpu_s


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU time of each setting")
    parser.add_argument("--burn-in", type=int, default=50, help="steps before the clock starts")
    parser.add_argument("--jobs", type=int, default=Drawn().jobs, help="jobs of an episode")
    parser.add_argument("--anchor", action="store_true", help="also step Gymnasium's CartPole-v1")
    given = parser.parse_args()
    print(
        "| clusters | decisions per CPU second | episodes per CPU second | CPU s | command |\n"
        "|---:|---:|---:|---:|---|"
    )
    source = EpisodeSource.from_trace(*synthesize("helios", 10_000, 0.95, 128, seed=3))
    for clusters in (1, 16, 64):
        env = ClusterVecEnv([source], clusters, seed=0, drawn=Drawn(jobs=given.jobs), copy=False)
        speed = measure(env, given.seconds, given.burn_in)
        print(
            f"| {clusters} | {speed.per_s:,.0f} | {speed.episodes_per_s:.1f} | {speed.cpu_s:.1f} | "
            f"`{COMMAND} --seconds {given.seconds:g} --jobs {given.jobs}` |",
            flush=True,
        )
    if given.anchor:
        print(f"\nGymnasium CartPole-v1: {cart_pole(given.seconds):,.0f} steps per CPU second")


if __name__ == "__main__":
    main()
