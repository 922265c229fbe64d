"""Which of a test's parameters run in `make test`; the others run in the slow set, which `.ci/run` adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], among: Callable[[Any], bool]) -> list[Any]:
    """Parameters; those that `among` does not hold of are marked slow."""
    return [one if among(one) else pytest.param(one, marks=pytest.mark.slow) for one in values]
