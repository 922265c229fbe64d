"""`RuleScheduler`: a rule as a scheduler, which turns the rule's next move into a decision."""

from __future__ import annotations

import math

from rlsched.cluster.arrays import StateArrays, columns
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import kernel
from rlsched.decide.actions import Action, Preempt, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.constants import begin, next_look_s, next_move
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.dials.turning import turn_due
from rlsched.decide.move import Move
from rlsched.decide.options import NEVER, RuleOptions
from rlsched.decide.policies.policy import Policy, plain_rule
from rlsched.decide.policies.presets import PRESETS
from rlsched.decide.price import defer_jobs, next_to_pause, review_s
from rlsched.decide.recording import Recording
from rlsched.decide.rules.steps import CompiledRule
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import join_action, start_action


@kernel
def first_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Call `begin` of a rule, and return its next move in partition `p`."""
    begin(s, p, o, now_s)
    return next_move(s, p, o, now_s)


@kernel
def look_again_s(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> float:
    """Return the next time at which a rule's decision for partition `p` may change without an event."""
    return next_look_s(s, p, o, now_s)


def _without_dials(policy: Policy) -> Policy:
    """Return the policy without its strategy; if the result equals a preset, it has the preset's name."""
    plain = policy.with_settings(dials="")
    preset = next((name for name in PRESETS if Policy(name) == plain), f"{policy.name} without dials")
    return plain.named(preset)


class RuleScheduler(Scheduler):
    """A scheduler that returns the moves of a rule: one preemption or start per call, then *wait*.

    The *wait* ends at the time that the rule's `next_look_s` returns, if that time is finite.

    Args:
        policy: A policy whose settings define a rule.
        strategy: Strategy that sets the rule's dials; None: the policy's own strategy, if it has one.

    Raises:
        InputError: the settings define no rule, or the rule cannot be loaded.
    """

    def __init__(self, policy: Policy, strategy: Strategy | None = None) -> None:
        self.rule: CompiledRule = policy.rule if strategy is None else policy.rule.dialled_by(strategy)
        self.name, self.policy_id = policy.name, policy.policy_id
        self.order, self.oracle, rule = self.rule.order, policy.oracle, self.rule
        self.strategy = rule.strategy
        self.price_options = rule.options.start.price if rule.steps.priced else None
        if rule.strategy is not None:  # the id has a digest, because the file may change
            self.policy_id = f"{policy.policy_id}+{rule.strategy.digest}"
            self.familiar = rule.strategy.familiar
            self.reference = _without_dials(policy)
        if policy.settings.rule:  # user-defined, and may fail
            self.reference = plain_rule(policy.settings)
        self.abilities = Abilities(
            preempts=rule.options.preempts,
            reserve_after_s=rule.options.reserve_after_s,
            shares=rule.options.start.share != NEVER,
            needs_models=rule.needs_models,
            plain_without_models=rule.plain_without_models,
            prices_asked=rule.options.start.price.asked,
        )

    def keeps_limit(self) -> bool:
        """Return True: rules themselves defer and pause jobs to keep a power limit."""
        return True

    def begin_instant(self, state: ClusterState, now_s: float) -> None:
        """Set dials that are due for a new value, and defer jobs that wait for cheaper electricity."""
        if self.strategy is not None:
            for_state(turn_due, state)(state.arrays, now_s)
        self.defer_jobs(state, now_s)

    def defer_jobs(self, state: ClusterState, now_s: float) -> None:
        """Defer jobs because of the price or the power limit, or return deferred jobs to the queue."""
        if self._waits(state) or state.arrays.scratch[0].deferred:
            options = self.rule.options
            defer = for_state(defer_jobs, state)
            defer(state.arrays, options.start.price, options.preempts, now_s)

    def review_s(self, state: ClusterState) -> float:
        """Return the next time at which the price or the power limit requires a decision; infinite: never."""
        return (
            float(review_s(state.arrays, self.rule.options.start.price)) if self._waits(state) else math.inf
        )

    def _waits(self, state: ClusterState) -> bool:
        """Return whether jobs can wait for a lower price or for power."""
        return self.rule.steps.priced or state.is_limited

    def pauses(self, state: ClusterState, partition: int, now_s: float) -> bool:
        """Return whether a running job must be preempted because of the price or the power limit."""
        return self._next_to_pause(state, partition, now_s) >= 0

    def _next_to_pause(self, state: ClusterState, partition: int, now_s: float) -> int:
        """Return the slot of the next running job to pause for the price or the power limit; -1: none.

        Defers waiting jobs before it searches, so that jobs paused by earlier calls do not restart.
        """
        if not self._waits(state):
            return -1
        self.defer_jobs(state, now_s)
        options, pause = self.rule.options, for_state(next_to_pause, state)
        return int(pause(state.arrays, partition, options.start.price, options.preempts, now_s))

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the rule's next preemption or start, or a *wait* if the rule has none."""
        start = self.rule.options.start
        recording = Recording(state, partition, now_s, wanted=record, start=start)
        action, made_room_for = self._act(state, partition, now_s)
        dialled = self.strategy is not None and self.reference is not None
        return recording.decision(
            action,
            "rule",
            self.policy_id,
            made_room_for=made_room_for,
            reference=self.reference.name if dialled and self.reference else "",
        )

    def _act(self, state: ClusterState, partition: int, now_s: float) -> tuple[Action, int]:
        """Return the rule's action, and the sequence number of the job for which it preempts, -1 for none."""
        rule, arrays, number = self.rule, state.arrays, columns(state.arrays.job)["seq"]
        bound = rule.steps.bound
        paused = self._next_to_pause(state, partition, now_s)
        if paused >= 0:
            return Preempt(seq=int(number[paused])), -1
        move = Move(*for_state(first_move, state, **bound)(arrays, partition, rule.options, now_s))
        if move.preempt >= 0:
            made_room_for = int(number[move.for_job]) if move.for_job >= 0 else -1
            return Preempt(seq=int(number[move.preempt])), made_room_for
        if move.start < 0:
            look_s = math.inf
            if rule.steps.looks:
                look_s = float(
                    for_state(look_again_s, state, **bound)(arrays, partition, rule.options, now_s)
                )
            return Wait(until_s=look_s if math.isfinite(look_s) else None), -1
        seq, start = int(number[move.start]), rule.options.start
        if move.share_with >= 0:
            return join_action(state, partition, seq, int(number[move.share_with]), start), -1
        return start_action(state, partition, seq, move.place, start=start), -1
