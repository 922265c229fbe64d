"""The GPUs of many jobs: two arrays that read like a list of tuples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import overload

import numpy as np
from numpy.typing import NDArray


class Placements(Sequence[tuple[int, ...]]):
    """Global GPU numbers of J jobs, in the order of allocation; a tuple is made when it is asked for.

    Attributes:
        at: (J + 1,) where each job's GPUs begin in `gpu`.
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
        """Those of some jobs, in their order; what they have is shared where they are all of them."""
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
        """Of jobs whose GPUs stand in a list."""
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
        """Of J `jobs`, from those of some `rows` (T,) of them, ascending; rows not `kept` (T,) have none.

        `at` (T + 1,) and `gpu` are of all the rows.
        """
        counts = np.diff(at)
        all_counts = np.zeros(jobs, np.int64)
        all_counts[rows] = np.where(kept, counts, 0)
        used = gpu.copy() if kept.all() else gpu[np.repeat(kept, counts)]
        return cls(np.append(0, np.cumsum(all_counts)), used)
