"""The tables of `studies.policy.energy_table`: the choices, the best ones, and the rows."""

from __future__ import annotations

from typing import Any

import msgspec

from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from studies.policy import energy_rows as rows
from studies.policy import energy_table
from studies.policy.abilities import able


def result(policy: str, jct_s: float, kwh: float, low: float | None = 0.5) -> Any:
    numbers = {
        name: 0 for name in Metrics.__struct_fields__ if name.startswith(("jobs", "rej", "unf", "dec"))
    }
    fields: dict[str, Any] = dict.fromkeys(Metrics.__struct_fields__) | numbers
    fields |= {
        "jobs": 100,
        "preemptions": 0,
        "migrations": 0,
        "wall_s": 0.0,
        "by_gpus": {},
        "by_vc": {},
        "by_source": {},
    }
    fields |= {
        "by_end": {},
        "lost_gpu_s": 0.0,
        "jct_mean_s": jct_s,
        "jct_p99_s": 9 * jct_s,
        "energy_kwh": kwh,
    }
    fields |= {"energy_per_job_kwh": kwh / 100, "shared_frac": 0.25, "sm_clock_mean_frac": 0.875}
    fields["measured_cells_frac"] = 0.6 if "share" in policy else 0.7
    high = None if low is None else 1.5
    against = Comparison(
        jobs=100,
        jct_mean_ratio=Ratio(jct_s / 1000, low, high),
        queue_mean_ratio=None,
        wins_frac=0.0,
        losses_frac=0.0,
        energy_ratio=Ratio(kwh / 200, low, high),
    )
    rule = policy.partition(" ")[0]
    deployable = rule not in ("sjf-backfill", "srtf", "tiresias")
    return rows.ChoiceResult(
        policy=policy, rule=rule, deployable=deployable, metrics=Metrics(**fields), against=against
    )


def make_case(low: float | None = 0.5) -> Any:
    results = [
        result("qssf-backfill", 1000, 200, low),
        result("qssf-backfill share", 900, 190, low),
        result("qssf-backfill cores lull 0.1", 915, 170, low),
        result("qssf-backfill slowdown 0.05", 940, 160, low),
        result("lucid", 985, 150, low),
        result("sjf-backfill", 500, 100, low),
        result("tiresias", 400, 90, low),
    ]
    return rows.Case(
        trace="t",
        nodes=2,
        gpus=16,
        gpu_types=["V100"],
        load_frac=0.89,
        since_s=8_944_088.0,
        results=results,
        varied={"assumed figures x 0.7": [results[0], result("qssf-backfill share", 800, 180, low)]},
    )


def test_best_choices_are_deployable_and_within_their_budget() -> None:
    best = rows.best_choices(make_case().results)
    assert [one.policy for one in best] == [
        "qssf-backfill share",
        "qssf-backfill cores lull 0.1",  # 1.7 % more
        "qssf-backfill slowdown 0.05",  # 4.4 %
        "lucid",  # 9.4 %
    ]
    assert rows.best_choices([result("srtf", 1, 1)]) == [None] * 4


def test_rows() -> None:
    text = rows.section([make_case()])
    assert "**t**, submitted from 8,944,088 s on: 100 jobs, 2 nodes, 16 GPUs (V100), load 0.89" in text
    assert "| `qssf-backfill` | 1,000 |  | 9,000 | 200 |  | 2.00 | 25% | 88% |" in text
    ratios = ("0.90 [0.50, 1.50] | 8,100", "0.95 [0.50, 1.50] | 1.90")
    assert f"| `qssf-backfill share` | 900 | {ratios[0]} | 190 | {ratios[1]} | 25% | 88% |" in text
    assert "| `tiresias` * | 400 |" in text
    assert "`qssf-backfill cores lull 0.1` |" not in text.partition("The best of 5")[0]
    assert "| least energy at up to 5% more JCT: `qssf-backfill slowdown 0.05` | 940 |" in text
    assert "60% to 70% of the catalogue's cells" in text
    assert "| `qssf-backfill share` | 0.90, 0.950 | 0.80, 0.900 |" in text
    assert "(none: fewer than ten days)" not in text
    assert "(none: fewer than ten days)" in rows.section([make_case(None)])


def test_cases_are_read_back_from_json() -> None:
    case = make_case()
    assert msgspec.json.decode(msgspec.json.encode(case), type=rows.Case) == case


def test_every_choice_is_a_policy_and_contains_the_shown_ones() -> None:
    for trace in energy_table.TRACES:
        policies = [able(rule, *more) for rule, more in energy_table.choices(trace)]
        names = [policy.name for policy in policies]
        assert len(set(names)) == len(names) == len(set(policies)) > 100
        assert policies[0] == rows.REFERENCE
        shown = {able(rows.REFERENCE, *more) for more in (*rows.SHOWN, *rows.SHOWN_REFERENCE)}
        assert shown | set(rows.MAIN) <= set(policies)
        for policy in policies:
            assert load_scheduler(policy).name == policy.name
    assert energy_table.lucid_on("philly").name == "lucid 80"
    assert energy_table.lucid_on("helios_venus") == Policy("lucid")
