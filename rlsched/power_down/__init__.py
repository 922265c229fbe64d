"""Puts idle nodes to sleep: states of nodes, the service that decides, and replays of demand series.

`NodeStates` (module `states`) defines the possible changes of a node; `PowerDownService` (module `service`)
decides how many nodes to keep awake; `replay_states` (module `minutes`) measures both on a series of
`NodeDemand` (module `series`).
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
