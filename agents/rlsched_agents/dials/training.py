"""Trains a strategy in stages, and chooses the best result.

The stages: other values of the policy's settings; evolution of constant dials; evolution of dials that depend
on the state of the cluster; PPO (not with the algorithm `es`).

Each trace has three parts: for training, for choosing among the results, and for confirming the chosen
result. The third part is used only once.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.collector import no_garbage
from rlsched.compile.compiling import COMPILING
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.files.atomic import replace_file
from rlsched_agents.dials.evolution import Evolution, EvolutionConfig, Generation
from rlsched_agents.dials.judging import ALL_ZERO, Costs, Floats, Interval, Judge, Layers
from rlsched_agents.dials.lesson import DialRecipe, Lesson
from rlsched_agents.dials.training_data import say_nothing
from rlsched_agents.dials.verdict import PPO, StrategyComparison, Trained, compared
from rlsched_agents.dials.window_runs import MakeRunner

SETTINGS: Final = "settings"
CONSTANTS: Final = "constants"
FOLLOWING: Final = "following"
ALGORITHMS: Final = {"ppo": (CONSTANTS, FOLLOWING, PPO), "es": (CONSTANTS, FOLLOWING)}
"""Stages of each algorithm. Both begin with the stage `SETTINGS`, which is not listed. The stage `PPO` starts
from the result of the stages before it, if that is better than dials at 0."""
STATE_FILE: Final = "training.json"
PPO_FILE: Final = "ppo.npz"
"""Name of the file with the state of PPO, in the same folder as the state file of the training."""


def _teaches(judge: Judge, found: Floats) -> bool:
    """Return whether the strategy `found` is significantly better on the training windows than dials at 0.

    Evolution can end with a worse strategy if the costs of its candidates differ by little more than noise.
    """
    mine, zero = judge.run([(found,), ALL_ZERO])
    return compared(judge, mine, zero).cost.high < 1.0


@dataclass
class Training:
    """One training run. It can stop between two generations or rollouts, and continue later.

    Attributes:
        lesson: Policy to improve, and windows for training, for choosing and for confirming.
        recipe: Hyperparameters.
        seed: Seed of the draws.
        state_file: File for the state of the training; None: the state is not saved. The state of PPO is in
            `PPO_FILE` next to it.
        workers: Number of processes; None: one per core.
        algorithm: `ppo` or `es` (`ALGORITHMS`).
        make_runner: Starts workers that run windows; None: `workers` processes of this machine.
    """

    lesson: Lesson
    recipe: DialRecipe
    seed: int
    state_file: Path | None = None
    workers: int | None = None
    algorithm: str = "ppo"
    make_runner: MakeRunner | None = None

    def run(
        self,
        tell: Callable[[str, Generation], None],
        *,
        resume: bool = False,
        say: Callable[[str], None] = say_nothing,
    ) -> Trained:
        """Try other settings, train strategies, choose the best result, and confirm it.

        Args:
            tell: Called after each setting, generation or rollout with the name of the stage and the figures.
                The state is saved before the call, so the callback can stop the training by an exception.
            resume: Whether to continue from `state_file`.
            say: Called with a line at the start of each longer phase.

        Raises:
            InputError: there is no state to continue from, or the state is from another training run.
        """
        state = self._read() if resume else {}
        say("trying other settings")
        tried, setting = self._try_settings(state, tell, say)
        policy = self.recipe.others(self.lesson.policy)[setting] if setting else self.lesson.policy
        say("evolving dials on training windows")
        with self._judge("teaching", policy) as judge:
            constants = self._evolve(judge, CONSTANTS, self.recipe.constants, None, state, tell)
            start = constants.result if _teaches(judge, constants.result) else None
            following = self._evolve(judge, FOLLOWING, self.recipe.following, start, state, tell)
            start = following.result if _teaches(judge, following.result) else start
        stages = {CONSTANTS: constants, FOLLOWING: following}
        lost = tuple(name for name, one in stages.items() if one.is_lost)
        layers: dict[str, Layers] = {SETTINGS: ALL_ZERO} if setting else {}
        layers |= {name: (one.result,) for name, one in stages.items()}
        if PPO in ALGORITHMS[self.algorithm]:
            say("training a network by PPO, from the result of evolution")
            layers[PPO] = self._reinforce(policy, start, state, tell)
        say("choosing on windows outside the training")
        chosen, best, passed_over = self._choose(layers, policy)
        last = self._strategy(layers[ALGORITHMS[self.algorithm][-1]])
        if not best:
            still = self._strategy(ALL_ZERO)
            return Trained(self.lesson.policy, still, "", "", tried, chosen, None, {}, lost, last)
        say(f"confirming {best} on held-out windows")
        strategy = self._strategy(layers[best])
        found = strategy.matrices
        with self._judge("confirming") as judge:
            (zero,), (mine,) = judge.run([ALL_ZERO]), judge.run([found], policy=policy)
            confirmed = compared(judge, mine, zero)
            frozen = dials_frozen(judge, found, mine, policy, zero)
        return Trained(
            policy, strategy, best, setting, tried, chosen, confirmed, frozen, lost, last, passed_over
        )

    def _strategy(self, layers: Layers) -> Strategy:
        """Create a strategy from the matrices of its layers. It ignores prices if the training had none."""
        made = Strategy.from_layers(*layers)
        return made if self.recipe.drawn.has_prices else made.without_prices()

    def _judge(self, part: str, policy: Policy | None = None) -> Judge:
        pools = getattr(self.lesson, part)
        return Judge(pools, workers=self.workers, policy=policy, make_runner=self.make_runner)

    def _try_settings(
        self,
        state: dict[str, Any],
        tell: Callable[[str, Generation], None],
        say: Callable[[str], None],
    ) -> tuple[dict[str, StrategyComparison], str]:
        """Return the cost of each alternative setting, and the best setting.

        Costs are relative to the policy's own settings, and measured on the windows for choosing. The best
        setting is "" if none is significantly better.
        """
        others = self.recipe.others(self.lesson.policy)
        try:
            table = {
                name: msgspec.convert(one, StrategyComparison)
                for name, one in state.get(SETTINGS, {}).items()
                if name in others
            }
        except (AttributeError, msgspec.ValidationError) as error:
            raise self._no_training(f"stage {SETTINGS}: {error}") from None
        if len(table) < len(others):
            say("trying other settings: first the policy's own, as the reference")
            with self._judge("choosing") as judge:
                (zero,) = judge.run([ALL_ZERO])
                for name in [name for name in others if name not in table]:
                    say(f"trying other settings: {len(table) + 1} of {len(others)}, {name}")
                    (mine,) = judge.run([ALL_ZERO], policy=others[name])
                    table[name] = compared(judge, mine, zero)
                    state[SETTINGS] = msgspec.to_builtins(table)
                    self._write(state)
                    tell(SETTINGS, Generation(len(table), table[name].cost.ratio, None))
        best = min(table, key=lambda name: table[name].cost.ratio, default="")
        return table, best if best and table[best].cost.high < 1.0 else ""

    def _evolve(
        self,
        judge: Judge,
        stage: str,
        config: EvolutionConfig,
        start: Floats | None,
        state: dict[str, Any],
        tell: Callable[[str, Generation], None],
    ) -> Evolution:
        """Run the generations of one stage of evolution that `state` does not contain yet."""
        seed = self.seed * 2 + (stage == FOLLOWING)
        evolution = Evolution(judge, config, seed, start)
        if stage in state:
            try:
                evolution.set_state(state[stage])
            except (ValueError, KeyError, TypeError) as error:
                raise self._no_training(f"stage {stage}: {error}") from None
        while evolution.number < config.generations and not evolution.is_lost:
            generation = evolution.step()
            state[stage] = evolution.get_state()
            self._write(state)
            tell(stage, generation)
        return evolution

    def _reinforce(
        self,
        policy: Policy,
        start: Floats | None,
        state: dict[str, Any],
        tell: Callable[[str, Generation], None],
    ) -> Layers:
        """Train a network by PPO, from the saved state if there is one, and return its layers."""
        with COMPILING.during("loading PyTorch"), no_garbage():
            from rlsched_agents.dials.ppo import DialPpo

        config, lesson = self.recipe.ppo, self.lesson
        ppo = DialPpo(lesson.sources, lesson.drawn, policy, config, self.seed, start, lesson.objective)
        if PPO in state:
            try:
                ppo.set_state(self._read_arrays())
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                raise self._no_training(f"stage {PPO}: {error}") from None
        while ppo.number < config.rollouts:
            generation = ppo.step()
            self._write_arrays(ppo.get_state())
            state[PPO] = {"number": ppo.number}
            self._write(state)
            tell(PPO, generation)
        return ppo.result

    def _choose(
        self, found: dict[str, Layers], policy: Policy
    ) -> tuple[dict[str, StrategyComparison], str, dict[str, Interval]]:
        """Compare each stage with the original policy on the windows for choosing, and choose one to confirm.

        A later stage is chosen only if it is significantly better than the stage chosen so far.

        Returns:
            The costs of each stage relative to the original policy; the chosen stage, "" for none; and the
            costs of all cheaper stages, relative to the chosen stage.
        """
        with self._judge("choosing") as judge:
            (zero,), costs = judge.run([ALL_ZERO]), judge.run(list(found.values()), policy=policy)
            by_stage = dict(zip(found, costs, strict=True))
            table = {name: compared(judge, one, zero) for name, one in by_stage.items()}
            best = ""
            for name, one in by_stage.items():
                over = (
                    compared(judge, one, by_stage[best], zero).cost.high if best else table[name].cost.ratio
                )
                best = name if over < 1.0 else best
            passed_over = {
                name: compared(judge, one, by_stage[best], zero).cost
                for name, one in by_stage.items()
                if best and table[name].cost.ratio < table[best].cost.ratio
            }
        return table, best, passed_over

    def _read(self) -> dict[str, Any]:
        if self.state_file is None or not self.state_file.is_file():
            raise InputError(f"{self.state_file}: no training to continue; leave out --resume")
        try:
            kept = msgspec.json.decode(self.state_file.read_bytes())
            stages: dict[str, Any] = dict(kept["stages"])
            seed, of = kept["seed"], kept["of"]
        except OSError as error:
            raise InputError(
                f"{self.state_file}: cannot read the state of this training run: {error.strerror}"
            ) from None
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise self._no_training(str(error)) from None
        if seed != self.seed:
            raise InputError(
                f"{self.state_file}: this training run was started with --seed {seed}, got --seed {self.seed}"
                "; give the same seed, or start again with --overwrite"
            )
        if of != self._of:
            raise InputError(
                f"{self.state_file}: this training was started on other data, or with another recipe, policy "
                "or objective; give the same ones, or start again with --overwrite"
            )
        return stages

    def _no_training(self, why: str) -> InputError:
        return InputError(
            f"{self.state_file}: expected the state of a training run of rlsched train, got a state that "
            f"cannot be continued: {' '.join(why.split())}; start again with --overwrite"
        )

    @property
    def _of(self) -> str:
        """Hash of the inputs of the training run."""
        settings = [one for pool in self.lesson.teaching for one in pool.settings]
        work_s = sum(one.work_s for one in settings)
        predicted_s = sum(float(one.window.predicted_s.sum()) for one in settings)
        words = (
            self.lesson.policy.digest,
            msgspec.json.encode(self.recipe).decode(),
            work_s,
            predicted_s,
            self.algorithm,
            [float(one.rows.sum()) for source in self.lesson.sources for one in source.tariffs],
            self.lesson.objective.toml,
        )
        return hashlib.sha256(repr(words).encode()).hexdigest()[:12]

    def _write(self, state: dict[str, Any]) -> None:
        """Write the state atomically."""
        if self.state_file is None:
            return
        data = msgspec.json.encode({"seed": self.seed, "of": self._of, "stages": state})
        self.state_file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.state_file, data)

    def _read_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state of PPO.

        Raises:
            InputError: the file is missing, or is not a state of PPO.
        """
        assert self.state_file is not None
        path = self.state_file.with_name(PPO_FILE)
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise self._no_training(f"{path}: {error}") from None

    def _write_arrays(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write the state of PPO atomically."""
        if self.state_file is None:
            return
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)  # compression reduces the size to a tenth
        replace_file(self.state_file.with_name(PPO_FILE), packed.getvalue())


def dials_frozen(
    judge: Judge, found: Layers, mine: Costs, policy: Policy, reference: Costs | None = None
) -> dict[str, Interval]:
    """Return a dict: dial -> cost with this dial fixed at 0 / cost of the strategy `found`, as an interval.

    The keys are the dials that `found` sets. `mine`: results of `found` on all windows of `judge`.
    `reference`: results to which the bounds of the objective refer (see `compared`); None: `mine`.
    """
    table = {}
    *hidden, last = found
    for row, name in enumerate(RANGES):
        if last[row].any():
            still = np.array(last)
            still[row] = 0.0
            other = judge.run([(*hidden, still)], policy=policy)[0]
            table[name] = compared(judge, other, mine, reference).cost
    return table
