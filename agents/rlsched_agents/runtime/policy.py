"""The `ppo` scheduler: candidates of the shared kernels, scored by the numpy forward pass."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.gittins import Gittins
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Wait
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
from rlsched.decide.index_walk import next_look_s
from rlsched.decide.orders import NETWORK_ORDERS, REPACKING, Order
from rlsched.decide.record import Half, Source
from rlsched.decide.recording import Recording
from rlsched.decide.repack import Repack
from rlsched.decide.repack_walk import may_still_start, move_by_index, next_move_look_s, owed
from rlsched.decide.scheduler import Decision, Information
from rlsched.decide.schema import SCHEMA
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.runtime.checkpoint import Checkpoint, load_checkpoint
from rlsched_agents.runtime.choose import choose
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights

if TYPE_CHECKING:
    from rlsched_agents.search.search import Search

_QUEUE = SCHEMA.column("queue_log")
_WORK = SCHEMA.column("queued_work_log")
_PREDICTED = SCHEMA.column("predicted_log")


@dataclass
class _Asked:
    """What was asked within one decision; `halves` and `value` are kept for records alone.

    Attributes:
        times: How often the network was asked.
        logits: What it said last.
        samples: Futures that the search played.
        overruled: Row of the first half that the network would have taken where the search took another.
        holds: Whether a *wait* passes over a job that could have started.
    """

    times: int = 0
    logits: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    samples: int = 0
    overruled: int = -1
    holds: bool = True
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
        self.weights = weights
        self.network = network
        self.revises = network.revises
        self._forward = Forward(weights, network)
        self._search: Search | None = None
        self.repack: Repack | None = None
        self._keep_by(network.order)

    @property
    def shares(self) -> bool:
        """Where models say how fast jobs run, it may start them on GPUs that others have."""
        return True

    @property
    def weighs_clocks(self) -> bool:
        """It chooses clocks itself, by the weight of energy in its rows."""
        return True

    @property
    def draws(self) -> bool:
        """Whether another seed may decide otherwise."""
        return self.temperature != 0 or self._search is not None

    @property
    def search_ms(self) -> float:
        """Time that a decision may spend on its search, milliseconds; 0 where that is not bounded by time."""
        return float(getattr(self._search.budget, "budget_ms", 0.0)) if self._search is not None else 0.0

    def with_search(self, name: str, amount: str) -> PpoScheduler:
        """The same network, which looks ahead before it decides (`search.Search`), by another name.

        Its own likeliest starts, the reference's and *wait* are played on in the same sampled futures, and
        its choice is replaced where another one is clearly better. The reference's rule goes on in them, and
        with it its reservations and the holds of a *wait*. Which variant of a job is started, and
        starts on GPUs that others have, stay the network's.

        Args:
            name: The new name.
            amount: `8` for so many samples a decision, `5ms` for as many as fit; `0ms` for none.

        Raises:
            UnknownSchedulerError: the amount is neither, or the policy preempts.
        """
        from rlsched_agents.search.columns import rule_to_follow
        from rlsched_agents.search.search import MAX_SPREAD, Search, read_budget

        follow = rule_to_follow(self.order)
        if follow is None:
            raise UnknownSchedulerError(
                f"policy {name!r}: futures know no preemption; leave out +preempt or +search"
            )
        other, budget = copy.copy(self), read_budget(name, amount)
        other.name = name
        if budget is not None:
            other.policy_id = f"{self.policy_id}+search={amount}"
            other._search = Search(budget, self.seed, MAX_SPREAD, follow)
        return other

    def with_order(self, name: str, order: Order) -> PpoScheduler:
        """The same network, which may do more, and follows another rule (`orders.NETWORK_ORDERS`).

        Raises:
            UnknownSchedulerError: its name says so already.
        """
        has_one = self.order != self.network.order or self.revises != self.network.revises
        if has_one or self.name.endswith(tuple(NETWORK_ORDERS)):
            raise UnknownSchedulerError(f"policy {name!r}: {self.name!r} says what it may do already")
        other = copy.copy(self)
        other.name, other.policy_id = name, f"{self.policy_id}+{name.rpartition('+')[2]}"
        other._keep_by(order)
        return other

    def with_repack(self, name: str, repack: Repack) -> PpoScheduler:
        """The same network, by another name; where it would wait for a gang, running jobs are moved.

        Raises:
            UnknownSchedulerError: it does not preempt.
        """
        if not self.preempts:
            raise UnknownSchedulerError(
                f"policy {name!r}: {self.name!r} does not preempt, and moves nobody; "
                "add +preempt before +repack"
            )
        other = copy.copy(self)
        other.name, other.policy_id, other.repack = name, f"{self.policy_id}{REPACKING}", repack
        return other

    def _keep_by(self, order: Order) -> None:
        """Keep the queue by an order, and do what goes with it."""
        self.order, self.preempts = order, order == "index"

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
        if self._search is not None:
            self._search.remember(state)
        if self.repack is None:
            action = self._act(state, partition, now_s, asked, record)
        else:
            action = self._act_repacking(self.repack, state, partition, now_s, asked, record)
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
        asked: _Asked,
        record: bool,
        promised: bool = False,
    ) -> Action:
        """What the network says; `promised`: beside GPUs that jobs were promised which still leave."""
        all_fit = not contested(state, partition) and has_startable(state, partition, now_s)
        if all_fit and not promised:
            seq = first_in_order(state, partition, now_s)
            if not weighs_energy(state, seq):
                return variant_action(state, partition, seq)
        else:
            jobs = job_candidates(state, partition, now_s)
            row = jobs.reference if all_fit else self._pick(jobs, state.decisions, asked, record)
            if promised:
                kept = self._beside_promises(state, partition, jobs, row, asked)
                if kept == 0:
                    asked.holds = kept == row and jobs.passes_over
                    return Wait(until_s=self._look_s(state, partition, now_s) if kept == row else None)
                return variant_action(state, partition, int(jobs.seqs[kept]))
            if self._search is not None and asked.times:
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

    def _act_repacking(
        self,
        repack: Repack,
        state: ClusterState,
        partition: int,
        now_s: float,
        asked: _Asked,
        record: bool,
    ) -> Action:
        """Go on with what moves have begun; else what the network says, or a move where nobody can start."""
        arrays, number, code = state.arrays, state.arrays.job.seq, repack.code
        out, into, gang = owed(arrays, partition, now_s, code)
        if out >= 0:
            return Preempt(seq=int(number[out]), moved_for=int(number[gang]))
        if into >= 0:
            return variant_action(state, partition, int(number[into]))
        promised = not may_still_start(arrays, partition, -1)
        action = self._act(state, partition, now_s, asked, record, promised)
        waits = isinstance(action, Wait) and not has_startable(state, partition, now_s)
        if waits or (isinstance(action, Preempt) and repack.first):
            out, gang = move_by_index(arrays, partition, now_s, Gittins().code, code)
            if out >= 0:
                asked.halves = [msgspec.structs.replace(half, choice=-1) for half in asked.halves]
                return Preempt(seq=int(number[out]), moved_for=int(number[gang]))
        if isinstance(action, Wait):
            look_s = min(
                math.inf if action.until_s is None else action.until_s,
                next_move_look_s(arrays, partition, now_s, Gittins().tick_s, code),
            )
            return Wait(until_s=look_s if math.isfinite(look_s) else None)
        return action

    @staticmethod
    def _beside_promises(state: ClusterState, partition: int, jobs: Window, row: int, asked: _Asked) -> int:
        """The row, or where it breaks a promise the job of the best score that breaks none; 0: they all do.

        Of equal scores, and where nothing was asked, the first of the window.
        """

        def keeps(at: int) -> bool:
            slot = int(jobs.arrays.slot[at])
            return int(jobs.arrays.out[at]) < 0 and may_still_start(state.arrays, partition, slot)

        if row == 0 or keeps(row):
            return row
        logits = asked.logits if asked.times else np.zeros(len(jobs.seqs))
        others = [at for at in range(1, len(jobs.seqs)) if jobs.legal[at]]
        kept = next((at for at in sorted(others, key=lambda at: -logits[at]) if keeps(at)), 0)
        asked.halves = [msgspec.structs.replace(half, choice=kept) for half in asked.halves]
        return kept

    def _look_s(self, state: ClusterState, partition: int, now_s: float) -> float | None:
        """When the ages of running jobs may make another of them preemptible; None: no time to wait for."""
        if not self.preempts:
            return None
        look_s = float(next_look_s(state.arrays, partition, now_s, Gittins().code, True))
        return look_s if math.isfinite(look_s) else None

    @staticmethod
    def _look_ahead(
        search: Search,
        state: ClusterState,
        partition: int,
        now_s: float,
        jobs: Window,
        row: int,
        asked: _Asked,
    ) -> int:
        """The row that the search takes in the place of the network's, mostly the same."""
        from rlsched_agents.search.search import rows_of_network

        found = search.best(state, partition, now_s, jobs, rows_of_network(state, jobs, asked.logits, row))
        asked.samples = found.samples
        if found.row != row:
            asked.overruled = row
            asked.halves = [msgspec.structs.replace(half, choice=found.row) for half in asked.halves]
        return found.row

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
        asked.logits = logits
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
    """Entry point of `ppo`, `ppo:untrained` and `ppo:PATH`; `+preempt` and `+reserve` behind: `with_order`;
    `+search=AMOUNT`: `with_search`.

    Args:
        argument: "" for the default checkpoint, `untrained` for a network before training (by arg max, which
            is `qssf-backfill`, or the rule of the ending behind it), else a checkpoint's path.
        seed: Seed of its draws, and of the untrained weights.

    Raises:
        CheckpointError: no usable checkpoint.
    """
    name = f"ppo:{argument}" if argument else "ppo"
    if argument == "untrained":
        network = NetworkConfig()
        return PpoScheduler(
            initial_weights(network, seed), network, name=name, policy_id=f"untrained-{seed}", seed=seed
        )
    return PpoScheduler.from_checkpoint(load_checkpoint(argument or "default"), name=name, seed=seed)
