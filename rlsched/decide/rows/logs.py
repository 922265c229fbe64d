"""Vectorised logarithms, compiled to compute eight at a time; equal to `math.log1p` to the last bit."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsched.compile.jit import kernel
from rlsched.compile.reference import by_reference

_LN2_HIGH: Final = 6.93147180369123816490e-01
_LN2_LOW: Final = 1.90821492927058770002e-10
_SQRT2: Final = 1.4142135623730951
_ONE_BITS: Final = 1 << 52
_DOUBT: Final = 1e-15
"""Bound of the error of this logarithm plus that of `math.log1p`, relative to the result. Each logarithm errs
by less than one unit in the last place (2.2e-16); the sum 1 + x and the division add half a unit each."""


@by_reference
class LogArrays(NamedTuple):
    """Scratch for n numbers."""

    x: NDArray[np.float64]  # (n,) arguments x of ln(1 + x), 0 or more
    y: NDArray[np.float64]  # (n,) 1 + x
    y_bits: NDArray[np.int64]  # (n,) the same memory
    out: NDArray[np.float32]  # (n,) ln(1 + x) / scale


def log_arrays(count: int) -> LogArrays:
    """Return scratch for `count` numbers."""
    y = np.ones(count)
    return LogArrays(np.zeros(count), y, y.view(np.int64), np.zeros(count, np.float32))


@kernel
def scaled_log1p(a: LogArrays, first: int, last: int, scale: float) -> None:
    """Fill out = float32(math.log1p(x) / scale) for the entries from `first` up to `last`, to the last bit.

    Computes ln(y) as fdlibm's e_log.c (Sun Microsystems, 1993), without branches. If an error of `_DOUBT`
    would change the rounding to float32, or if the result is below 1, where 1 + x loses too much of x, all
    entries are computed again with log1p.
    """
    for k in range(first, last):
        a.y[k] = 1.0 + a.x[k]
    doubts = 0
    for k in range(first, last):
        exponent = (a.y_bits[k] >> 52) - 1023
        mantissa = 1.0 + (a.y_bits[k] & (_ONE_BITS - 1)) * (1.0 / _ONE_BITS)
        high = mantissa > _SQRT2
        f = (0.5 * mantissa if high else mantissa) - 1.0
        e = exponent + (1.0 if high else 0.0)
        s = f / (2.0 + f)
        z = s * s
        w = z * z
        even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
        odd = z * (
            6.666666666666735130e-01
            + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
        )
        half = 0.5 * f * f
        value = (e * _LN2_HIGH - ((half - (s * (half + even + odd) + e * _LN2_LOW)) - f)) / scale
        a.out[k] = value
        sure = np.float32(value * (1.0 - _DOUBT)) == np.float32(value * (1.0 + _DOUBT))
        doubts += 0 if sure and (a.x[k] >= 1.0 or a.x[k] == 0.0) else 1
    if doubts > 0:
        for k in range(first, last):
            a.out[k] = math.log1p(a.x[k]) / scale
