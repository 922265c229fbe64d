"""Damaged frames: refused or read without other effects or growing memory."""

from __future__ import annotations

import resource
from random import Random

import pytest

from rlsched.errors import WireError
from rlsched.wire.messages import ClientRequest, NodeMessage, decode, encode
from tests.support.broker.edges import make
from tests.support.soak_size import times

FRAMES = times(100_000)
MAX_GROWTH_KIB = 32 << 10


def corpus(chance: Random) -> list[bytes]:
    """Frames of every kind that a broker may receive."""
    found = []
    for kind in (*NodeMessage.__args__, *ClientRequest.__args__):
        for _ in range(12):
            try:
                found.append(encode(make(kind, chance, {}), chance.randrange(9)))
            except (WireError, OverflowError, UnicodeEncodeError):
                continue
    return [frame for frame in found if len(frame) < 2_000]


def damaged(frame: bytes, chance: Random) -> bytes:
    """A copy with flipped bits, or with bytes inserted, removed or doubled."""
    made = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(made)) if made else 0
        match chance.randrange(5):
            case 0:
                made[at : at + 1] = bytes([made[at] ^ (1 << chance.randrange(8))]) if made else b""
            case 1:
                made[at:at] = chance.randbytes(chance.choice((1, 4)))
            case 2:
                del made[at : at + chance.choice((1, 3, 1_000))]
            case 3:
                made[at:at] = made[at : at + 16]
            case _:
                made[at : at + 1] = chance.choice((b"\xdf", b"\xdd", b"\xc6", b"\xdb", b"\xff", b"\x91"))
    return bytes(made)


@pytest.mark.slow
def test_damaged_frames_are_refused_or_read() -> None:
    chance = Random(1)
    frames = corpus(chance)
    read = refused = lines = 0
    before_kib = 0
    for number in range(FRAMES):
        if number == FRAMES // 10:
            before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            decode(damaged(chance.choice(frames), chance))
            read += 1
        except WireError as error:
            refused += 1
            lines += 1 + str(error).count("\n")
    assert read + refused == FRAMES
    assert lines == refused, "one line each"
    assert min(read, refused) > FRAMES // 50, "both occur"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < MAX_GROWTH_KIB
