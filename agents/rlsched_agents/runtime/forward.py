"""The network's forward pass in numpy: one state at a time, any number of rows, no torch."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.rows.columns import FEASIBLE, IS_JOB, IS_REFERENCE, IS_VARIANT, IS_WAIT, RATE
from rlsched_agents.runtime.network import NetworkConfig, Weights

Float = np.float64
"""Type of the computation, float64: rows are few, and differences to torch are then torch's own rounding."""


class Scores(Protocol):
    """A network of any kind that scores candidate rows."""

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return (K,) scores of (K, F) rows."""
        ...

    def value(self, features: NDArray[np.float32], privileged: NDArray[np.float32]) -> float:
        """Return the critic's value for these rows and their privileged columns."""
        ...


class Forward:
    """Computes logits of candidate rows, and the critic's value, from weights as data.

    Buffers grow to the largest number of rows and are reused, so only one thread can use an instance. Later
    calls do not change returned arrays.
    """

    def __init__(self, weights: Weights, config: NetworkConfig) -> None:
        self.config = config
        self._actor = _part(weights, "actor.")
        self._critic = _part(weights, "critic.")
        self._rows = 0
        self._grow(32)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute the scores of the rows.

        Args:
            features: (K, F) actor columns; further columns are ignored. A row of zeros is padding.

        Returns:
            (K,) logits, 0 for padding.
        """
        columns = features[:, : self.config.features]
        real = (columns[:, IS_WAIT] + columns[:, IS_JOB] + columns[:, IS_VARIANT]) > 0
        if real.all():
            return self._score(columns)
        logits = np.zeros(len(columns), dtype=Float)
        if real.any():
            logits[real] = self._score(columns[real])
        return logits

    def _score(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        actor, count = self._actor, len(rows)
        if count > self._rows:
            self._grow(count)
        x, hidden, encoded = self._x[:count], self._hidden[:count], self._encoded[:count]
        x[:] = rows
        _layer(x, actor["row1.weight"], actor["row1.bias"], hidden)
        _layer(hidden, actor["row2.weight"], actor["row2.bias"], encoded)
        context = self._pool(encoded) @ actor["context.weight"] + actor["context.bias"]
        np.maximum(context, 0.0, out=context)
        shift = context @ actor["mix_context.weight"] + actor["mix_row.bias"]
        _layer(encoded, actor["mix_row.weight"], shift, hidden)
        job = self.config.prior_job + self.config.prior_modelled * (x[:, RATE] > 0)
        prior = np.where(x[:, IS_VARIANT] > 0, self.config.prior_variant, job)
        if self.config.prior_rows:
            others = max((x[:, FEASIBLE] + x[:, IS_WAIT]).sum() - 1, 1)
            prior += self.config.prior_rows * math.log(others)
        scores: NDArray[np.float64] = hidden @ actor["score.weight"][:, 0] + prior * x[:, IS_REFERENCE]
        return scores

    def value(self, features: NDArray[np.float32], privileged: NDArray[np.float32]) -> float:
        """Return the critic's estimate of a state, in units of the normalised return.

        Args:
            features: (K, F) actor columns of the real rows; K at least 1.
            privileged: (K, C) columns that only the critic reads, or (C,) if all rows share them.
        """
        critic, count = self._critic, len(features)
        wide = np.empty((count, self.config.features + self.config.critic_features), dtype=Float)
        wide[:, : self.config.features] = features[:, : self.config.features]
        wide[:, self.config.features :] = privileged
        hidden = np.maximum(wide @ critic["row1.weight"] + critic["row1.bias"], 0.0)
        hidden = np.maximum(hidden @ critic["row2.weight"] + critic["row2.bias"], 0.0)
        hidden = np.maximum(self._pool(hidden) @ critic["hidden.weight"] + critic["hidden.bias"], 0.0)
        return float((hidden @ critic["value.weight"] + critic["value.bias"])[0])

    @staticmethod
    def _pool(encoded: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate((encoded.sum(axis=0) / len(encoded), encoded.max(axis=0)))

    def _grow(self, rows: int) -> None:
        self._rows = rows
        self._x = np.empty((rows, self.config.features), dtype=Float)
        self._hidden = np.empty((rows, self.config.width), dtype=Float)
        self._encoded = np.empty((rows, self.config.width), dtype=Float)


def _part(weights: Weights, prefix: str) -> dict[str, NDArray[np.float64]]:
    """Return the weights of one network in float64, matrices as (inputs, outputs)."""
    return {
        name.removeprefix(prefix): np.ascontiguousarray(array.T, dtype=Float)
        for name, array in weights.items()
        if name.startswith(prefix)
    }


def _layer(x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any], out: NDArray[Any]) -> None:
    """Compute out = relu(x @ weight + bias), in place."""
    np.matmul(x, weight, out=out)
    out += bias
    np.maximum(out, 0.0, out=out)
