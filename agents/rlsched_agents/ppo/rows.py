"""Layers for packed rows, faster than torch's on CPUs: a matrix product with few columns, and pooling."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlsched.compile.jit import kernel

ROWS_STEP: Final = 64
"""Packed rows are padded to a multiple of this number, or of a larger power of two (`network.pack`)."""
IMAGES: Final = 128
"""Number of images that `RowLinear` splits rows into; padding ensures it for `_FEW` rows or more."""
_FEW: Final = 2048
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 1 << 30


class RowLinear(nn.Linear):
    """A linear layer for rows: equal to `nn.Linear` up to rounding, two to three times as fast.

    torch multiplies matrices with MKL, which uses the widest instructions only on Intel processors.
    Convolutions use oneDNN, which detects the instructions. This layer therefore treats the rows as the
    pixels of `IMAGES` images, and multiplies by a convolution of size 1. If the number of rows is small or
    not a multiple of `IMAGES`, or for float64, the standard layer is used.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return (R, out_features) from (R, in_features)."""
        count = input.shape[0]
        if input.dtype != torch.float32 or count < _FEW or count % IMAGES:
            return super().forward(input)
        images = input.reshape(IMAGES, 1, count // IMAGES, self.in_features).permute(0, 3, 1, 2)
        found = nn.functional.conv2d(images, self.weight[:, :, None, None], self.bias)
        return found.permute(0, 2, 3, 1).reshape(count, self.out_features)


@kernel
def _pool_rows(rows: NDArray[Any], first: NDArray[np.int64], pooled: NDArray[Any]) -> None:
    width = rows.shape[1]
    for b in range(pooled.shape[0]):
        mean, most = pooled[b, :width], pooled[b, width:]
        mean[:] = 0
        most[:] = 0
        for at in range(first[b], first[b + 1]):
            row = rows[at]
            for column in range(width):
                mean[column] += row[column]
                most[column] = row[column] if row[column] > most[column] else most[column]
        count = rows.dtype.type(max(first[b + 1] - first[b], 1))
        for column in range(width):
            mean[column] /= count


@kernel
def _pool_back(
    rows: NDArray[Any],
    first: NDArray[np.int64],
    pooled: NDArray[Any],
    given: NDArray[Any],
    into: NDArray[Any],
) -> None:
    """Compute the gradient of the (S, W) rows from `given`, (B, 2 W); overwrites `given` and `pooled`."""
    width, one, none = rows.shape[1], rows.dtype.type(1), rows.dtype.type(0)
    for b in range(pooled.shape[0]):
        mean, share, ties, most = given[b, :width], given[b, width:], pooled[b, :width], pooled[b, width:]
        count = rows.dtype.type(max(first[b + 1] - first[b], 1))
        ties[:] = 0
        for at in range(first[b], first[b + 1]):
            row = rows[at]
            for column in range(width):
                ties[column] += one if row[column] == most[column] else none
        for column in range(width):
            mean[column] /= count
            share[column] /= max(ties[column], one)
        for at in range(first[b], first[b + 1]):
            row, out = rows[at], into[at]
            for column in range(width):
                out[column] = mean[column] + (share[column] if row[column] == most[column] else none)
    into[first[pooled.shape[0]] :] = 0


class _Pool(torch.autograd.Function):
    """`pool` with a gradient; rows that all have the maximum share its gradient evenly, as in torch."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, first: Tensor) -> Tensor:
        pooled = rows.new_empty(first.numel() - 1, 2 * rows.shape[1])
        _pool_rows(rows.detach().numpy(), first.numpy(), pooled.numpy())
        ctx.save_for_backward(rows, first, pooled)
        return pooled

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        rows, first, pooled = ctx.saved_tensors
        into = torch.empty_like(rows)
        scratch = pooled.numpy().copy(), given[0].numpy().copy()
        _pool_back(rows.numpy(), first.numpy(), *scratch, into.numpy())
        return into, None


def pool(rows: Tensor, first: Tensor) -> Tensor:
    """Return the (B, 2 W) mean and maximum of (S, W) row encodings, each 0 or more, by observation.

    `first`: (B + 1,) observation b has the rows `first[b]` to `first[b + 1]`; rows outside do not count.
    """
    pooled: Tensor = _Pool.apply(rows, first)  # type: ignore[no-untyped-call]
    return pooled


def keep_freed_memory() -> None:
    """Make this process keep the memory that it frees, up to 1 GiB, if the C library supports it.

    Each minibatch allocates and frees arrays of megabytes. glibc returns these arrays to the system, which
    clears their pages on the next use: a third of the time of an update. Older glibc versions reject a
    threshold above 32 MiB, so they get 32 MiB.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None and any(set_option(_MMAP_THRESHOLD, size) for size in (_KEPT_BYTES, 32 << 20)):
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
