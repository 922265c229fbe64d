"""The study of large gangs: its comparisons, and how long gangs hold GPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsched.decide.policies.presets import PRESETS
from studies.policy import large_gangs
from studies.policy.large_gangs import Run

HOUR_S = 3600.0


def test_labels_match_the_settings() -> None:
    found = large_gangs.policies()
    assert found["tuned", "priced (as shipped)"].settings.share is not None
    assert PRESETS["tuned"].settings["share"]["by_hold"] > 0
    for (_, label), policy in found.items():
        share = policy.settings.share
        assert (share is None) == (label == "no sharing")
        assert share is None or (share.by_hold > 0) == ("priced" in label)


def table(*gangs: tuple[float, float, tuple[int, ...]]) -> Any:
    """The used columns of a run's table: start and end of each gang in hours, and two of its GPUs."""
    return SimpleNamespace(
        trace=SimpleNamespace(num_gpus=np.full(len(gangs), 128.0)),
        start_s=np.array([start for start, _, _ in gangs]) * HOUR_S,
        end_s=np.array([end for _, end, _ in gangs]) * HOUR_S,
        gpus=[gpus for _, _, gpus in gangs],
    )


def test_gpus_passed_to_the_next_gang_are_held_without_a_break() -> None:
    alone = table((0, 3, (0, 1)), (3, 5, (0, 1)), (1, 5, (8, 9)))
    assert large_gangs.longest_hold_s(alone) == 4 * HOUR_S, "they became free at 3 h"
    shared = table((0, 3, (0, 1)), (2, 5, (1, 0)), (4, 9, (0, 1)), (1, 5, (8, 9)))
    assert large_gangs.longest_hold_s(shared) == 9 * HOUR_S
    never = table((0, np.nan, (0, 1)), (1, 2, (8, 9)))
    assert large_gangs.longest_hold_s(never) == HOUR_S
    small = table((0, 3, (0, 1)))
    small.trace.num_gpus[:] = 8
    assert large_gangs.longest_hold_s(small) == 0.0


def test_row_is_a_ratio_to_the_same_rule_without_sharing() -> None:
    base, twice = Run(10.0, 20.0, 5.0, HOUR_S), Run(20.0, 10.0, 15.0, 3 * HOUR_S)
    worse = Run(10.0, 21.0, 5.0, HOUR_S)
    runs = [
        {
            (rule, label): worse if label == "speed 0.7" else base if label == "no sharing" else twice
            for rule, shares in large_gangs.SHARES.items()
            for label in shares
        }
    ] * 2
    lines = large_gangs.lines_of("two", runs)
    assert "| `pack`, no sharing | 1.000 | 1.000 | 1.000 | 0 | 1.00 | 1 |" in lines
    assert "| `pack`, speed 0.7 | 1.000 | 1.050 | 1.000 | 2 | 1.00 | 1 |" in lines
    assert "| `tuned`, no price | 2.000 | 0.500 | 3.000 | 0 | 2.00 | 3 |" in lines


@pytest.mark.soak
def test_two_short_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpus", "512", "--seeds", "2", "--jobs", "300", "--workloads", "drawn"]
    assert large_gangs.main(words) == 0
    printed = capsys.readouterr().out
    assert "512 GPUs, load 0.9, workloads drawn, 2 sequences" in printed
    assert "| `tuned`, no sharing | 1.000 | 1.000 | 1.000 | 0 | 1.00 |" in printed
