"""`pack` and `lucid`: rules that let two jobs share the same GPUs, by the speeds that the models predict."""

from __future__ import annotations

import math
from typing import Final

from rlsched.decide.abilities import Abilities, read_abilities
from rlsched.decide.rules import Rule
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.queue_order import QueueOrder

PROFILE_S: Final = 200.0
"""Lucid's profiler stops a job after so long on Venus, and after 80 s on Philly ...

(`profiler_config` in `simulation/utils.py` of its artifact; a job that runs longer begins again in the
cluster.)
"""
PROFILE_MAX_GPUS: Final = 8
"""... and takes jobs of up to 8 GPUs there, of up to 4 on Philly (there, nodes of the profiler x factor)."""


def make_pack(argument: str, _seed: int) -> QueueOrder:
    """`qssf-backfill+share`: QSSF with backfill; a job that does not fit joins a running one of its size.

    Both have to keep 0.85 of their speed as predicted, or as much as `pack:SPEED` says.

    Raises:
        UnknownSchedulerError: the argument is no speed.
    """
    name = f"pack:{argument}" if argument else "pack"
    word = f"share={argument}" if argument else "share"
    return QueueOrder(Rule(name=name, order="predicted_gpu_time", abilities=read_abilities(name, [word])))


def make_lucid(argument: str, _seed: int) -> QueueOrder:
    """Lucid (Hu et al., ASPLOS'23): QSSF order with its packing rule, and what its profiler costs.

    As in its artifact: a job of up to 8 GPUs joins a running one of its size before it takes free GPUs, where
    the sharing scores of both add up to 2 at most, memory holds both, and its own predicted GPU-time is no
    more than twice the other's. Ours differs: scores are cut by solo utilisation instead of learnt by a
    decision tree, priorities are the predictions that every rule here gets, and sharing is never switched off
    when the cluster is calm. There, nodes are set aside on which the profiler runs each job for a while
    before it is queued; here it has no nodes, and what it runs is charged to the job instead: one of up to 8
    GPUs that runs longer than 200 s does so much work in vain. `lucid:80` sets another time, that of Philly.

    Raises:
        UnknownSchedulerError: the argument is no time.
    """
    profile_s = PROFILE_S
    if argument:
        try:
            profile_s = float(argument)
        except ValueError:
            profile_s = math.nan
        if not (math.isfinite(profile_s) and profile_s >= 0):
            raise UnknownSchedulerError(
                f"policy 'lucid' takes the time of its profiler, seconds >= 0 (lucid:80), got {argument!r}"
            )
    return QueueOrder(
        Rule(
            name=f"lucid:{argument}" if argument else "lucid",
            order="predicted_gpu_time",
            abilities=Abilities(share="lucid"),
            profile_s=profile_s,
            profile_max_gpus=PROFILE_MAX_GPUS,
        )
    )
