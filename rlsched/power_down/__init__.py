"""Puts idle nodes to sleep: node states, the service that decides, and replays of node demand.

`NodeStates` (module `states`) defines how the state of a node can change. `PowerDownService` (module
`service`) decides how many nodes stay awake. `replay_states` (module `minutes`) replays recorded demand, a
`NodeDemand` (module `series`), on these states with this service.
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
