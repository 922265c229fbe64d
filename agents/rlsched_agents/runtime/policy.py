"""The `ppo` scheduler: scores candidates from the shared kernels with a forward pass in numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.plans.holds import has_startable
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import Half, Source
from rlsched.decide.recording import Recording
from rlsched.decide.rows.candidates import (
    CandidateRows,
    contested,
    first_in_order,
    job_candidates,
    variant_action,
    variant_candidates,
    weighs_energy,
)
from rlsched.decide.rows.columns import PREDICTED, QUEUE, WORK
from rlsched.decide.rules.gittins import next_age_look_s
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.schema import SCHEMA
from rlsched.decide.settings import SearchSettings, Settings
from rlsched.errors import InputError
from rlsched_agents.runtime.checkpoint import Checkpoint, load_checkpoint
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.forward import Forward, Scores
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights

if TYPE_CHECKING:
    from rlsched_agents.search.search import RowSearch


@dataclass
class _NetworkCalls:
    """Network calls within one decision; `halves` and `value` are kept only for records.

    Attributes:
        times: Number of network calls.
        logits: Logits of the last call.
        samples: Number of futures in the search.
        overruled: Row of the first half that the network chose, if the search took another row.
        holds: Whether a *wait* holds back a job that could have started.
    """

    times: int = 0
    logits: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    samples: int = 0
    overruled: int = -1
    holds: bool = True
    halves: list[Half] = field(default_factory=list)
    value: float | None = None


class PpoScheduler(Scheduler):
    """Scores candidates with trained weights; one decision at a time, without torch.

    If all waiting jobs fit at once, or only one row is legal, the network is not called and the source is
    `automatic`. Only one thread can use a scheduler.

    Args:
        weights: Parameters by name.
        network: Sizes of the network and its prior.
        name: Name of the policy.
        policy_id: Name or content hash of the policy, for records.
        temperature: 0 for arg max, otherwise the softmax temperature for drawing rows.
        seed: Seed of the draws.
        permissions: Permitted actions, which also determine the reference rule; None: permissions of the
            cluster and its jobs (`NetworkConfig.served`).
        revised: Whether predictions of waiting jobs are revised; None: as configured in the network.
        search: Settings of the look-ahead; None: no look-ahead.
        scores: Scores rows; None: the network with these weights, in numpy.

    Raises:
        InputError: look-ahead is requested, and the permissions do not allow it.
    """

    def __init__(
        self,
        weights: Weights,
        network: NetworkConfig,
        *,
        name: str = "ppo",
        policy_id: str = "ppo",
        temperature: float = 0.0,
        seed: int = 0,
        permissions: Permissions | None = None,
        revised: bool | None = None,
        search: SearchSettings | None = None,
        scores: Scores | None = None,
    ) -> None:
        self.name, self.policy_id = name, policy_id
        self.temperature, self.seed = temperature, seed
        self.weights, self.network = weights, network
        self.columns = tuple(name for name, _ in SCHEMA.features[: network.features])
        self.permissions = permissions or network.served
        revised = network.revises if revised is None else revised
        self.reference = self.permissions.reference(revised=revised)
        rule = self.permissions.rule(revised=revised)
        self.order = rule.order
        self._forward: Scores = Forward(weights, network) if scores is None else scores
        self._search = self._look_ahead_by(search)
        self.abilities = Abilities(
            preempts=self.permissions.preemption or self.permissions.declared,
            reserve_after_s=rule.options.reserve_after_s,
            shares=True,
            stochastic=temperature != 0 or self._search is not None,
            search_ms=search.time_ms if search is not None and not search.samples else 0.0,
        )

    def _look_ahead_by(self, search: SearchSettings | None) -> RowSearch | None:
        """Create the look-ahead before each decision (`search.RowSearch`); None without a search.

        The look-ahead simulates the network's likeliest starts, the reference's start and *wait* in the same
        sampled futures. Another choice replaces the network's choice if it is clearly better. The reference
        rule continues the futures, with its reservations and with the holds of a *wait*. The network still
        chooses variants of a job and starts on GPUs that are in use.
        """
        if search is None:
            return None
        from rlsched_agents.search.columns import rule_to_follow
        from rlsched_agents.search.search import MAX_SPREAD, RowSearch, budget_of

        follow, budget = rule_to_follow(self.permissions), budget_of(search)
        if follow is None:
            raise InputError(
                f"policy {self.name!r}: search: futures do not support preemption; leave search out"
            )
        if budget is None:
            return None
        amount = f"{search.samples}" if search.samples else f"{search.time_ms:g}ms"
        self.policy_id = f"{self.policy_id} search={amount}"
        return RowSearch(budget, self.seed, MAX_SPREAD, follow)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, name: str = "ppo", seed: int = 0, settings: Settings | None = None
    ) -> PpoScheduler:
        """Create the scheduler of a trained policy, served at the temperature of its card."""
        card = checkpoint.card
        made = cls(
            checkpoint.weights,
            card.network,
            name=name,
            policy_id=checkpoint.policy_id,
            temperature=card.temperature,
            seed=seed,
            **_asked_for(settings or Settings()),
        )
        made.familiar = card.familiar
        return made

    def network_rows(self, state: ClusterState, partition: int, now_s: float) -> NDArray[np.float32] | None:
        """Return the rows of the first half; None if at most one row is legal."""
        if not contested(state, partition) and has_startable(state, partition, now_s):
            return None
        jobs = job_candidates(state, partition, now_s)
        return jobs.features[:, : len(self.columns)] if np.count_nonzero(jobs.legal) > 1 else None

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start a job that fits, or wait.

        Raises:
            FloatingPointError: the network's output is not finite.
        """
        recording = Recording(state, partition, now_s, wanted=record)
        asked = _NetworkCalls()
        if self._search is not None and not self._preempts(state):
            self._search.remember(state)
        action = self._act(state, partition, now_s, asked, record)
        source: Source = "policy" if asked.times else "automatic"
        return recording.decision(
            action,
            source if asked.overruled < 0 else "search",
            self.policy_id,
            halves=asked.halves,
            temperature=self.temperature,
            value=asked.value,
            marks_hold=isinstance(action, Wait) and asked.holds,
            samples=asked.samples,
            overruled=asked.overruled,
        )

    def _act(
        self,
        state: ClusterState,
        partition: int,
        now_s: float,
        asked: _NetworkCalls,
        record: bool,
    ) -> Action:
        """Return the network's action."""
        all_fit = not contested(state, partition) and has_startable(state, partition, now_s)
        if all_fit:
            seq = first_in_order(state, partition, now_s)
            if not weighs_energy(state, seq):
                return variant_action(state, partition, seq)
        else:
            jobs = job_candidates(state, partition, now_s)
            row = self._pick(jobs, state.decisions, asked, record)
            if self._search is not None and asked.times and not self._preempts(state):
                row = self._look_ahead(self._search, state, partition, now_s, jobs, row, asked)
            seq, out = int(jobs.seqs[row]), int(jobs.arrays.out[row])
            if out >= 0:
                return Preempt(seq=int(state.arrays.job.seq[out]))
            if seq < 0:
                asked.holds = jobs.passes_over
                return Wait(until_s=self._look_s(state, partition, now_s))
        variants = variant_candidates(state, partition, seq, now_s)
        row = self._pick(variants, state.decisions, asked, record) if len(variants.nodes) > 1 else 0
        return variants.action(state, partition, row)

    def _preempts(self, state: ClusterState) -> bool:
        """Return whether running jobs can be preempted at this time."""
        return self.abilities.preempts and bool(state.arrays.config[0].preempts)

    def _look_s(self, state: ClusterState, partition: int, now_s: float) -> float | None:
        """Return the time when the age of running jobs may make another job preemptible, or None."""
        if not self._preempts(state):
            return None
        look_s = float(next_age_look_s(state.arrays, partition, now_s))
        return look_s if math.isfinite(look_s) else None

    @staticmethod
    def _look_ahead(
        search: RowSearch,
        state: ClusterState,
        partition: int,
        now_s: float,
        jobs: CandidateRows,
        row: int,
        asked: _NetworkCalls,
    ) -> int:
        """Return the row chosen by the search, usually the network's own choice."""
        from rlsched_agents.search.search import rows_of_network

        found = search.best(state, partition, now_s, jobs, rows_of_network(state, jobs, asked.logits, row))
        asked.samples = found.samples
        if found.row != row:
            asked.overruled = row
            asked.halves = [msgspec.structs.replace(half, choice=found.row) for half in asked.halves]
        return found.row

    def _pick(self, window: CandidateRows, number: int, asked: _NetworkCalls, record: bool) -> int:
        """Return the row to take; calls the network if more than one row is legal."""
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
        asked.logits = logits
        if record:
            asked.halves.append(window.half(logits, choice))
            if asked.value is None:
                asked.value = self._value(window.features)
        return choice

    def _value(self, features: NDArray[np.float32]) -> float | None:
        """Return the critic's estimate, from predictions instead of the true values used in training.

        Assumes that the reference run has the same state as this run now and later, and that the end is far
        away.
        """
        here, waiting = float(features[0, QUEUE]), float(features[0, WORK])
        privileged = np.tile(
            np.array((0, here, 1, 0, waiting, waiting, here, here, here), np.float32), (len(features), 1)
        )
        privileged[:, 3] = features[:, PREDICTED]
        value = self._forward.value(features, privileged)
        return value if math.isfinite(value) else None


def _asked_for(settings: Settings) -> dict[str, Any]:
    """Return the network options in a policy's settings, except the checkpoint."""
    return {
        "revised": True if settings.predictions == "revised" else None,
        "search": settings.search,
    }


def make_ppo(policy: Policy, seed: int) -> PpoScheduler:
    """Create the scheduler of a policy whose rule is `ppo`.

    Args:
        policy: The policy; its settings name the checkpoint: `default`, `untrained` for a network before
            training (by arg max, which equals its reference rule), or a path.
        seed: Seed of the draws, and of the untrained weights.

    Raises:
        CheckpointError: the checkpoint is not usable.
        InputError: settings are in conflict.
    """
    policy.check_read("checkpoint", "predictions", "search")
    settings = policy.settings
    if policy.oracle:
        raise InputError(
            f"policy {policy.name!r}: predictions: expected submitted or revised, got oracle; a network does "
            "not get the true run times"
        )
    if settings.checkpoint == "untrained":
        network = NetworkConfig(order="predicted_size")
        made = PpoScheduler(
            initial_weights(network, seed),
            network,
            name=policy.name,
            policy_id=f"untrained-{seed}",
            seed=seed,
            **_asked_for(settings),
        )
    else:
        checkpoint = load_checkpoint(settings.checkpoint)
        made = PpoScheduler.from_checkpoint(checkpoint, name=policy.name, seed=seed, settings=settings)
    if settings != Settings(rule="ppo", checkpoint=settings.checkpoint, search=settings.search):
        made.policy_id += f"@{policy.with_settings(checkpoint='default').digest}"
    return made
