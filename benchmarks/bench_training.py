"""Speed of training, optimisation included, by phase: one Markdown row a setting.

    .venv/bin/python benchmarks/bench_training.py              # recipe quick, one thread and two: 1 min

Decisions a second of wall time and of CPU time over whole rollouts with their updates, after an untimed one
(it compiles and fills the clusters). On a busy machine both are too low: the tenth percentile of the CPU time
of a minibatch (forward, back and step) is closest to an idle core. Validation comes on top: one pass over the
windows of the recipe, in seconds, and as a share of the time between two passes. Meant for an idle machine.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from rlsched_agents.ppo.normalize import ReturnNormalizer
from rlsched_agents.ppo.recipes import Recipe, load_recipe
from rlsched_agents.ppo.sources import TrainingData, synthetic_data
from rlsched_agents.ppo.training import build_model
from rlsched_agents.ppo.validation import Validator, cut_windows
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.training.vector import RowsVecEnv


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", default="quick", help="[default: %(default)s]")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="[default: %(default)s]")
    parser.add_argument("--rollouts", type=int, default=8, help="timed rollouts [default: %(default)s]")
    arguments = parser.parse_args()
    recipe = load_recipe(arguments.recipe)
    data = synthetic_data("helios", 0, "informative")
    print("| threads | decisions/s | per CPU second | optimising | minibatch, CPU ms, p10 | validation |")
    print("|---:|---:|---:|---:|---:|---|")
    for threads in arguments.threads:
        print(row(recipe, data, threads, arguments.rollouts), flush=True)


def row(recipe: Recipe, data: TrainingData, threads: int, rollouts: int) -> str:
    """Measure one setting."""
    torch.set_num_threads(threads)
    venv = RowsVecEnv([data.train], recipe.num_envs, seed=0, config=recipe.episode, copy=False, oracle=True)
    model = build_model(ReturnNormalizer(venv, gamma=recipe.gamma, clip=recipe.reward_clip), recipe, 0)
    model.learn(recipe.rollout)
    optimising_s, optimise = 0.0, model.train

    def timed() -> None:
        nonlocal optimising_s
        began_s = time.perf_counter()
        optimise()
        optimising_s += time.perf_counter() - began_s

    model.train = timed
    steps_at_s: list[float] = []
    model.policy.optimizer.register_step_post_hook(lambda *_: steps_at_s.append(time.process_time()))
    steps = rollouts * recipe.rollout
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    model.learn(steps, reset_num_timesteps=False)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    validator = Validator(cut_windows(data.validation, recipe, 0))
    policy = PpoScheduler(model.policy.mlp_extractor.weights(), recipe.network)
    validator(policy)
    began_s = time.perf_counter()
    validator(policy)
    once_s = time.perf_counter() - began_s
    share = once_s / (recipe.validate_every / steps * wall_s + once_s)
    speeds = f"| {threads} | {steps / wall_s:,.0f} | {steps / cpu_s:,.0f} "
    minibatch_ms = 1e3 * np.quantile(np.diff(steps_at_s), 0.1)
    validation = f"{once_s:.1f} s, {100 * share:.0f} %"
    return f"{speeds}| {100 * optimising_s / wall_s:.0f} % | {minibatch_ms:.1f} | {validation} |"


if __name__ == "__main__":
    main()
