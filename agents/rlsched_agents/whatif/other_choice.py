"""A scheduler that decides as a policy does, except that it makes another choice at one recorded decision."""

from __future__ import annotations

from typing import Final

from rlsched.cluster.placement import BY_RULE, NO_PREFERENCE
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start, Wait
from rlsched.decide.guard import check_action
from rlsched.decide.options import StartOptions
from rlsched.decide.plans.plan_text import in_words
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import join_action, policy_start, start_action
from rlsched.decisions.candidates import Candidate
from rlsched.errors import AllocationError, InputError

LATER_S: Final = 600.0
"""Maximum length of the *wait*, seconds, if the other choice is to start a job later, and the candidate names
no time."""


class OtherChoice(Scheduler):
    """A scheduler that replaces one recorded decision, and otherwise makes the decisions of a policy.

    Args:
        policy: The policy.
        record: The recorded decision.
        choice: The choice at this decision; None: the policy's own choice.

    Attributes:
        met: Whether the recorded decision has been reached.
    """

    def __init__(self, policy: Scheduler, record: DecisionRecord, choice: Candidate | None) -> None:
        self.name, self.policy_id = policy.name, policy.policy_id
        self.order, self.oracle, self.abilities = policy.order, policy.oracle, policy.abilities
        self.rule, self.strategy, self.reference = policy.rule, policy.strategy, policy.reference
        self.familiar = policy.familiar
        self.met = False
        self._policy, self._record, self._choice = policy, record, choice

    def begin_instant(self, state: ClusterState, now_s: float) -> None:
        """Forward the call to the policy."""
        self._policy.begin_instant(state, now_s)

    def keeps_limit(self) -> bool:
        """Forward the call to the policy."""
        return self._policy.keeps_limit()

    def review_s(self, state: ClusterState) -> float:
        """Forward the call to the policy."""
        return self._policy.review_s(state)

    def pauses(self, state: ClusterState, partition: int, now_s: float) -> bool:
        """Forward the call to the policy."""
        return self._policy.pauses(state, partition, now_s)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the policy's decision; at the recorded decision, return the other choice.

        Raises:
            InputError: at the recorded decision, the state or the policy's decision differs from the record,
                or the other choice is not possible.
        """
        if state.decisions != self._record.number:
            return self._policy.decide(state, partition, now_s, record=record)
        self.met = True
        if state.digest() != self._record.state_digest:
            raise self._otherwise("the replay reaches a state that differs from the record")
        made = self._policy.decide(state, partition, now_s, record=record)
        if made.action != self._record.action:
            raise self._otherwise("the policy decides differently")
        if self._choice is None or self._choice.taken:
            return made
        return other_decision(self._policy, self._record, self._choice, state, partition, now_s)

    def _otherwise(self, what: str) -> InputError:
        return InputError(
            f"a replay does not repeat decision {self._record.number}: {what}. A policy that "
            "has changed since, or another version of rlsched, decides differently; "
            "replay again with `rlsched evaluate --records`"
        )


def other_decision(
    policy: Scheduler,
    record: DecisionRecord,
    choice: Candidate,
    state: ClusterState,
    partition: int,
    now_s: float,
) -> Decision:
    """Return a decision for `state` that takes the candidate `choice` of the recorded decision `record`.

    Raises:
        InputError: the candidate is not possible.
    """
    try:
        decision = _decision(policy, record, choice, state, partition, now_s)
        check_action(decision.action, state, now_s)
    except AllocationError as error:
        raise InputError(
            f"candidate {choice.number} of decision {record.number} is not possible: {error}"
        ) from error
    return decision


def _decision(
    policy: Scheduler,
    record: DecisionRecord,
    choice: Candidate,
    state: ClusterState,
    partition: int,
    now_s: float,
) -> Decision:
    if choice.of == "rule":
        if policy.reference is None:
            raise InputError(
                f"policy {policy.name!r} has no rule that could replace its decision; choose a candidate by "
                "its number"
            )
        return load_scheduler(policy.reference).decide(state, partition, now_s)
    action = _plan(policy, record, record.plans[choice.at], state, partition, now_s)
    return Decision(action=action, source=record.source)


def _plan(
    policy: Scheduler,
    record: DecisionRecord,
    plan: PlanSeen,
    state: ClusterState,
    partition: int,
    now_s: float,
) -> Action:
    start = policy.rule.options.start if policy.rule is not None else policy_start(state)
    if plan.how == "share":
        return join_action(state, partition, record.turn, plan.share_with, start)
    if plan.how == "free":
        return _on_free(record, plan, state, partition, start)
    if plan.how == "later":
        return Wait(until_s=now_s + (plan.wait_s or LATER_S))
    raise InputError(
        f"cannot replay «{in_words(plan, record.names.job)}», which preempts a job; choose another candidate"
    )


def _on_free(
    record: DecisionRecord, plan: PlanSeen, state: ClusterState, partition: int, start: StartOptions
) -> Start:
    """Return the start of a job on free GPUs, as candidate `plan` of a recorded decision describes it.

    The placement rule chooses the GPUs. If several candidates of the decision start the job on free GPUs, the
    job starts on the node of `plan`.
    """
    several = sum(one.how == "free" and not one.verdict for one in record.plans) > 1
    for place in (BY_RULE, NO_PREFERENCE):
        action = start_action(state, partition, record.turn, place, start=start)
        host = state.gpu_location(action.gpus[0])[0] if action.gpus else action.node
        if not several or state.node_names[host] == plan.node:
            return action
    return start_action(state, partition, record.turn, state.node_names.index(plan.node), start=start)
