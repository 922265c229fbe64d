"""Reads many small batches of an Arrow IPC stream at once.

Arrow needs 20 to 50 us for each batch, and a broker with few decisions writes each of them as a batch of its
own. Successive messages of one writer differ only in numbers: lengths and positions of buffers. This module
compares all other bytes of their metadata with the bytes of the first message, and then copies the values of
all messages together. Everything else is left to Arrow.

The format of messages is in "Arrow Columnar Format" (Encapsulated message format) and in Arrow's Message.fbs.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FEWEST: Final = 16
"""Shorter runs of messages are left to Arrow."""
MOST_BODY: Final = 1 << 16
"""Maximum size of a message's body in a run, bytes."""
SHORT: Final = 64
"""Mean size up to which the values of a message are copied by index, bytes."""
_HEAD: Final = struct.Struct("<Ii")
_LONG: Final = struct.Struct("<q")
_CONTINUES: Final = 0xFFFF_FFFF
_RECORD_BATCH: Final = 3
Ints = NDArray[np.int64]


class _UnexpectedError(Exception):
    """The messages are not what this module reads."""


class _Layout(NamedTuple):
    """Positions in the metadata of a message: of the body's length, the number of rows, nodes and buffers."""

    body: int
    rows: int
    nodes: int
    num_nodes: int
    buffers: int
    num_buffers: int


def read_run(data: Any, at: int, schema: Any) -> tuple[Any, int] | None:
    """Return one batch with the rows of successive messages, and the position after the last message.

    Return None if fewer than `FEWEST` messages are alike, are uncompressed and have no nulls. The batch is
    validated.

    Args:
        data: `pyarrow.Buffer` with the stream.
        at: Position of the first message, bytes.
        schema: Schema of the stream.
    """
    import pyarrow as pa

    try:
        run = _Run(memoryview(data), at)
        batch = pa.RecordBatch.from_arrays([run.array(one.type) for one in schema], schema=schema)
        batch.validate(full=True)
    except (_UnexpectedError, struct.error, IndexError, pa.ArrowException):
        return None
    return batch, run.end


class _Run:
    """A run of messages that are alike."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._view, self._bytes = view, np.frombuffer(view, np.uint8)
        marker, self._size = _HEAD.unpack_from(view, at)
        if marker != _CONTINUES or not 0 < self._size <= len(view) - at:
            raise _UnexpectedError
        self._layout = layout = _layout(view[at + 8 : at + 8 + self._size])
        starts, self.end = self._walk(at)
        if len(starts) < FEWEST:
            raise _UnexpectedError
        heads = b"".join([view[one + 8 : one + 8 + self._size] for one in starts.tolist()])
        metadata = np.frombuffer(heads, np.uint8).reshape(len(starts), self._size)
        alike = self._alike(metadata)
        if alike < len(starts):
            starts, metadata, self.end = starts[:alike], metadata[:alike], int(starts[alike])
            if alike < FEWEST:
                raise _UnexpectedError
        self._body = starts + 8 + self._size
        self._room = _longs(metadata, layout.body, 1)[:, 0]
        self._rows = _longs(metadata, layout.rows, 1)[:, 0]
        self._nodes = _longs(metadata, layout.nodes, 2 * layout.num_nodes)
        self._buffers = _longs(metadata, layout.buffers, 2 * layout.num_buffers)
        self._next_node = self._next_buffer = 0

    def _walk(self, at: int) -> tuple[Ints, int]:
        """Return the positions of the messages with metadata of the same size, and the end of the last."""
        view, starts = self._view, list[int]()
        body_at = 8 + self._layout.body
        while at + 8 + self._size <= len(view):
            if _HEAD.unpack_from(view, at) != (_CONTINUES, self._size):
                break
            body = _LONG.unpack_from(view, at + body_at)[0]
            end = at + 8 + self._size + body
            if not 0 < body <= MOST_BODY or end > len(view):
                break
            starts.append(at)
            at = end
        return np.array(starts, np.int64), at

    def _alike(self, metadata: NDArray[np.uint8]) -> int:
        """Return the number of messages up to the first whose metadata differ in more than numbers."""
        layout, fixed = self._layout, np.ones(self._size, np.bool_)
        for begin, count in ((layout.body, 1), (layout.rows, 1), (layout.nodes, 2 * layout.num_nodes)):
            fixed[begin : begin + 8 * count] = False
        fixed[layout.buffers : layout.buffers + 16 * layout.num_buffers] = False
        other = np.flatnonzero(np.any(metadata[:, fixed] != metadata[0, fixed], axis=1))
        return int(other[0]) if len(other) else len(metadata)

    def array(self, kind: Any) -> Any:
        """Return the next column, of type `kind`, with the rows of all messages."""
        return self._array(kind, self._rows)

    def _array(self, kind: Any, expected: Ints | None) -> Any:
        import pyarrow as pa

        rows = self._node(expected)
        self._buffer()  # of nulls
        total = int(rows.sum())
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            ends, first, last = self._offsets(rows)
            begin, length = self._buffer()
            if np.any(first > last) or np.any(last > length):
                raise _UnexpectedError
            content = self._content(begin + first, last - first)
            return pa.Array.from_buffers(kind, total, [None, _buffer(ends), content], 0)
        if pa.types.is_list(kind):
            ends, first, last = self._offsets(rows)
            if np.any(first != 0):
                raise _UnexpectedError
            items = self._array(kind.value_type, last)
            return pa.Array.from_buffers(kind, total, [None, _buffer(ends)], 0, children=[items])
        width = kind.bit_width // 8
        if kind.bit_width % 8 or width not in (4, 8):
            raise _UnexpectedError
        values = self._values(rows, np.dtype(f"<i{width}"))
        return pa.Array.from_buffers(kind, total, [None, _buffer(values)], 0)

    def _node(self, expected: Ints | None) -> Ints:
        """Return the number of values of the next array in each message; it must be `expected`."""
        at = 2 * self._next_node
        self._next_node += 1
        if at + 2 > self._nodes.shape[1]:
            raise _UnexpectedError
        rows, nulls = self._nodes[:, at], self._nodes[:, at + 1]
        if np.any(nulls) or rows.min() < 0 or rows.max() > MOST_BODY or np.any(rows != expected):
            raise _UnexpectedError
        return rows

    def _buffer(self) -> tuple[Ints, Ints]:
        """Return position in the stream and length, bytes, of the next buffer in each message."""
        at = 2 * self._next_buffer
        self._next_buffer += 1
        if at + 2 > self._buffers.shape[1]:
            raise _UnexpectedError
        begin, length = self._buffers[:, at], self._buffers[:, at + 1]
        if begin.min() < 0 or length.min() < 0 or max(begin.max(), length.max()) > MOST_BODY:
            raise _UnexpectedError
        if np.any(begin + length > self._room):
            raise _UnexpectedError
        return self._body + begin, length

    def _values(self, counts: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the first `counts` values of the next buffer in each message, one after the other."""
        begin, length = self._buffer()
        size = dtype.itemsize
        if np.any(counts * size > length) or np.any(begin % size):
            raise _UnexpectedError
        return _ranges(self._bytes[: len(self._bytes) // size * size].view(dtype), begin // size, counts)

    def _content(self, begin: Ints, length: Ints) -> Any:
        """Return a `pyarrow.Buffer` with ranges of the stream, one after the other."""
        import pyarrow as pa

        if length.sum() <= SHORT * len(length):
            return _buffer(_ranges(self._bytes, begin, length))
        pieces = zip(begin.tolist(), (begin + length).tolist(), strict=True)
        return pa.py_buffer(b"".join([self._view[one:end] for one, end in pieces]))

    def _offsets(self, rows: Ints) -> tuple[NDArray[np.int32], Ints, Ints]:
        """Return offsets of variable-length values: of all messages, and the first and the last of each."""
        counts = np.where(rows > 0, rows + 1, 0)
        offsets = self._values(counts, np.dtype("<i4")).astype(np.int64)
        ends = np.cumsum(counts)
        first, last = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        there = np.flatnonzero(rows > 0)
        first[there], last[there] = offsets[ends[there] - counts[there]], offsets[ends[there] - 1]
        within = np.ones(max(0, len(offsets) - 1), np.bool_)
        within[ends[there][:-1] - 1] = False
        lengths = np.diff(offsets)[within]
        if np.any(lengths < 0) or np.any(first < 0) or lengths.sum() > np.iinfo(np.int32).max:
            raise _UnexpectedError
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), first, last


def _layout(metadata: memoryview) -> _Layout:
    """Return the layout of the metadata of a record batch, a FlatBuffers table."""

    def fields(table: int, count: int) -> list[int]:
        """Return the positions of a table's fields; 0: absent."""
        entries = table - struct.unpack_from("<i", metadata, table)[0]
        known = (struct.unpack_from("<H", metadata, entries)[0] - 4) // 2
        found = [struct.unpack_from("<H", metadata, entries + 4 + 2 * k)[0] for k in range(min(count, known))]
        return [table + one if one else 0 for one in found] + [0] * (count - len(found))

    def target(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    _, kind, header, body = fields(target(0), 4)
    if not (kind and header and body) or metadata[kind] != _RECORD_BATCH:
        raise _UnexpectedError
    rows, nodes, buffers, compression, variadic = fields(target(header), 5)
    if not (rows and nodes and buffers) or compression or variadic:
        raise _UnexpectedError
    nodes, buffers = target(nodes), target(buffers)
    num_nodes, num_buffers = (struct.unpack_from("<I", metadata, one)[0] for one in (nodes, buffers))
    ends = nodes + 4 + 16 * num_nodes, buffers + 4 + 16 * num_buffers, body + 8, rows + 8
    if max(ends) > len(metadata) or not num_nodes:
        raise _UnexpectedError
    return _Layout(body, rows, nodes + 4, num_nodes, buffers + 4, num_buffers)


def _longs(metadata: NDArray[np.uint8], at: int, count: int) -> Ints:
    """Return (messages, count) numbers of eight bytes at a position of the metadata."""
    return np.ascontiguousarray(metadata[:, at : at + 8 * count]).view("<i8").astype(np.int64)


def _ranges(values: NDArray[Any], begin: Ints, counts: Ints) -> NDArray[Any]:
    """Return `counts` values from each position in `begin`, one after the other."""
    index = np.repeat(begin - (np.cumsum(counts) - counts), counts)
    found: NDArray[Any] = values[index + np.arange(len(index))]
    return found


def _buffer(values: NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(values))
