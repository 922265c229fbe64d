"""What a compiled kernel may and may not do."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from rlsched.jit import array_kernel, kernel


@array_kernel
def doubled_sum(values: np.ndarray) -> float:
    copy = np.empty(values.shape[0])
    for k in range(values.shape[0]):
        copy[k] = 2.0 * values[k]
    return copy.sum()


@kernel
def through_another(values: np.ndarray) -> float:
    return doubled_sum(values[1:])


@kernel
def allocates(count: int) -> float:
    return np.zeros(count).sum()


def test_a_kernel_calls_one_that_allocates() -> None:
    assert through_another(np.arange(4.0)) == 12.0


def test_a_kernel_that_allocates_is_refused() -> None:
    with pytest.raises(TypingError):
        allocates(3)
