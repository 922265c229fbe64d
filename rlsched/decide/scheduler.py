"""The interface of all schedulers: state in, decision out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import msgspec

from rlsched.cluster.dials import NO_CONTROLLER
from rlsched.decide.actions import Action
from rlsched.decide.options import NO_PRICE, PriceOptions
from rlsched.decide.order.keys import Order
from rlsched.decide.price import review_s
from rlsched.decide.record import DecisionRecord, Source
from rlsched.energy.relative import NOTHING, PricesAsked

if TYPE_CHECKING:
    from rlsched.cluster.state import ClusterState
    from rlsched.decide.dials.strategy import Strategy
    from rlsched.decide.drift import Drift, Familiar
    from rlsched.decide.policies.policy import Policy
    from rlsched.decide.rules.steps import CompiledRule


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An action, the component that chose it, and the record if one was requested.

    Attributes:
        action: The action.
        source: The component that decided.
        record: The decision record, None unless requested.
        guard: Reason why the guard intervened, as `KIND: DETAILS`; "" if the guard did not intervene.
        record_failed: Reason why a requested record could not be made; "" if there was no failure.
    """

    action: Action
    source: Source
    record: DecisionRecord | None = None
    guard: str = ""
    record_failed: str = ""


class Abilities(msgspec.Struct, frozen=True, kw_only=True):
    """Abilities of a scheduler in addition to starting jobs on free GPUs.

    Attributes:
        preempts: The scheduler may return `Preempt`; while jobs wait, it is called at every event and timer.
        reserve_after_s: Waiting time, seconds, after which a job that does not fit gets a reservation. Other
            jobs start only if they do not delay the reserved job. Infinite: no reservations.
        shares: If models predict speeds, the scheduler may start jobs on GPUs that other jobs use; it is
            called even if no GPU is free.
        needs_models: The scheduler shares GPUs, sets clocks or moves cores based on models.
        plain_without_models: On a cluster without models, the scheduler follows a simpler rule, and all dials
            stay at 0.
        stochastic: The decisions depend on the seed.
        prices_asked: Details of the price of electricity that the scheduler reads.
    """

    preempts: bool = False
    reserve_after_s: float = math.inf
    shares: bool = False
    needs_models: bool = False
    plain_without_models: bool = False
    stochastic: bool = False
    prices_asked: PricesAsked = NOTHING


class Scheduler(ABC):
    """Base class of schedulers: state in, decision out.

    A scheduler has no I/O, no clock, and no hidden state that changes a decision.

    Attributes:
        name: The name of the policy.
        policy_id: Name or content hash of the policy, for records.
        order: The queue order that `ClusterState` uses for the scheduler.
        oracle: Whether the scheduler receives true run times instead of predictions.
        abilities: Abilities of the scheduler in addition to starting jobs on free GPUs.
        rule: The rule, if the scheduler only follows a rule; simulators then run the compiled rule itself.
        strategy: Strategy that sets the dials of a rule (`decide.dials`); None: the dials stay at 0.
        reference: Policy that decides after the scheduler has failed; None: there is no such policy.
        familiar: Ranges of the strategy's inputs and of clusters in its training; None: no ranges are known.
        price_options: Options by which jobs wait for a lower price of electricity; None: no jobs wait for it.
    """

    name: str
    policy_id: str
    order: Order = Order()
    oracle: bool = False
    abilities: Abilities = Abilities()
    rule: CompiledRule | None = None
    strategy: Strategy | None = None
    reference: Policy | None = None
    familiar: Familiar | None = None
    price_options: PriceOptions | None = None

    @abstractmethod
    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return one decision for one partition: a `Start` or `Preempt` that the ledger accepts, or a `Wait`.

        At a decision point this method is called repeatedly until it returns a `Wait`. `record` requests a
        `DecisionRecord`.
        """

    def replaced_by_fallback(self) -> str:
        """Return the reason why the fallback decides now; "" if the scheduler decides itself."""
        return ""

    def drift(self) -> Drift | None:
        """Return how the scheduler's input differs from the training; None for an untrained scheduler."""
        return None

    def review_s(self, state: ClusterState) -> float:
        """Return the next time at which the price or the power limit requires a decision; infinite: never."""
        return float(review_s(state.arrays, NO_PRICE)) if state.is_limited else math.inf

    def pauses(self, state: ClusterState, partition: int, now_s: float) -> bool:  # noqa: ARG002 - optional hook
        """Return whether a running job of a partition must be preempted even if no job waits there."""
        return False

    def keeps_limit(self) -> bool:
        """Return whether the scheduler itself defers and pauses jobs to keep a power limit.

        For other schedulers, the decision loop defers jobs and lowers clocks.
        """
        return False

    def begin_instant(self, state: ClusterState, now_s: float) -> None:  # noqa: B027 - optional hook
        """Prepare for the decisions of an instant; called after all events of the instant."""


def permit(state: ClusterState, scheduler: Scheduler) -> None:
    """Prepare a state for a scheduler: allow its preemptions and reservations.

    If the scheduler has a strategy, add the dials that the strategy sets. Dials that the state already has
    keep their values.
    """
    if scheduler.strategy is not None and state.arrays.dials.controller[0] == NO_CONTROLLER:
        plain = scheduler.abilities.plain_without_models
        state.set_dials(scheduler.strategy.arrays(state.num_partitions, only_modelled=plain))
    can = scheduler.abilities
    by_index = scheduler.order.preempts
    state.permit(preemption=can.preempts and by_index, reserve_after_s=can.reserve_after_s)
