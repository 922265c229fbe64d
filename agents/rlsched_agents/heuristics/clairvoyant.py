"""`clairvoyant`: looks ahead in the true future, which gives a bound for any policy."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import Source
from rlsched.decide.recording import Recording
from rlsched.decide.rows.candidates import contested, first_in_order, job_candidates
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action
from rlsched.errors import InputError
from rlsched_agents.search.columns import RULES, columns_of
from rlsched_agents.search.search import starts_to_try
from rlsched_agents.search.truth import Truth
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.lookahead import LookAhead, first_by

ARRIVALS: Final = 1000
"""Number of known future jobs. Work that is delayed beyond the end of a future costs nothing."""
MOST_WAITING: Final = 1024
TIE: Final = 1e-9
"""Relative margin by which the cost of a choice must be below that of the first choice."""


class Clairvoyant(Scheduler):
    """Runs each choice forward in the true future, and takes the choice with the least queueing.

    The choices are the starts of `rollout` and *wait*, each followed by `qssf-backfill`, and the first step
    of each of `RULES`, followed by that rule. The queue order uses true run times. The result is not optimal,
    since only these rules decide after the first decision. The mask's guard does not restrict a *wait* of one
    of the rules.
    """

    order = Permissions().order()
    oracle = True

    def __init__(self, arrivals: int = ARRIVALS, *, name: str = "clairvoyant") -> None:
        self.name = self.policy_id = name
        self._arrivals = arrivals
        self._copies = LookAhead(MOST_WAITING)
        self._truth: Truth | None = None

    def foresee(self, run: Engine) -> None:
        """Set the simulated run whose future the scheduler knows.

        Raises:
            InputError: in this run, the start of a job does not determine its end.
        """
        self._truth = Truth(run, self._arrivals)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return the choice with the least cost in the true future.

        Raises:
            InputError: `foresee` was not called.
        """
        if self._truth is None:
            raise InputError(f"{self.name} needs the future of a simulated run; call `foresee` first")
        recording = Recording(state, partition, now_s, wanted=record)
        if not contested(state, partition):
            action: Action = start_action(state, partition, first_in_order(state, partition, now_s))
            return recording.decision(action, "automatic", self.name)
        window = job_candidates(state, partition, now_s)
        rows = starts_to_try(state, window, [window.reference, *np.flatnonzero(window.legal).tolist()])
        rows += [0] if window.legal[0] else []
        later = len(self._truth.coming(partition))
        columns = columns_of(self._copies, state, partition, now_s, window, rows, later, RULES)
        every = np.arange(len(columns.actions))
        costs = columns.costs(every, self._truth.future(self._copies.slots, partition))[0]
        best = int(np.argmin(costs)) if costs.min() < costs[0] * (1.0 - TIE) else 0
        source: Source = "rule"
        if best < len(rows):
            row = rows[best]
            halves = [window.half(None, row)] if record else []
            action = start_action(state, partition, int(window.seqs[row])) if row > 0 else Wait()
            return recording.decision(action, source, self.name, halves=halves, marks_hold=row == 0)
        slot = first_by(RULES[best - len(rows)], state, partition, now_s)
        action = start_action(state, partition, int(state.arrays.job.seq[slot])) if slot >= 0 else Wait()
        return recording.decision(action, source, self.name)


def make_clairvoyant(policy: Policy, _seed: int) -> Clairvoyant:
    """Create the clairvoyant scheduler of a policy."""
    policy.check_read()
    return Clairvoyant(name=policy.name)
