"""Sets the current stage of a curriculum between two updates, by the number of decisions, and logs it."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from rlsched.errors import InputError
from rlsched_envs.training.curriculum import Stage, stage_at


class Lessons(BaseCallback):
    """Sets the stage from which the environment draws its next episodes.

    The stage depends only on the numbers of decisions taken and requested, so a resumed run has the same
    stage as an uninterrupted run. `curriculum/stage_number` counts from 1; after the last stage it is one
    more, and episodes are drawn from the whole mixture. Without stages this callback does nothing.

    Args:
        venv: Environment with a method `enter(stage)`, as in `RowsVecEnv`, if there are stages.
        stages: The curriculum.
        timesteps: Number of decisions of the whole run.

    Raises:
        InputError: the environment has no stages, or a stage does not fit its sources.
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
        """Set the stage after this number of decisions, if it changed."""
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
