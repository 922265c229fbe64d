"""`pack` and `lucid`: rules that let two jobs share the same GPUs, by the speeds that the models predict."""

from __future__ import annotations

from typing import Final

from rlsched.decide.abilities import Abilities, read_abilities
from rlsched.decide.rules import Rule
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.queue_order import QueueOrder

PROFILE_S: Final = 100.0
"""Lucid's profiler stops a job after so long; one that runs longer begins again in the cluster."""


def make_pack(argument: str, _seed: int) -> QueueOrder:
    """`qssf-backfill+share`: QSSF with backfill; a job that does not fit joins a running one of its size.

    Both have to keep 0.85 of their speed as predicted, or as much as `pack:SPEED` says.
    """
    name = f"pack:{argument}" if argument else "pack"
    word = f"share={argument}" if argument else "share"
    return QueueOrder(Rule(name=name, order="predicted_gpu_time", abilities=read_abilities(name, [word])))


def make_lucid(argument: str, _seed: int) -> QueueOrder:
    """Lucid (Hu et al., ASPLOS'23): QSSF order with its packing rule, and what its profiler costs.

    As in its artifact: a job of up to 8 GPUs joins a running one of its size before it takes free GPUs, where
    the sharing scores of both add up to 2 at most, memory holds both, and its own predicted GPU-time is no
    more than twice the other's. Ours differs: scores are cut by solo utilisation instead of learnt by a
    decision tree, priorities are the predictions that every rule here gets, the profiler's nodes are not set
    aside but its time is charged (`PROFILE_S` of lost work to each job that runs longer), and sharing is
    never switched off when the cluster is calm.
    """
    if argument:
        raise UnknownSchedulerError(f"policy 'lucid' takes no argument, got {argument!r}")
    able = Abilities(share="lucid")
    return QueueOrder(Rule(name="lucid", order="predicted_gpu_time", abilities=able, profile_s=PROFILE_S))
