"""Messages on the wire: every message is decoded unchanged, and no bytes crash the reader."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import WireError
from rlsched.wire import messages
from rlsched.wire.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    AttemptReport,
    ClockHeld,
    Ended,
    Envelope,
    Hello,
    HoldClock,
    Jobs,
    Kill,
    Launch,
    Launched,
    LimitTime,
    LogData,
    Message,
    OutputFailed,
    Refused,
    Serving,
    Submit,
    Submitted,
    TimeLimited,
    Welcome,
    decode,
    decode_answer,
    encode,
)

EXAMPLES: list[Message] = [
    Submit(token="t", command=["python", "train.py"], num_gpus=8, env={"A": "ä"}, time_limit_s=1.5),
    Submit(token="t", command=["x"], num_gpus=1, workload="vit-tiny", speed_energy=0.3),
    HoldClock(epoch=1, job=1, attempt=2, rank=0, sm_clock_mhz=1560),
    ClockHeld(job=1, attempt=2, rank=0, sm_clock_mhz=0, clock_note="no rights"),
    Hello(name="n1", gpus=1, sm_clocks_mhz=[1980, 345], clocks_note=""),
    Hello(name="n0", gpus=4, attempts=[AttemptReport(job=1, attempt=2, rank=0, state="running")]),
    Welcome(epoch=3, cluster="c", heartbeat_s=2.0, forget=[(1, 2), (3, 4)]),
    Launch(
        epoch=1,
        job=2,
        attempt=3,
        rank=1,
        num_ranks=2,
        nodes=["a", "b"],
        gpus=[0, 7],
        command=["x"],
        env={},
        cwd="/",
    ),
    Kill(epoch=1, job=2, attempt=3, rank=0),
    LimitTime(epoch=1, job=2, attempt=3, rank=0, limit_s=math.inf),
    TimeLimited(job=2, attempt=3, rank=0, limit_s=math.inf),
    Launched(job=2, attempt=3, rank=0, pid=7, limit_s=60.0),
    OutputFailed(job=2, attempt=3, rank=0, message="--output /x: Permission denied"),
    Ended(job=1, attempt=1, rank=0, exit_code=0),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_is_decoded_unchanged(message: Message) -> None:
    assert decode(encode(message, 42)) == Envelope(PROTOCOL_VERSION, 42, message)


def test_every_message_has_a_separate_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in Message.__args__]
    assert len(set(tags)) == len(tags)


def test_other_version_is_named() -> None:
    frame = msgspec.msgpack.encode([PROTOCOL_VERSION + 1, 0, {"type": "ok"}])
    with pytest.raises(WireError, match=rf"protocol version {PROTOCOL_VERSION + 1}, expected"):
        decode(frame)


def test_unknown_field_is_named() -> None:
    frame = msgspec.msgpack.encode([PROTOCOL_VERSION, 0, {"type": "cancel", "job": 1, "force": True}])
    with pytest.raises(WireError, match="`force`"):
        decode(frame)


def decode_or_one_line(data: bytes) -> None:
    """Decode, or raise a `WireError` of one line."""
    said = ""
    try:
        decode(data)
    except WireError as error:
        said = str(error)
    assert "\n" not in said


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_one_clear_error(data: bytes) -> None:
    decode_or_one_line(data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_message_is_a_message_or_one_clear_error(message: Message, data: st.DataObject) -> None:
    frame = bytearray(encode(message, 7))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decode_or_one_line(bytes(frame[: data.draw(st.integers(0, len(frame)))]))


def test_hostile_text_does_not_break_the_line() -> None:
    for frame in (
        msgspec.msgpack.encode([PROTOCOL_VERSION, 0, {"type": "a\nb" * 10_000}]),
        msgspec.msgpack.encode(["x\n" * 10_000]),
    ):
        with pytest.raises(WireError) as caught:
            decode(frame)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        decode(b"\x93\x01\x00" + b"\x91" * 500_000)


def test_submission_without_new_fields_is_valid_for_older_brokers() -> None:
    plain = msgspec.msgpack.decode(encode(Submit(token="t", command=["x"], num_gpus=1)))[2]
    assert set(plain) == {"type", "token", "command", "num_gpus"}
    asking = msgspec.msgpack.decode(encode(Submit(token="t", command=["x"], num_gpus=1, speed_energy=0.0)))[2]
    assert asking["speed_energy"] == 0.0, "0 is not the default, which is the broker's"


def test_field_unknown_to_the_other_side_is_named() -> None:
    frame = msgspec.msgpack.encode(
        [PROTOCOL_VERSION, 1, {"type": "submit", "token": "t", "command": ["x"], "num_gpus": 1, "later": 1}]
    )
    with pytest.raises(WireError, match=r"unknown field `later`"):
        decode(frame)


def test_frame_above_the_limit_is_not_made() -> None:
    room = MAX_MESSAGE_BYTES - len(encode(LogData(data=b"", offset=0, eof=False))) - 3
    assert len(encode(LogData(data=b"x" * room, offset=0, eof=False))) == MAX_MESSAGE_BYTES
    with pytest.raises(WireError, match="message 'log_data' of 1,048,577 bytes: expected at most 1,048,576"):
        encode(LogData(data=b"x" * (room + 1), offset=0, eof=False))


ANSWERS: list[tuple[Message, type[msgspec.Struct]]] = [
    (Submitted(job=3), Submitted),
    (Refused(message="no"), Submitted),
    (Serving(cluster="c", epoch=2), Submitted),
    (Serving(cluster="c", epoch=2), Serving),
    (Jobs(jobs=[]), Submitted),
]


@pytest.mark.parametrize(("message", "expected"), ANSWERS)
def test_answer_of_an_unexpected_kind_is_read(message: Message, expected: type[msgspec.Struct]) -> None:
    assert decode_answer(encode(message, 42), expected) == (42, message)


def test_malformed_answer_is_refused_with_the_same_line() -> None:
    for frame in (
        b"",
        encode(Submitted(job=3))[:-1],
        msgspec.msgpack.encode([PROTOCOL_VERSION + 1, 0, {"type": "submitted", "job": 3}]),
        msgspec.msgpack.encode([PROTOCOL_VERSION, 0, {"type": "submitted", "job": "x"}]),
    ):
        with pytest.raises(WireError) as by_all:
            decode(frame)
        with pytest.raises(WireError) as by_one:
            decode_answer(frame, Submitted)
        assert str(by_one.value) == str(by_all.value)


def test_names_are_complete() -> None:
    for name in messages.__all__:
        assert getattr(messages, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Literal'"):
        messages.Literal  # noqa: B018
