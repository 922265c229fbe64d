"""A custom rule: the job with the least predicted GPU time first, except for jobs that have waited a week.

    rlsched evaluate --trace t.csv.gz --cluster c.toml --policy fifo-backfill --policy examples/own_rule.py
    rlsched evaluate --trace t.csv.gz --cluster c.toml --policy examples/own_rule.py --set own=[259200]
    rlsched up --policy examples/own_rule.py

This file is all that is needed. `next_move` is called repeatedly at every instant until it does nothing. It
is compiled, runs as fast as the built-in rules, and works in a broker without changes. A rule may have three
more functions: see `rlsched.decide.rules`.
"""

from rlsched.cluster.arrays import StateArrays
from rlsched.cluster.placement import first_fitting
from rlsched.decide.move import Move, start_of
from rlsched.decide.options import RuleOptions
from rlsched.jit import kernel

PATIENCE_S = 7 * 86400.0
"""Wait after which a job comes first, seconds. `--set own=[259200]` changes it without editing the file."""


@kernel
def next_move(s: StateArrays, p: int, o: RuleOptions, now_s: float) -> Move:
    """Start one job of partition `p` that fits, or nothing.

    Args:
        s: The cluster: its nodes, GPUs, jobs and queues (`rlsched.cluster.arrays`).
        p: Partition: the nodes of a virtual cluster.
        o: Settings of the policy; `own` has the numbers for this rule.
        now_s: Current time, seconds.
    """
    patience_s = o.own[0] if o.own.shape[0] else PATIENCE_S
    queue, least, least_gpu_s = s.derived.queue[p], -1, 0.0
    position = first_fitting(s, p, 0)
    while position >= 0:
        slot = queue[position]
        if now_s - s.job.submit_s[slot] > patience_s:
            return start_of(slot, -1)
        gpu_s = s.job.predicted_s[slot] * s.job.gpus[slot]
        if least < 0 or gpu_s < least_gpu_s:
            least, least_gpu_s = slot, gpu_s
        position = first_fitting(s, p, position + 1)
    return start_of(least, -1)
