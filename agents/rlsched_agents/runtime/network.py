"""Shape and first weights of the policy network, as data: for torch (training) and numpy (serving) alike."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.schema import NUM_CRITIC, NUM_FEATURES

Weights = dict[str, NDArray[np.float32]]
"""Parameters by name, `actor.*` and `critic.*`; a matrix is (outputs, inputs) as in torch."""

_PERMISSIONS: Final = {
    "predicted_gpu_time": Permissions(),
    "index": Permissions(preemption=True),
    "predicted_size": Permissions(reservations=True),
}


class NetworkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of the two networks and the strength of the prior.

    Each row runs through the same two layers; their mean and maximum over the real rows make a context
    that every row sees when it is scored. Nothing depends on the number or on the order of the rows.

    Attributes:
        features: Columns that the actor sees.
        critic_features: Columns that only the critic sees, after the actor's.
        width: Hidden width of the actor.
        critic_width: Hidden width of the critic, which shares nothing with the actor.
        prior_job: Logit added to the row of the first half that the reference rule would take.
        prior_variant: The same for the second half.
        prior_modelled: What is added to `prior_job` where there are models: a policy that is better than its
            reference without them need not be so with them.
        order: The order of its queue in training, which says what it may do there.
        revises: Whether, where it is served, predictions of waiting jobs are revised (`decide.order.bursts`).
        prior_rows: What is added to the prior for each unit of ln(rows that could be taken in its place). At
            1 an untrained policy that draws leaves the reference as often among twelve rows as among three;
            at 0 the more rows there are, the less it follows.
    """

    features: int = NUM_FEATURES
    critic_features: int = NUM_CRITIC
    width: int = 64
    critic_width: int = 48
    prior_job: float = 3.5
    prior_variant: float = 5.0
    prior_modelled: float = 0.0
    order: Literal["predicted_gpu_time", "index", "predicted_size"] = "predicted_gpu_time"
    prior_rows: float = 0.0
    revises: bool = False

    @property
    def permissions(self) -> Permissions:
        """What a policy with this network may do in training."""
        return _PERMISSIONS[self.order]

    @property
    def served(self) -> Permissions:
        """What it may do where it is served: what the cluster and its jobs permit.

        A network that was trained without reservations makes none.
        """
        return Permissions(declared=True, reservations=self.order != "predicted_gpu_time")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, in a fixed order."""
        actor, critic = self.width, self.critic_width
        return {
            "actor.row1.weight": (actor, self.features),
            "actor.row1.bias": (actor,),
            "actor.row2.weight": (actor, actor),
            "actor.row2.bias": (actor,),
            "actor.context.weight": (actor, 2 * actor),
            "actor.context.bias": (actor,),
            "actor.mix_row.weight": (actor, actor),
            "actor.mix_row.bias": (actor,),
            "actor.mix_context.weight": (actor, actor),
            "actor.score.weight": (1, actor),
            "critic.row1.weight": (critic, self.features + self.critic_features),
            "critic.row1.bias": (critic,),
            "critic.row2.weight": (critic, critic),
            "critic.row2.bias": (critic,),
            "critic.hidden.weight": (critic, 2 * critic),
            "critic.hidden.bias": (critic,),
            "critic.value.weight": (1, critic),
            "critic.value.bias": (1,),
        }


def initial_weights(config: NetworkConfig, seed: int) -> Weights:
    """Weights before training: orthogonal matrices, zero biases, a last actor layer of gain 0.01.

    The prior alone then decides: arg max is the reference rule's choice. The same seed gives the same
    weights with and without torch.
    """
    rng = np.random.default_rng(seed)
    gains = {"actor.score.weight": 0.01, "critic.value.weight": 1.0}
    return {
        name: np.zeros(shape, dtype=np.float32)
        if len(shape) == 1
        else _orthogonal(rng, shape, gains.get(name, math.sqrt(2)))
        for name, shape in config.shapes().items()
    }


def widened(weights: Weights, config: NetworkConfig, features: int) -> Weights:
    """The same policy for rows with more columns behind the actor's: the new ones weigh nothing yet.

    Args:
        weights: Parameters of a network of these sizes.
        config: Its sizes.
        features: Columns that the actor sees from now on, no fewer.
    """
    more = features - config.features
    return {
        name: np.insert(array, [config.features] * more, np.float32(0.0), axis=1)
        if name.endswith(".row1.weight")
        else array
        for name, array in weights.items()
    }


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> NDArray[np.float32]:
    """A matrix with orthonormal rows or columns, whichever are fewer, times `gain` (Saxe et al. 2014)."""
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    matrix = q if rows >= columns else q.T
    return np.ascontiguousarray(gain * matrix, dtype=np.float32)
