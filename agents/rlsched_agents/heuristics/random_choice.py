"""`random`: draws uniformly among the legal candidates, including *wait*."""

from __future__ import annotations

import numpy as np

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start, Wait
from rlsched.decide.draws import draw
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.decide.recording import Recording
from rlsched.decide.rows.candidates import CandidateRows, job_candidates, variant_candidates
from rlsched.decide.scheduler import Abilities, Decision, Scheduler


class RandomChoice(Scheduler):
    """Draws each legal row with equal probability, in both halves of a decision."""

    order = Permissions().order()
    reference = Permissions().reference()
    abilities = Abilities(shares=True, stochastic=True)

    def __init__(self, seed: int, name: str = "random") -> None:
        self.name = self.policy_id = name
        self._seed = seed

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Draw a job or *wait*, then a variant of that job."""
        recording = Recording(state, partition, now_s, wanted=record)
        jobs = job_candidates(state, partition, now_s)
        row = self._pick(jobs, state.decisions, 0)
        halves = [jobs.half(None, row)] if record else []
        action: Start | Wait = Wait()
        if row > 0:
            seq = int(jobs.seqs[row])
            ways = variant_candidates(state, partition, seq, now_s)
            way = self._pick(ways, state.decisions, 1)
            if record and len(ways.seqs) > 1:
                halves.append(ways.half(None, way))
            action = ways.action(state, partition, way)
        return recording.decision(
            action, "rule", self.name, halves=halves, temperature=1.0, marks_hold=isinstance(action, Wait)
        )

    def _pick(self, window: CandidateRows, number: int, half: int) -> int:
        legal = np.flatnonzero(window.legal)
        return int(legal[int(draw(self._seed, number, half) * legal.size)])


def make_random(policy: Policy, seed: int) -> RandomChoice:
    """Create the random scheduler of a policy; draws are keyed by the seed and the decision number."""
    policy.check_read()
    return RandomChoice(seed, policy.name)
