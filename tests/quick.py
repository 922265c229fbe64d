"""Parameters of a test for `make test`; the others are in the slow set, which `.ci/run` adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], among: Callable[[Any], bool]) -> list[Any]:
    """Parameters; those for which `among` is false are marked slow."""
    return [one if among(one) else pytest.param(one, marks=pytest.mark.slow) for one in values]
