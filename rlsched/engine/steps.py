"""Outputs of a gateway's state machine, and the gateway's times."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rlsched.wire.messages import ClientRequest, NodeMessage


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a gateway, seconds.

    Attributes:
        start_s: Time for Slurm to start a released job; after it, the job is held again.
        limited_s: Time after which a job that a limit of Slurm keeps from starting is offered again.
        repeat_s: Interval to repeat writes that the facts do not show, and ends that are not acknowledged.
        ask_again_s: Interval to repeat an unanswered question, and to offer a refused job again.
        look_round_s: Interval to check whether the broker still has the offered jobs.
        order_s: Interval of the same check if jobs are not held; it also returns their order in the queue.
        release_after_s: Time without a broker after which held jobs are returned to Slurm's own order.
    """

    start_s: float = 20.0
    limited_s: float = 60.0
    repeat_s: float = 3.0
    ask_again_s: float = 5.0
    look_round_s: float = 10.0
    order_s: float = 2.0
    release_after_s: float = 120.0


class Say(NamedTuple):
    """A message to the broker on behalf of a node."""

    node: str
    message: NodeMessage


class Ask(NamedTuple):
    """A question to the broker; the answer is returned with `about`."""

    about: tuple[str, str]
    message: ClientRequest
