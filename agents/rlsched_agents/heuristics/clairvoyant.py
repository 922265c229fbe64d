"""`clairvoyant`: look-ahead in the one future that truly comes. A bound, for it knows that future."""

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
"""Jobs to come that it knows. What is put off to the end of a future runs for nothing: nobody comes after."""
MOST_WAITING: Final = 1024
TIE: Final = 1e-9
"""Share of the cost by which another choice has to be better than the first."""


class Clairvoyant(Scheduler):
    """Plays each choice on in the true future, and takes the one with the least queueing there.

    Choices are the starts of `rollout` and *wait*, each with `qssf-backfill` to follow, and what each of
    `RULES` does, with itself to follow. The order is by true run times. It is no optimum: what comes after
    one decision is decided by those rules alone. Where it waits as a rule does, the mask's guard does not
    bind it.
    """

    order = Permissions().order()
    oracle = True

    def __init__(self, arrivals: int = ARRIVALS, *, name: str = "clairvoyant") -> None:
        self.name = self.policy_id = name
        self._arrivals = arrivals
        self._copies = LookAhead(MOST_WAITING)
        self._truth: Truth | None = None

    def foresee(self, run: Engine) -> None:
        """The run that it will decide in.

        Raises:
            InputError: the end of a job does not follow from its start there.
        """
        self._truth = Truth(run, self._arrivals)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The choice that the true future speaks for.

        Raises:
            InputError: it was shown no run.
        """
        if self._truth is None:
            raise InputError(
                f"{self.name} knows the future of a simulated run alone; expected `foresee` first"
            )
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
    """The bound that knows what comes."""
    policy.check_read()
    return Clairvoyant(name=policy.name)
