"""`rollout`: estimates the outcome of each action in sampled futures that `qssf-backfill` continues."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import Source
from rlsched.decide.recording import Recording
from rlsched.decide.rows.candidates import contested, first_in_order, job_candidates
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched_agents.search.race import FixedSamples
from rlsched_agents.search.search import RowSearch, starts_to_try


class Rollout(Scheduler):
    """One-step look-ahead with sampled futures (a rollout policy: Bertsekas, Tsitsiklis and Wu, 1997).

    At a contested decision the scheduler evaluates the reference's start, starts of jobs with other demands,
    and *wait* if legal. In each of `samples` futures, shared by all actions, `qssf-backfill` continues until
    all jobs have started. The action with the least mean queueing wins if it beats the reference's by
    `race.MIN_ERRORS` standard errors. A future has run times drawn from lognormals around the predictions
    (for a running job, given its elapsed time), and arrivals like the recent arrivals: Poisson at the recent
    rate, with sizes and predictions drawn from the recent arrivals with replacement.

    The scheduler uses only `ClusterState` and the arrivals seen in it. It remembers `arrivals.MEMORY`
    arrivals per partition, and none from before a restart. Futures do not include other partitions.
    """

    order = Permissions().order()
    reference = Permissions().reference()
    abilities = Abilities(stochastic=True)

    def __init__(self, samples: int = 8, seed: int = 0, *, name: str = "rollout") -> None:
        self.name = self.policy_id = name
        self._search = RowSearch(FixedSamples(samples), seed)

    def remember(self, state: ClusterState) -> None:
        """Record new arrivals while another scheduler decides."""
        self._search.remember(state)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the start or *wait* with the best outcome in the futures."""
        recording = Recording(state, partition, now_s, wanted=record)
        self.remember(state)
        source: Source = "automatic"
        halves = []
        action: Action
        if not contested(state, partition):
            action = start_action(state, partition, first_in_order(state, partition, now_s))
        else:
            window = job_candidates(state, partition, now_s)
            row = int(np.argmax(window.legal))
            if np.count_nonzero(window.legal) > 1:
                source = "rule"
                rows = starts_to_try(
                    state, window, [window.reference, *np.flatnonzero(window.legal).tolist()]
                )
                rows += [0] if window.legal[0] else []
                row = self._search.best(state, partition, now_s, window, rows).row
                halves = [window.half(None, row)] if record else []
            action = start_action(state, partition, int(window.seqs[row])) if row > 0 else Wait()
        return recording.decision(
            action, source, self.name, halves=halves, marks_hold=isinstance(action, Wait)
        )


def make_rollout(policy: Policy, seed: int) -> Rollout:
    """Create the scheduler of a policy that looks ahead in sampled futures."""
    policy.check_read("samples")
    return Rollout(policy.settings.samples, seed, name=policy.name)
