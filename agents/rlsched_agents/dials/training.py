"""A training of a strategy, from windows to a verdict: constants first, then what follows the state.

Windows of the training part teach, those of the first half of the validation part choose, those of the second
half confirm, once. What is written is the best that was chosen, where it is confirmed to be better than the
settings as they are; else nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.dials.evolution import Evolution, EvolutionConfig, Generation
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Floats, Interval, Judge, interval
from rlsched_agents.ppo.sources import TrainingData
from rlsched_envs.sources import EpisodeSource
from rlsched_envs.windows import Drawn, Windows, draw_setting

CONSTANTS: Final = "constants"
FOLLOWING: Final = "following"
STATE_FILE: Final = "training.json"


class DialRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every number that shapes the training of a strategy.

    Attributes:
        drawn: What windows are like.
        windows: Windows that teach ...
        choosing: ... that choose ...
        confirming: ... and that confirm.
        constants: How constant dials evolve.
        following: How, from there on, dials evolve that follow the cluster's state.
        scales: Factors on the assumed figures of the catalogue; windows are dealt out to them in turn.
    """

    drawn: Drawn = Drawn()
    windows: int = 480
    choosing: int = 240
    confirming: int = 400
    constants: EvolutionConfig = EvolutionConfig(
        generations=20, pairs=200, spread=0.35, step=0.06, columns=()
    )
    following: EvolutionConfig = EvolutionConfig(generations=25)
    scales: tuple[float, ...] = (1.0, 0.7, 1.3)


class Compared(msgspec.Struct, frozen=True):
    """One strategy over another on the same windows; below 1 is better.

    Attributes:
        cost: Time in the system and energy, weighed.
        delay: JCT beyond the run times alone at full clock.
        energy: Energy of the jobs.
        by_source: Geometric mean of cost by trace.
    """

    cost: Interval
    delay: Interval
    energy: Interval
    by_source: dict[str, float]


class Trained(msgspec.Struct, frozen=True):
    """What came of a training.

    Attributes:
        strategy: What to serve: that of the stage that was chosen.
        stage: `constants`, `following`, or "" where neither is better than the settings on what chooses.
        chosen: By stage: over the settings as they are, on the windows that choose.
        confirmed: The chosen one over the settings as they are, on those that confirm; None: none was chosen.
        frozen: By dial: cost with this dial at 0 over cost with it, on those that confirm; above 1: it helps.
        stopped: Stages that ended early because they found no direction.
    """

    strategy: Strategy
    stage: str
    chosen: dict[str, Compared]
    confirmed: Compared | None
    frozen: dict[str, Interval]
    stopped: tuple[str, ...]

    @property
    def is_better(self) -> bool:
        """Whether it is confirmed to be better than the settings as they are."""
        return self.confirmed is not None and self.confirmed.cost.high < 1.0

    @property
    def verdict(self) -> str:
        """In words, for people."""
        if self.confirmed is None:
            return "keep what you have: on the windows that choose, nothing was better than the settings"
        cost, delay = self.confirmed.cost, self.confirmed.delay
        measured = f"cost {cost}, delay {delay} of the settings, {cost.windows} windows that chose nothing"
        if self.is_better:
            return f"better by {1.0 - cost.ratio:.1%}, confirmed: {measured}"
        return f"keep what you have: not shown to be better ({measured})"


@dataclass(frozen=True)
class Lesson:
    """Windows that teach, choose and confirm.

    Attributes:
        teaching, choosing, confirming: The windows.
    """

    teaching: tuple[Windows, ...]
    choosing: tuple[Windows, ...]
    confirming: tuple[Windows, ...]

    @classmethod
    def of(cls, data: Sequence[TrainingData], recipe: DialRecipe, policy: Policy, seed: int) -> Lesson:
        """Draw them; where a trace has too little for a part, others have more of it.

        Raises:
            InputError: no trace has anything to confirm on.
        """
        parts = (
            ([one.train for one in data], recipe.windows),
            ([source for one in data for source in one.validation], recipe.choosing),
            ([source for one in data for source in one.confirmation], recipe.confirming),
        )
        drawn = []
        for number, (sources, count) in enumerate(parts):
            fit = [source for source in sources if source.submit_s.size >= recipe.drawn.jobs // 3]
            if not fit:
                raise InputError(
                    f"too few jobs: expected {recipe.drawn.jobs // 3} or more in a half of the validation "
                    "part (the tenth of the time after the first seven); give a longer trace"
                )
            drawn.append(_windows(fit, count, recipe, policy, np.random.default_rng([seed, number])))
        return cls(*drawn)


def _windows(
    sources: list[EpisodeSource], count: int, recipe: DialRecipe, policy: Policy, rng: np.random.Generator
) -> tuple[Windows, ...]:
    """So many windows, dealt out to the sources by their weights, and to the scales in turn."""
    weights = np.array([source.weight for source in sources])
    picks = np.repeat(np.arange(len(sources)), np.round(count * weights / weights.sum()).astype(int))
    settings = [draw_setting(sources[k], recipe.drawn, rng) for k in picks]
    scales = recipe.scales
    return tuple(
        Windows(settings[k :: len(scales)], sources, recipe.drawn, policy, assumed_scale=scale)
        for k, scale in enumerate(scales)
    )


def compared(judge: Judge, mine: Costs, other: Costs) -> Compared:
    """One strategy over another on all windows of a judge."""
    cost = mine.over(other, judge.energy_weight)
    groups = [one.group for one in judge.settings]
    source = np.array([one.source for one in judge.settings])
    return Compared(
        interval(cost, groups),
        interval(np.log(mine.floored_s / other.floored_s), groups),
        interval(np.log(mine.energy_j / np.maximum(other.energy_j, 1.0)), groups),
        {name: float(np.exp(cost[source == name].mean())) for name in np.unique(source).tolist()},
    )


def _teaches(judge: Judge, found: Floats) -> bool:
    """Whether a strategy is better than the settings on the windows that it has learned from: where pairs say
    little, evolution drifts."""
    mine, zero = judge.run([(found,), ALL_ZERO])
    return compared(judge, mine, zero).cost.high < 1.0


def _frozen(judge: Judge, found: Floats, mine: Costs) -> dict[str, Interval]:
    """By dial: what freezing it at 0 costs."""
    groups, table = [one.group for one in judge.settings], {}
    for row, name in enumerate(RANGES):
        if found[row].any():
            still = found.copy()
            still[row] = 0.0
            table[name] = interval(judge.run([(still,)])[0].over(mine, judge.energy_weight), groups)
    return table


@dataclass
class Training:
    """One training, which can stop between two generations and go on later.

    Attributes:
        lesson: Its windows.
        recipe: Its numbers.
        seed: Of its draws.
        state_file: Where it keeps how far it is; None: nowhere.
        workers: Processes; None: one a core.
    """

    lesson: Lesson
    recipe: DialRecipe
    seed: int
    state_file: Path | None = None
    workers: int | None = None

    def run(self, tell: Callable[[str, Generation], None], *, resume: bool = False) -> Trained:
        """Evolve, choose, confirm.

        Args:
            tell: Called after every generation with its stage; may raise to stop, all is kept by then.
            resume: Whether to go on from `state_file`.

        Raises:
            InputError: there is nothing to go on from.
        """
        state = self._read() if resume else {}
        judge = Judge(self.lesson.teaching, workers=self.workers)
        try:
            constants = self._evolve(judge, CONSTANTS, self.recipe.constants, None, state, tell)
            start = constants.found if _teaches(judge, constants.found) else None
            following = self._evolve(judge, FOLLOWING, self.recipe.following, start, state, tell)
        finally:
            judge.close()
        stages = {CONSTANTS: constants, FOLLOWING: following}
        lost = tuple(name for name, one in stages.items() if one.is_lost)
        chosen, best = self._choose({name: one.found for name, one in stages.items()})
        if not best:
            return Trained(Strategy.of(*ALL_ZERO), "", chosen, None, {}, lost)
        found = stages[best].found
        judge = Judge(self.lesson.confirming, workers=self.workers)
        try:
            mine, zero = judge.run([(found,), ALL_ZERO])
            confirmed, frozen = compared(judge, mine, zero), _frozen(judge, found, mine)
        finally:
            judge.close()
        return Trained(Strategy.of(found), best, chosen, confirmed, frozen, lost)

    def _evolve(
        self,
        judge: Judge,
        stage: str,
        config: EvolutionConfig,
        start: Floats | None,
        state: dict[str, Any],
        tell: Callable[[str, Generation], None],
    ) -> Evolution:
        """One stage, or the rest of it."""
        seed = self.seed * 2 + (stage == FOLLOWING)
        evolution = Evolution(judge, config, seed, start)
        if stage in state:
            evolution.set_state(state[stage])
        while evolution.number < config.generations and not evolution.is_lost:
            generation = evolution.step()
            state[stage] = evolution.get_state()
            if self.state_file is not None:
                _write(self.state_file, msgspec.json.encode({"seed": self.seed, "stages": state}))
            tell(stage, generation)
        return evolution

    def _choose(self, found: dict[str, Floats]) -> tuple[dict[str, Compared], str]:
        """Each stage over the settings on the windows that choose, and the best; "": none is better."""
        judge = Judge(self.lesson.choosing, workers=self.workers)
        try:
            zero, *costs = judge.run([ALL_ZERO, *((one,) for one in found.values())])
            table = {name: compared(judge, one, zero) for name, one in zip(found, costs, strict=True)}
        finally:
            judge.close()
        best = min(table, key=lambda name: table[name].cost.ratio)
        return table, best if table[best].cost.ratio < 1.0 else ""

    def _read(self) -> dict[str, Any]:
        if self.state_file is None or not self.state_file.is_file():
            raise InputError(f"{self.state_file}: nothing to go on from; leave out --resume")
        try:
            kept = msgspec.json.decode(self.state_file.read_bytes())
            stages: dict[str, Any] = dict(kept["stages"])
            seed = kept["seed"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise InputError(f"{self.state_file}: this is no kept training: {error}") from None
        if seed != self.seed:
            raise InputError(f"{self.state_file}: it was begun with --seed {seed}, got --seed {self.seed}")
        return stages


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.replace(path)


def report_of(found: Trained) -> dict[str, Any]:
    """What came of a training, for machines."""
    return {
        "stage": found.stage,
        "better": found.is_better,
        "verdict": found.verdict,
        "chosen": msgspec.to_builtins(found.chosen),
        "confirmed": msgspec.to_builtins(found.confirmed),
        "frozen": msgspec.to_builtins(found.frozen),
        "stopped": list(found.stopped),
        "digest": found.strategy.digest,
    }
