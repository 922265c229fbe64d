"""Decision records on disk, and the draws that they are keyed by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.draws import draw
from rlsched.decide.record import DecisionRecord, Half, append_records, read_records


def record(number: int, action: Action | None = None) -> DecisionRecord:
    features = np.arange(6, dtype=np.float32) * np.float32(0.1)
    half = Half(
        kind="job",
        seqs=[-1, 7],
        nodes=[-1, 0],
        features=features.tobytes(),
        legal=[True, False],
        reasons=[0, 1],
        logits=[0.5, -1.25],
        choice=0,
        reference=1,
    )
    return DecisionRecord(
        source="policy",
        policy_id="p",
        schema_hash="h",
        state_digest="d",
        number=number,
        now_s=1.5,
        partition="shared",
        halves=[half],
        temperature=0.5,
        value=None,
        action=action or Start(seq=number, gpus=(0, 3)),
        took_us=12.5,
    )


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "decisions.bin"
    records = [record(number) for number in range(5)]
    append_records(path, records[:2])
    append_records(path, [])
    append_records(path, records[2:])
    assert read_records(path) == records
    back = np.frombuffer(read_records(path)[0].halves[0].features, np.float32)
    assert back.tobytes() == records[0].halves[0].features


@pytest.mark.parametrize(
    "action",
    [
        Start(seq=1, gpus=(2,), share_milli=500),
        Wait(until_s=7.0),
        Preempt(seq=4),
        Preempt(seq=5, moved_for=2),
        Start(seq=6, gpus=(1, 2), sm_clock_frac=0.8, share_with=3),
    ],
)
def test_every_action_survives(tmp_path: Path, action: Action) -> None:
    append_records(tmp_path / "one", [record(0, action)])
    assert read_records(tmp_path / "one")[0].action == action


def test_a_tail_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "decisions.bin"
    records = [record(number) for number in range(3)]
    append_records(path, records[:2])
    whole = path.stat().st_size
    append_records(path, records[2:])
    data = path.read_bytes()
    for size in range(whole, len(data)):
        path.write_bytes(data[:size])
        assert read_records(path) == records[:2]
    path.write_bytes(data)
    assert read_records(path) == records


def test_damage_inside_is_not_taken_for_a_tail(tmp_path: Path) -> None:
    path = tmp_path / "decisions.bin"
    append_records(path, [record(0), record(1)])
    data = bytearray(path.read_bytes())
    data[4] = 0xC1  # never used in msgpack
    path.write_bytes(bytes(data))
    with pytest.raises(msgspec.DecodeError):
        read_records(path)


KNOWN = [0.011546754286331562, 0.6436367332217984, 0.45712505689230665]


class TestDraws:
    def test_the_same_in_any_order(self) -> None:
        keys = [(seed, number, half) for seed in (0, 1, 2**63) for number in (0, 1, 10**6) for half in (0, 1)]
        forth = {key: draw(*key) for key in keys}
        assert {key: draw(*key) for key in reversed(keys)} == forth
        assert len(set(forth.values())) == len(keys)

    def test_the_same_in_another_process(self) -> None:
        code = (
            "from rlsched.decide.draws import draw; print([draw(3, n, h) for n in range(4) for h in (0, 1)])"
        )
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert shown.strip() == str([draw(3, number, half) for number in range(4) for half in (0, 1)])

    def test_known_values(self) -> None:
        """Recorded runs are replayed with these draws: they must not change with a version."""
        assert [draw(0, 0, 0), draw(0, 0, 1), draw(1, 5, 0)] == KNOWN

    def test_uniform(self) -> None:
        numbers = np.array([draw(11, number, 0) for number in range(4000)])
        assert numbers.min() >= 0
        assert numbers.max() < 1
        shares = np.histogram(numbers, bins=10, range=(0, 1))[0] / 4000
        assert np.abs(shares - 0.1).max() < 0.025
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06
