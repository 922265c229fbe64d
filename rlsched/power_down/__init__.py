"""Puts idle nodes to sleep: node states, the service that decides, replays on demand series.

`NodeStates` (module `states`) has the possible changes of a node; `PowerDownService` (module `service`)
decides how many to keep; `replay_states` (module `minutes`) measures both on a series of `NodeDemand` (module
`series`).
"""

from rlsched.power_down.service import KeepRule, PowerDown, PowerDownService
from rlsched.power_down.states import Command, Drain, NodeState, NodeStates, Sleep, Wake

__all__ = [
    "Command",
    "Drain",
    "KeepRule",
    "NodeState",
    "NodeStates",
    "PowerDown",
    "PowerDownService",
    "Sleep",
    "Wake",
]
