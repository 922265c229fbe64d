"""`Plan`: one whole way to start a waiting job, and why it may not be taken."""

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
    NOT_WHOLE: "one of them asks for a part of a GPU, or for its memory",
    NODES_DIFFER: "its nodes take no new jobs, are of several GPU types, or will not do",
    FULL: "as many jobs share its GPUs as may",
    NO_MEMORY: "GPU memory does not suffice",
    TOO_SLOW: "somebody would be slower than may be",
    ADDS_TOO_LITTLE: "it would add less than is asked",
    LUCID_SAYS_NO: "Lucid's rule keeps them apart",
    NOT_THE_FIRST: "shown with the first job on its GPUs",
    WAITS_FOR_BETTER: "worth less than GPUs that come free",
    WORTH_LESS: "worth less than another plan",
    NO_CORES: "its nodes have too few cores to spare",
    KEPT_APART: "one of them shares its GPUs with no other job",
}
"""Why a plan is not taken, in words."""


class Plan(NamedTuple):
    """One whole way to start a waiting job now; slots and nodes are -1 where there is none.

    Attributes:
        verdict: TAKEN_OR_OPEN, or why it may not be taken.
        node: On free GPUs: its node (of a gang of several: the first), -1: where the placement rule puts it.
        share_with: Running slot whose GPUs it shares.
        kind: Type of its GPUs, -1 where the placement rule says which.
        tenants: Jobs on its GPUs, itself included.
        own: Its predicted speed there, alone on the same GPUs = 1.
        gain: `own` less what its co-tenants lose.
        asked: Gain that is asked for; -1: none.
        slowest: Predicted speed of the slowest of them.
        worth: What it is compared by.
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
    """A plan that may not be taken."""
    return Plan(verdict, -1, share_with, kind, 0, 0.0, 0.0, -1.0, 0.0, 0.0)


@kernel
def on_free(node: int, kind: int, worth: float) -> Plan:
    """A plan on free GPUs."""
    return Plan(TAKEN_OR_OPEN, node, -1, kind, 1, 1.0, 1.0, -1.0, 1.0, worth)
