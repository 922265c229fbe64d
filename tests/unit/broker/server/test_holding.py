"""Messages that arrive while a batch waits for disk space."""

from __future__ import annotations

import pytest

from rlsched.broker.server.holding import DeferredMessages
from rlsched.transport.roles import Peer
from rlsched.transport.router import Heard
from rlsched.wire.messages import Envelope, ListJobs, Message, Refused, Submit, SubmitMany


class Replies:
    """The transport's side that clients see: the replies in order."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def reply(self, _route: bytes, _request: int, message: Message) -> None:
        self.sent.append(message)


def job(token: str) -> Submit:
    return Submit(token=token, num_gpus=1, command=["true"])


@pytest.mark.parametrize(
    ("message", "is_deferred"),
    [
        (ListJobs(), True),
        (job("old"), True),
        (job("new"), False),
        (SubmitMany(jobs=[job("old"), job("older")]), True),
        (SubmitMany(jobs=[job("old"), job("new")]), False),
        (SubmitMany(jobs=[]), False),
    ],
)
def test_only_repeated_submissions_and_questions_are_deferred(message: Message, is_deferred: bool) -> None:
    deferred = DeferredMessages({"old", "older"}.__contains__, lambda heard: heard)  # type: ignore[arg-type, return-value]
    replies, heard = Replies(), Heard(Peer("client", "ann"), b"route", Envelope(1, 7, message))
    deferred.hear(heard, replies, "the disk is full")  # type: ignore[arg-type]
    assert deferred.take() == ([heard] if is_deferred else [])
    assert replies.sent == ([] if is_deferred else [Refused(message="nothing was done: the disk is full")])
