"""Tiresias and SRTF: rules that preempt, by the quota walk, through the `Scheduler` interface."""

from __future__ import annotations

import math
from typing import Final

from rlsched.cluster.gittins import Gittins
from rlsched.cluster.state import ClusterState
from rlsched.decide.quota_walk import PreemptiveRule, next_look_s, next_move
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.gittins import ByIndex, gittins
from rlsched_agents.heuristics.moves import Moves

THRESHOLD_GPU_S: Final = 18_000.0
"""Attained service that demotes a job, as in Lucid's simulator (Hu et al., ASPLOS'23, its artifact)."""
TICK_S: Final = 60.0
"""Time between two decisions of Tiresias, as there."""


class QuotaWalk(Moves):
    """A `PreemptiveRule` as a scheduler: one preemption or start at a time, then *wait* until the next tick.

    It works partition by partition: each has a quota of its own.
    """

    preempts = True

    def __init__(self, rule: PreemptiveRule) -> None:
        super().__init__(rule)
        self.rule = rule

    def _next(self, state: ClusterState, partition: int, now_s: float) -> tuple[int, int, int, int]:
        out, into = next_move(state.arrays, partition, now_s, self.rule.threshold_gpu_s, self.rule.tick_s)
        return out, into, -1, -1

    def _look_s(self, state: ClusterState, partition: int, now_s: float) -> float:
        return next_look_s(state.arrays, partition, now_s, self.rule.threshold_gpu_s, self.rule.tick_s)


def tiresias(threshold_gpu_s: float = THRESHOLD_GPU_S, *, name: str = "tiresias") -> PreemptiveRule:
    """The rule `tiresias`; see `make_tiresias`."""
    return PreemptiveRule(name=name, order="submit", threshold_gpu_s=threshold_gpu_s, tick_s=TICK_S)


def srtf() -> PreemptiveRule:
    """The rule `srtf`; see `make_srtf`."""
    return PreemptiveRule(name="srtf", order="remaining", information="oracle")


CLEARING: Final = ",clear"
"""Behind the threshold: the same two queues, with preemption that makes room for a job node by node."""


def clearing_tiresias(threshold_gpu_s: float, *, name: str) -> ByIndex:
    """Tiresias's two queues, walked as `gittins` is: see `make_tiresias`."""
    return ByIndex(gittins(Gittins(threshold_gpu_s=threshold_gpu_s), name=name))


def make_tiresias(argument: str, _seed: int) -> QuotaWalk | ByIndex:
    """Tiresias: two queues by attained service, without durations (Gu et al., NSDI'19, its *2D-LAS*).

    A job starts in the first queue; with more than a threshold of GPU-seconds attained it is in the second
    for good. Inside a queue the first submitted comes first. Every minute the jobs of both queues go through
    the quota walk (`rlsched.decide.quota_walk`), so that a waiting job of the first queue takes the place of
    running ones of the second. `tiresias:THRESHOLD_GPU_S` sets the threshold.
    `tiresias:THRESHOLD_GPU_S,clear` has no quota: a waiting job of the first queue that does not fit takes
    the places of the running ones of the second that make room for it and cost least
    (`rlsched.decide.evict`), as `gittins` does, and no job gives way to one of its own queue.

    Ours follows the rules that Lucid's simulator publishes under this name, and differs from the paper as
    those do: two queues and one fixed threshold, no promotion of jobs that starve, no profile of which models
    need to stand on one node (all jobs are consolidated), and first submitted instead of first started.

    Raises:
        UnknownSchedulerError: the argument is no threshold.
    """
    if not argument:
        return QuotaWalk(tiresias())
    clears = argument.endswith(CLEARING)
    try:
        threshold_gpu_s = float(argument.removesuffix(CLEARING))
    except ValueError:
        threshold_gpu_s = math.nan
    if not (math.isfinite(threshold_gpu_s) and threshold_gpu_s >= 0):
        raise UnknownSchedulerError(
            "policy 'tiresias' takes a threshold, GPU-seconds >= 0 (tiresias:18000, tiresias:18000,clear), "
            f"got {argument!r}"
        )
    if clears:
        return clearing_tiresias(threshold_gpu_s, name=f"tiresias:{argument}")
    return QuotaWalk(tiresias(threshold_gpu_s, name=f"tiresias:{argument}"))


def make_srtf(argument: str, _seed: int) -> QuotaWalk:
    """Shortest remaining time first, preemptive, fed the true durations (Schrage, Operations Research 1968).

    At every event all jobs go through the quota walk (`rlsched.decide.quota_walk`) in the order of their
    remaining run time, restart costs included. Schrage's proof that no order has a lower mean holds for one
    machine that interrupts for nothing; here jobs need several GPUs, and a restart costs. The form is that
    of Lucid's simulator (Hu et al., ASPLOS'23), which decides every second: between events that changes
    nothing. Ours differs in a restart that is interrupted: what was still to be paid of it is not carried
    over to the next one.

    Raises:
        UnknownSchedulerError: it takes no argument.
    """
    if argument:
        raise UnknownSchedulerError(f"policy 'srtf' takes no argument, got {argument!r}")
    return QuotaWalk(srtf())
