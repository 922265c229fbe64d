"""No decision has changed: tables, records and a journal have the kept hashes.

`python -m tests.golden.explain CASE` shows the differences of a case.
"""

from __future__ import annotations

import pytest

from rlsched.decide.policies.policy import Policy
from tests.golden import hashes
from tests.golden.cases import cases, digest, replay, table_content
from tests.golden.hashes import SKIP, cannot_compare, kept, left_out
from tests.quick import quick

CASES = cases()
QUICK = ("table/helios/plain/", "records/mixed/plain/", "journal/")
"""Prefixes of the cases of `make test`: one trace, only rules. The slow set has all others."""
TUNED = ("table/philly/models/tuned", "table/mixed/models/tuned")
"""And the default policy with models, on one GPU type and on several."""


def test_every_case_has_a_hash_and_every_hash_a_case() -> None:
    assert CASES.keys() == kept().keys()


def must_compare() -> None:
    """Fail where this machine cannot make the hashes; skip where the environment requests it."""
    line = cannot_compare()
    if line and left_out():
        pytest.skip(line)
    if line:
        pytest.fail(line, pytrace=False)


def is_quick(name: str) -> bool:
    return name in TUNED or name.startswith(QUICK)


@pytest.mark.parametrize("name", quick(CASES, is_quick))
def test_contents_have_the_kept_hashes(name: str) -> None:
    must_compare()
    assert digest(CASES[name]()) == kept()[name], f"python -m tests.golden.explain {name}"


@pytest.mark.parametrize("where", ["philly", "mixed"])
def test_default_policy_shares_and_sets_clocks_in_its_cases(where: str) -> None:
    """Otherwise its hashes would cover neither."""
    tuned = digest(table_content(replay(where, "models", Policy("tuned"))))
    for setting in ("share", "clock", *(("types",) if where == "mixed" else ())):
        without = replay(where, "models", Policy("tuned", **{setting: None}))
        assert digest(table_content(without)) != tuned, setting


# ---- other mathematics ----------------------------------------------------------------------------


@pytest.fixture
def other_mathematics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "mathematics", lambda: "0123456789abcdef")
    monkeypatch.delenv(SKIP, raising=False)


@pytest.mark.usefixtures("other_mathematics")
def test_incomparable_machine_fails_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.fail.Exception, match=rf"0123456789abcdef.*{SKIP}=1") as failed:
        must_compare()
    assert "\n" not in str(failed.value)
    monkeypatch.setenv(SKIP, "1")
    with pytest.raises(pytest.skip.Exception, match="0123456789abcdef"):
        must_compare()


@pytest.mark.usefixtures("other_mathematics")
def test_hashes_of_two_mathematics_are_not_mixed() -> None:
    before = hashes.FILE.read_bytes()
    for anew in ([], ["table/helios/plain/fifo"]):
        with pytest.raises(SystemExit, match="0123456789abcdef"):
            hashes.main(anew)
    with pytest.raises(SystemExit, match="no such case: table/moon"):
        hashes.main(["table/moon"])
    assert hashes.FILE.read_bytes() == before
