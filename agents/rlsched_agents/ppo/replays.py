"""Replays long windows in one compiled batch, so that a validation can afford twenty windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlsched.decide.policies.permissions import Permissions
from rlsched_agents.ppo.network import CandidateNetwork
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.network import NetworkConfig, Weights
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeJobs, EpisodeSource

Floats = NDArray[np.float64]
Score = Callable[[NDArray[np.float32]], Floats]
"""A policy's logits: (B, K, F + C) observations -> (B, K) logits."""


@dataclass(frozen=True)
class WindowOutcome:
    """Outcomes of the jobs of a window, seconds since its first submission; J jobs.

    Attributes:
        window: The jobs.
        start_s: (J,)
        reference_start_s: (J,) starts in the reference rule's run of the same window.
        measured: (J,) the measured jobs: jobs after the warm-up.
    """

    window: EpisodeJobs
    start_s: Floats
    reference_start_s: Floats
    measured: NDArray[np.bool_]

    @property
    def queue_s(self) -> Floats:
        """(M,) queueing delays of the measured jobs."""
        return np.asarray((self.start_s - self.window.submit_s)[self.measured], np.float64)

    @property
    def reference_queue_s(self) -> Floats:
        """(M,) queueing delays of the measured jobs in the reference rule's run."""
        return np.asarray((self.reference_start_s - self.window.submit_s)[self.measured], np.float64)

    @property
    def ratio(self) -> float:
        """Mean queueing delay / the reference's, each plus one second, since both may be 0."""
        return float((self.queue_s.mean() + 1.0) / (self.reference_queue_s.mean() + 1.0))


def scorer(weights: Weights, network: NetworkConfig) -> Score:
    """Return the actor as it is served, in float64 as in the runtime, for many states at once."""
    net = CandidateNetwork(network)
    net.load_weights(weights)
    net.double()

    def score(observations: NDArray[np.float32]) -> Floats:
        with torch.no_grad():
            logits: Floats = net.forward_actor(torch.from_numpy(observations).double()).numpy()
        return logits

    return score


class ReplayWindows:
    """Windows with equal numbers of jobs, on nodes of one size; jobs run as recorded in the trace.

    The reference schedules the first `warmup_jobs` jobs of each window, then the policy decides until the
    last job. The policy decides at the same times as in `engine.Engine`.

    Args:
        windows: Windows to replay.
        gpus_per_node: Number of GPUs of each node.
        warmup_jobs: Number of jobs that the reference rule schedules.
        permissions: Permitted actions, without preemption, since preempted jobs start more than once.
        revises: Whether predictions of waiting jobs are revised.
    """

    def __init__(
        self,
        windows: Sequence[EpisodeJobs],
        gpus_per_node: int,
        warmup_jobs: int,
        permissions: Permissions,
        *,
        revises: bool = False,
    ) -> None:
        nodes = [window.nodes for window in windows]
        jobs = windows[0].submit_s.size
        config = EpisodeConfig(
            warmup_jobs=warmup_jobs,
            agent_jobs=jobs - warmup_jobs,
            tail_jobs=0,
            drain_frac=1.0,
            nodes_low=min(nodes),
            nodes_high=max(nodes),
            reserving_frac=float(permissions.reservations),
            revising=revises,
        )
        sources = [
            EpisodeSource(
                "replay",
                window.submit_s,
                window.duration_s,
                window.gpus,
                PredictedTimes(window.predicted_s, window.spread),
                gpus_per_node=gpus_per_node,
            )
            for window in windows
        ]
        self._windows, self._permissions = list(windows), permissions
        self._fleet = Fleet(sources, len(windows), config, 0)

    def run(self, score: Score, *, temperature: float = 0.0, seed: int = 0) -> list[WindowOutcome]:
        """Replay all windows with a policy.

        Args:
            score: Computes the logits of the policy.
            temperature: 0 for arg max, otherwise the softmax temperature for drawing rows.
            seed: Seed of the draws.
        """
        fleet, windows = self._fleet, self._windows
        found = [
            None if fleet.replay(k, window, self._permissions) else self._undecided(k)
            for k, window in enumerate(windows)
        ]
        idle = [one is not None for one in found]
        rows, number = np.zeros(len(windows), np.int64), 0
        while not all(idle):
            live = np.flatnonzero(np.logical_not(idle))
            logits, masks = score(fleet.observations[live]), fleet.masks[live]
            for k in np.flatnonzero(idle).tolist():
                rows[k] = fleet.reference_row(k)
            if temperature == 0:
                rows[live] = np.where(masks, logits, -np.inf).argmax(axis=1)
            else:
                rows[live] = [
                    choose(own, legal, temperature=temperature, seed=seed + k, number=number, half=0)
                    for k, own, legal in zip(live.tolist(), logits, masks, strict=True)
                ]
            fleet.step(rows, restart=False)
            number += 1
            for k in np.flatnonzero(fleet.dones).tolist():
                if not idle[k]:
                    found[k], idle[k] = self._played(k), True
                fleet.replay(k, windows[k], self._permissions)
        return [one for one in found if one is not None]

    def _played(self, k: int) -> WindowOutcome:
        window = self._windows[k]
        measured = np.arange(window.submit_s.size) >= self._fleet.config.warmup_jobs
        return WindowOutcome(window, *self._fleet.starts(k), measured)

    def _undecided(self, k: int) -> WindowOutcome:
        """Return the outcome of a window without decisions, which continues like the reference's run."""
        played = self._played(k)
        return replace(played, start_s=played.reference_start_s)
