"""The rules of a trace, checked one column at a time; errors name the first invalid value with its row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlsched.errors import TraceError
from rlsched.workload.cells import Where, entries
from rlsched.workload.columns import EXPECTED, KNOWN, PASS_THROUGH, TraceColumn, column_of, known_names
from rlsched.workload.distinct import surely_differ
from rlsched.workload.plain_csv import PlainCells
from rlsched.workload.validate_relations import check_relations

MAX_TEXT = 1000
"""Most characters in one cell; numpy pads every cell of a column to the longest."""

_TEXT = f"text of at most {MAX_TEXT} characters without NUL"
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_PLAIN = frozenset("0123456789.+-eE")
_FLAGS = {"": "", "true": "true", "1": "true", "false": "false", "0": "false"}

Cells = Sequence[Any] | NDArray[Any]


def check_header(names: Sequence[str], source: str) -> None:
    """Reject a header with an unknown, a repeated or a missing column.

    Raises:
        TraceError: names the column, and the known columns.
    """
    seen: set[str] = set()
    for name in names:
        if column_of(name) is None:
            raise TraceError(
                f"{source}: unknown column {name!r}; known: {known_names()} "
                f"(rename it to {PASS_THROUGH}... to carry it along)"
            )
        if name in seen:
            raise TraceError(f"{source}: column {name!r} occurs twice in the header; keep one of them")
        seen.add(name)
    missing = [column.name for column in KNOWN.values() if column.required and column.name not in seen]
    if missing:
        raise TraceError(
            f"{source}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"got {', '.join(names) or 'no columns'}"
        )


def check_columns(cells: Mapping[str, Cells], where: Where) -> dict[str, NDArray[Any]]:
    """Convert raw cells into typed arrays.

    Args:
        cells: By header: text as read from a CSV file, or typed values (None or nan: unknown).
        where: Place of the cells, for messages.

    Returns:
        By header: float64 (nan if unknown) or `str_` ("" if unknown).

    Raises:
        TraceError: names file, row, column, value expected and value found.
    """
    check_header(list(cells), where.source)
    lengths = {name: len(column) for name, column in cells.items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"{where.source}: columns differ in length: {lengths}")
    columns = {name: _typed(_known(name), values, where) for name, values in cells.items()}
    _check_unique(columns["job_id"], where)
    check_relations(columns, where)
    return columns


def _known(name: str) -> TraceColumn:
    column = column_of(name)
    assert column is not None  # check_header has rejected all others
    return column


def _typed(column: TraceColumn, values: Cells, where: Where) -> NDArray[Any]:
    if column.kind == "text":
        return _text(column, values, where)
    if column.kind == "flag":
        return _flags(column, values, where)
    if column.kind == "times":
        return _times(column, values, where)
    if column.kind == "instant":
        return _instant(column, values, where)
    return _numbers(column, values, where)


def _text(column: TraceColumn, values: Cells, where: Where) -> NDArray[np.str_]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "U":
        array = values
    elif isinstance(values, PlainCells):
        array = values.texts()
    else:
        texts = ["" if value is None else str(value) for value in values]
        for position, text in enumerate(texts):
            if len(text) > MAX_TEXT or "\0" in text:
                where.refuse(position, column.name, _TEXT, text)
        array = np.array(texts, dtype=np.str_)
    if column.required and (array == "").any():
        where.refuse(int(np.argmax(array == "")), column.name, "a value that is not blank", "")
    return array


def _flags(column: TraceColumn, values: Cells, where: Where) -> NDArray[np.str_]:
    texts = ["" if value is None else str(value).strip().lower() for value in values]
    for position, text in enumerate(texts):
        if text not in _FLAGS:
            where.refuse(position, column.name, EXPECTED[column.kind], values[position])
    return np.array([_FLAGS[text] for text in texts], dtype=np.str_)


def _times(column: TraceColumn, values: Cells, where: Where) -> NDArray[np.str_]:
    array = _text(column, values, where)
    for position in np.flatnonzero(array != "").tolist():
        for entry in entries(str(array[position])):
            if not _NUMBER.fullmatch(entry) or not 0 <= float(entry) < np.inf:
                where.refuse(position, column.name, EXPECTED[column.kind] + ", or blank", array[position])
    return array


def _instant(column: TraceColumn, values: Cells, where: Where) -> NDArray[np.str_]:
    array = _text(column, values, where)
    known = np.flatnonzero(array != "")
    if not len(known):
        return array
    other = known[array[known] != array[known[0]]]
    wrong = int(other[0]) if len(other) else None
    try:
        datetime.fromisoformat(str(array[known[0]]))
    except ValueError:
        wrong = int(known[0])
    if wrong is not None:
        where.refuse(wrong, column.name, EXPECTED[column.kind] + ", or blank", array[wrong])
    return array


def _numbers(column: TraceColumn, values: Cells, where: Where) -> NDArray[np.float64]:
    expected = EXPECTED[column.kind] + ("" if column.required else ", or blank")
    array, blank = _as_floats(column, values, where, expected)
    bad = ~blank & ~(np.isfinite(array) & (array >= 0))
    if column.kind == "gpus":
        bad |= (array > 1) & (array != np.floor(array))
    if column.required:
        bad |= blank
    if bad.any():
        position = int(np.argmax(bad))
        where.refuse(position, column.name, expected, "" if blank[position] else values[position])
    return array


def _as_floats(
    column: TraceColumn, values: Cells, where: Where, expected: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """float64 with nan if blank, and the mask of the blanks; a written-out nan is not a blank."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        array = values.astype(np.float64)
        blank = np.isnan(array) if not column.required else np.zeros(len(array), dtype=np.bool_)
        return array, blank
    quick = _plain_numbers(values)
    if quick is not None:
        return quick, np.isnan(quick)
    array = np.full(len(values), np.nan)
    blank = np.zeros(len(values), dtype=np.bool_)
    for position, value in enumerate(values):
        if value is None or value == "":
            blank[position] = True
            continue
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            where.refuse(position, column.name, expected, value)
        try:
            array[position] = float(value)
        except (TypeError, ValueError):
            where.refuse(position, column.name, expected, value)
        if array[position] != array[position] and not column.required and not isinstance(value, str):
            blank[position] = True
    return array, blank


def _plain_numbers(values: Cells) -> NDArray[np.float64] | None:
    """Floats of cells that are all plainly written numbers or blank; None: parse them one by one."""
    if isinstance(values, PlainCells):
        return values.numbers()
    try:
        if _PLAIN.issuperset("".join(values)):
            return np.array([float(value) if value else np.nan for value in values], dtype=np.float64)
    except (TypeError, ValueError):
        pass
    return None


def _check_unique(job_id: NDArray[np.str_], where: Where) -> None:
    if surely_differ(job_id) or len(set(job_id.tolist())) == len(job_id):
        return
    _, first, back = np.unique(job_id, return_index=True, return_inverse=True)
    position = int(np.argmax(first[back] != np.arange(len(job_id))))
    earlier = where.row(int(first[back[position]]))
    where.refuse(position, "job_id", f"an id of its own (row {earlier} has it already)", job_id[position])
