"""`make checkpoint`: train the network of the policy `ppo` again, and write checkpoints/default.

    .venv/bin/python -m benchmarks.make_checkpoint                  # under 60 minutes on two cores
    .venv/bin/python -m benchmarks.make_checkpoint --resume

The network sets the dials of `priced`, which is `tuned` while no price is known. Its training, with each of
`SEEDS`:

1. PPO trains a network on windows without prices, for more than a million decisions.
2. On windows with prices, evolution finds a linear strategy, once for all seeds.
3. A network imitates the first on windows without prices, and the second on windows with prices.
4. PPO continues on windows with and without slack, at varying and constant prices.

The windows are from the training parts of the real traces in RLSCHED_DATA (default ../shared) and of
synthetic ones; prices are from RLSCHED_DATA, or synthetic. One seed is chosen on one set of windows, and
confirmed once on another set. The folder is written only if the confirmed cost is at most `MARGIN` above the
cost of the rule, with prices and without. The networks of all seeds are written into --state.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.training_data import REAL, default_data, synthetic, training_prices
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import POLICY_FILE, Policy
from rlsched.signals import exit_with_parent
from rlsched_agents.dials.card import CARD_FILE, card_text
from rlsched_agents.dials.evolution import Evolution
from rlsched_agents.dials.habits import habits_of
from rlsched_agents.dials.judging import ALL_ZERO, Judge, Layers
from rlsched_agents.dials.lesson import DialRecipe, Lesson
from rlsched_agents.dials.recipes import load_recipe
from rlsched_agents.dials.training import dials_frozen
from rlsched_agents.dials.training_ranges import familiar_to
from rlsched_agents.dials.verdict import PPO, StrategyComparison, Trained, compared
from rlsched_envs.training.sources import Drawn, EpisodeSource

ROOT: Final = Path(__file__).resolve().parent.parent
RULE: Final = "priced"
SEEDS: Final = (1, 2, 3, 4, 5)
MARGIN: Final = 0.005
WINDOWS_SEED: Final = 0
PRICES: Final = ", prices"
"""Ending of the names of results on windows with prices."""
IMITATION: Final = "imitation"
EVOLVED: Final = "evolution"


class Lessons(NamedTuple):
    """Windows without prices and with prices."""

    plain: Lesson
    priced: Lesson


class Episodes(NamedTuple):
    """Traces from which PPO draws its windows, and how."""

    sources: tuple[EpisodeSource, ...]
    drawn: Drawn


def mixed(drawn: Drawn) -> Drawn:
    """Return how PPO draws the windows of stage 4, given the windows with prices."""
    return msgspec.structs.replace(
        drawn, load_high=1.0, slack_fracs=(0.0, 0.5, 1.0), energy_weights=(0.0, 0.3, 0.5)
    )


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays atomically."""
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    path.with_suffix(".partial").write_bytes(packed.getvalue())
    path.with_suffix(".partial").replace(path)


def load(path: Path) -> dict[str, np.ndarray]:
    """Read arrays; empty if there is no file."""
    if not path.exists():
        return {}
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def kept(path: Path, make: Callable[[], Layers]) -> Layers:
    """Return the matrices in a file; if there is no file, make and write them."""
    arrays = load(path)
    if not arrays:
        save(path, {str(k): layer for k, layer in enumerate(make())})
        arrays = load(path)
    return [arrays[str(k)] for k in range(len(arrays))]


def evolve(lesson: Lesson, recipe: DialRecipe, folder: Path, workers: int | None) -> Layers:
    """Evolve a linear strategy on windows with prices, if `folder` does not have it."""

    def make() -> Layers:
        with Judge(lesson.teaching, workers=workers) as judge:
            evolution = Evolution(judge, recipe.following, WINDOWS_SEED)
            while evolution.number < recipe.following.generations:
                found = evolution.step()
                print(
                    f"evolution: {found.number} of {recipe.following.generations}, {found.cost:.4f}",
                    flush=True,
                )
        return (evolution.result,)

    return kept(folder / "evolved.npz", make)


def train_seed(
    seed: int, *, plain: Episodes, priced: Episodes, recipe: DialRecipe, evolved: Layers, folder: Path
) -> list[Layers]:
    """Train one seed, from its saved states if there are any.

    Returns:
        The matrices of the network that imitates, and of the network that PPO has trained from it.
    """
    import torch

    from rlsched_agents.dials.imitation import Teacher, imitate
    from rlsched_agents.dials.ppo import DialPpo

    torch.set_num_threads(1)

    def run(ppo: DialPpo, rollouts: int, stage: str) -> Layers:
        path = folder / f"seed-{seed}-{stage}.npz"
        if state := load(path):
            ppo.set_state(state)
        while ppo.number < rollouts:
            generation = ppo.step()
            save(path, ppo.get_state())
            print(
                f"seed {seed}, {stage} prices: rollout {ppo.number} of {rollouts}, cost with "
                f"noise {generation.cost:.4f}",
                flush=True,
            )
        return ppo.result

    first = DialPpo(plain.sources, plain.drawn, Policy(RULE), recipe.ppo, seed, ALL_ZERO[0])
    without = run(first, recipe.ppo.rollouts, "without")
    config = recipe.ppo.with_prices()
    last = DialPpo(priced.sources, mixed(priced.drawn), Policy(RULE), config, seed + len(SEEDS))
    last.network.set_layers(without)

    def make() -> Layers:
        teachers = (
            Teacher(without, plain.sources, plain.drawn),
            Teacher(evolved, priced.sources, priced.drawn),
        )
        error = imitate(last.network, teachers, Policy(RULE), seed)
        print(f"seed {seed}: imitation, error {error:.4f}", flush=True)
        return last.result

    imitation = kept(folder / f"seed-{seed}-imitation.npz", make)
    last.network.set_layers(imitation)
    return [imitation, run(last, config.rollouts, "with")]


def comparisons(lesson: Lesson, found: dict[str, Layers], ending: str) -> dict[str, StrategyComparison]:
    """Return the cost of each strategy relative to the rule, on the windows for choosing."""
    with Judge(lesson.choosing) as judge:
        zero, *costs = judge.run([ALL_ZERO, *found.values()])
        return {f"{name}{ending}": compared(judge, one, zero) for name, one in zip(found, costs, strict=True)}


def chosen_and_confirmed(lessons: Lessons, found: dict[str, Layers]) -> Trained:
    """Choose the seed of least cost, and confirm it on windows that are not used for the choice.

    The cost is the geometric mean of the costs without and with prices.
    """
    table = comparisons(lessons.plain, found, "") | comparisons(lessons.priced, found, PRICES)
    seeds = [name for name in found if name.startswith(PPO)]
    best = min(seeds, key=lambda name: table[name].cost.ratio * table[f"{name}{PRICES}"].cost.ratio)
    confirmed = []
    for lesson in lessons:
        with Judge(lesson.confirming) as judge:
            zero, mine = judge.run([ALL_ZERO, found[best]])
            confirmed.append(compared(judge, mine, zero))
            if lesson is lessons.priced:
                frozen = dials_frozen(judge, found[best], mine, lesson.policy)
    strategy = Strategy.from_layers(*found[best])
    ranges = [
        familiar_to(strategy, lesson.policy, lesson.sources, lesson.drawn, WINDOWS_SEED) for lesson in lessons
    ]
    strategy = msgspec.structs.replace(strategy, familiar=ranges[0].union(ranges[1]))
    return Trained(
        lessons.plain.policy,
        strategy,
        PPO,
        "",
        {},
        table,
        confirmed[0],
        frozen,
        (),
        margin=MARGIN,
        also={"prices": confirmed[1]},
    )


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
        for one in given.state.glob("*.npz"):
            one.unlink()
    shared = Path(os.environ.get("RLSCHED_DATA", ROOT.parent / "shared"))
    if all((shared / "traces" / f"{name}.csv.gz").is_file() for name in REAL):
        data = default_data(shared / "traces", WINDOWS_SEED)
    else:
        print(f"{shared}: no traces here; training on synthetic ones (RLSCHED_DATA)", file=sys.stderr)
        data = synthetic(WINDOWS_SEED)
    tariffs = training_prices(shared / "energy")
    priced = [one.with_tariffs(tariffs) for one in data]
    recipe = load_recipe(given.recipe).fitted(data)
    with_prices = load_recipe(given.recipe).with_prices().fitted(priced)
    lessons = Lessons(
        Lesson.from_traces(data, recipe, Policy(RULE), WINDOWS_SEED),
        Lesson.from_traces(priced, with_prices, Policy(RULE), WINDOWS_SEED),
    )
    evolved = evolve(lessons.priced, with_prices, given.state, given.workers)
    plain_episodes, priced_episodes = (Episodes(one.sources, one.drawn) for one in lessons)
    one = partial(
        train_seed,
        plain=plain_episodes,
        priced=priced_episodes,
        recipe=recipe,
        evolved=evolved,
        folder=given.state,
    )
    found: dict[str, Layers] = {EVOLVED: evolved}
    with ProcessPoolExecutor(given.workers, get_context("spawn"), exit_with_parent) as pool:
        for seed, (imitation, network) in zip(SEEDS, pool.map(one, SEEDS), strict=True):
            found[f"{IMITATION}, seed {seed}"] = imitation
            found[f"{PPO}, seed {seed}"] = network
            Strategy.from_layers(*network).write(given.state / f"seed-{seed}.json")
    trained = chosen_and_confirmed(lessons, found)
    print(trained.verdict)
    for name, cost in trained.chosen.items():
        print(
            f"{name}: cost {cost.cost}, delay {cost.delay}, energy or money {cost.energy_or_money} (windows "
            "for choosing)"
        )
    if not trained.is_accepted:
        print(
            f"nothing was written: expected a cost of at most {1 + MARGIN} of `{RULE}`, with its interval, "
            "without and with prices"
        )
        return 1
    trained.write(given.out / POLICY_FILE)
    uses = [use for each in data for use in each.uses]
    held_out = [source for each in priced for source in each.confirmation]
    habits = habits_of(trained.strategy, trained.policy, held_out, with_prices.drawn, WINDOWS_SEED)
    card = card_text(trained, recipe, uses, WINDOWS_SEED, priced=with_prices, habits=habits)
    (given.out / CARD_FILE).write_text(card, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
