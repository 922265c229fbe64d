"""A short sweep of shots, each kind twice; `make soak` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.sweep import TARGETS, Sweep
from tests.soak.systems import Ours


@pytest.mark.slow
def test_whatever_is_shot_nothing_acknowledged_is_lost_and_nobody_innocent_fails(tmp_path: Path) -> None:
    system = Ours(tmp_path)
    try:
        sweep = Sweep(tmp_path, system, seed=7)
        for number in range(2 * len(TARGETS)):
            sweep.round(number)
    finally:
        system.close()
    assert sweep.outcome.faults == []
    assert sweep.outcome.jobs > 10 * len(TARGETS)
