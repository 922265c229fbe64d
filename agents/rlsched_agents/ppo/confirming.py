"""The last word on a run: is what validation chose better than what the run began with?

The best of many candidates on a few windows is partly the luckiest. On windows that chose nothing it has to
beat the policy that the run began with: that of `--init`, or the untrained one, which is the reference rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rlsched_agents.ppo.callbacks import Best, Table, Validate, as_scheduler, score_of
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import Checkpoint
from rlsched_agents.runtime.network import Weights
from rlsched_agents.runtime.policy import PpoScheduler


@dataclass(frozen=True)
class Verdict:
    """Which policy a run has come to.

    Attributes:
        card: Its card; `confirmation` has both.
        weights: Its parameters.
        score: Of the policy that validation chose, on the windows that chose nothing; lower is better.
        start_score: Of the one that the run began with.
    """

    card: Card
    weights: Weights
    score: float
    start_score: float

    @property
    def better(self) -> bool:
        """Whether the run's own policy is kept."""
        return self.score < self.start_score


def confirm_best(
    card: Card,
    best: Best,
    start: Checkpoint,
    validate: Validate,
    confirm: Validate,
    recipe: Recipe,
    seed: int,
) -> Verdict:
    """Compare the best policy of a run with its start, and keep the start if that is as good.

    Args:
        card: Of the best policy.
        best: That policy.
        start: What the run began with, and how that is served.
        validate: Runs a policy on the windows that chose; asked for the start's table where it is kept.
        confirm: Runs a policy on the other windows.
        recipe: Hyper-parameters of the run.
        seed: Seed of the draws.
    """
    began = PpoScheduler.from_checkpoint(start, seed=seed)
    ours = confirm(as_scheduler(best.weights, recipe.network, best.temperature, seed))
    theirs = confirm(began)
    table: Table = {"ppo": ours["ppo"], "start": theirs["ppo"]}
    table |= {name: row for name, row in ours.items() if name != "ppo"}
    card = msgspec.structs.replace(card, confirmation=table)
    score, start_score = (score_of(one, recipe.tolerated_loss_frac) for one in (ours, theirs))
    if score < start_score:
        return Verdict(card, best.weights, score, start_score)
    card = msgspec.structs.replace(
        card,
        timesteps=0,
        network=start.card.network,
        temperature=start.card.temperature,
        validation=validate(began),
    )
    return Verdict(card, start.weights, score, start_score)
