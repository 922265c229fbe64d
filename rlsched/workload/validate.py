"""Columns of a trace, and checks of their values. An error names the first invalid value and its row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.cluster.demand import named_types
from rlsched.errors import TraceError
from rlsched.models.gpu_types import in_common
from rlsched.workload.cells import SEPARATOR, Where, entries
from rlsched.workload.dependencies import KINDS, SINGLETON, UnknownJobError, parents_of
from rlsched.workload.distinct import surely_differ
from rlsched.workload.table_files import PlainCells

Kind = Literal["text", "seconds", "gpus", "amount", "flag", "times", "instant"]

EXPECTED: dict[str, str] = {
    "text": "text",
    "seconds": "seconds, finite and 0 or more",
    "gpus": "a whole number of GPUs, or a share between 0 and 1",
    "amount": "a finite number, 0 or more",
    "flag": "true or false",
    "times": "seconds, finite and 0 or more, with ';' between",
    "instant": "the same time in every row, such as 2024-03-01T09:00:00+01:00",
}
"""Kind of column -> permitted values of its cells, as text for error messages."""


class TraceColumn(NamedTuple):
    """One column of the normal form.

    Attributes:
        name: Header of the column in a file.
        attribute: Name of the array in `Trace`. None: the column is in `Trace.extra`, except `origin`, a
            single time in `Trace.origin`.
        kind: Kind of the values.
        required: Whether the column must exist and have no blank cells.
    """

    name: str
    attribute: str | None
    kind: Kind
    required: bool = False


BASE: tuple[TraceColumn, ...] = (
    TraceColumn("job_id", "job_id", "text", required=True),
    TraceColumn("user", "user", "text"),
    TraceColumn("vc", "vc", "text"),
    TraceColumn("name", "job_name", "text"),
    TraceColumn("submit_time", "submit_s", "seconds", required=True),
    TraceColumn("duration", "duration_s", "seconds", required=True),
    TraceColumn("num_gpus", "num_gpus", "gpus", required=True),
    TraceColumn("num_cpus", "num_cpus", "amount"),
    TraceColumn("status", "status", "text"),
)
"""The nine columns that are always written."""

OPTIONAL: tuple[TraceColumn, ...] = (
    TraceColumn("gpu_type", "gpu_type", "text"),
    TraceColumn("prefer", None, "text"),
    TraceColumn("gpu_memory_mib", None, "amount"),
    TraceColumn("memory_mib", None, "amount"),
    TraceColumn("workload", None, "text"),
    TraceColumn("queue_s", None, "seconds"),
    TraceColumn("predicted_duration", "predicted_s", "seconds"),
    TraceColumn("predicted_spread", "predicted_spread", "amount"),
    TraceColumn("time_limit", "time_limit_s", "seconds"),
    TraceColumn("slack_s", None, "seconds"),
    TraceColumn("preemptible", None, "flag"),
    TraceColumn("shares", None, "flag"),
    TraceColumn("exclusive", None, "flag"),
    TraceColumn("gpu_need_mib", None, "amount"),
    TraceColumn("core_need", None, "amount"),
    TraceColumn("power_ratio", None, "amount"),
    TraceColumn("checkpoint_s", None, "seconds"),
    TraceColumn("restart_s", None, "seconds"),
    TraceColumn("fail_after_s", None, "times"),
    TraceColumn("depends_on", None, "text"),
    TraceColumn("array_id", None, "text"),
    TraceColumn("array_limit", None, "amount"),
    TraceColumn("origin", None, "instant"),
)
"""Columns that are written only if at least one value is known."""

KNOWN: dict[str, TraceColumn] = {column.name: column for column in BASE + OPTIONAL}
BY_ATTRIBUTE: dict[str, TraceColumn] = {
    column.attribute: column for column in KNOWN.values() if column.attribute
}
PASS_THROUGH = "x_"
"""Prefix of columns that rlsched does not interpret, and writes as they were read."""


def column_of(name: str) -> TraceColumn | None:
    """Return the column with this header; None: rlsched does not know the header."""
    if name.startswith(PASS_THROUGH) and len(name) > len(PASS_THROUGH):
        return TraceColumn(name, None, "text")
    return KNOWN.get(name)


def known_names() -> str:
    """Return all headers as text, for a message."""
    return ", ".join([*KNOWN, PASS_THROUGH + "*"])


MAX_TEXT = 1000
"""Maximum number of characters in a cell. numpy pads all cells to the longest one."""

_TEXT = f"text of at most {MAX_TEXT} characters without NUL"
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_PLAIN = frozenset("0123456789.+-eE")
_FLAGS = {"": "", "true": "true", "1": "true", "false": "false", "0": "false"}

Cells = Sequence[Any] | NDArray[Any]


def check_header(names: Sequence[str], source: str) -> None:
    """Reject a header with an unknown, a repeated or a missing column.

    Raises:
        TraceError: the header is invalid; the message names the column.
    """
    seen: set[str] = set()
    for name in names:
        if column_of(name) is None:
            raise TraceError(
                f"{source}: unknown column {name!r}; known: {known_names()} "
                f"(rename it to {PASS_THROUGH}... to pass it through unchanged)"
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
    """Check raw cells, and convert them to typed arrays.

    Args:
        cells: Header -> cells: texts as in a CSV file, or typed values (None or nan: unknown).
        where: Position of the cells in the file, for messages.

    Returns:
        Header -> array of float64 (nan if unknown) or of `str_` ("" if unknown).

    Raises:
        TraceError: a value is invalid; the message names file, row, column, expected value and found value.
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
    assert column is not None  # check_header has rejected unknown columns
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
    """Return the cells as float64, nan if blank, and a mask of the blank cells; the text `nan` is refused."""
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
    """Return all cells as floats if each is a decimal number or blank; None: parse them one by one."""
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
    where.refuse(position, "job_id", f"a unique id (row {earlier} has the same id)", job_id[position])


def check_relations(columns: Mapping[str, NDArray[Any]], where: Where) -> None:
    """Reject rows and columns that contradict each other.

    Rejected are: dependencies on unknown jobs, cyclic dependencies, job arrays with two different limits,
    array limits without an array, and jobs that accept none of the GPU types that they prefer.

    Raises:
        TraceError: there is a contradiction; the message names file, row, column, expected value and found
            value.
    """
    if "depends_on" in columns:
        _check_dependencies(columns, where)
    if "array_limit" in columns:
        _check_arrays(columns.get("array_id"), columns["array_limit"], where)
    if "prefer" in columns and "gpu_type" in columns:
        _check_preferences(columns["gpu_type"], columns["prefer"], where)


def _check_preferences(accepted: NDArray[np.str_], preferred: NDArray[np.str_], where: Where) -> None:
    rows = np.flatnonzero((preferred != "") & (accepted != "")).tolist()
    pairs = dict.fromkeys(zip(accepted[rows].tolist(), preferred[rows].tolist(), strict=True))
    odd = next((pair for pair in pairs if not in_common(*map(named_types, pair))), None)
    if odd is not None:
        row = next(row for row in rows if (accepted[row], preferred[row]) == odd)
        where.refuse(row, "prefer", f"a type that the column gpu_type accepts, {odd[0]}", odd[1])


def _check_dependencies(columns: Mapping[str, NDArray[Any]], where: Where) -> None:
    cells = columns["depends_on"]
    order = np.argsort(columns["submit_time"], kind="stable")
    names = ("job_id", "depends_on", "user", "name")
    ordered = {name: columns[name][order] for name in names if name in columns}
    try:
        found = parents_of(ordered, strict=True)
    except UnknownJobError as error:
        kinds = ", ".join(f"{kind}:17" for kind in KINDS)
        expected = f"ids of jobs of this trace, as 17, {kinds}, or {SINGLETON}, with {SEPARATOR!r} between"
        where.refuse(int(order[error.row]), "depends_on", expected, error.entry)
    parents = {
        int(order[row]): {int(order[parent.row]) for parent in mine} for row, mine in sorted(found.items())
    }
    children: dict[int, list[int]] = {}
    for row, mine in parents.items():
        if row in mine:
            where.refuse(row, "depends_on", "ids of other jobs than this one", columns["job_id"][row])
        for parent in mine:
            children.setdefault(parent, []).append(row)
    open_parents = {row: len(mine) for row, mine in parents.items()}
    free = [row for row in children if row not in parents]
    while free:
        for row in children.get(free.pop(), ()):
            open_parents[row] -= 1
            if not open_parents[row]:
                free.append(row)
    caught = sorted(row for row in parents if open_parents[row])
    if caught:
        row = _on_circle(caught[0], parents, open_parents)
        where.refuse(row, "depends_on", "no circle of jobs that depend on each other", cells[row])


def _on_circle(row: int, parents: dict[int, set[int]], open_parents: dict[int, int]) -> int:
    """Follow the parents of `row` to a cycle of dependencies. Return the lowest row index in the cycle."""
    seen: dict[int, None] = {}
    while row not in seen:
        seen[row] = None
        row = min(parent for parent in parents[row] if open_parents.get(parent))
    path = list(seen)
    return min(path[path.index(row) :])


def _check_arrays(ids: NDArray[np.str_] | None, limit: NDArray[np.float64], where: Where) -> None:
    limit_of: dict[str, float] = {}
    for row in np.flatnonzero(~np.isnan(limit)).tolist():
        array = "" if ids is None else str(ids[row])
        if not array:
            where.refuse(row, "array_limit", "blank, since the job has no array_id", f"{limit[row]:g}")
        if limit[row] < 1 or limit[row] != int(limit[row]):
            where.refuse(row, "array_limit", "a whole number of tasks, 1 or more", f"{limit[row]:g}")
        if limit_of.setdefault(array, limit[row]) != limit[row]:
            expected = f"the limit of array {array!r} in earlier rows, {limit_of[array]:g}"
            where.refuse(row, "array_limit", expected, f"{limit[row]:g}")
