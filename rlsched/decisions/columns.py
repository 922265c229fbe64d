"""Decodes Arrow columns to Python values, several times as fast as `to_pylist` for large batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np


def values(column: Any) -> list[Any]:
    """Return the values of a `pyarrow.Array`. Equal texts of an array are one object."""
    import pyarrow as pa

    if column.null_count:
        return list(column.to_pylist())
    if pa.types.is_string(column.type):
        words = column.dictionary_encode()
        found = words.dictionary.to_numpy(zero_copy_only=False)[words.indices.to_numpy()]
    elif pa.types.is_list(column.type):
        return _lists(column)
    else:
        found = column.to_numpy(zero_copy_only=False)
    return list(found.tolist())


def _lists(column: Any) -> list[list[Any]]:
    items = values(column.flatten())
    ends = np.cumsum(column.value_lengths().to_numpy()).tolist()
    return [items[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def rows(batch: Any, names: Sequence[str], missing: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a `pyarrow.RecordBatch` as tuples of the named columns.

    `missing` is the value of columns that the batch does not have.
    """
    there = batch.schema.names
    return zip(
        *(values(batch.column(name)) if name in there else repeat(missing, batch.num_rows) for name in names),
        strict=True,
    )


def rows_by_kind(
    batch: Any, names: dict[str, tuple[str, ...]], missing: Any
) -> tuple[list[str], dict[str, Iterator[tuple[Any, ...]]]]:
    """Return the column `kind` of a batch, and the rows of each kind with the columns in `names`.

    `missing` is the value of columns that the batch does not have.
    """
    import pyarrow.compute as pc

    kinds, of_kind = batch.column("kind"), dict[str, Iterator[tuple[Any, ...]]]()
    for kind, wanted in names.items():
        there = batch.select([name for name in wanted if name in batch.schema.names])
        of_kind[kind] = rows(there.filter(pc.equal(kinds, kind)), wanted, missing)
    return values(kinds), of_kind
