"""`gittins`: the job whose completion costs least service goes first, and may take others' places."""

from __future__ import annotations

import msgspec

from rlsched.cluster.gittins import Gittins
from rlsched.cluster.state import ClusterState
from rlsched.decide.abilities import Abilities
from rlsched.decide.index_walk import IndexRule, next_by_index, next_look_s
from rlsched.decide.repack import Repack
from rlsched.decide.repack_walk import next_by_repacking, next_move_look_s
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.heuristics.moves import Moves


class ByIndex(Moves):
    """An `IndexRule` as a scheduler: one preemption or start at a time, then *wait* until an age counts."""

    def __init__(self, rule: IndexRule) -> None:
        super().__init__(rule)
        self.rule = rule

    @property
    def preempts(self) -> bool:
        """Whether it may answer `Preempt`."""
        return self.rule.preempts

    @property
    def needs_models(self) -> bool:
        """Whether it has abilities, which models alone make legal."""
        return self.rule.abilities.needed

    @property
    def shares(self) -> bool:
        """Whether it may start jobs on GPUs that others have."""
        return self.rule.abilities.share != "never"

    def _next(self, state: ClusterState, partition: int, now_s: float) -> tuple[int, int, int, int]:
        rule = self.rule
        can, code = rule.abilities.code, rule.index.code
        if rule.repack is None:
            return *next_by_index(state.arrays, partition, now_s, code, can, rule.preempts), -1
        return next_by_repacking(state.arrays, partition, now_s, code, can, rule.preempts, rule.repack.code)

    def _look_s(self, state: ClusterState, partition: int, now_s: float) -> float:
        rule, code = self.rule, self.rule.index.code
        look_s = next_look_s(state.arrays, partition, now_s, code, rule.preempts)
        if rule.repack is None:
            return look_s
        return min(look_s, next_move_look_s(state.arrays, partition, now_s, code.tick_s, rule.repack.code))

    def with_abilities(self, name: str, abilities: Abilities) -> ByIndex:
        """The same rule with abilities, under another name."""
        return ByIndex(msgspec.structs.replace(self.rule, name=name, abilities=abilities))

    def with_repack(self, name: str, repack: Repack) -> ByIndex:
        """The same rule, which also moves running jobs, under another name."""
        return ByIndex(msgspec.structs.replace(self.rule, name=name, repack=repack))


def gittins(index: Gittins | None = None, *, name: str = "gittins") -> IndexRule:
    """The rule `gittins`; see `make_gittins`. The queue goes by its index where that is the default one."""
    index = index or Gittins()
    return IndexRule(name=name, order="index" if index == Gittins() else "submit", index=index)


def make_gittins(argument: str, _seed: int) -> ByIndex:
    """The least Gittins index first, preemptive, by predictions and attained service (`cluster.gittins`).

    `gittins:SPREAD` and `gittins:SPREAD,TRUST,POWER,MARGIN` set how the index is made.

    Raises:
        UnknownSchedulerError: the argument is no such figures.
    """
    if not argument:
        return ByIndex(gittins())
    words = argument.split(",")
    try:
        figures = [float(word) for word in words]
    except ValueError:
        figures = []
    known = ("spread", "trust", "gpus_power", "margin")
    if not 1 <= len(figures) <= len(known) or not all(0 <= figure <= 10 for figure in figures):
        raise UnknownSchedulerError(
            "policy 'gittins' takes up to four figures from 0 to 10, SPREAD,TRUST,POWER,MARGIN "
            f"(gittins:1.5,0,0.7,0.5), got {argument!r}"
        )
    index = msgspec.structs.replace(Gittins(), **dict(zip(known, figures, strict=False)))
    return ByIndex(gittins(index, name=f"gittins:{argument}"))
