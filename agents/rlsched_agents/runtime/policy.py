"""The `ppo` scheduler: candidates of the shared kernels, scored by the numpy forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.candidates import (
    Window,
    contested,
    first_in_order,
    has_startable,
    job_candidates,
    variant_action,
    variant_candidates,
    weighs_energy,
)
from rlsched.decide.record import Half
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Decision, Information, Order
from rlsched.decide.schema import SCHEMA
from rlsched_agents.runtime.checkpoint import Checkpoint, checkpoint_file, load_checkpoint
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights

_QUEUE = SCHEMA.column("queue_log")
_WORK = SCHEMA.column("queued_work_log")
_PREDICTED = SCHEMA.column("predicted_log")


@dataclass
class _Asked:
    """What the network was asked within one decision; `halves` and `value` are kept for records alone."""

    times: int = 0
    halves: list[Half] = field(default_factory=list)
    value: float | None = None


class PpoScheduler:
    """Scores candidates with trained weights; one decision at a time, without torch.

    Where everything that waits fits at once, or one row alone is legal, nothing is asked and the source is
    `automatic`. A scheduler belongs to one thread.

    Args:
        weights: Parameters by name.
        network: Their sizes and the prior.
        name: The name by which it was asked for.
        policy_id: Name or content hash of the policy, for records.
        temperature: 0 for arg max, else that of the softmax that a row is drawn from.
        seed: Seed of the draws.
    """

    order: Order = "predicted_gpu_time"
    information: Information = "causal"

    def __init__(
        self,
        weights: Weights,
        network: NetworkConfig,
        *,
        name: str = "ppo",
        policy_id: str = "ppo",
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.name: str = name
        self.policy_id = policy_id
        self.temperature = temperature
        self.seed = seed
        self._forward = Forward(weights, network)

    @property
    def shares(self) -> bool:
        """Where models say how fast jobs run, it may start them on GPUs that others have."""
        return True

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, *, name: str = "ppo", seed: int = 0) -> PpoScheduler:
        """A trained policy, served at the temperature that its card names."""
        card = checkpoint.card
        return cls(
            checkpoint.weights,
            card.network,
            name=name,
            policy_id=checkpoint.policy_id,
            temperature=card.temperature,
            seed=seed,
        )

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start a job that fits, or wait.

        Raises:
            FloatingPointError: the network's output is not finite.
        """
        recording = Recording(state, partition, now_s, wanted=record)
        asked = _Asked()
        action = self._act(state, partition, now_s, asked, record)
        return recording.decision(
            action,
            "policy" if asked.times else "automatic",
            self.policy_id,
            halves=asked.halves,
            temperature=self.temperature,
            value=asked.value,
            marks_hold=isinstance(action, Wait),
        )

    def _act(self, state: ClusterState, partition: int, now_s: float, asked: _Asked, record: bool) -> Action:
        if not contested(state, partition) and has_startable(state, partition, now_s):
            seq = first_in_order(state, partition, now_s)
            if not weighs_energy(state):
                return variant_action(state, partition, seq)
        else:
            jobs = job_candidates(state, partition, now_s)
            seq = int(jobs.seqs[self._pick(jobs, state.decisions, asked, record)])
            if seq < 0:
                return Wait()
        variants = variant_candidates(state, partition, seq, now_s)
        row = self._pick(variants, state.decisions, asked, record) if len(variants.nodes) > 1 else 0
        return variants.action(state, partition, row)

    def _pick(self, window: Window, number: int, asked: _Asked, record: bool) -> int:
        """The row to take; asks the network where more than one is legal."""
        legal = window.legal
        if np.count_nonzero(legal) == 1:
            return int(np.argmax(legal))
        logits = self._forward.logits(window.features)
        choice = choose(
            logits,
            legal,
            temperature=self.temperature,
            seed=self.seed,
            number=number,
            half=0 if window.kind == "job" else 1,
        )
        asked.times += 1
        if record:
            asked.halves.append(window.half(logits, choice))
            if asked.value is None:
                asked.value = self._value(window.features)
        return choice

    def _value(self, features: NDArray[np.float32]) -> float | None:
        """The critic's estimate, with predictions in the place of the truth that it saw while training.

        The reference run is taken to stand where this one does and to stay there, the end to be far.
        """
        here, waiting = float(features[0, _QUEUE]), float(features[0, _WORK])
        privileged = np.tile(
            np.array((0, here, 1, 0, waiting, waiting, here, here, here), np.float32), (len(features), 1)
        )
        privileged[:, 3] = features[:, _PREDICTED]
        value = self._forward.value(features, privileged)
        return value if math.isfinite(value) else None


def make_ppo(argument: str, seed: int) -> PpoScheduler:
    """Entry point of `ppo`, `ppo:untrained` and `ppo:PATH`.

    Args:
        argument: "" for the default checkpoint, `untrained` for the same network before training (by arg
            max, which is the reference rule), else a checkpoint's path.
        seed: Seed of its draws, and of the untrained weights.

    Raises:
        CheckpointError: no usable checkpoint.
    """
    name = f"ppo:{argument}" if argument else "ppo"
    if argument == "untrained":
        has_default = checkpoint_file("default").exists()
        network = load_checkpoint("default").card.network if has_default else NetworkConfig()
        return PpoScheduler(
            initial_weights(network, seed), network, name=name, policy_id=f"untrained-{seed}", seed=seed
        )
    return PpoScheduler.from_checkpoint(load_checkpoint(argument or "default"), name=name, seed=seed)
