"""Policies on synthetic sequences: the reference has ratio 1, and sizes are weighted by their jobs."""

from __future__ import annotations

import pytest

from studies.policy import sequences


def test_reference_has_ratio_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--jobs", "200", "--gpus", "32", "--seeds", "2", "--load", "1.2"]
    assert sequences.main([*words, "--policy", "qssf-backfill", "--policy", "fifo"]) == 0
    printed = capsys.readouterr().out
    assert "helios-like, load 1.2, 2 sequences" in printed
    assert "| `qssf-backfill` | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 0 : 0 |" in printed
    [fifo] = [line for line in printed.splitlines() if line.startswith("| `fifo`")]
    assert fifo.endswith("0 : 2 |")


def test_gangs_have_at_least_eight_gpus() -> None:
    report = sequences.run("helios", 300, 1.2, 32, 3, "informative", [])
    one = report.policies["qssf-backfill"]
    large = {size: group for size, group in one.by_gpus.items() if float(size) >= 8}
    waited = sum(group.jobs * (group.queue_mean_s or 0.0) for group in large.values())
    assert sequences.gangs_wait_s(one) == pytest.approx(waited / sum(group.jobs for group in large.values()))


def test_unknown_prediction_quality_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert sequences.main(["--policy", "fifo", "--predictability", "good"]) == 2
    assert "expected causal, informative or a number" in capsys.readouterr().err
