"""The quick reader of plain CSV equals the `csv` module, or leaves the file to it."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.errors import TraceError
from rlsched.workload import table_files
from rlsched.workload.table_files import split_plain
from rlsched.workload.validate import TraceColumn, Where, _as_floats

ANY_FILE = st.text(st.sampled_from('ab1,.\n"\r\0é\u2028 '), max_size=60)
CELL = st.text(st.sampled_from("ab19.é王 \t'"), min_size=1, max_size=5)
PLAIN_FILE = st.integers(1, 4).flatmap(
    lambda wide: st.lists(st.lists(CELL, min_size=wide, max_size=wide), min_size=1, max_size=20).map(
        lambda lines: "\n".join(",".join(cells) for cells in lines)
    )
)
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(min_value=0, max_value=10**9, places=3).map(str),
    st.integers(0, 10**18).map(str),
    st.sampled_from(["", "0", "00", ".5", "5.", "1e3", "+2", "-0", "123456789012345.6", "0." + "1" * 30]),
)


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> object:
    """Steps of a few bytes, so that every kind of cell crosses the end of a step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "_SPLIT_BYTES", 7)
        patch.setattr(table_files, "_DECODE_BYTES", 64)
        yield


@settings(max_examples=150, deadline=None)
@given(st.one_of(ANY_FILE, PLAIN_FILE), st.sampled_from(["", "\n"]), st.sampled_from(["", "\ufeff"]))
def test_quick_reader_equals_the_csv_module(text: str, end: str, mark: str) -> None:
    table = split_plain((mark + text + end).encode())
    if table is None:
        return
    header, *records = csv.reader(io.StringIO(text + end, newline=""), strict=True)
    assert table.header == header
    assert table.rows == len(records)
    for at, cells in enumerate(table.columns):
        expected = [record[at] for record in records]
        assert [cells[row] for row in range(len(cells))] == expected
        assert list(cells) == expected
        assert cells.texts().dtype == np.array(expected, dtype=np.str_).dtype


@settings(max_examples=200, deadline=None)
@given(PLAIN_FILE)
def test_plain_files_are_read_by_the_quick_reader(text: str) -> None:
    assert split_plain(text.encode()) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_numbers_equal_float_to_the_last_bit(texts: list[str]) -> None:
    table = split_plain(("x,y\n" + "\n".join(f"{text},0" for text in texts)).encode())
    assert table is not None
    found = table.columns[0].numbers()
    assert found is not None
    expected = np.array([float(text) if text else np.nan for text in texts])
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("0123456789.+-eE_ naif\t"), max_size=6), min_size=1, max_size=6))
def test_other_numbers_are_left_to_the_column_parser(texts: list[str]) -> None:
    """They are numbers there, or are refused with their row, as if the cells were strings."""
    table = split_plain(("x,y\n" + "\n".join(f"{text},0" for text in texts)).encode())
    assert table is not None
    column, outcomes = TraceColumn("queue_s", None, "seconds"), []
    for cells in (table.columns[0], tuple(texts)):
        try:
            values, blank = _as_floats(column, cells, Where("t"), "seconds")
            outcomes.append((values.tobytes(), blank.tolist()))
        except TraceError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
