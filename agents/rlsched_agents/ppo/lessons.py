"""Which stage of a curriculum a run is in: entered between two updates, by its decisions, and logged."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from rlsched.errors import InputError
from rlsched_envs.training.curriculum import Stage, stage_at


class Lessons(BaseCallback):
    """Has the environment draw its next episodes from the stage whose time it is.

    The stage follows from the decisions taken and those asked for, so that a resumed run is in the stage in
    which an uninterrupted one would be. `curriculum/stage_number` counts from 1; behind the last stage, where
    episodes are of the whole mixture, it is one more. Without stages nothing is entered and nothing logged.

    Args:
        venv: Has a method `enter(stage)`, as `RowsVecEnv` has, where there are stages.
        stages: The curriculum.
        timesteps: Decisions of the whole run.

    Raises:
        InputError: an environment that knows no stages, or a stage that does not fit its sources.
    """

    def __init__(self, venv: VecEnv, stages: Sequence[Stage], timesteps: int) -> None:
        super().__init__()
        self._venv, self._stages, self._timesteps = venv, tuple(stages), timesteps
        self.number: int | None = None
        if stages and not hasattr(venv, "enter"):
            raise InputError(
                f"curriculum: expected an environment that can enter a stage, got {type(venv).__name__}; "
                "leave out the curriculum"
            )
        for stage in self._stages:
            venv.enter(stage)  # type: ignore[attr-defined]  # so that a bad one is met before the run

    def enter(self, decisions: int) -> None:
        """Enter the stage after so many decisions, if the environment is not in it."""
        number = stage_at(self._stages, decisions / self._timesteps)
        if self._stages and number != self.number:
            self._venv.enter(self._stages[number] if number < len(self._stages) else None)  # type: ignore[attr-defined]
            self.number = number

    def _on_rollout_start(self) -> None:
        self.enter(self.num_timesteps)

    def _on_rollout_end(self) -> None:
        if self.number is not None:
            self.logger.record("curriculum/stage_number", self.number + 1)

    def _on_step(self) -> bool:
        return True
