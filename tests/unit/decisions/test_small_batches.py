"""Many small batches of a stream, read at once: the same rows as Arrow reads one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from rlsched.decisions.schema import JobEvent, schemas
from rlsched.decisions.segments import SegmentReader, SegmentWriter
from rlsched.decisions.small_batches import FEWEST, read_run
from rlsched.decisions.store import decision_row
from tests.support.decided import record

TABLES = ("decisions", "jobs")


def rows(table: str, rng: np.random.Generator, count: int) -> list[Sequence[Any]]:
    """Rows with texts, lists and records of random lengths, also empty ones and texts beyond ASCII."""
    if table == "decisions":
        made = [
            msgspec.structs.replace(record(int(rng.integers(1e6))), now_s=rng.random()) for _ in range(count)
        ]
        return [
            decision_row(msgspec.structs.replace(one, policy_id="é" * int(rng.integers(4)))) for one in made
        ]
    found: list[Sequence[Any]] = []
    for _ in range(count):
        gpus = int(rng.integers(0, 4))
        event = JobEvent(
            time_s=rng.random(),
            kind="start",
            job=f"j{rng.integers(1000)}",
            name="ü" * int(rng.integers(0, 9)),
            nodes=[f"n{rng.integers(99)}"] * gpus,
            gpus=rng.integers(0, 8, gpus).tolist(),
            energy_j=math.nan if rng.random() < 0.5 else 1.0,
        )
        found.append(msgspec.structs.astuple(event))
    return found


def written(folder: Path, table: str, sizes: Sequence[int], seed: int = 0) -> Path:
    rng, schema = np.random.default_rng(seed), schemas()[table]
    writer = SegmentWriter(folder, table, schema, keep_bytes=1 << 30)
    for size in sizes:
        columns = zip(*rows(table, rng, size), strict=True)
        writer.add(dict(zip(schema.names, map(list, columns), strict=True)))
    return folder / f"{table}-000001.arrow"


def by_arrow(path: Path) -> list[Any]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return list(stream)


def said(batches: list[Any]) -> str:
    """The rows of batches as text, in which nan equals nan."""
    return repr(pa.Table.from_batches(batches).to_pylist())


def read(path: Path, table: str) -> list[Any]:
    return [stored.all_columns() for stored in SegmentReader(path, schemas()[table]).batches()]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_that_arrow_reads(tmp_path: Path, table: str, seed: int) -> None:
    sizes = np.random.default_rng(seed).integers(1, 4, 200).tolist()
    path = written(tmp_path, table, sizes, seed)
    found = read(path, table)
    assert len(found) < 30
    assert said(found) == said(by_arrow(path))
    assert all(batch.schema == schemas()[table] for batch in found)


@pytest.mark.parametrize("table", TABLES)
def test_large_batches_between_small_ones_are_left_to_arrow(tmp_path: Path, table: str) -> None:
    path = written(tmp_path, table, [*[1] * 40, 300, *[1] * 40, 300, 300, *[1] * (FEWEST - 1)])
    found = read(path, table)
    assert [batch.num_rows for batch in found] == [40, 300, 40, 300, 300, *[1] * (FEWEST - 1)]
    assert said(found) == said(by_arrow(path))


@pytest.mark.parametrize("table", TABLES)
def test_rows_before_a_truncation_are_read(tmp_path: Path, table: str) -> None:
    path = written(tmp_path, table, [1] * 30)
    content, whole = path.read_bytes(), by_arrow(path)
    with pa.memory_map(str(path)) as file:
        pa.ipc.read_message(file)
        ends = [file.tell()]
        for _ in whole:
            pa.ipc.read_message(file)
            ends.append(file.tell())
    for size in range(ends[0], len(content), 97):
        path.write_bytes(content[:size])
        found = read(path, table)
        complete = sum(end <= size for end in ends[1:])
        assert sum(batch.num_rows for batch in found) == complete
        if complete:
            assert said(found) == said(whole[:complete])


@pytest.mark.parametrize("table", TABLES)
def test_damaged_bytes_give_valid_batches_or_none(tmp_path: Path, table: str) -> None:
    path = written(tmp_path, table, [1] * 30)
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    with pa.memory_map(str(path)) as file:
        schema = pa.ipc.read_schema(pa.ipc.read_message(file))
        begin = file.tell()
    seen = set()
    for at in rng.integers(begin, len(content), 400).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        run = read_run(pa.py_buffer(bytes(damaged)), begin, schema)
        seen.add(run is None)
        if run is not None:
            batch, end = run
            batch.validate(full=True)
            assert batch.num_rows <= 30
            assert begin < end <= len(content)
            batch.to_pylist()
    assert seen == {True, False}


def test_nulls_and_other_types_are_left_to_arrow(tmp_path: Path) -> None:
    for kind, values in ((pa.int64(), [1, None]), (pa.bool_(), [True, False]), (pa.string(), ["a", None])):
        schema = pa.schema([("x", kind)])
        path = tmp_path / "stream"
        with pa.ipc.new_stream(path, schema) as stream:
            for _ in range(40):
                stream.write_batch(pa.record_batch([pa.array(values, kind)], schema=schema))
        data = pa.py_buffer(path.read_bytes())
        reader = pa.BufferReader(data)
        pa.ipc.read_message(reader)
        assert read_run(data, reader.tell(), schema) is None
