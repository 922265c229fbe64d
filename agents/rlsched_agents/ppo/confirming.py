"""Confirmation of a run: whether the policy chosen by validation beats the initial policy.

The best of many candidates on a few windows may only be the luckiest. It must therefore beat the initial
policy on held-out windows. The initial policy is the policy of `--init`, or an untrained policy, which
decides like the reference rule.
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
    """The resulting policy of a run.

    Attributes:
        card: Card of the policy; `confirmation` has both results.
        weights: Parameters of the policy.
        score: Score of the chosen policy on the held-out windows; lower is better.
        start_score: Score of the initial policy on these windows.
    """

    card: Card
    weights: Weights
    score: float
    start_score: float

    @property
    def better(self) -> bool:
        """Whether the run's own policy is the result, not the initial policy."""
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
    """Compare the best policy of a run with the initial policy; keep the initial policy if it is as good.

    Args:
        card: Card of the best policy.
        best: The best policy.
        start: The initial policy, with its temperature of serving.
        validate: Runs a policy on the validation windows; called for the table of the initial policy if that
            policy is the result.
        confirm: Runs a policy on the held-out windows.
        recipe: Hyperparameters of the run.
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
