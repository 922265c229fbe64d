"""Decision records on disk, and the random draws of their keys."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from rlsched.cli.users.explain import explain
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.draws import draw
from rlsched.decide.record import DecisionRecord
from rlsched.decisions import reading, story, story_lines
from rlsched.decisions import store as store_module
from rlsched.decisions.candidates import candidates
from rlsched.decisions.decision_text import decided_by
from rlsched.decisions.reading import StoreReader, last_records, parts, read_records
from rlsched.decisions.schema import ADDED, STORE_FILE, JobEvent, NodeChange, StoreInfo, schemas
from rlsched.decisions.segments import SegmentReader, SegmentWriter, segment_files
from rlsched.decisions.store import DecisionStore, decision_row
from rlsched.errors import InputError
from tests.support.decided import record

DAY_S = 86_400.0


def store(folder: Path) -> DecisionStore:
    return DecisionStore(folder, StoreInfo(time="trace", of="a test"), held_s=0.0)


def test_added_records_are_read(tmp_path: Path) -> None:
    records = [record(number) for number in range(5)]
    kept = store(tmp_path)
    kept.add_decisions(records[:2])
    kept.add_decisions([])
    kept.add_decisions(records[2:])
    kept.flush()
    assert read_records(tmp_path) == records
    assert np.frombuffer(read_records(tmp_path)[0].queue, np.int32).tolist() == [7, 9]
    assert last_records(tmp_path, 2) == records[3:]


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
def test_every_action_is_read_back(tmp_path: Path, action: Action) -> None:
    kept = store(tmp_path)
    kept.add_decisions([record(0, action)])
    kept.flush()
    assert read_records(tmp_path)[0].action == action


def test_small_batches_are_plain_and_large_ones_compressed(tmp_path: Path) -> None:
    kept = store(tmp_path)
    sizes = []
    for first, count in ((0, 1), (1, 500), (501, 1)):
        kept.add_decisions([record(number) for number in range(first, first + count)])
        kept.flush()
        (path,) = segment_files(tmp_path, "decisions")
        sizes.append(path.stat().st_size)
    one, many, last = np.diff([0, *sizes]).tolist()
    assert many < 500 * last / 10
    assert last < one  # the schema is before the first
    packed = decision_row(record(501))[-1]
    assert packed in path.read_bytes()
    assert read_records(tmp_path) == [record(number) for number in range(502)]
    with pa.memory_map(str(path)) as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 502


def test_truncated_tail_is_left_out_and_read_once_complete(tmp_path: Path) -> None:
    records = [record(number) for number in range(3)]
    kept = store(tmp_path)
    kept.add_decisions(records[:2])
    kept.flush()
    (path,) = segment_files(tmp_path, "decisions")
    whole = path.stat().st_size
    kept.add_decisions(records[2:])
    kept.flush()
    data = path.read_bytes()
    for size in range(whole, len(data), 7):
        path.write_bytes(data[:size])
        reader = StoreReader(tmp_path)
        reader.refresh()
        assert [reader.record(row) for row in range(len(reader))] == records[:2]
        assert reader.cut_short() == ([path.name] if size > whole else [])
        path.write_bytes(data)
        assert reader.refresh()
        assert len(reader) == 3
        assert reader.record(2) == records[2]


def test_restarted_writer_continues_after_a_truncated_tail(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for number in range(2):
        kept.add_decisions([record(number)])
        kept.flush()
    (path,) = segment_files(tmp_path, "decisions")
    path.write_bytes(path.read_bytes()[:-9])
    again = store(tmp_path)
    again.add_decisions([record(2)])
    again.flush()
    assert [one.number for one in read_records(tmp_path)] == [0, 2]


def test_flipped_bits_lose_only_rows(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for number in range(4):
        kept.add_decisions([record(number)])
        kept.flush()
    (path,) = segment_files(tmp_path, "decisions")
    data = path.read_bytes()
    draws = np.random.default_rng(0)
    for at in draws.integers(0, len(data), 100):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(draws.integers(8))
        path.write_bytes(bytes(damaged))
        reader = StoreReader(tmp_path)
        reader.refresh()
        for row in range(len(reader)):
            with suppress(InputError):
                assert reader.record(row).partition


def test_oldest_rows_are_dropped_at_the_limit(tmp_path: Path) -> None:
    kept = DecisionStore(tmp_path, StoreInfo(time="trace", of="a test"), keep_bytes=1 << 17, held_s=0.0)
    for number in range(400):
        kept.add_decisions([record(number)])
        kept.flush()
    numbers = [one.number for one in read_records(tmp_path)]
    assert numbers == list(range(numbers[0], 400))
    assert numbers[0] > 0
    assert sum(path.stat().st_size for path in segment_files(tmp_path, "decisions")) < 1 << 17


def test_all_tables_together_keep_the_limit(tmp_path: Path) -> None:
    kept = DecisionStore(tmp_path, StoreInfo(time="trace", of="a test"), keep_bytes=1 << 18, held_s=0.0)
    for number in range(1_000):
        about: dict[str, Any] = {"job": f"j{number}", "reason": "r" * 200}
        kept.add_decisions([record(number)])
        kept.add_events(
            [
                JobEvent(time_s=float(number), kind="submit", **about),
                JobEvent(time_s=float(number), kind="end", state="cancelled", **about),
                NodeChange(time_s=float(number), node="n0", num_gpus=8, reason="r" * 400),
            ]
        )
        kept.flush()
    size = sum(path.stat().st_size for path in tmp_path.glob("*.arrow"))
    assert (1 << 18) * 0.8 < size <= 1 << 18


def test_segment_ends_after_a_number_of_rows_of_its_own(tmp_path: Path) -> None:
    """Submissions and starts of unfinished jobs, with which a segment begins, do not count."""
    kept = SegmentWriter(tmp_path, "jobs", schemas()["jobs"], keep_bytes=1 << 30, segment_rows=3)
    event = msgspec.structs.asdict(JobEvent(time_s=0.0, kind="submit", job="j"))
    for rows in (100, 1, 1, 1, 100, 2, 2, 1):
        kept.add({name: [value] * rows for name, value in event.items()})
    read = [SegmentReader(path, schemas()["jobs"]) for path in segment_files(tmp_path, "jobs")]
    found = [[stored.batch.num_rows for stored in reader.batches()] for reader in read]
    assert found == [[100, 1, 1, 1], [100, 2, 2], [1]]


def test_part_has_a_limited_number_of_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PART_ROWS", 250)
    monkeypatch.setattr(reading, "SEGMENT_ROWS", 100)
    kept = SegmentWriter(tmp_path, "decisions", schemas()["decisions"], keep_bytes=1 << 30, segment_rows=100)
    store(tmp_path)
    names = schemas()["decisions"].names
    for number in range(1_000):
        row = decision_row(msgspec.structs.replace(record(number), now_s=float(number)))
        kept.add({name: [cell] for name, cell in zip(names, row, strict=True)})
    read = [StoreReader(tmp_path, part) for part in parts(tmp_path)]
    assert all(reader.refresh() for reader in read)
    assert [len(reader) for reader in read] == [202, 202, 202, 202, 192]
    assert [number for reader in read for number in reader.numbers.tolist()] == list(range(1_000))


def test_records_are_decoded_on_request(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for first in range(0, 4_000, 100):  # large batches; a reader keeps the records of few of them
        kept.add_decisions([record(number) for number in range(first, first + 100)])
        kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    for path in segment_files(tmp_path, "decisions"):
        path.unlink()  # as the writer does at the limit
    for row in (3_999, 0, 2_050, 2_051, 0):
        assert reader.record(row) == record(row)
        assert reader.cells(row)["number"] == row


def test_damaged_records_leave_the_other_columns(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.add_decisions([record(number) for number in range(200)])
    kept.flush()
    kept.add_decisions([record(200)])
    kept.flush()
    (path,) = segment_files(tmp_path, "decisions")
    (stored, _) = SegmentReader(path, schemas()["decisions"]).batches()
    packed, content = bytes(stored.message.body), path.read_bytes()
    at = content.index(packed) + packed.rindex(b"\x28\xb5\x2f\xfd")  # the last zstd frame: the records
    path.write_bytes(content[:at] + b"\0" * 16 + content[at + 16 :])
    reader = StoreReader(tmp_path)
    reader.refresh()
    assert reader.numbers.tolist() == list(range(201))
    with pytest.raises(InputError, match="the record of decision 7 is damaged"):
        reader.record(7)
    assert reader.record(200) == record(200)


def aged(folder: Path, days: range, keep_days: float = 8.0) -> DecisionStore:
    """Write a decision and the events of a short job for each day, and then remove what is too old."""
    kept = DecisionStore(folder, StoreInfo(time="unix", of="a test"), keep_s=keep_days * DAY_S, held_s=0.0)
    for day in days:
        at_s, about = day * DAY_S, {"job": f"j{day}", "num_gpus": 1.0}
        kept.add_decisions([msgspec.structs.replace(record(day), now_s=at_s)])
        kept.add_events(
            [
                JobEvent(time_s=at_s, kind="submit", **about),  # type: ignore[arg-type]
                JobEvent(time_s=at_s, kind="end", state="cancelled", **about),  # type: ignore[arg-type]
                NodeChange(time_s=at_s, node="n0", num_gpus=8),
            ]
        )
        kept.flush()
        kept.remove_old(at_s)
    return kept


def test_rows_older_than_the_limit_are_dropped(tmp_path: Path) -> None:
    kept = aged(tmp_path, range(40))
    assert [one.number for one in read_records(tmp_path)] == list(range(31, 40))
    assert len(segment_files(tmp_path, "decisions")) == 9
    assert len(segment_files(tmp_path, "nodes")) == 1  # the node was up before the oldest decision
    reader = StoreReader(tmp_path)
    reader.refresh()
    assert list(reader.timeline.jobs) == [f"j{day}" for day in range(31, 40)]
    assert len(reader.timeline.nodes["n0"].changes) == 40
    kept.remove_old(400 * DAY_S)  # nothing was written for a year: the newest files are left
    assert [one.number for one in read_records(tmp_path)] == [39]
    kept = aged(tmp_path, range(400, 401))
    assert [one.number for one in read_records(tmp_path)] == [400]
    assert [path.name for path in segment_files(tmp_path, "decisions")] == ["decisions-000041.arrow"]


def test_row_younger_than_the_limit_keeps_its_file(tmp_path: Path) -> None:
    kept = DecisionStore(tmp_path, StoreInfo(time="unix", of="a test"), keep_s=16 * DAY_S, held_s=0.0)
    for day in (0.0, 0.5, 1.0, 1.5, 20.0):  # a file holds the rows of one day
        kept.add_decisions([msgspec.structs.replace(record(int(2 * day)), now_s=day * DAY_S)])
        kept.flush()
    assert [len(read_records(tmp_path)), len(segment_files(tmp_path, "decisions"))] == [5, 3]
    kept.remove_old(17.0 * DAY_S)
    assert [one.number for one in read_records(tmp_path)] == [0, 1, 2, 3, 40]
    kept.remove_old(17.1 * DAY_S)
    assert [one.number for one in read_records(tmp_path)] == [3, 40]


def test_without_an_age_limit_old_rows_are_kept(tmp_path: Path) -> None:
    aged(tmp_path, range(0, 4000, 1000), keep_days=math.inf)
    assert len(read_records(tmp_path)) == 4
    assert len(segment_files(tmp_path, "decisions")) == 1


def test_age_limit_works_after_a_restart_and_keeps_live_jobs(tmp_path: Path) -> None:
    about: dict[str, Any] = {"job": "long", "num_gpus": 8.0}
    live = [
        JobEvent(time_s=0.0, kind="submit", **about),
        JobEvent(time_s=0.0, kind="start", attempt=1, nodes=["n0"] * 8, gpus=list(range(8)), **about),
    ]
    kept = aged(tmp_path, range(1))
    kept.add_events(live)
    kept.flush()
    kept = aged(tmp_path, range(1, 2))  # each call opens the store again
    kept.note_standing(live)
    for day in range(2, 40):
        short: dict[str, Any] = {"time_s": day * DAY_S, "job": f"j{day}", "num_gpus": 1.0}
        kept.add_events([JobEvent(kind="submit", **short), JobEvent(kind="end", state="cancelled", **short)])
        kept.flush()
        kept.remove_old(day * DAY_S)
    assert min(int(path.stem[-6:]) for path in segment_files(tmp_path, "jobs")) > 20
    reader = StoreReader(tmp_path)
    reader.refresh()
    assert "j20" not in reader.timeline.jobs
    assert [one.job.job for one in reader.timeline.running_at(39 * DAY_S)] == ["long"]
    assert reader.timeline.jobs["long"].submit_s == 0.0


def test_file_without_rows_is_as_old_as_it_is_on_disk(tmp_path: Path) -> None:
    kept = aged(tmp_path, range(12))
    oldest = segment_files(tmp_path, "decisions")[0]
    oldest.write_bytes(b"damaged")
    os.utime(oldest, (11 * DAY_S, 11 * DAY_S))
    kept.remove_old(12 * DAY_S)
    assert oldest.exists()
    os.utime(oldest, (DAY_S, DAY_S))
    kept.remove_old(12 * DAY_S)
    assert not oldest.exists()


def test_file_removed_while_it_is_read_has_no_more_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(tmp_path, range(2))
    reader = StoreReader(tmp_path)
    oldest = segment_files(tmp_path, "decisions")[0]
    left_bytes = SegmentReader.left_bytes

    def gone(self: SegmentReader) -> int:
        found = left_bytes(self)
        oldest.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(SegmentReader, "left_bytes", gone)
    reader.refresh()
    assert reader.numbers.tolist() == [1]


def test_stores_of_other_versions_and_folders_without_one_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a store of decisions"):
        StoreReader(tmp_path)
    (tmp_path / STORE_FILE).write_text('{"version": 99, "time": "trace", "of": "a later one"}')
    with pytest.raises(InputError, match="a store of version 99, this rlsched reads version 1"):
        StoreReader(tmp_path)
    (tmp_path / STORE_FILE).write_text("{")
    with pytest.raises(InputError, match="expected the description of a store of decisions"):
        StoreReader(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    store(tmp_path)
    with pytest.raises(InputError, match="times of this store are trace seconds, expected unix seconds"):
        DecisionStore(tmp_path, StoreInfo(time="unix", of="a broker"))


KNOWN = [0.011546754286331562, 0.6436367332217984, 0.45712505689230665]


class TestDraws:
    def test_same_in_any_order(self) -> None:
        keys = [(seed, number, half) for seed in (0, 1, 2**63) for number in (0, 1, 10**6) for half in (0, 1)]
        forth = {key: draw(*key) for key in keys}
        assert {key: draw(*key) for key in reversed(keys)} == forth
        assert len(set(forth.values())) == len(keys)

    def test_same_in_another_process(self) -> None:
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


def test_large_store_is_read_in_parts_with_their_running_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PART_BYTES", 40_000)
    monkeypatch.setattr(store_module, "SEGMENT_BYTES", 10_000)
    kept = DecisionStore(tmp_path, StoreInfo(time="trace", of="test"))
    kept.add_events([NodeChange(time_s=0.0, node="n0", num_gpus=8)])
    about: dict[str, Any] = {"job": "long", "num_gpus": 8.0}
    kept.add_events([JobEvent(time_s=0.0, kind="submit", **about)])
    kept.add_events(
        [JobEvent(time_s=1.0, kind="start", attempt=1, nodes=["n0"] * 8, gpus=list(range(8)), **about)]
    )
    for number in range(2_000):
        kept.add_decisions([msgspec.structs.replace(record(number), now_s=float(number))])
        about = {"job": f"j{number}", "num_gpus": 1.0}
        kept.add_events([JobEvent(time_s=float(number), kind="submit", **about)])
        if number % 40 == 39:
            kept.flush()
    kept.flush()
    found = parts(tmp_path)
    assert len(found) > 2
    readers = [StoreReader(tmp_path, part) for part in found]
    for reader in readers:
        reader.refresh()
    numbers = [number for reader in readers for number in reader.numbers.tolist()]
    assert numbers == list(range(2_000))
    for reader in readers:
        assert [one.job.job for one in reader.timeline.running_at(reader.times_s[0] + 1.0)] == ["long"]
        assert reader.timeline.nodes["n0"].num_gpus == 8
    last = StoreReader(tmp_path)
    last.refresh()
    assert last.numbers.tolist() == readers[-1].numbers.tolist()
    kept.add_decisions([msgspec.structs.replace(record(2_000), now_s=2_000.0)])
    kept.flush()
    assert last.refresh()
    assert last.numbers[-1] == 2_000
    assert last.timeline.jobs["long"].submit_s == 0.0
    assert [one.number for one in read_records(tmp_path)] == list(range(2_001))
    explained = CliRunner().invoke(explain, ["j5", "--run", str(tmp_path), "--json"])
    assert json.loads(explained.output)["submit_s"] == 5.0  # of the first part
    assert CliRunner().invoke(explain, ["j1999", "--run", str(tmp_path), "--json"]).exit_code == 0
    told = CliRunner().invoke(explain, ["--decision", "700", "--run", str(tmp_path), "--json"])
    assert json.loads(told.output)["time_s"] == 700.0
    told = CliRunner().invoke(explain, ["--at", "700.5", "--run", str(tmp_path), "--json"])
    assert json.loads(told.output)["decision"]["number"] == 700
    opened: list[StoreReader] = []
    monkeypatch.setattr(StoreReader, "refresh", lambda self: opened.append(self))
    CliRunner().invoke(explain, ["j5", "--run", str(tmp_path)])
    assert len(opened) == 1, "only the part with the job"


def test_change_of_prices_is_shown_with_the_state_that_it_met(tmp_path: Path) -> None:
    prices = [{"gpu_time": 1.0}, {"gpu_time": 1.0}, {"gpu_time": 1.5}, {"gpu_time": 1.5}, {}]
    made = [
        msgspec.structs.replace(record(k), number=k, now_s=10.0 * k, prices=priced, partition="a")
        for k, priced in enumerate(prices)
    ]
    made.insert(3, msgspec.structs.replace(made[0], number=9, now_s=25.0, partition="b"))
    kept = store(tmp_path)
    kept.add_decisions(made)
    kept.add_events([JobEvent(time_s=15.0, kind="submit", job="w", num_gpus=2.0)])
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    told = [story.decision(reader, row) for row in range(len(made))]
    changes = [one["price_change"] for one in told]
    assert [change and (change["number"], change["when"]) for change in changes] == [
        None, None, (2, "day 0 00:00:20"), None, (2, "day 0 00:00:20"), None,
    ]  # fmt: skip
    assert changes[4]["before"] == {"a GPU-second": 1.0}
    line = "since decision 2 at day 0 00:00:20, with 1 waiting and 0 of 0 GPUs in use; before: a GPU-second 1"
    assert line in story_lines.decision_lines(told[4])


def test_files_without_the_columns_of_predictions_are_read(tmp_path: Path) -> None:
    about: dict[str, Any] = {"job": "a", "num_gpus": 1.0, "attempt": 1, "nodes": ["n0"], "gpus": [0]}
    earlier = [
        JobEvent(time_s=0.0, kind="submit", **about),
        JobEvent(time_s=1.0, kind="start", **about),
        JobEvent(time_s=2.0, kind="end", state="completed", run_s=1.0, energy_j=3.0, **about),
    ]
    store(tmp_path)
    schema = pa.schema([one for one in schemas()["jobs"] if one.name not in ADDED])
    assert len(schema) == len(schemas()["jobs"]) - 3
    rows = {one.name: [getattr(event, one.name) for event in earlier] for one in schema}
    SegmentWriter(tmp_path, "jobs", schema, keep_bytes=1 << 20).add(rows)
    kept = store(tmp_path)
    about["job"] = "b"
    kept.add_events(
        [
            JobEvent(time_s=3.0, kind="start", predicted_speed_frac=0.5, predicted_energy_j=7.2e6, **about),
            JobEvent(time_s=4.0, kind="end", state="completed", run_s=1.0, speed_frac=0.6, **about),
        ]
    )
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    told = [story.job_story(reader, reader.timeline.jobs[job])["attempts"][0] for job in ("a", "b")]
    names = ("predicted_speed_frac", "speed_frac", "predicted_energy_kwh")
    assert [[one[name] for name in names] for one in told] == [[None] * 3, [0.5, 0.6, 2.0]]
    assert told[0]["energy_kwh"] == 3.0 / 3.6e6
    assert reader.cut_short() == []


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ((), ""),
        ((None, 1.0, None, 2.5), ", 2.5 kWh predicted"),
        ((None, 0.83, None, None), ", speed 0.83 predicted"),
        ((0.8, 0.83, 0.01234, 0.02), ", speed 0.80 (0.83 predicted), 0.0123 kWh (0.02 predicted)"),
        ((0.8, None, 3.0, None), ", speed 0.80, 3 kWh"),
    ],
)
def test_speed_and_energy_are_in_the_history(
    tmp_path: Path, known: tuple[float | None, ...], said: str
) -> None:
    names = ("speed_frac", "predicted_speed_frac", "energy_j", "predicted_energy_j")
    values = {
        name: value * (3.6e6 if name.endswith("_j") else 1.0)
        for name, value in zip(names, known, strict=False)
        if value is not None
    }
    predicted: dict[str, Any] = {
        name: value for name, value in values.items() if name.startswith("predicted")
    }
    seen: dict[str, Any] = {name: value for name, value in values.items() if name not in predicted}
    about: dict[str, Any] = {"job": "a", "num_gpus": 1.0, "attempt": 1, "nodes": ["n0"], "gpus": [0]}
    kept = store(tmp_path)
    kept.add_events(
        [
            JobEvent(time_s=0.0, kind="submit", job="a", num_gpus=1.0),
            JobEvent(time_s=1.0, kind="start", **predicted, **about),
            JobEvent(time_s=61.0, kind="end", state="completed", run_s=60.0, **seen, **about),
        ]
    )
    kept.flush()
    reader = StoreReader(tmp_path)
    reader.refresh()
    job = reader.timeline.jobs["a"]
    assert story_lines.job_lines(story.job_story(reader, job))[-1] == f"  completed after 1 min{said}"


def test_record_of_an_earlier_version_is_read() -> None:
    """Of a network that scored the waiting jobs one by one, and looked ahead."""
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(record(3)))
    del fields["reference"]
    half = {
        "kind": "job", "seqs": [-1, 7], "nodes": [-1, 0], "features": b"", "legal": [True, True],
        "reasons": [0, 0], "logits": [0.5, -1.25], "choice": 0, "reference": 1,
    }  # fmt: skip
    fields |= {"source": "search", "schema_hash": "h", "halves": [half], "temperature": 0.5, "value": None}
    fields |= {"samples": 8, "overruled": 1}
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=DecisionRecord)
    assert old == msgspec.structs.replace(record(3), source="search")
    assert decided_by(old) == "a look-ahead over the policy p"
    assert [(one.number, one.of, one.taken) for one in candidates(old)] == [
        (0, "rule", False), (1, "plan", True), (2, "plan", False),
    ]  # fmt: skip


def test_choice_without_dials_is_a_candidate_of_a_rule_with_dials() -> None:
    plain = msgspec.structs.replace(record(3), source="rule")
    assert [one.of for one in candidates(plain)] == ["plan", "plan"]
    first, *others = candidates(msgspec.structs.replace(plain, reference="ppo without dials"))
    assert (first.number, first.of, first.words) == (0, "rule", "the rule's choice (ppo without dials)")
    assert others == candidates(plain)
