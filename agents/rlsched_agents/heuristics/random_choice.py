"""The scheduler `random`: each decision starts a random waiting job that fits, or waits."""

from __future__ import annotations

from typing import Final

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.draws import draw
from rlsched.decide.loop import fitting_jobs
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import policy_start, start_action

WAIT_S: Final = 1_800.0
"""Maximum time from a *wait* to the next decision, seconds. An event ends the wait earlier."""


class RandomChoice(Scheduler):
    """Chooses among equally probable actions: wait, or start one of the waiting jobs that fit."""

    order = Order(by="area")
    abilities = Abilities(stochastic=True)
    reference = Policy("qssf-backfill")

    def __init__(self, seed: int, name: str = "random") -> None:
        self.name = self.policy_id = name
        self._seed = seed

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the start of a random waiting job that fits, or a *wait*."""
        recording = Recording(state, partition, now_s, wanted=record)
        fitting = fitting_jobs(state, partition)
        picked = int(draw(self._seed, state.decisions, 0) * (len(fitting) + 1))
        action: Action = Wait(until_s=now_s + WAIT_S)
        if picked < len(fitting):
            action = start_action(state, partition, fitting[picked], -1, start=policy_start(state))
        return recording.decision(action, "rule", self.name)


def make_random(policy: Policy, seed: int) -> RandomChoice:
    """Create the random scheduler for a policy. A draw depends only on the seed and the decision's index."""
    policy.check_read()
    return RandomChoice(seed, policy.name)
