"""Speed of the vector environment: one Markdown row a setting, with its command.

    .venv/bin/python benchmarks/bench_environment.py            # 40 s on one core
    .venv/bin/python benchmarks/bench_environment.py --anchor   # and Gymnasium's CartPole on the same machine

Random legal actions, drawn by `sample_actions`; the time includes drawing them and beginning new episodes.
Everything is compiled, and every cluster is inside its own episode, before the clock starts.
Speeds are per CPU second of this process and its one thread. Real rows and features are counted between the
timed steps: rows that are not padding, and columns of the actor that are not zero everywhere.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import msgspec
import numpy as np

from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES
from rlsched.workload.synth import synthesize
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.training.vector import RowsVecEnv

COMMAND = "python benchmarks/bench_environment.py"
TARGET_PER_S = 200_000
MODELLED_TARGET_PER_S = 100_000
TARGET_ROWS = 48
DEEP = EpisodeConfig(
    warmup_jobs=1024,
    agent_jobs=2048,
    tail_jobs=512,
    load_low=1.05,
    load_high=1.05,
    nodes_low=4,
    nodes_high=4,
    window_rows=64,
)
"""The target's setting: 64 candidates at load 1.05, and a queue that fills most of them."""
MODELLED = msgspec.structs.replace(DEEP, modelled_frac=1.0)
"""The same with all models on: sharing, clocks, cores and energy, its weight drawn for each episode."""
STEPS_BETWEEN_COUNTS = 8


@dataclass
class Speed:
    """The result of a run.

    Attributes:
        per_s: Decisions per CPU second.
        cpu_s: Timed CPU seconds.
        episodes: Episodes that ended in that time, each followed by a new one.
        resets_frac: Share of the time spent on beginning new episodes.
        real_rows: Mean number of rows of an observation that are not padding.
        features: Number of columns of the actor that some row used.
    """

    per_s: float
    cpu_s: float
    episodes: int
    resets_frac: float
    real_rows: float
    features: int


def measure(env: RowsVecEnv, seconds: float, burn_in: int) -> Speed:
    """Step with random legal actions for this many CPU seconds."""
    fleet, resets_s = env._fleet, 0.0
    begin = fleet.begin

    def timed_begin(k: int) -> None:
        nonlocal resets_s
        began_s = time.process_time()
        begin(k)
        resets_s += time.process_time() - began_s

    env.reset()
    for _ in range(burn_in):
        env.step(env.sample_actions())
    fleet.begin = timed_begin  # type: ignore[method-assign]
    steps, episodes, cpu_s = 0, 0, 0.0
    rows: list[float] = []
    used = np.zeros(NUM_FEATURES, np.bool_)
    while cpu_s < seconds:
        began_s = time.process_time()
        for _ in range(STEPS_BETWEEN_COUNTS):
            windows, _, dones, _ = env.step(env.sample_actions())
            episodes += int(np.count_nonzero(dones))
        cpu_s += time.process_time() - began_s
        steps += STEPS_BETWEEN_COUNTS
        actor = np.asarray(windows)[:, :, :NUM_FEATURES]
        rows.append(float(actor.any(axis=2).sum(axis=1).mean()))
        used |= actor.any(axis=(0, 1))
    return Speed(
        steps * env.num_envs / cpu_s, cpu_s, episodes, resets_s / cpu_s, float(np.mean(rows)), int(used.sum())
    )


def row(what: str, speed: Speed, target: str, options: str) -> None:
    """Print one measurement."""
    print(
        f"| {what} | {speed.per_s:,.0f} | {target} | {speed.real_rows:.1f} "
        f"| {speed.features} + {NUM_CRITIC} "
        f"| {100 * speed.resets_frac:.1f} % of {speed.cpu_s:.1f} s, {speed.episodes} episodes | "
        f"`{COMMAND} {options}` |",
        flush=True,
    )


def cart_pole(seconds: float) -> float:
    """Steps per CPU second of Gymnasium's CartPole, random actions, resets included: the machine's speed."""
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
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time of each setting")
    parser.add_argument("--burn-in", type=int, default=4_000, help="steps before the clock starts")
    parser.add_argument("--only", choices=("target", "models", "default"), help="default: all")
    parser.add_argument("--anchor", action="store_true", help="also step Gymnasium's CartPole-v1")
    arguments = parser.parse_args()
    timing = f"--seconds {arguments.seconds:g} --burn-in {arguments.burn_in}"
    print(
        "| setting | decisions per CPU second | target | real rows | features | resets | command |\n"
        "|---|---:|---:|---:|---:|---|---|"
    )
    if arguments.only in (None, "target", "models"):
        trace, spec = synthesize("helios", 40_000, 1.05, 32, seed=3, predictability="informative")
        source = EpisodeSource.from_trace(trace, spec)
        for copy in (False, True) if arguments.only != "models" else ():
            env = RowsVecEnv([source], 64, seed=0, config=DEEP, copy=copy)
            row(
                f"64 clusters, 64 rows, load 1.05{', observations copied' * copy}",
                measure(env, arguments.seconds, arguments.burn_in),
                f"{TARGET_PER_S:,} with {TARGET_ROWS} real rows",
                f"--only target {timing}",
            )
        if arguments.only != "target":
            env = RowsVecEnv([source], 64, seed=0, config=MODELLED, copy=False)
            row(
                "64 clusters, 64 rows, load 1.05, all models on",
                measure(env, arguments.seconds, arguments.burn_in),
                f"{MODELLED_TARGET_PER_S:,} with {TARGET_ROWS} real rows",
                f"--only models {timing}",
            )
    if arguments.only in (None, "default"):
        trace, spec = synthesize("helios", 10_000, 0.95, 128, seed=3, predictability="informative")
        source = EpisodeSource.from_trace(trace, spec)
        for clusters in (1, 16, 64):
            env = RowsVecEnv([source], clusters, seed=0, copy=False)
            row(
                f"{clusters} cluster{'s' * (clusters > 1)}, 24 rows, episodes as by default",
                measure(env, arguments.seconds, arguments.burn_in),
                "-",
                f"--only default {timing}",
            )
    if arguments.anchor:
        print(f"\nGymnasium CartPole-v1: {cart_pole(arguments.seconds):,.0f} steps per CPU second")


if __name__ == "__main__":
    main()
