"""Unexpected messages: a message that raises fails only the job or request that it concerns."""

from __future__ import annotations

import math

import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.broker.machine.submitting import Submitting
from rlsched.wire.messages import Ended, EndedAck, Jobs, ListJobs, Refused, Submit, SubmitMany, Submitted
from tests.support.broker.hand import ended, launched, make, of_kind, state, states, submit
from tests.support.broker.hand_broker import HandBroker


@pytest.fixture
def broker(journal: Journal) -> HandBroker:
    """Job 1 runs on n0; n1 is empty."""
    broker = make(journal, nodes=2)
    broker.ask(submit(4))
    broker.says("n0", launched(1))
    return broker


@pytest.mark.parametrize(
    ("said", "became"),
    [
        (ended(1, exit_code=10**18), ("failed", 137)),
        (ended(1, exit_code=-7), ("failed", 137)),
        (ended(1, exit_code=3, reason="time_limit"), ("failed", 3)),
        (ended(1, exit_code=0, reason="no such reason"), ("completed", 0)),
        (Ended(job=1, attempt=1, rank=0, exit_code=4, ended_s=math.nan), ("failed", 4)),
    ],
)
def test_impossible_ends_are_corrected(
    broker: HandBroker, journal: Journal, said: Ended, became: tuple[str, int]
) -> None:
    """A job runs as its daemon's user and can write any exit report."""
    assert of_kind(broker.says("n0", said), EndedAck)
    job = broker.state.jobs[1]
    assert (job.state, job.exit_code) == became
    assert states(broker) == {"n0": "up", "n1": "up"}
    assert make(journal).state.jobs[1].reason == job.reason, "nor does it fail the next broker"


def test_message_that_raises_is_dropped_and_its_sender_drained(
    broker: HandBroker, journal: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("unexpected")

    with monkeypatch.context() as patch:
        patch.setattr(type(broker.machine._attempts), "_after_rank", broken)
        patch.setattr(type(broker.machine._attempts), "record_rank_end", broken)
        out = broker.says("n0", ended(1))
    assert of_kind(out, EndedAck), "it is logged once"
    assert "unexpected" in caplog.text
    assert states(broker) == {"n0": "drained", "n1": "up"}
    assert (state(broker, 1), broker.state.jobs[1].attempt.ranks[0].node) == ("launching", "n1")  # type: ignore[union-attr]
    assert state(make(journal), 1) == "launching"


def test_request_that_raises_is_refused_and_others_are_served(
    broker: HandBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Submitting._draft

    def broken(self: object, number: int, message: Submit) -> object:
        if message.name == "poison":
            raise ValueError("unexpected")
        return draft(self, number, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Submitting, "_draft", broken)
    refused = broker.ask(submit(name="poison"))
    assert isinstance(refused, Refused)
    assert "could not handle this Submit: " in refused.message
    many = SubmitMany(jobs=[submit(), submit(name="poison"), submit()])
    refused = broker.ask(many)
    assert isinstance(refused, Refused)
    assert "could not handle this SubmitMany: " in refused.message
    assert broker.ask(submit()) == Submitted(job=2), "none of them"


def test_query_that_raises_is_refused(broker: HandBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError(7)

    monkeypatch.setattr("rlsched.broker.queries.pages.job_info", broken)
    assert isinstance(broker.ask(ListJobs()), Refused)
    monkeypatch.undo()
    assert isinstance(broker.ask(ListJobs()), Jobs)
