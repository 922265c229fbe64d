"""`Plan`: one way to start a waiting job, and the reason if it is not allowed."""

from __future__ import annotations

from typing import Final, NamedTuple

from rlsched.compile.jit import kernel

TAKEN_OR_OPEN: Final = 0
NO_ROOM: Final = 1
ANOTHER_SIZE: Final = 2
NOT_WHOLE: Final = 3
NODES_DIFFER: Final = 4
FULL: Final = 5
NO_MEMORY: Final = 6
TOO_SLOW: Final = 7
ADDS_TOO_LITTLE: Final = 8
LUCID_SAYS_NO: Final = 9
NOT_THE_FIRST: Final = 10
WAITS_FOR_BETTER: Final = 11
WORTH_LESS: Final = 12
KEPT_APART: Final = 13
NO_CORES: Final = 14
VERDICT_TEXT: Final = {
    TAKEN_OR_OPEN: "",
    NO_ROOM: "no room",
    ANOTHER_SIZE: "has another number of GPUs",
    NOT_WHOLE: "one of them requests a part of a GPU, or GPU memory",
    NODES_DIFFER: "its nodes take no new jobs, are of several GPU types, or do not fit the job",
    FULL: "its GPUs hold the most jobs allowed",
    NO_MEMORY: "GPU memory does not suffice",
    TOO_SLOW: "a job would fall below its minimum speed",
    ADDS_TOO_LITTLE: "it would add less than is asked",
    LUCID_SAYS_NO: "Lucid's rule keeps them apart",
    NOT_THE_FIRST: "shown with the first job on its GPUs",
    WAITS_FOR_BETTER: "worth less than GPUs that come free",
    WORTH_LESS: "worth less than another plan",
    NO_CORES: "its nodes have too few cores to spare",
    KEPT_APART: "one of them shares its GPUs with no other job",
}
"""Reason why a plan is not taken, as text."""


class Plan(NamedTuple):
    """One way to start a waiting job now; slots and nodes are -1 if there is none.

    Attributes:
        verdict: TAKEN_OR_OPEN, or the reason why it is not allowed.
        node: Node of a plan on free GPUs (of a gang: the first node); -1: the placement rule chooses it.
        share_with: Running slot whose GPUs it shares.
        kind: Type of its GPUs; -1: the placement rule chooses it.
        tenants: Jobs on its GPUs, this job included.
        own: Its predicted speed there; 1: the speed on the same GPUs without co-tenants.
        gain: `own` less the speed that its co-tenants lose.
        asked: Least gain required; -1: none.
        slowest: Predicted speed of the slowest job on its GPUs.
        worth: Value by which plans are compared.
    """

    verdict: int
    node: int
    share_with: int
    kind: int
    tenants: int
    own: float
    gain: float
    asked: float
    slowest: float
    worth: float


@kernel
def refused(verdict: int, share_with: int, kind: int) -> Plan:
    """Return a plan that is not allowed."""
    return Plan(verdict, -1, share_with, kind, 0, 0.0, 0.0, -1.0, 0.0, 0.0)


@kernel
def on_free(node: int, kind: int, worth: float) -> Plan:
    """Return a plan on free GPUs."""
    return Plan(TAKEN_OR_OPEN, node, -1, kind, 1, 1.0, 1.0, -1.0, 1.0, worth)
