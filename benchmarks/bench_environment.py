"""Speed of the vector environment and of the runs that compare strategies, with the command of each figure.

    .venv/bin/python benchmarks/bench_environment.py            # 40 s on one core
    .venv/bin/python benchmarks/bench_environment.py --anchor   # and Gymnasium's CartPole on the same machine
    .venv/bin/python benchmarks/bench_environment.py --windows 480  # and windows with prices, on all cores

Random actions; the time includes new episodes, each with a run of its reference. Everything is compiled, and
every cluster is inside its own episode, before the clock starts. Speeds are per CPU second of this process,
which has one thread. `--windows`: wall-clock time of runs of whole windows with varying prices and jobs with
slack, under the network that ships.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.training_data import FIRST_DAY, KNOWN_AHEAD_S, SHAPES
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.energy.synth import synthesize as synthesize_price
from rlsched.workload.synth import synthesize
from rlsched_agents.dials.judging import Judge
from rlsched_agents.dials.lesson import DialRecipe, draw_windows
from rlsched_envs.training.sources import Drawn, EpisodeSource
from rlsched_envs.training.tariffs import Tariff
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


def windows_per_h(count: int, workers: int | None) -> float:
    """Return the runs of windows per hour of wall-clock time; a window has the jobs of one to three weeks."""
    source = EpisodeSource.from_trace(*synthesize("helios", 10_000, 0.95, 128, seed=3))
    drawn = (synthesize_price(like, FIRST_DAY, 365, seed=0) for like in SHAPES)
    source = replace(source, tariffs=tuple(Tariff.of(one, KNOWN_AHEAD_S) for one in drawn))
    recipe, policy = DialRecipe().with_prices(), Policy("ppo")
    network = Strategy.of_setting(policy.settings.dials).matrices
    policy = policy.with_settings(dials="")
    windows = draw_windows([source], count, recipe, policy, np.random.default_rng(0))
    with Judge(windows, workers=workers) as judge:
        judge.run([network], np.arange(8))  # the workers load their kernels
        began_s = time.perf_counter()
        judge.run([network])
        return len(judge.settings) / (time.perf_counter() - began_s) * 3600.0


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU time of each setting")
    parser.add_argument("--burn-in", type=int, default=50, help="steps before the clock starts")
    parser.add_argument("--jobs", type=int, default=Drawn().jobs, help="jobs of an episode")
    parser.add_argument("--windows", type=int, default=0, help="also run this many windows with prices")
    parser.add_argument("--workers", type=int, help="processes of `--windows`; default: one per core")
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
    if given.windows:
        speed_h = windows_per_h(given.windows, given.workers)
        print(f"\nWindows with prices: {speed_h:,.0f} runs per hour of wall-clock time")
    if given.anchor:
        print(f"\nGymnasium CartPole-v1: {cart_pole(given.seconds):,.0f} steps per CPU second")


if __name__ == "__main__":
    main()
