"""The default policy on a fixed sequence of 4,000 jobs: its recorded gain, and its observations."""

from __future__ import annotations

import pytest

from benchmarks.fixed_sequence import (
    FixedSequence,
    read_sequence,
    run_sequence,
    write_sequence,
)
from rlsched.decide.registry import load_scheduler
from rlsched.decide.schema import SCHEMA
from rlsched.errors import InputError
from rlsched_agents.runtime.checkpoint import default_checkpoint, load_checkpoint

TOLERATED = 0.02
"""Tolerance of the ratio: another machine's rounding may change a decision between equals."""


@pytest.fixture(scope="module")
def found() -> FixedSequence:
    return run_sequence(load_scheduler("ppo"))


@pytest.fixture(scope="module")
def recorded() -> FixedSequence:
    return read_sequence(default_checkpoint())


@pytest.mark.slow
def test_default_policy_keeps_its_recorded_margin(found: FixedSequence, recorded: FixedSequence) -> None:
    assert recorded.ratio < 1.0
    assert found.ratio < recorded.ratio + TOLERATED
    assert found.reference_queue_mean_s == pytest.approx(recorded.reference_queue_mean_s, rel=1e-6)


@pytest.mark.slow
def test_observations_match_the_schema(found: FixedSequence, recorded: FixedSequence) -> None:
    assert found.schema_hash == recorded.schema_hash == SCHEMA.hash
    seen = load_checkpoint().card.network.features
    assert 0 < seen <= len(found.columns), "an older policy uses the first columns"
    assert (found.rows, found.legal_rows) == (recorded.rows, recorded.legal_rows)
    assert list(found.columns) == list(recorded.columns)
    assert list(found.columns.values()) == pytest.approx(list(recorded.columns.values()), rel=1e-4, abs=2e-6)
    assert sum(value != 0 for value in found.columns.values()) > 25, "most columns vary"


def test_sequence_is_read_back_and_a_damaged_one_refused(tmp_path, recorded) -> None:  # type: ignore[no-untyped-def]
    write_sequence(tmp_path, recorded)
    assert read_sequence(tmp_path) == recorded
    (tmp_path / "sequence.json").write_text("{")
    with pytest.raises(InputError, match="make_rows_checkpoint"):
        read_sequence(tmp_path)
