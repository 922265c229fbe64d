"""The GPUs of many jobs: two arrays with the interface of a list of tuples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Placements(Sequence[tuple[int, ...]]):
    """Global GPU numbers of J jobs, in the order of allocation; tuples are made on access.

    Attributes:
        at: (J + 1,) start of each job's GPUs in `gpu`.
        gpu: GPU numbers, one job after the other.
    """

    def __init__(self, at: NDArray[np.int64], gpu: NDArray[np.int32]) -> None:
        self.at, self.gpu = at, gpu

    def __len__(self) -> int:
        return len(self.at) - 1

    @overload
    def __getitem__(self, which: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, which: slice) -> Placements: ...
    def __getitem__(self, which: int | slice) -> tuple[int, ...] | Placements:
        if isinstance(which, slice):
            return self.take(np.arange(len(self))[which])
        k = range(len(self))[which]
        return tuple(self.gpu[self.at[k] : self.at[k + 1]].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def take(self, jobs: NDArray[np.intp]) -> Placements:
        """Placements of some jobs, in their order; shares the data if all jobs are selected."""
        if np.array_equal(jobs, np.arange(len(self))):
            return self
        counts = np.diff(self.at)
        at = np.append(0, np.cumsum(counts[jobs], dtype=np.int64))
        if (jobs[1:] > jobs[:-1]).all():
            kept = np.zeros(len(self), dtype=np.bool_)
            kept[jobs] = True
            return Placements(at, self.gpu[np.repeat(kept, counts)])
        shift = np.repeat(self.at[:-1][jobs] - at[:-1], counts[jobs])
        return Placements(at, self.gpu[np.arange(at[-1]) + shift])

    @classmethod
    def of_tuples(cls, gpus: Sequence[tuple[int, ...]]) -> Placements:
        """Placements from a list of GPU tuples."""
        at = np.append(0, np.cumsum([len(one) for one in gpus], dtype=np.int64))
        return cls(at, np.fromiter(chain.from_iterable(gpus), np.int32))

    @classmethod
    def of_rows(
        cls,
        jobs: int,
        rows: NDArray[np.intp],
        kept: NDArray[np.bool_],
        at: NDArray[np.int64],
        gpu: NDArray[np.int32],
    ) -> Placements:
        """Placements of J `jobs`, from some of their `rows` (T,), ascending; rows not `kept` (T,) have none.

        `at` (T + 1,) and `gpu` cover all rows.
        """
        counts = np.diff(at)
        all_counts = np.zeros(jobs, np.int64)
        all_counts[rows] = np.where(kept, counts, 0)
        used = gpu.copy() if kept.all() else gpu[np.repeat(kept, counts)]
        return cls(np.append(0, np.cumsum(all_counts)), used)
