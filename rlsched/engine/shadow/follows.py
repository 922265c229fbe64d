"""The scheduler of a shadow's broker: returns Slurm's starts, and records the starts that the policy wants.

At every change, this scheduler first calls the policy on a copy of the state, with the decision loop of a
real broker. Then it returns the starts that Slurm has made since the last call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job
from rlsched.cluster.demand import WHOLE_GPU_MILLI
from rlsched.cluster.mirror import mirror_of
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.drift import Drift
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.engine.facts import SlurmJob
from rlsched.engine.shadow.mirror import key_of
from rlsched.engine.shadow.notes import StartComparison
from rlsched.errors import AllocationError
from rlsched.wire.states import QUEUED

AUTOMATIC: Final = "automatic"
"""Source that the journal records for a decision that repeats a start by Slurm."""


@dataclass(frozen=True)
class Begun:
    """A start that Slurm has made.

    Attributes:
        job: The job in Slurm's facts.
        token: Token of the job's submission to the broker.
    """

    job: SlurmJob
    token: str


@dataclass(frozen=True)
class Wish:
    """A start that the policy wants. The start is not carried out, because only Slurm starts jobs.

    Attributes:
        gpus: Global GPU indices.
        since_s: Time since which the policy has wanted this start without interruption.
        before: Number of starts that the policy chose before this start at the same instant.
        guard: Reason why the guard (fallback for invalid or late decisions) decided; "": the policy decided.
    """

    gpus: tuple[int, ...]
    since_s: float
    before: int
    guard: str


@dataclass
class AskedDecisions:
    """Decisions of the policy since the previous call of `take_decisions`.

    Attributes:
        decisions: Number of decisions.
        guard: Number of these decisions that the guard made instead of the policy, by kind of reason.
        records: Records of the decisions that do not repeat earlier ones.
        compared: Slurm's starts compared with the policy's wishes.
    """

    decisions: int = 0
    guard: dict[str, int] = field(default_factory=dict)
    records: list[DecisionRecord] = field(default_factory=list)
    compared: list[StartComparison] = field(default_factory=list)


class Follows(Scheduler):
    """Returns Slurm's starts, and stores the starts that a policy wants (`Wish`).

    Args:
        policy: The policy with its guard (fallback for invalid or late decisions).
        state: The state of the shadow's broker.
        number: ID of the first decision record; later records get the next IDs.

    Attributes:
        begun: Starts by Slurm that `decide` has not returned yet.
        watches_from_s: Time from which the policy decides. Before this time, the state is incomplete.
        standing: Present wishes, by the job's index in the state.
        known_gpus: GPUs that Slurm has reported as allocated, by node. A job without reported GPUs must use
            other GPUs.
        lately: Former wishes, by the job's index, each with the last time at which the policy had the wish.
    """

    def __init__(self, policy: Scheduler, state: BrokerState, number: int) -> None:
        self.name, self.policy_id = policy.name, policy.policy_id
        self.order, self.oracle, self.abilities = policy.order, policy.oracle, policy.abilities
        self.strategy, self.familiar = policy.strategy, policy.familiar
        self.begun: list[Begun] = []
        self.watches_from_s = 0.0
        self.standing: dict[int, Wish] = {}
        self.lately: dict[int, tuple[Wish, float]] = {}
        self.known_gpus: dict[str, set[int]] = {}
        self._policy, self._state, self._number = policy, state, number
        self._asked = AskedDecisions()
        self._until_s: dict[int, float] = {}
        self._waits: dict[int, int] = {}
        self._leaves: set[int] = set()
        self._asked_s = 0.0

    def replaced_by_fallback(self) -> str:
        """Return the reason why the policy's fallback decides now; "" if the policy decides."""
        return self._policy.replaced_by_fallback()

    def drift(self) -> Drift | None:
        """Return the policy's drift; see `Scheduler.drift`."""
        return self._policy.drift()

    def take_decisions(self) -> AskedDecisions:
        """Return the decisions of the policy since the last call, and clear them."""
        asked, self._asked = self._asked, AskedDecisions()
        return asked

    def begin_instant(self, state: ClusterState, now_s: float) -> None:
        """Call the policy on a copy of the state, after the instant's events and before Slurm's starts."""
        self._policy.begin_instant(state, now_s)
        self._until_s = {}
        if now_s < self.watches_from_s:
            return
        wanted: dict[int, Wish] = {}
        stopped: set[int] = set()
        mirror = mirror_of(state)
        for partition, decision in decide_all(
            mirror, self._policy, now_s, record=True, job_name=self._name_of
        ):
            self._asked.decisions += 1
            if decision.guard:
                kind = decision.guard.partition(":")[0]
                self._asked.guard[kind] = self._asked.guard.get(kind, 0) + 1
            action = decision.action
            if isinstance(action, Start):
                known = self.standing.get(action.seq)
                since_s = known.since_s if known is not None else now_s
                wanted[action.seq] = Wish(action.gpus, since_s, len(wanted), decision.guard)
            elif isinstance(action, Preempt):
                stopped.add(action.seq)
            elif action.until_s is not None:
                self._until_s[partition] = action.until_s
            if decision.record is not None and self._is_news(partition, decision.record):
                self._asked.records.append(msgspec.structs.replace(decision.record, number=self._number))
                self._number += 1
        for seq, wish in self.standing.items():
            if seq not in wanted:
                self.lately[seq] = wish, self._asked_s
        if len(self.lately) > 2 * len(self._state.job_of_seq):
            self.lately = {seq: one for seq, one in self.lately.items() if seq in self._state.job_of_seq}
        self.standing, self._leaves, self._asked_s = wanted, stopped, now_s

    def _is_news(self, partition: int, record: DecisionRecord) -> bool:
        """Return whether a decision of the policy is new.

        The policy is called at every change of the state, and mostly repeats its decisions.
        """
        match record.action:
            case Start(seq=seq, gpus=gpus):
                known = self.standing.get(seq)
                return known is None or known.gpus != gpus
            case Preempt(seq=seq):
                return seq not in self._leaves
            case Wait():
                was, self._waits[partition] = self._waits.get(partition, -1), record.turn
                return was != record.turn
        return True

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the next start that Slurm has made and that the state permits, or a `Wait` if there is none.

        The returned decision has no record.
        """
        del record
        for place, begun in enumerate(self.begun):
            known = self._state.job_of_token(begun.token)
            if known is None or known.state != QUEUED:
                continue
            try:
                gpus = self._gpus_of(state, begun.job, known.spec.num_gpus)
                where, _ = state.check_start(known.seq, gpus)
            except (AllocationError, KeyError):
                continue
            if where == partition:
                del self.begun[place]
                if now_s >= self.watches_from_s:
                    self._compare(state, begun.job, known, gpus)
                return Decision(action=Start(known.seq, gpus), source=AUTOMATIC)
        action: Action = Wait(self._until_s.get(partition))
        return Decision(action=action, source=AUTOMATIC)

    def _name_of(self, seq: int) -> str:
        held = self._state.holdings.is_holding(seq)
        return "of others" if held else key_of(self._state.job_of_seq[seq].spec.token)

    def _gpus_of(self, state: ClusterState, job: SlurmJob, wanted: int) -> tuple[int, ...]:
        """Return the global indices of the job's GPUs. If Slurm does not report the GPUs, choose free GPUs.

        Raises:
            KeyError: a node is unknown.
        """
        node, free = state.arrays.node, state.arrays.gpu.free_milli
        found: list[int] = []
        for place, name in enumerate(job.nodes):
            number = self._state.nodes[name].number
            first, count = int(node.first_gpu[number]), int(node.gpus[number])
            if job.is_exclusive or wanted == count * len(job.nodes):
                found += range(first, first + count)
            elif job.gpus:
                found += [first + gpu for gpu in job.gpus[place]]
            else:  # Slurm does not report the GPUs of an ended job
                idle = [gpu for gpu in range(first, first + count) if free[gpu] == WHOLE_GPU_MILLI]
                others = self.known_gpus.get(name, set())
                idle.sort(key=lambda gpu: gpu - first in others)
                found += idle[: wanted // len(job.nodes)]
        return tuple(sorted(found))

    def _compare(self, state: ClusterState, job: SlurmJob, known: Job, gpus: tuple[int, ...]) -> None:
        wish, until_s = self.lately.pop(known.seq, (None, None))
        if known.seq in self.standing:
            wish, until_s = self.standing.pop(known.seq), None
        has, wants = places_of(state, gpus), places_of(state, wish.gpus if wish is not None else ())
        self._asked.compared.append(
            StartComparison(
                at_s=job.start_s,
                job=job.key,
                partition=known.spec.vc,
                num_gpus=len(gpus),
                submit_s=known.submit_s,
                nodes=[node for node, _ in has],
                gpus=[gpu for _, gpu in has] if job.gpus or job.is_exclusive else [],
                wanted_nodes=[node for node, _ in wants],
                wanted_gpus=[gpu for _, gpu in wants],
                wanted_since_s=None if wish is None else min(wish.since_s, job.start_s),
                wanted_until_s=until_s,
                before=0 if wish is None else wish.before,
                guard="" if wish is None else wish.guard,
            )
        )


def places_of(state: ClusterState, gpus: Sequence[int]) -> list[tuple[str, int]]:
    """Return (name of the node, GPU index on the node) for each GPU."""
    node, first = state.arrays.gpu.node, state.arrays.node.first_gpu
    return [(state.node_names[int(node[gpu])], gpu - int(first[int(node[gpu])])) for gpu in gpus]
