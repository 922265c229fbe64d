"""The one interface of every scheduler: state in, decision out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.dials import NOBODY
from rlsched.decide.actions import Action
from rlsched.decide.order.keys import Order
from rlsched.decide.record import DecisionRecord, Source

if TYPE_CHECKING:
    from rlsched.cluster.state import ClusterState
    from rlsched.decide.dials.strategy import Strategy
    from rlsched.decide.drift import Drift, Familiar
    from rlsched.decide.policies.policy import Policy
    from rlsched.decide.rules.steps import CompiledRule


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, who decided it, and the record if one was asked for.

    Attributes:
        action: What to do.
        source: Who decided.
        record: Everything about it, None unless asked for.
        marks_hold: For a *wait*: whether it passes over jobs of the candidate window that fit (a policy's
            choice does; a rule that blocks its queue follows its own order).
        guard: Why the guard stepped in, "" if it did not: its kind, a colon, and more.
        record_failed: Why there is no record although one was asked for; "": there is.
    """

    action: Action
    source: Source
    record: DecisionRecord | None = None
    marks_hold: bool = False
    guard: str = ""
    record_failed: str = ""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler may do beside starting jobs on free GPUs.

    Attributes:
        preempts: It may answer `Preempt`; it is asked at every event and timer at which jobs wait.
        reserve_after_s: A job that does not fit has a reservation, which no start delays, once it has waited
            so long; infinite: none has.
        migrates: It moves running jobs so that a gang finds its GPUs together.
        shares: Where models say how fast jobs run, it may start jobs on GPUs that others have; it is asked
            even where none is free.
        needs_models: It shares GPUs, sets clocks or moves cores by what models say.
        stochastic: Another seed may decide otherwise.
        search_ms: Time that a decision may spend on look-ahead, milliseconds; 0: none, or not bounded by
            time.
    """

    preempts: bool = False
    reserve_after_s: float = math.inf
    migrates: bool = False
    shares: bool = False
    needs_models: bool = False
    stochastic: bool = False
    search_ms: float = 0.0


class Scheduler(ABC):
    """State in, decision out. No I/O, no clock, no hidden state that changes a decision.

    Attributes:
        name: The name of its policy.
        policy_id: Name or content hash of the policy, for records.
        order: What `ClusterState` keeps the queue by for it.
        oracle: Whether it is fed the true run times in place of predictions: a bound.
        abilities: What it may do.
        rule: The rule that it is, where it is nothing else: simulators run it compiled.
        strategy: What sets the dials of a rule (`decide.dials`); None: they stay at 0.
        reference: The policy that decides in its place where it fails; None: nothing in it can.
        columns: Names of the columns that a network sees of a decision (`seen`); empty: there is no network.
        familiar: What it met in training; None: nothing was learned, or its card does not say it.
    """

    name: str
    policy_id: str
    order: Order = Order()
    oracle: bool = False
    abilities: Abilities = Abilities()
    rule: CompiledRule | None = None
    strategy: Strategy | None = None
    reference: Policy | None = None
    columns: tuple[str, ...] = ()
    familiar: Familiar | None = None

    @abstractmethod
    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """One decision for one partition: a `Start` or `Preempt` that the ledger will accept, or `Wait`.

        Called at a decision point, again and again until it waits. `record` asks for a `DecisionRecord`.
        """

    def replaced_by_fallback(self) -> str:
        """Why another decides in its place now, "" while it decides itself."""
        return ""

    def seen(self, state: ClusterState, partition: int, now_s: float) -> NDArray[np.float32] | None:
        """(K, F) rows that its network would see of the next decision; None: it would not be asked."""
        del state, partition, now_s
        return None

    def drift(self) -> Drift | None:
        """How far what it sees is from its training; None: it has learned nothing."""
        return None

    def begin_instant(self, state: ClusterState, now_s: float) -> None:  # noqa: B027 - few have to do anything
        """All events of an instant have happened, and its decisions are about to be asked for."""

    def foresee(self, run: Any) -> None:  # noqa: B027 - few have to see anything
        """It is shown the simulated run before that begins (`rlsched_envs.sim.engine.Engine`).

        Raises:
            InputError: it has to know what comes, and cannot in such a run.
        """


def permit(state: ClusterState, scheduler: Scheduler) -> None:
    """Let the rows of a state offer what a scheduler may do, and its dials be set if it sets some.

    Dials that somebody sets already stay as they are.
    """
    if scheduler.strategy is not None and state.arrays.dials.who[0] == NOBODY:
        state.set_dials(scheduler.strategy.arrays(state.num_partitions))
    can = scheduler.abilities
    by_index = scheduler.order.preempts
    state.permit(preemption=can.preempts and by_index, reserve_after_s=can.reserve_after_s)
