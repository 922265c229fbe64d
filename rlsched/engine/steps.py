"""What comes out of a gateway's state machine, and the times that it keeps."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rlsched.wire.messages import ClientRequest, NodeMessage


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a gateway, seconds.

    Attributes:
        start_s: Slurm has so long to start a job that was released to it; then it is held again.
        limited_s: A job that a limit of Slurm's keeps from starting is offered again after so long.
        repeat_s: A write that the facts do not show, and an end that is not acknowledged, are said again.
        ask_again_s: A question without an answer is asked again, and a refused job offered again.
        look_round_s: How often it is looked whether the broker still has what was offered.
        order_s: ... and where jobs are not held, in which order they wait there.
        release_after_s: Nobody decides for so long: held jobs go to Slurm's own order.
    """

    start_s: float = 20.0
    limited_s: float = 60.0
    repeat_s: float = 3.0
    ask_again_s: float = 5.0
    look_round_s: float = 10.0
    order_s: float = 2.0
    release_after_s: float = 120.0


class Say(NamedTuple):
    """Say something for a node."""

    node: str
    message: NodeMessage


class Ask(NamedTuple):
    """Ask the broker; the answer comes back with `about`."""

    about: tuple[str, str]
    message: ClientRequest
