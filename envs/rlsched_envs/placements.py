"""The GPUs of many jobs: two arrays that read like a list of tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Placements(Sequence[tuple[int, ...]]):
    """Global GPU numbers of J jobs, in the order of allocation; a tuple is made when it is asked for.

    Args:
        at: (J + 1,) where each job's GPUs begin in `gpu`.
        gpu: GPU numbers, one job after the other.
    """

    def __init__(self, at: NDArray[np.int64], gpu: NDArray[np.int32]) -> None:
        self._at, self._gpu = at, gpu

    def __len__(self) -> int:
        return len(self._at) - 1

    @overload
    def __getitem__(self, which: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, which: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, which: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(which, slice):
            return [self[k] for k in range(*which.indices(len(self)))]
        k = range(len(self))[which]
        return tuple(self._gpu[self._at[k] : self._at[k + 1]].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of_rows(
        cls,
        jobs: int,
        rows: NDArray[np.intp],
        kept: NDArray[np.bool_],
        at: NDArray[np.int64],
        gpu: NDArray[np.int32],
    ) -> Placements:
        """Of J `jobs`, from those of some `rows` (T,) of them, ascending; rows not `kept` (T,) have none.

        `at` (T + 1,) and `gpu` are of all the rows.
        """
        counts = np.diff(at)
        all_counts = np.zeros(jobs, np.int64)
        all_counts[rows] = np.where(kept, counts, 0)
        used = gpu.copy() if kept.all() else gpu[np.repeat(kept, counts)]
        return cls(np.append(0, np.cumsum(all_counts)), used)
