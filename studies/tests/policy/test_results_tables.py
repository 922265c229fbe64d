"""The tables of `studies.policy.results`: known reports in, known ratios and cells out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from rlsched_agents.evaluate.report import EvaluationReport
from rlsched_envs.sim.engine import Engine, predict_trace
from studies.policy import results_tables as tables


def make_group(jobs: int, queue_s: float | None, rejected: int = 0) -> GroupMetrics:
    return GroupMetrics(
        jobs=jobs,
        rejected=rejected,
        unfinished=0,
        jct_mean_s=queue_s,
        jct_p99_s=queue_s,
        queue_mean_s=queue_s,
        queue_p50_s=queue_s,
        queue_p99_s=queue_s,
    )


def metrics(queue_s: float) -> Metrics:
    return Metrics(
        jobs=8,
        rejected=1,
        unfinished=0,
        jct_mean_s=queue_s + 100,
        jct_p50_s=1.0,
        jct_p99_s=1.0,
        jct_p999_s=1.0,
        queue_mean_s=queue_s,
        queue_p50_s=1.0,
        queue_p99_s=2 * queue_s,
        queue_p999_s=1.0,
        queue_max_s=1.0,
        makespan_s=1.0,
        gpu_utilisation_frac=0.5,
        energy_kwh=None,
        preemptions=0,
        decisions=7,
        decision_p99_us=None,
        wall_s=0.1,
        by_vc={},
        by_source={},
        by_gpus={
            "1": make_group(4, queue_s),
            "2": make_group(1, 3 * queue_s),
            "4": make_group(1, queue_s),
            "8": make_group(1, queue_s),
            "64": make_group(1, None, rejected=1),
        },
    )


def make_result(*, ours: float, family: str = "synthetic", load: float = 0.85) -> Any:
    same = Ratio(1.0, 1.0, 1.0)  # as from ten days or more
    compared = Comparison(jobs=7, jct_mean_ratio=same, queue_mean_ratio=None, wins_frac=0.25, losses_frac=0.5)
    report = EvaluationReport(
        trace="t",
        cluster="c",
        nodes=2,
        gpus=16,
        load_frac=load,
        seeds=[0],
        since_s=5.0,
        until_s=50.0,
        baseline="qssf-backfill",
        paired={"ppo": compared},
        rejected_reasons={},
        settings={},
        policies={
            "qssf-backfill": metrics(100.0),
            "ppo": metrics(ours),
            tables.PLAIN.name: metrics(50.0),
        },
    )
    return tables.CaseResult(
        family=family,
        workload="helios",
        load=load,
        seed=int(ours),
        policy="ppo",
        policy_id="ab12",
        report=report,
        against_plain=compared,
    )


def test_tuned_decides_like_the_plain_rule() -> None:
    trace, spec = synthesize("helios", 800, 1.1, 32, seed=4, predictability="informative")
    predictions = predict_trace(trace, spec)
    plain, tuned = (
        Engine(trace, spec, order=policy.rule.order, predictions=predictions).run_rule(policy.rule)
        for policy in (tables.PLAIN, Policy("tuned"))
    )
    np.testing.assert_array_equal(plain.start_s, tuned.start_s)
    assert (plain.start_s > plain.trace.submit_s).mean() > 0.1


def test_waits_by_bucket_weigh_by_jobs() -> None:
    assert tables.bucket_waits(metrics(100.0)) == {
        "1": (4, 100.0),
        "2-4": (2, 200.0),
        "5-8": (1, 100.0),
        ">8": (0, None),
    }


def test_aggregate_is_paired_and_geometric() -> None:
    results = [make_result(ours=50.0), make_result(ours=200.0), make_result(ours=50.0)]
    one = tables.aggregate(results, "qssf-backfill")
    assert one.queue.ratio == pytest.approx((0.5 * 2 * 0.5) ** (1 / 3))
    assert one.queue_p99.ratio == pytest.approx(one.queue.ratio)
    assert one.jct.ratio == pytest.approx((150 * 300 * 150 / 200**3) ** (1 / 3))
    assert (one.sequences, one.wins, one.losses, one.worst_ratio) == (3, 2, 1, 2.0)
    assert one.by_size["2-4"].ratio == pytest.approx(one.queue.ratio)
    assert one.by_size[">8"] is None
    assert tables.aggregate(results, tables.PLAIN.name).wins == 0


def test_interval_needs_ten_sequences() -> None:
    pair = [make_result(ours=50.0), make_result(ours=200.0)]
    few = tables.aggregate(pair * 4, "qssf-backfill").queue
    assert (few.low, few.high) == (None, None)
    enough = tables.aggregate(pair * 5, "qssf-backfill").queue
    assert 0.5 < enough.low < 1 < enough.high < 2


def test_files(tmp_path: Path) -> None:
    results = [
        make_result(ours=50.0),
        make_result(ours=200.0),
        make_result(ours=50.0, load=1.0),
        make_result(ours=70.0, family="real"),
    ]
    written = tables.write_tables(results, tmp_path, command="python it")
    assert [path.name for path in written] == ["synthetic.md", "real.md", "results.json"]
    synthetic, real = written[0].read_text(encoding="utf-8"), written[1].read_text(encoding="utf-8")
    assert "Made by `python it`. Policy `ppo` (ab12)." in synthetic
    assert "seeds 50 to 200" in synthetic
    row = next(line for line in synthetic.splitlines() if "| helios, load 0.85 | qssf-backfill |" in line)
    assert "| 2 | 1.000 | " in row
    assert "Fewer than 10 sequences: no interval." in synthetic
    assert "Fewer than 10 days of submissions: no interval." in real
    assert "| 1 : 1 | 2.00 |" in row
    assert "**helios**, load 0.85 (target 0.85): jobs submitted from 5 to 50 s" in real
    assert "8 jobs (1 rejected)" in real
    assert "| ppo | 100 | 70 | 1 | 1 | " not in real
    assert "| ppo | 170 | 70 | 1 | 140 | 1 |  | 1.000 [1.00, 1.00] |" in real
    assert "25.0% of the jobs wait less, 50.0% longer" in real
    assert "| ppo | 70 | 140 | 70 |  |" in real


def test_cases_without_a_new_field_are_read() -> None:
    old = msgspec.to_builtins(make_result(ours=50.0))
    del old["report"]["policies"]["ppo"]["fragmentation_frac"]
    del old["report"]["policies"]["ppo"]["by_gpus"]["1"]["queue_max_s"]
    del old["against_plain"]["blocks"]
    read = msgspec.json.decode(msgspec.json.encode(old), type=tables.CaseResult)
    assert read == make_result(ours=50.0)
