"""Output of repacking: geometric means by part and share, without the test split."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlsched.decide.policies.policy import Policy
from studies.policy import repack
from studies.policy.abilities import MIGRATING, able
from studies.policy.cases import cases


def result(jct_s: float, delay_s: float, large_s: float | None, moves: int) -> Any:
    """The fields of a result that the table reads."""
    return SimpleNamespace(
        metrics=SimpleNamespace(jct_mean_s=jct_s, migrations=moves, jobs=100),
        measured=SimpleNamespace(
            delay_mean_s=delay_s, groups={repack.LARGE: SimpleNamespace(delay_mean_s=large_s)}
        ),
    )


def test_line_for_each_part_and_share_by_hand() -> None:
    one, two = cases(["helios_venus"], ["validation"], [0.85, 0.95])
    (half,) = cases(["helios_venus"], ["validation"], [0.85], preemptible_frac=0.5)
    rule = Policy("gittins")
    moving = able(rule, MIGRATING)
    found = {
        (one, rule): result(100.0, 10.0, 10.0, 3),
        (one, moving): result(50.0, 9.0, 5.0, 23),
        (two, rule): result(100.0, 10.0, None, 5),
        (two, moving): result(200.0, 9.0, None, 25),
        (half, rule): result(100.0, 10.0, 10.0, 0),
        (half, moving): result(110.0, 8.0, 4.0, 50),
    }
    lines = repack.table(found, rule)
    assert lines[-2:] == [
        "| validation | 100% | 2 | 1.000 | 2.000 | 1 | 0.900 | 0.500 | +0.20 a job |",
        "| validation | 50% | 1 | 1.100 | 1.100 | 0 | 0.800 | 0.400 | +0.50 a job |",
    ]


def test_test_split_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        repack.main(["--part", "test"])
    assert left.value.code == 2
    assert "invalid choice: 'test'" in capsys.readouterr().err
