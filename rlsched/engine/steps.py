"""Messages that a gateway's state machine returns, and the gateway's time-outs and intervals."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rlsched.wire.messages import ClientRequest, NodeMessage


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Time-outs and intervals of a gateway, seconds.

    Attributes:
        start_s: Time within which Slurm must start a released job; otherwise the job is held again.
        limited_s: Time after which a job is offered again if a limit of Slurm prevented its start.
        repeat_s: Interval at which the gateway repeats an unacknowledged report that an attempt has ended,
            or a write that had no effect in Slurm.
        ask_again_s: Interval at which an unanswered question is repeated.
        look_round_s: Interval at which the gateway asks for the broker's list of jobs, to find out which
            offered jobs the broker still has. A refused job is offered again after the same time.
        order_s: Interval of the list, instead of `look_round_s`, if jobs are not held: the list then also
            contains the order of the queue.
        release_after_s: Time without a broker after which held jobs are left to Slurm's own scheduling.
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
    """A question to the broker. The answer is passed to `Gateway.handle_answer`, together with `about`."""

    about: tuple[str, str]
    message: ClientRequest
