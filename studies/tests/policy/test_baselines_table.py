"""The table made of an evaluation's JSON."""

from __future__ import annotations

from studies.policy.baselines_table import table


def test_a_row_a_policy_with_intervals_where_there_are_any() -> None:
    numbers = {"jct_mean_s": 1234.4, "queue_mean_s": 10.0, "queue_p99_s": 99.0, "queue_max_s": 5000.0}
    report = {
        "trace": "t",
        "since_s": 1000.0,
        "nodes": 2,
        "gpus": 16,
        "load_frac": 0.9,
        "seeds": [0, 1],
        "baseline": "a",
        "policies": {"a": numbers | {"preemptions": 0}, "b": numbers | {"preemptions": 3}},
        "paired": {
            "b": {
                "jct_mean_ratio": {"ratio": 1.5, "low": 1.25, "high": 2.0},
                "queue_mean_ratio": {"ratio": 0.5, "low": None, "high": None},
            }
        },
    }
    lines = table(report)
    assert lines[0].startswith(
        "t, submitted from 1,000 s on: 2 nodes, 16 GPUs, load 0.90, seeds 0, 1; ratios to `a`"
    )
    assert lines[-2] == "| `a` | 1,234 |  | 10 |  | 99 | 5,000 |  |"
    assert lines[-1] == "| `b` | 1,234 | 1.50 [1.25, 2.00] | 10 | 0.50 | 99 | 5,000 | 3 |"
    assert table(report | {"since_s": None})[0].startswith("t, the whole trace: ")
