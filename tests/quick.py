"""Parameters of a test for `make test`; the others are in a longer set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(
    values: Iterable[Any], among: Callable[[Any], bool], *, rest: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """Parameters; those for which `among` is false get the mark `rest`: `slow` or `soak`."""
    return [one if among(one) else pytest.param(one, marks=rest) for one in values]
