"""Nothing that is decided has changed: tables, steps, records and a journal have the hashes that are kept.

`python -m tests.golden.explain CASE` says what differs where one has not.
"""

from __future__ import annotations

import pytest

from tests.golden.cases import cases, digest
from tests.golden.hashes import kept, same_mathematics
from tests.quick import quick

CASES = cases()
QUICK = ("table/helios/plain/", "records/mixed/plain/", "journal/")
"""Where the cases of `make test` begin: one trace, nothing but the rules. The slow set has all others."""
SLOW = ("rollout", "clairvoyant", "-moving")
"""Where the cases end that compile what no other quick test needs."""


def test_every_case_has_a_hash_and_every_hash_a_case() -> None:
    assert CASES.keys() == kept().keys()


@pytest.mark.parametrize(
    "name", quick(CASES, lambda name: name.startswith(QUICK) and not name.endswith(SLOW))
)
def test_nothing_has_changed(name: str) -> None:
    if not same_mathematics():
        pytest.skip("golden: this machine's logarithms round otherwise than where the hashes were made")
    assert digest(CASES[name]()) == kept()[name], f"python -m tests.golden.explain {name}"
