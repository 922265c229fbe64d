"""The result of a training run: the chosen policy, its measured gain, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.objective import LEAST, TERMS
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Interval, Judge, interval

PPO: Final = "ppo"
"""Name of the stage of PPO, which never stops early."""
LEAST_WINDOWS: Final = 200
"""Minimum number of windows for a confirmation."""


class StrategyComparison(msgspec.Struct, frozen=True):
    """Ratios of a strategy's costs to another strategy's costs on the same windows; below 1 is better.

    Attributes:
        cost: Ratio of the cost: by default, a weighted mean of time in the system and energy (or money).
        delay: Ratio of delays. The delay of a job is its JCT less its run time on unshared GPUs at full
            clock.
        energy: Ratio of the energy of the jobs.
        by_source: Geometric mean of the ratio of the cost, by trace.
        money: Ratio of the cost of the jobs' energy; None without prices.
        late_frac: Fraction of the jobs with slack (a delay that the user accepts) that are late: under this
            strategy, and under the other strategy. None without prices. A job is late if its delay is more
            than slack + `rlsched.objective.LATE_S`.
        terms: Ratios of the objective's terms, by name; empty for the default objective.
        bounds: Upper bounds of these ratios, by name.
    """

    cost: Interval
    delay: Interval
    energy: Interval
    by_source: dict[str, float]
    money: Interval | None = None
    late_frac: tuple[float, float] | None = None
    terms: dict[str, Interval] = {}
    bounds: dict[str, float] = {}

    @property
    def exceeded(self) -> dict[str, float]:
        """The bounds that are exceeded, by the name of the term."""
        return {name: bound for name, bound in self.bounds.items() if self.terms[name].ratio > bound}

    @property
    def energy_or_money(self) -> Interval:
        """The ratio `money`, or `energy` if there are no prices. The default cost contains this ratio."""
        return self.energy if self.money is None else self.money


def compared(judge: Judge, mine: Costs, other: Costs, reference: Costs | None = None) -> StrategyComparison:
    """Compare a strategy's results `mine` with another strategy's results `other`, on all windows of `judge`.

    `reference`: results to which the bounds of the objective refer: a bound limits a term relative to this
    term in `reference`. None: `other`.
    """
    weight = judge.energy_weight
    if reference is not None and mine.scored is not None and mine.scored.objective.bounds:
        cost = mine.ln_ratio(reference, weight) - other.ln_ratio(reference, weight)
    else:
        cost = mine.ln_ratio(other, weight)
    groups = [one.group for one in judge.settings]
    source = np.array([one.source for one in judge.settings])
    return StrategyComparison(
        interval(cost, groups),
        interval(np.log(mine.floored_s / other.floored_s), groups),
        interval(np.log(mine.energy_j / np.maximum(other.energy_j, 1.0)), groups),
        {name: float(np.exp(cost[source == name].mean())) for name in np.unique(source).tolist()},
        interval(np.log(mine.money_ratio(other)), groups) if judge.has_prices else None,
        _late_fracs(judge, mine, other) if judge.has_prices else None,
        *_terms(mine, other, groups),
    )


def _terms(mine: Costs, other: Costs, groups: Sequence[str]) -> tuple[dict[str, Interval], dict[str, float]]:
    """Return the ratio mine / other of each term of the objective, and the upper bounds of these ratios.

    Both dicts have the names of terms (`Objective.name_of`) as keys.
    """
    if mine.scored is None or other.scored is None:
        return {}, {}
    objective, ratio = mine.scored.objective, mine.scored.ratios(other.scored)
    terms, bounds = dict[str, Interval](), dict[str, float]()
    for term in objective.shown:
        name, k = objective.name_of(term), list(TERMS).index(term)
        terms[name] = interval(np.log(np.maximum(ratio[:, k], LEAST)), groups)
        if np.isfinite(objective.limits[k]):
            bounds[name] = float(objective.limits[k])
    return terms, bounds


def _late_fracs(judge: Judge, mine: Costs, other: Costs) -> tuple[float, float]:
    jobs = sum(one.slack_frac * one.window.gpus.size for one in judge.settings)
    assert mine.late is not None
    assert other.late is not None
    return float(mine.late.sum() / jobs), float(other.late.sum() / jobs)


def _measured(name: str, one: StrategyComparison) -> str:
    if one.terms:
        parts = ", ".join(_with_bound(term, ratio, one.bounds) for term, ratio in one.terms.items())
        return (
            f"{name and f'{name}: '}cost (by the objective) {one.cost}, {parts} of the settings, "
            f"{one.cost.windows} windows held out"
        )
    what = "energy" if one.money is None else "money"
    return (
        f"{name and f'{name}: '}cost (time and {what}, weighted) {one.cost}, delay {one.delay}, {what} "
        f"{one.energy_or_money} of the settings, {one.cost.windows} windows held out"
    )


def _with_bound(term: str, ratio: Interval, bounds: dict[str, float]) -> str:
    bound = f" (bound {bounds[term]:g})" if term in bounds else ""
    return f"{term} {ratio}{bound}"


class Trained(msgspec.Struct, frozen=True):
    """The result of a training run.

    Attributes:
        policy: Chosen policy: the settings, without a strategy.
        strategy: Strategy that sets the dials; all weights 0 if none was chosen.
        stage: Chosen stage of the training: `settings` (a changed setting), `constants` (constant dials),
            `following` (dials that depend on observations) or `ppo`; "": no stage is better than the original
            policy on the windows for choosing.
        setting: Changed setting, in the form of `--set`; "": none.
        tried: Costs of each alternative setting relative to the original policy, on the windows for choosing.
        chosen: Costs of each stage relative to the original policy, on the windows for choosing.
        confirmed: Costs of the chosen policy relative to the original policy, on the windows for confirming;
            None: no policy was chosen.
        frozen: For each dial in use, the cost with this dial fixed at 0 / the cost with the dial in use, on
            the windows for confirming.
        stopped: Stages that stopped early because their signal-to-noise ratio was too low
            (`Evolution.is_lost`).
        last: Strategy of the last stage, even if it is not better.
        passed_over: Costs, relative to the chosen stage, of stages that cost less, but not significantly
            less, on the windows for choosing.
        margin: `is_accepted` requires a confirmed cost below (1 + `margin`) x the cost of the original
            policy.
        also: Confirmed costs on other sets of windows, by name, which `is_better` and `is_accepted` also
            check.
    """

    policy: Policy
    strategy: Strategy
    stage: str
    setting: str
    tried: dict[str, StrategyComparison]
    chosen: dict[str, StrategyComparison]
    confirmed: StrategyComparison | None
    frozen: dict[str, Interval]
    stopped: tuple[str, ...]
    last: Strategy = Strategy.from_layers(*ALL_ZERO)
    passed_over: dict[str, Interval] = {}
    margin: float = 0.0
    also: dict[str, StrategyComparison] = {}

    @property
    def is_better(self) -> bool:
        """Whether the chosen policy is confirmed to be better than the original policy."""
        return self._is_below(1.0)

    @property
    def is_accepted(self) -> bool:
        """Whether the confirmed cost is below (1 + `margin`) x the cost of the original policy."""
        return self._is_below(1.0 + self.margin)

    def _is_below(self, bound: float) -> bool:
        if self.confirmed is None:
            return False
        every = (self.confirmed, *self.also.values())
        return all(
            one.cost.windows >= LEAST_WINDOWS and one.cost.high < bound and not one.exceeded for one in every
        )

    @property
    def sets_dials(self) -> bool:
        """Whether the strategy of the result sets dials."""
        return _is_any(self.strategy)

    @property
    def verdict(self) -> str:
        """A sentence that says whether the training run found a better policy."""
        if self.confirmed is None:
            return "keep what you have: nothing was better than the settings on the windows for choosing"
        cost = self.confirmed.cost
        measured = "; ".join(_measured(name, one) for name, one in {"": self.confirmed, **self.also}.items())
        if self.is_better:
            gain = f"{1.0 - cost.ratio:.1%} [{1.0 - cost.high:.1%}, {1.0 - cost.low:.1%}]"
            return f"better by {gain}, confirmed: {measured}"
        if self.is_accepted:
            return f"not better, and confirmed to cost at most {self.margin:.1%} more: {measured}"
        if cost.windows < LEAST_WINDOWS:
            few = f"{cost.windows} windows are too few to confirm it, {LEAST_WINDOWS} are needed"
            return f"keep what you have: {few} ({measured})"
        if self.confirmed.exceeded and cost.high < 1.0:
            names = " and ".join(self.confirmed.exceeded)
            return f"keep what you have: it exceeds the bound of {names} ({measured})"
        return f"keep what you have: not shown to be better ({measured})"

    @property
    def why_not(self) -> list[str]:
        """A sentence for each setting or stage that costs less but was not chosen, with the reason."""
        found = []
        looks = min(self.tried, key=lambda name: self.tried[name].cost.ratio, default="")
        if looks and not self.setting and self.tried[looks].cost.ratio < 1.0:
            found.append(
                f"{looks} is the best of {len(self.tried)} settings and was not taken: its interval, "
                f"{self.tried[looks].cost}, holds 1, and the best of several is often the luckiest."
            )
        for stage, over in self.passed_over.items():
            found.append(
                f"{stage} costs less than {self.stage} in the table and was not confirmed: on the same "
                f"windows its cost over that of {self.stage} is {over}, an interval that holds 1, so the "
                "stage that learned less is taken."
            )
        return found

    @property
    def advice(self) -> str:
        """The recommended next step for the user, one sentence."""
        if self.is_better:
            return (
                "compare it on jobs outside the training data (`rlsched evaluate --policy FILE`), then "
                "activate it (`rlsched policy set FILE`)"
            )
        if self.confirmed is not None and self.confirmed.cost.windows < LEAST_WINDOWS:
            return "a recipe with more windows (`--recipe default`), or a longer history"
        if self.stopped and set(self.chosen) <= {*self.stopped, PPO}:
            return (
                "a history with a higher load, or another --policy: evolution found no direction, and dials "
                "change little if jobs hardly wait"
            )
        if self.confirmed is not None:
            return "another --seed or a longer history: the chosen policy may have been lucky"
        return "a longer history, another --policy to start from, or settings of your own in a recipe (.toml)"

    def write(self, path: Path) -> list[Path]:
        """Write the policy (TOML) and, if it sets dials, its strategy (JSON) next to it, with the same name.

        Returns:
            The written files.
        """
        return _written(path, self.policy, self.strategy, self.verdict)

    def write_last(self, path: Path) -> list[Path]:
        """Write the policy with the strategy of the last stage, even if it is not confirmed to be better.

        Returns:
            The written files.
        """
        return _written(
            path, self.policy, self.last, "last result of the training; not confirmed to be better"
        )

    def report(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        return {
            "stage": self.stage,
            "setting": self.setting,
            "better": self.is_better,
            "verdict": self.verdict,
            "tried": msgspec.to_builtins(self.tried),
            "chosen": msgspec.to_builtins(self.chosen),
            "confirmed": msgspec.to_builtins(self.confirmed),
            "frozen": msgspec.to_builtins(self.frozen),
            "stopped": list(self.stopped),
            "policy": self.policy.toml,
            "digest": self.strategy.digest,
            "advice": self.advice,
            "passed_over": msgspec.to_builtins(self.passed_over),
            "why_not": self.why_not,
        }


def _is_any(strategy: Strategy) -> bool:
    """Return whether a strategy has a weight other than 0."""
    return any(any(row) for layer in strategy.layers for row in layer)


def _written(path: Path, policy: Policy, strategy: Strategy, words: str) -> list[Path]:
    files = [path]
    path.parent.mkdir(parents=True, exist_ok=True)
    if _is_any(strategy):
        files.append(path.with_suffix(".json"))
        strategy.write(files[-1])
        policy = policy.with_settings(dials=files[-1].name)
    path.write_text(f"# rlsched train: {words}\n{policy.toml}", encoding="utf-8")
    return files
