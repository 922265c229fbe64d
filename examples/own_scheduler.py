"""A custom policy in plain Python: of the jobs that fit, the job with the fewest GPUs starts.

    rlsched evaluate --trace t.csv.gz --cluster c.toml --policy fifo-backfill \
        --policy examples/own_scheduler.py:FewestGpus
    rlsched up --policy examples/own_scheduler.py:FewestGpus

A class derived from `Scheduler` is all that is needed. `decide` is called repeatedly until it waits. It is
not compiled, so it is slower than the rule in `own_rule.py`, and it may use any Python code. In a broker, the
fallback rule replaces a decision that is late, illegal or an exception.
"""

from rlsched.cluster.placement import first_fitting
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Wait
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.decide.start import start_action


class FewestGpus(Scheduler):
    """Starts the narrowest job that fits."""

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start one job of a partition, or wait.

        Args:
            state: The cluster: its nodes, GPUs, jobs and queues (`rlsched.cluster.arrays`).
            partition: The nodes of a virtual cluster.
            now_s: Current time, seconds.
            record: Whether a record of this decision is requested.
        """
        recording = Recording(state, partition, now_s, wanted=record)
        s, fits = state.arrays, list[int]()
        position = first_fitting(s, partition, 0)
        while position >= 0:
            fits.append(int(s.derived.queue[partition][position]))
            position = first_fitting(s, partition, position + 1)
        action: Action = Wait()
        if fits:
            slot = min(fits, key=lambda one: int(s.job.gpus[one]))
            action = start_action(state, partition, int(s.job.seq[slot]))
        return recording.decision(action, "rule", self.policy_id)
