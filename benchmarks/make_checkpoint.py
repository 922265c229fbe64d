"""`make checkpoint`: train the network of the policy `ppo` again, and write checkpoints/default.

    .venv/bin/python -m benchmarks.make_checkpoint                  # under 60 minutes on two cores
    .venv/bin/python -m benchmarks.make_checkpoint --resume

PPO trains the dials of `tuned` with `SEEDS`, each for more than a million decisions, on the training parts of
the real traces in RLSCHED_DATA (default ../shared) and of synthetic ones. One seed is chosen on one
set of windows, and confirmed once on another set. The folder is written only if the confirmed cost is at most
`MARGIN` above the cost of `tuned`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.training_data import REAL, default_data, synthetic
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import POLICY_FILE, Policy
from rlsched_agents.dials.card import CARD_FILE, card_text
from rlsched_agents.dials.judging import ALL_ZERO, Judge, Layers
from rlsched_agents.dials.lesson import DialRecipe, Lesson
from rlsched_agents.dials.recipes import load_recipe
from rlsched_agents.dials.training import dials_frozen
from rlsched_agents.dials.training_ranges import familiar_to
from rlsched_agents.dials.verdict import PPO, Trained, compared
from rlsched_envs.training.sources import EpisodeSource

ROOT: Final = Path(__file__).resolve().parent.parent
RULE: Final = "tuned"
SEEDS: Final = (1, 2, 3, 4, 5)
MARGIN: Final = 0.005
WINDOWS_SEED: Final = 0


def train_seed(seed: int, *, sources: Sequence[EpisodeSource], recipe: DialRecipe, folder: Path) -> Layers:
    """Train one seed, from its saved state if there is one, and return the matrices of its network."""
    import torch

    from rlsched_agents.dials.ppo import DialPpo

    torch.set_num_threads(1)
    ppo = DialPpo(sources, recipe.drawn, Policy(RULE), recipe.ppo, seed, ALL_ZERO[0])
    kept = folder / f"seed-{seed}.npz"
    if kept.exists():
        with np.load(io.BytesIO(kept.read_bytes()), allow_pickle=False) as arrays:
            ppo.set_state({name: arrays[name] for name in arrays.files})
    while ppo.number < recipe.ppo.rollouts:
        generation = ppo.step()
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **ppo.get_state())
        kept.with_suffix(".partial").write_bytes(packed.getvalue())
        kept.with_suffix(".partial").replace(kept)
        print(
            f"seed {seed}: rollout {ppo.number} of {recipe.ppo.rollouts}, cost with noise "
            f"{generation.cost:.4f}",
            flush=True,
        )
    return ppo.result


def chosen_and_confirmed(lesson: Lesson, recipe: DialRecipe, found: dict[str, Layers]) -> Trained:
    """Choose the seed of least cost, and confirm it on windows that are not used for the choice."""
    with Judge(lesson.choosing) as judge:
        zero, *costs = judge.run([ALL_ZERO, *found.values()])
        table = {name: compared(judge, one, zero) for name, one in zip(found, costs, strict=True)}
    best = min(table, key=lambda name: table[name].cost.ratio)
    with Judge(lesson.confirming) as judge:
        zero, mine = judge.run([ALL_ZERO, found[best]])
        confirmed = compared(judge, mine, zero)
        frozen = dials_frozen(judge, found[best], mine, lesson.policy)
    strategy = Strategy.from_layers(*found[best]).without_prices()
    familiar = familiar_to(strategy, lesson.policy, lesson.sources, recipe.drawn, WINDOWS_SEED)
    strategy = msgspec.structs.replace(strategy, familiar=familiar)
    return Trained(lesson.policy, strategy, PPO, "", {}, table, confirmed, frozen, (), margin=MARGIN)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "checkpoints" / "default", help="folder to write")
    parser.add_argument("--state", type=Path, default=ROOT / "runs" / "checkpoint", help="state of the seeds")
    parser.add_argument("--resume", action="store_true", help="continue from --state")
    parser.add_argument("--recipe", default="default", help="recipe of `rlsched train`; default: default")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes; default: one per core"
    )
    given = parser.parse_args(words)
    given.state.mkdir(parents=True, exist_ok=True)
    if not given.resume:
        for one in given.state.glob("seed-*.npz"):
            one.unlink()
    shared = Path(os.environ.get("RLSCHED_DATA", ROOT.parent / "shared")) / "traces"
    if all((shared / f"{name}.csv.gz").is_file() for name in REAL):
        data = default_data(shared, WINDOWS_SEED)
    else:
        print(f"{shared}: no traces here; training on synthetic ones (RLSCHED_DATA)", file=sys.stderr)
        data = synthetic(WINDOWS_SEED)
    recipe = load_recipe(given.recipe).fitted(data)
    lesson = Lesson.from_traces(data, recipe, Policy(RULE), WINDOWS_SEED)
    one = partial(train_seed, sources=lesson.sources, recipe=recipe, folder=given.state)
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        found = dict(zip([f"ppo, seed {seed}" for seed in SEEDS], pool.map(one, SEEDS), strict=True))
    trained = chosen_and_confirmed(lesson, recipe, found)
    print(trained.verdict)
    for name, cost in trained.chosen.items():
        print(f"{name}: cost {cost.cost}, delay {cost.delay}, energy {cost.energy} (windows for choosing)")
    if not trained.is_accepted:
        print(f"nothing was written: expected a cost of at most {1 + MARGIN} of `tuned`, with its interval")
        return 1
    trained.write(given.out / POLICY_FILE)
    uses = [use for each in data for use in each.uses]
    (given.out / CARD_FILE).write_text(card_text(trained, recipe, uses, WINDOWS_SEED), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
