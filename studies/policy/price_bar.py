"""The saving of policies by following the price of electricity, on windows that were not used in training.

    .venv/bin/python -m studies.policy.price_bar     # the table in docs/explanation/learning.md
    .venv/bin/python -m studies.policy.price_bar --seeds runs/checkpoint    # all seeds of `make checkpoint`

Later months: the last 20 % of the traces and of the price series that `make checkpoint` trains on. Other
clusters: traces and price zones that are in no training; their prices are in real time. Costs are relative to
`tuned` with the best constant dials, which evolution finds on the training windows, and which cannot follow a
price.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.training_data import KNOWN_AHEAD_S, PRICES, REAL, ZONES, flat_price, read_prices
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.objective import DEFAULT, Objective
from rlsched.workload.predict.kinds import kind_for
from rlsched.workload.split import time_split
from rlsched.workload.trace import Trace
from rlsched_agents.dials.evolution import UNPRICED_DIALS, Evolution
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Interval, Judge, Layers, interval
from rlsched_agents.dials.lesson import DialRecipe, draw_windows
from rlsched_envs.sim.engine import PredictedTimes, predict_trace
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.tariffs import Tariff
from rlsched_envs.training.windows import Windows
from studies.policy.options import add_traces

OTHERS: Final = ("ms_itp_02", "ms_itp_06", "ms_itp_09")
OTHER_DAYS: Final = (0.5, 1.0)
"""Days of the price series of the other zones: the year 2024."""


class Market(NamedTuple):
    """Series of real zones, in two years of days.

    Attributes:
        zones: Zones of the training windows.
        others: Zones of the windows with other clusters; no training uses these zones.
        column: Column of the series.
        known_ahead_s: Time for which the series of `zones` is known ahead; 0 for `others`.
        later: Days of the windows with later months, as fractions of all days.
        training: Days for training, which the training splits further, and of which it uses the last only to
            confirm its result.
    """

    zones: Sequence[str] = ZONES
    others: Sequence[str] = ("au-vic", "ca-on")
    column: str = PRICES
    known_ahead_s: float = KNOWN_AHEAD_S
    later: tuple[float, float] = (0.8, 1.0)
    training: tuple[float, float] = (0.0, 1.0)

    def read(self, energy: Path) -> list[Tariff]:
        """Return the series of `zones`."""
        return read_prices(energy, self.zones, self.known_ahead_s, self.column)

    def read_training(self, energy: Path) -> list[Tariff]:
        """Return the part of the series of `zones` for training."""
        return [one.part(*self.training) for one in self.read(energy)]


DAY_AHEAD: Final = Market()
REAL_TIME: Final = Market(
    zones=("au-vic", "sg", "ca-on"),
    others=("us-tex-erco", "de-lu"),
    known_ahead_s=0.0,
    later=(0.5, 1.0),
    training=(0.0, 0.5),
)
"""Real-time prices: 2023 for training, 2024 for the comparison."""
CARBON: Final = Market(others=("gb", "ca-on"), column="carbon_g_kwh", known_ahead_s=0.0)
STATIC: Final = "best constant dials"
POLICIES: Final = {
    "tuned without slack": Policy("tuned").with_settings(slack=None),
    **{name: Policy(name) for name in ("tuned", "priced", "ppo")},
}
"""The policies of the tables, by their names there."""


def source(
    folder: Path, name: str, tariffs: Sequence[Tariff], days: tuple[float, float], part: str
) -> EpisodeSource:
    """Return a part of a trace (`train`, `test` or `all`) with the prices of a part of the days."""
    trace, spec, predicted = _predicted(folder, name)
    split = time_split(trace)
    since_s, until_s = {"train": split.train, "test": split.test, "all": (0.0, split.test[1])}[part]
    jobs = EpisodeSource.from_trace(trace, spec, since_s=since_s, until_s=until_s, predictions=predicted)
    return replace(jobs, tariffs=tuple(one.part(*days) for one in tariffs))


@cache
def _predicted(folder: Path, name: str) -> tuple[Trace, ClusterSpec, PredictedTimes]:
    trace = Trace.read(folder / f"{name}.csv.gz")
    spec = ClusterSpec.read(folder / f"{name}.cluster.toml")
    return trace, spec, predict_trace(trace, spec, kind=kind_for(trace))


def source_sets(traces: Path, energy: Path, market: Market = DAY_AHEAD) -> dict[str, list[EpisodeSource]]:
    """Return the sources of windows: for the constant dials, and of three sets for the comparison."""
    known = market.read(energy)
    real_time = read_prices(energy, market.others, 0.0, market.column)
    return {
        "training": [source(traces, name, known, (0.0, market.later[0]), "train") for name in REAL],
        "later months": [source(traces, name, known, market.later, "test") for name in REAL],
        "other clusters and prices": [source(traces, name, real_time, OTHER_DAYS, "all") for name in OTHERS],
        "constant price": [source(traces, name, [flat_price()], market.later, "test") for name in REAL],
    }


def window_sets(
    sets: dict[str, list[EpisodeSource]],
    count: int,
    recipe: DialRecipe,
    policy: Policy,
    objective: Objective = DEFAULT,
) -> dict[str, Sequence[Windows]]:
    """Draw the windows of each set; they are the same for each policy and objective."""
    return {
        name: draw_windows(sources, count, recipe, policy, np.random.default_rng([0, number]), objective)
        for number, (name, sources) in enumerate(sets.items())
    }


def constant_dials(
    windows: Sequence[Windows],
    recipe: DialRecipe,
    workers: int | None,
    dials: tuple[str, ...] = UNPRICED_DIALS,
) -> Layers:
    """Evolve constant dials of `tuned` on windows; by default, dials that follow a price stay at 0."""
    config = msgspec.structs.replace(recipe.constants, dials=dials)
    with Judge(windows, workers=workers) as judge:
        evolution = Evolution(judge, config, 0)
        while evolution.number < config.generations:
            evolution.step()
    return (evolution.result,)


def row(name: str, label: str, judge: Judge, mine: Costs, other: Costs, kept: NDArray[np.int64]) -> str:
    """Return a row of the table for the windows `kept`."""
    groups = [judge.settings[k].group for k in kept]
    mine, other, weight = mine.rows(kept), other.rows(kept), judge.energy_weight[kept]
    assert mine.late is not None
    assert other.late is not None
    slack = sum(judge.settings[k].slack_frac * judge.settings[k].window.gpus.size for k in kept)
    late = f"{mine.late.sum() / slack:.1%} ({other.late.sum() / slack:.1%})"
    cost = interval(mine.ln_ratio(other, weight), groups)
    money = interval(np.log(mine.money_ratio(other)), groups)
    return f"| {label} | {name} | {cost} | {money} | {_urgent(mine, other, groups)} | {late} | {len(kept)} |"


def _urgent(mine: Costs, other: Costs, groups: Sequence[str]) -> Interval | str:
    """Return the ratio of the delays of the jobs without slack; "-": there are no such jobs."""
    assert mine.urgent_s is not None
    assert other.urgent_s is not None
    some = np.flatnonzero((mine.urgent_s > 0.0) & (other.urgent_s > 0.0))
    if not some.size:
        return "-"
    return interval(np.log(mine.urgent_s[some] / other.urgent_s[some]), [groups[k] for k in some])


def compared_policies(names: Sequence[str], seeds: Path | None) -> dict[str, Policy]:
    """Return the policies by name; with `seeds`, also `priced` with the network of each seed."""
    found = {name: POLICIES.get(name) or Policy.of(name) for name in names}
    for path in sorted(seeds.glob("seed-*.json")) if seeds else ():
        found[f"ppo, {path.stem}"] = Policy("priced").with_settings(dials=str(path))
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print a row per set of windows, share of jobs with slack, and policy. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    add_traces(parser)
    energy = Path(os.environ.get("RLSCHED_DATA", "../shared")) / "energy"
    parser.add_argument("--energy", type=Path, default=energy, help="folder of the prices")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(POLICIES)}")
    parser.add_argument("--seeds", type=Path, help="folder with the networks of `make checkpoint`")
    parser.add_argument("--windows", type=int, default=240, help="windows per set")
    parser.add_argument("--workers", type=int, help="processes; default: one per core")
    given = parser.parse_args(words)
    recipe = DialRecipe().with_prices()
    sources = source_sets(given.traces, given.energy)
    sets = window_sets(sources, given.windows, recipe, Policy("tuned"))
    static = constant_dials(sets.pop("training"), recipe, given.workers)
    print(
        "| windows | policy | cost | money | delay of jobs without slack | late (of the constant dials) | n |"
    )
    print("|---|---|--:|--:|--:|--:|--:|")
    for label, windows in sets.items():
        with Judge(windows, workers=given.workers) as judge:
            share = np.array([one.slack_frac for one in judge.settings])
            (base,) = judge.run([static])
            for name, policy in compared_policies(given.policy or tuple(POLICIES), given.seeds).items():
                strategy = Strategy.of_setting(policy.settings.dials) if policy.settings.dials else None
                layers = strategy.matrices if strategy else ALL_ZERO
                (mine,) = judge.run([layers], policy=policy.with_settings(dials=""))
                for part in (None, 0.5, 1.0):
                    kept = np.flatnonzero(share == part if part else share > 0.0)
                    flexible = "" if part is None else f", {part:.0%} with slack"
                    print(row(name, f"{label}{flexible}", judge, mine, base, kept), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
