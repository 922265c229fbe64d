"""Shape and initial weights of the policy network, as data for both torch (training) and numpy (serving)."""

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

    Each row passes through the same two layers. The mean and maximum of the outputs over the real rows form a
    context for scoring each row, so the score of a row does not depend on the order of the rows, and the
    network accepts any number of rows.

    Attributes:
        features: Number of columns that the actor reads.
        critic_features: Number of columns that only the critic reads, after the actor's.
        width: Hidden width of the actor.
        critic_width: Hidden width of the critic, which shares no layers with the actor.
        prior_job: Logit added to the reference rule's row of the first half.
        prior_variant: Logit added to the reference rule's row of the second half.
        prior_modelled: Logit added to `prior_job` with models: a policy that beats its reference without
            models may not do so with them.
        order: Order of the queue in training, which determines the permissions in training.
        revises: Whether predictions of waiting jobs are revised when the network is served
            (`decide.order.bursts`).
        prior_rows: Logit added to the prior for each unit of ln(number of alternative rows). At 1, an
            untrained policy that draws its rows departs from the reference as often with twelve rows as with
            three. At 0, it departs more often the more rows there are.
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
        """Permissions of a policy with this network in training."""
        return _PERMISSIONS[self.order]

    @property
    def served(self) -> Permissions:
        """Permissions when served: the permissions of the cluster and its jobs.

        A network that was trained without reservations makes no reservations.
        """
        return Permissions(declared=True, reservations=self.order != "predicted_gpu_time")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, in a fixed order."""
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
    """Create the weights before training: orthogonal matrices, zero biases, a last actor layer of gain 0.01.

    With these weights only the prior decides: arg max is the reference rule's choice. Equal seeds give equal
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
    """Return the same policy for rows with more actor columns; the new columns have weight 0.

    Args:
        weights: Parameters of a network of these sizes.
        config: Sizes of this network.
        features: New number of columns that the actor reads, at least the old number.
    """
    more = features - config.features
    return {
        name: np.insert(array, [config.features] * more, np.float32(0.0), axis=1)
        if name.endswith(".row1.weight")
        else array
        for name, array in weights.items()
    }


def _orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> NDArray[np.float32]:
    """Return an orthonormal matrix (rows or columns, whichever are fewer) times `gain` (Saxe et al. 2014)."""
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    q *= np.sign(np.diag(r))
    matrix = q if rows >= columns else q.T
    return np.ascontiguousarray(gain * matrix, dtype=np.float32)
