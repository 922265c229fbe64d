"""Outputs of a gateway's state machine, and its times."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rlsched.wire.messages import ClientRequest, NodeMessage


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a gateway, seconds.

    Attributes:
        start_s: Time for Slurm to start a released job; then the job is held again.
        limited_s: Time after which a job is offered again that a limit of Slurm keeps from starting.
        repeat_s: Interval to repeat a write that the facts do not show, and an end that is not acknowledged.
        ask_again_s: Interval to repeat an unanswered question, and to offer a refused job again.
        look_round_s: Interval to check whether the broker still has the offered jobs.
        order_s: The same if jobs are not held, for their order in the queue.
        release_after_s: Time without a broker after which held jobs go to Slurm's own order.
    """

    start_s: float = 20.0
    limited_s: float = 60.0
    repeat_s: float = 3.0
    ask_again_s: float = 5.0
    look_round_s: float = 10.0
    order_s: float = 2.0
    release_after_s: float = 120.0


class Say(NamedTuple):
    """A message to the broker for a node."""

    node: str
    message: NodeMessage


class Ask(NamedTuple):
    """A question to the broker; the answer comes back with `about`."""

    about: tuple[str, str]
    message: ClientRequest
