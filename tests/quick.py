"""Parameters of a test for `make test`; the others are in a longer set."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def quick(
    values: Iterable[Any],
    among: Callable[[Any], bool],
    *,
    rest: pytest.MarkDecorator = pytest.mark.slow,
    soak: Container[Any] = (),
) -> list[Any]:
    """Parameters of a test.

    Args:
        values: The parameters.
        among: Returns whether `make test` runs a parameter.
        rest: Mark of the other parameters: `slow` or `soak`.
        soak: Parameters of which others test nearly the same; these get the mark `soak`.
    """

    def marked(one: Any) -> Any:
        if one in soak:
            return pytest.param(one, marks=pytest.mark.soak)
        return one if among(one) else pytest.param(one, marks=rest)

    return [marked(one) for one in values]
