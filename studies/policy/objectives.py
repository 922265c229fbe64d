"""Policies trained for five objectives, on windows that were not used in training.

    .venv/bin/python -m studies.policy.objectives     # the table in docs/explanation/learning.md

For each objective, `tuned` is trained by one recipe on the real traces and price zones of `make checkpoint`.
`studies.policy.price_bar` draws the windows; for the objective `carbon`, with carbon intensities. Costs are
by the objective, relative to `tuned` with the best constant dials, which evolution finds for the objective on
the training windows. One recipe sets the windows and the length of both searches.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.training_data import REAL, read
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.objective import PRESETS, Objective
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Judge, Layers
from rlsched_agents.dials.lesson import DialRecipe, Lesson
from rlsched_agents.dials.recipes import load_recipe
from rlsched_agents.dials.training import Training
from rlsched_agents.dials.verdict import StrategyComparison, Trained, compared
from studies.policy.options import add_traces
from studies.policy.price_bar import (
    CARBON,
    DAY_AHEAD,
    REAL_TIME,
    Market,
    constant_dials,
    source_sets,
    window_sets,
)

SHOWN: Final = ("later months", "other clusters and prices")
MARKETS: Final = {"day-ahead": DAY_AHEAD, "real-time": REAL_TIME}
POLICIES: Final = ("tuned", "priced", "ppo")
RULE: Final = "all dials constant"
"""`tuned` with constant dials, also for prices: the rule `priced`, tuned for the objective."""


def trained(
    traces: Path,
    energy: Path,
    market: Market,
    recipe: DialRecipe,
    objective: Objective,
    seed: int,
    workers: int | None,
) -> Trained:
    """Train `tuned` for an objective."""
    data = [read(traces, name).with_tariffs(market.read_training(energy)) for name in REAL]
    fitted = recipe.fitted(data)
    lesson = Lesson.from_traces(data, fitted, Policy("tuned"), seed, objective)
    return Training(lesson, fitted, seed, workers=workers).run(lambda *_: None)


def presets(names: Sequence[str]) -> dict[str, tuple[Policy, Layers]]:
    """Return the policies of these names, and their strategies."""
    named = dict[str, tuple[Policy, Layers]]()
    for name in names:
        policy = Policy.of(name)
        dials = policy.settings.dials
        layers = Strategy.of_setting(dials).matrices if dials else ALL_ZERO
        named[name] = policy.with_settings(dials=""), layers
    return named


def learned(found: Trained, rule: Layers) -> dict[str, tuple[Policy, Layers]]:
    """Return policies and strategies: a tuned rule, the trained policy, and the network of PPO."""
    named = {RULE: (Policy("tuned"), rule)}
    stage = found.stage or "as it was"
    named[f"trained ({stage})"] = (found.policy, found.strategy.matrices)
    named["trained by PPO, whether or not chosen"] = (found.policy, found.last.matrices)
    return named


def row(name: str, objective: str, label: str, one: StrategyComparison) -> str:
    """Return a row of the table."""
    terms = "; ".join(
        f"{term} {ratio}" + (f" of {one.bounds[term]:g}" if term in one.bounds else "")
        for term, ratio in one.terms.items()
    )
    late = "-" if one.late_frac is None else f"{one.late_frac[0]:.1%} ({one.late_frac[1]:.1%})"
    money = f"money {one.energy_or_money}" if not one.terms else terms
    return f"| {objective} | {label} | {name} | {one.cost} | {money} | {late} | {one.cost.windows} |"


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per objective, set of windows and policy. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the prices")
    parser.add_argument("--objective", action="append", help=f"default: {', '.join(PRESETS)}")
    parser.add_argument("--market", choices=MARKETS, default="day-ahead", help="default: day-ahead")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(POLICIES)}")
    parser.add_argument("--untrained", action="store_true", help="only the policies of --policy")
    parser.add_argument("--recipe", default="default", help="as in `rlsched train`; default: default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training; default: 0")
    parser.add_argument("--windows", type=int, default=240, help="windows per set")
    parser.add_argument("--workers", type=int, help="processes; default: one per core")
    given = parser.parse_args(words)
    recipe = load_recipe(given.recipe).with_prices()
    print("| objective | windows | policy | cost | terms | late (of the constant dials) | n |")
    print("|---|---|---|--:|---|--:|--:|")
    for name in given.objective or PRESETS:
        objective = Objective.of(name)
        market = CARBON if objective.counts("carbon") else MARKETS[given.market]
        sources = source_sets(given.traces, given.energy, market)
        sets = window_sets(sources, given.windows, recipe, Policy("tuned"), objective)
        static = constant_dials(sets["training"], recipe, given.workers)
        rivals = presets(given.policy or POLICIES)
        if not given.untrained:
            found = trained(given.traces, given.energy, market, recipe, objective, given.seed, given.workers)
            rule = constant_dials(sets["training"], recipe, given.workers, tuple(RANGES))
            rivals |= learned(found, rule)
        for label in SHOWN:
            with Judge(sets[label], workers=given.workers) as judge:
                (reference,), (base,) = judge.run([ALL_ZERO]), judge.run([static])
                for who, (policy, layers) in rivals.items():
                    (mine,) = judge.run([layers], policy=policy)
                    print(row(who, name, label, _over(judge, mine, base, reference)), flush=True)
    return 0


def _over(judge: Judge, mine: Costs, base: Costs, reference: Costs) -> StrategyComparison:
    """Compare with the constant dials; the bounds of the objective refer to `tuned` with its settings."""
    return compared(judge, mine, base, reference)


if __name__ == "__main__":
    raise SystemExit(main())
