"""Writes the TensorBoard log of a training run: curves, configuration and result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rlsched.board.curves import Curves, flat
from rlsched.decide.policies.policy import Policy
from rlsched.objective import DEFAULT, Objective
from rlsched_agents.dials import habits
from rlsched_agents.dials.evolution import Generation
from rlsched_agents.dials.habits import Habits
from rlsched_agents.dials.importance import Importance, picture
from rlsched_agents.dials.lesson import DialRecipe
from rlsched_agents.dials.training_data import TrainingData
from rlsched_agents.dials.verdict import Trained

DESCRIPTIONS: Final = {
    "settings/cost_frac": "Cost of each tried variant of the settings / cost of the policy's own settings, "
    "measured on the windows for choosing.",
    "(constants|following)/cost_frac": "Mean cost of a generation's candidates / cost of the settings, "
    "on windows for training; below 1 is better.",
    "(constants|following)/signal_to_noise": "Signal-to-noise ratio of the search direction; 0 is chance.",
    "ppo/cost_frac": "Mean cost of the episodes that ended in a rollout, with noise / cost of the settings, "
    "on windows for training; below 1 is better.",
    "ppo/approx_kl": "Estimated KL divergence of an update of PPO.",
    "ppo/explained_variance": "Share of the variance of the returns that the critic explains; 1 is perfect.",
    "ppo/value_loss": "Mean squared error of the critic.",
    "ppo/std": "Standard deviation of the weights of the noise.",
    "ppo/.*_ratio": "Mean of this term of the objective, which has a bound, / its value under the "
    "policy's settings.",
    "chosen/.*/cost_frac": "Cost of the result of this stage / cost of the settings, "
    "measured on the windows for choosing.",
    "chosen/.*/(low|high)_frac": "Bounds of the 95 % interval of the stage's cost.",
    "chosen/best_cost_frac": "Lowest cost of all stages.",
    "confirmed/(cost|delay|energy)_frac": "Chosen policy / the policy's settings, "
    "measured on the windows for confirming.",
    "confirmed/cost_(low|high)_frac": "Bounds of the 95 % interval of the confirmed cost.",
    "confirmed/terms/.*_ratio": "This term of the objective / its value under the policy's settings, "
    "measured on the windows for confirming.",
    "run/made_with": "The recipe, the objective and the policy to improve.",
    "run/data": "The training data.",
    "run/outcome": "The result.",
    "importance/columns": "Permutation importance: how much less the strategy saves on held-out windows if "
    "this column has its value from a different moment, per cent of the cost of the settings.",
    "importance/table": "Permutation importance of the columns, as a table.",
    "dials/by_hour_and_price": "Mean position of each dial on held-out windows, by hour of the day and, with "
    "prices, by price relative to the mean of about a day (below 0.8, above 1.2).",
    "dials/table": "Mean position of each dial, as a table by blocks of four hours.",
}
LAYOUT: Final = {
    "Training": {
        "cost over the policy's own settings (1)": ["(settings|constants|following|ppo)/cost_frac"],
        "signal to noise": ["(constants|following)/signal_to_noise"],
    },
    "Measured gain": {
        "cost by stage, windows for choosing": ["chosen/.*/cost_frac"],
        "cost, windows for confirming": ["confirmed/cost.*_frac"],
    },
}
METRICS: Final = (
    "chosen/best_cost_frac",
    "confirmed/cost_frac",
    "confirmed/delay_frac",
    "confirmed/energy_frac",
)


class TrainingCurves:
    """The TensorBoard event file of a training run.

    Args:
        logdir: Folder of the event file.
        recipe: The recipe of the training run.
        policy: The policy that the training run tries to improve.
        data: The training data.
        seed: Seed of the training run.
        objective: Objective of the training run.

    Raises:
        InputError: tensorboard is not installed, or the folder cannot be written.
    """

    def __init__(
        self,
        logdir: Path,
        recipe: DialRecipe,
        policy: Policy,
        data: Sequence[TrainingData],
        seed: int,
        objective: Objective = DEFAULT,
    ) -> None:
        self._curves = Curves(logdir, DESCRIPTIONS, LAYOUT)
        plain: dict[str, Any] = msgspec.to_builtins(recipe)
        self._curves.settings({"policy": policy.name, "seed": seed, **flat(plain)}, METRICS)
        tables = "".join(f"```toml\n{one.toml.strip()}\n```\n\n" for one in (policy, objective))
        made_with = f"seed {seed}\n\n{tables}```json\n"
        made_with += f"{msgspec.json.format(msgspec.json.encode(recipe)).decode()}\n```"
        self._curves.text("run/made_with", made_with)
        uses = [use for one in data for use in one.uses]
        rows = [f"| {one.trace} | {one.jobs:,} |" for one in uses]
        self._curves.text("run/data", "\n".join(["| trace | jobs |", "|---|---|", *rows]))
        self._curves.flush()

    def add_generation(self, stage: str, generation: Generation) -> None:
        """Add a point to a stage's curves, for a tried setting, an evolution generation, or a PPO rollout."""
        points = {f"{stage}/cost_frac": generation.cost}
        if generation.signal is not None:
            points[f"{stage}/signal_to_noise"] = generation.signal
        points |= {f"{stage}/{name}": value for name, value in generation.figures.items()}
        self._curves.add(generation.number, points)
        self._curves.flush()

    def outcome(self, found: Trained, card: str) -> None:
        """Add the result of the training. `card`: Markdown card of the policy; "": no policy was written."""
        points: dict[str, float] = {}
        for name, one in found.chosen.items():
            points[f"chosen/{name}/cost_frac"] = one.cost.ratio
            points[f"chosen/{name}/low_frac"], points[f"chosen/{name}/high_frac"] = (
                one.cost.low,
                one.cost.high,
            )
        compared = [*found.tried.values(), *found.chosen.values()]
        if compared:
            points["chosen/best_cost_frac"] = min(one.cost.ratio for one in compared)
        if found.confirmed is not None:
            cost = found.confirmed.cost
            points["confirmed/cost_frac"] = cost.ratio
            points["confirmed/cost_low_frac"], points["confirmed/cost_high_frac"] = cost.low, cost.high
            points["confirmed/delay_frac"] = found.confirmed.delay.ratio
            points["confirmed/energy_frac"] = found.confirmed.energy.ratio
            for name, ratio in found.confirmed.terms.items():
                points[f"confirmed/terms/{name}_ratio"] = ratio.ratio
        self._curves.add(0, points)
        self._curves.text("run/outcome", f"{found.verdict}\n\n{card}".strip())
        self._curves.flush()

    def importance(self, found: Importance) -> None:
        """Add the importance of each observed feature, as a table and, with matplotlib, as a chart."""
        table = found.table()
        try:
            png, width, height = picture(found)
            self._curves.image("importance/columns", png, (width, height))
        except ImportError:
            table += "\n\nThe plot needs matplotlib: install rlsched[report]."
        self._curves.text("importance/table", table)
        self._curves.flush()

    def habits(self, found: Habits) -> None:
        """Add the mean values of the dials by hour and price: a table and, with matplotlib, a picture."""
        head, rows = found.rows()
        table = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
        try:
            png, width, height = habits.picture(found)
            self._curves.image("dials/by_hour_and_price", png, (width, height))
        except ImportError:
            table += "\n\nThe picture needs matplotlib: install rlsched[report]."
        self._curves.text("dials/table", table)
        self._curves.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._curves.close()
