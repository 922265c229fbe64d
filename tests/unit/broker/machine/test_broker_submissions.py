"""Valid submissions, and the end of a job whose launch does not fit a frame."""

from __future__ import annotations

import msgspec
import pytest

from rlsched.broker.base.entries import JobSubmitted
from rlsched.broker.events import ClientAsked, Intake, NodeSaid
from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.submissions import MAX_COMMAND_BYTES
from rlsched.wire.messages import (
    FetchLog,
    Jobs,
    Kill,
    Launch,
    LaunchRefused,
    ListJobs,
    LogChunk,
    LogData,
    ReadLog,
    Refused,
    Submit,
    SubmitMany,
    Submitted,
    SubmittedMany,
    encode,
)
from tests.support.broker.hand import ended, make, of_kind, state, submit
from tests.support.broker.hand_broker import HandBroker


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"name": "x" * 201}, "name must be at most 200 characters, got 201"),
        ({"user": "x" * 65}, "user must be at most 64 characters, got 65"),
        ({"vc": "x" * 65}, "vc must be at most 64 characters, got 65"),
        ({"cwd": "/" * 4097}, "cwd must be at most 4,096 characters, got 4,097"),
        ({"token": "x" * 129}, "token must be at most 128 characters, got 129"),
        ({"workload": "x" * 65}, "workload must be at most 64 characters, got 65"),
        ({"name": "a\x1b[2Jb"}, r"name must not contain control characters, got a\x1b[2Jb"),
        ({"user": "a\nb"}, r"user must not contain control characters, got a\nb"),
        ({"vc": "\x9b"}, r"vc must not contain control characters, got \x9b"),
        ({"cwd": "/a\0b"}, r"cwd must not contain control characters, got /a\x00b"),
        ({"name": "\u202e"}, r"name must not contain control characters, got \u202e"),
        ({"command": ["true", "a\0b"]}, "command and environment must not contain a NUL character"),
        ({"env": {"A": "\0"}}, "command and environment must not contain a NUL character"),
        ({"command": ["true", "x" * MAX_COMMAND_BYTES]}, "at most 131,072 bytes together, got 131,078"),
        ({"env": {"A": "ä" * (MAX_COMMAND_BYTES // 2)}}, "at most 131,072 bytes together, got 131,080"),
    ],
)
def test_submission_too_large_to_launch_or_list_is_refused(
    broker: HandBroker, facts: dict[str, object], said: str
) -> None:
    reply = broker.ask(msgspec.structs.replace(submit(), **facts))
    assert isinstance(reply, Refused)
    assert said in reply.message
    assert "\n" not in reply.message
    assert not broker.state.jobs


def test_longest_submission_is_launched_on_a_gang_of_a_thousand_nodes(journal: Journal) -> None:
    longest = Submit(
        token="t" * 128,
        command=["x", *[""] * (MAX_COMMAND_BYTES - 2)],
        num_gpus=1,
        name="x" * 200,
        cwd="/" + "\U0001f600" * 4095,
    )
    broker = make(journal, nodes=1)
    (launch,) = of_kind(broker.batch([]), Launch) or of_kind(_asked(broker, longest), Launch)
    assert isinstance(launch, Launch)
    assert encode(msgspec.structs.replace(launch, nodes=["n" * 63] * 1_000))


def _asked(broker: HandBroker, message: Submit) -> list[object]:
    before = len(broker.sent.orders)
    assert isinstance(broker.ask(message), Submitted)
    return [order for _, order in broker.sent.orders[before:]]


def test_default_name_is_that_of_the_program(broker: HandBroker) -> None:
    broker.ask(msgspec.structs.replace(submit(), command=["/bin/a\x1bb" + "c" * 300]))
    assert broker.state.jobs[1].spec.name == r"a\x1bb" + "c" * 194


# ---- journals of brokers without limits on submissions ----------------------------------------------------


def _journal_a_giant(broker: HandBroker, **facts: object) -> None:
    """A job as a broker without limits journalled it."""
    broker.ask(submit(4))
    broker.ask(submit(4))
    entry = broker.state.jobs[2].spec
    giant = msgspec.structs.replace(entry, **({"job": 3, "token": "giant"} | facts))
    assert isinstance(giant, JobSubmitted)
    broker.journal.commit([giant], broker.now_s + 0.001)


def test_launch_too_large_for_a_frame_fails_its_job_with_a_reason(journal: Journal) -> None:
    first = make(journal, nodes=1)
    _journal_a_giant(first, command=["true", "x" * (1 << 20)], num_gpus=1)
    broker = make(journal, nodes=1)
    broker.says("n0", ended(1), ended(2))
    out = broker.says("n0", ended(1), ended(2), after_s=1.0)
    kills = [order for _, order in broker.sent.orders if isinstance(order, Kill) and order.job == 3]
    assert not [order for _, order in broker.sent.orders if isinstance(order, Launch) and order.job == 3], out
    assert kills
    broker.says("n0", ended(3, exit_code=143, reason="killed"))
    assert state(broker, 3) == "failed"
    assert "it cannot be launched: message 'launch' of 1,048," in broker.state.jobs[3].reason
    assert broker.state.nodes["n0"].up


def test_list_holds_names_of_any_length(journal: Journal) -> None:
    first = make(journal, nodes=1)
    _journal_a_giant(first, name="x" * 600_000, user="u" * 600_000)
    broker = make(journal, nodes=1)
    jobs = broker.ask(ListJobs())
    assert isinstance(jobs, Jobs)
    assert [len(job.name) for job in jobs.jobs][-1] == 200
    assert len(encode(jobs)) < 10_000


# ---- messages of nodes ------------------------------------------------------------------------------------


def test_output_is_accepted_only_from_the_requested_node(journal: Journal) -> None:
    broker = make(journal, nodes=2)
    broker.ask(submit())
    broker.ask(ReadLog(job=1))
    ((asked, fetch),) = [(node, order) for node, order in broker.sent.orders if isinstance(order, FetchLog)]
    other = "n1" if asked == "n0" else "n0"
    assert isinstance(fetch, FetchLog)
    assert broker.batch([_log(other, b"forged")]) == []
    assert broker.batch([_log(asked, b"true")]) == [LogChunk(data=b"true", offset=0, eof=False, attempt=1)]


def _log(node: str, data: bytes) -> NodeSaid:
    return NodeSaid(node, 1, LogData(data=data, offset=0, eof=True))


def test_reason_of_a_refusal_is_shortened_and_shown(journal: Journal) -> None:
    broker = make(journal, nodes=1)
    broker.ask(submit())
    broker.says("n0", LaunchRefused(job=1, attempt=1, rank=0, message="\x1b[2J" + "y" * 1_000_000))
    assert len(broker.state.nodes["n0"].drained_reason) < 400
    jobs = broker.ask(ListJobs())
    assert isinstance(jobs, Jobs)
    assert r"\x1b[2Jyyy" in jobs.jobs[0].reason
    assert "\x1b" not in jobs.jobs[0].reason


def test_repeated_submission_of_many_jobs_is_answered_while_the_disk_is_full(journal: Journal) -> None:
    broker, many = make(journal, 0), SubmitMany(jobs=[submit(), submit()])
    broker.batch([ClientAsked(b"peer", 1, many)])
    assert broker.sent.replies[-1][2] == SubmittedMany(jobs=[1, 2])
    broker.batch([Intake("its disk is full"), ClientAsked(b"peer", 2, many)])  # the answer was lost
    assert broker.sent.replies[-1][2] == SubmittedMany(jobs=[1, 2])
    broker.batch([ClientAsked(b"peer", 3, SubmitMany(jobs=[submit()]))])
    assert broker.sent.replies[-1][2] == Refused(message="job 1: its disk is full")
