"""The comparison's cases, grids, choices, log and tables: disjoint parts, ratios by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.workload.load import offered_load
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import GroupMetrics, Metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from studies.policy import cases, journal, opponents, runs, tables, tune

DAY_S = 86400.0


def make_trace(*, durations_s: Any = None) -> Trace:
    rng = np.random.default_rng(3)
    submit_s = np.sort(np.rint(rng.uniform(0, 100 * DAY_S, 4000)))
    return Trace.from_columns(
        name="t",
        submit_s=submit_s,
        duration_s=np.rint(rng.lognormal(8, 1.5, 4000)) if durations_s is None else durations_s,
        num_gpus=rng.choice([1.0, 2.0, 8.0, 16.0], 4000),
        vc=rng.choice(["a", "b"], 4000),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(make_trace(), tmp_path)
    return tmp_path


def write(trace: Trace, folder: Path) -> None:
    trace.write(folder / "t.csv.gz")
    (folder / "t.cluster.toml").write_text(
        'name = "t"\n\n' + "".join(f'[[nodes]]\ncount = 8\ngpus = 8\nvc = "{vc}"\n\n' for vc in "ab")
    )
    cases.read_trace.cache_clear()


def test_parts_do_not_overlap_and_training_windows_are_as_long_as_the_test_part() -> None:
    trace = make_trace()
    bounds = [cases.part_bounds(trace, part) for part in cases.PARTS]
    for (_, before), (after, _) in pairwise(bounds):
        assert before <= after + 1e-6
    lengths = [until - since for since, until in bounds]
    assert lengths[:3] == pytest.approx([lengths[4]] * 3)
    assert sum(lengths) == pytest.approx(0.9 * (trace.submit_s[-1] - trace.submit_s[0]), rel=1e-6)


def test_no_measured_job_is_in_two_parts(folder: Path) -> None:
    seen: list[str] = []
    for part in cases.PARTS:
        work = cases.workload_of(folder, cases.Case(trace="t/a", part=part, load=0.9))
        seen += work.trace.job_id[work.window.measured(work.trace)].tolist()
    trace = make_trace()
    late = (trace.vc == "a") & (trace.submit_s >= cases.part_bounds(trace, "train1")[0])
    assert len(seen) == len(set(seen)) == int(late.sum())


@pytest.mark.parametrize("part", ["train2", "validation"])
def test_jobs_of_later_parts_change_nothing(folder: Path, part: str) -> None:
    case = cases.Case(trace="t/b", part=part, load=0.95)
    before, trace = cases.workload_of(folder, case), make_trace()
    later = trace.submit_s >= cases.part_bounds(trace, part)[1]
    write(replace(trace, duration_s=np.where(later, 5e5, trace.duration_s)), folder)
    after = cases.workload_of(folder, case)
    assert later.sum() > 500
    assert (before.stretch, before.spec, before.window) == (after.stretch, after.spec, after.window)
    for name in ("submit_s", "duration_s", "num_gpus", "job_id"):
        np.testing.assert_array_equal(getattr(before.trace, name), getattr(after.trace, name))
    assert before.trace.submit_s[-1] < before.window.until_s


@pytest.mark.parametrize("load", cases.LOADS)
def test_load_is_exact(folder: Path, load: float) -> None:
    work = cases.workload_of(folder, cases.Case(trace="t/a", part="test", load=load))
    found = offered_load(work.trace.select(work.window.measured(work.trace)), work.spec)
    assert found == pytest.approx(load, rel=1e-9)
    assert {group.vc for group in work.spec.nodes} == {"a"}


def test_requested_share_of_jobs_is_preemptible(folder: Path) -> None:
    case = cases.Case(trace="t", part="test", load=0.9, preemptible_frac=0.5)
    flags = cases.workload_of(folder, case).trace.extra["preemptible"]
    assert np.mean(flags == "true") == pytest.approx(0.5, abs=0.03)
    assert case.name == "t-test-0.9-preemptible0.5"
    whole = cases.workload_of(folder, cases.Case(trace="t", part="test", load=0.9))
    assert "preemptible" not in whole.trace.extra


def test_missing_parts_are_reported(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no trace 'gone'.*RLSCHED_DATA"):
        cases.workload_of(folder, cases.Case(trace="gone/a", part="test", load=0.9))
    with pytest.raises(InputError, match="no job is submitted in its test part"):
        cases.workload_of(folder, cases.Case(trace="t/z", part="test", load=0.9))
    with pytest.raises(InputError, match="expected a part of train1"):
        cases.part_bounds(make_trace(), "training")


@pytest.mark.parametrize("rule", opponents.GRIDS)
def test_every_value_of_every_grid_is_a_policy(rule: str) -> None:
    grid = opponents.GRIDS[rule]
    assert len(set(grid.values)) == len(grid.values) > 1
    for value in grid.values:
        assert (value.settings.predictions == "revised") == (rule == "easy-revised")
        assert value.name.partition(" ")[0] == rule or rule == "easy-revised"
        assert load_scheduler(value).name == value.name


@pytest.mark.parametrize("name", [*opponents.FIXED, *opponents.REFERENCES])
def test_every_other_row_is_a_policy(name: str) -> None:
    assert not load_scheduler(name).oracle


@pytest.mark.parametrize("policy", opponents.ORACLES, ids=lambda policy: policy.name)
def test_bounds_use_the_true_durations(policy: Policy) -> None:
    assert load_scheduler(policy).oracle


def metrics(queue_s: float, jobs: int = 4500) -> Metrics:
    group = GroupMetrics(
        jobs=jobs,
        rejected=0,
        unfinished=0,
        jct_mean_s=queue_s + 100,
        jct_p99_s=1.0,
        queue_mean_s=queue_s,
        queue_p50_s=0.0,
        queue_p99_s=1.0,
    )
    return Metrics(
        jobs=jobs,
        rejected=3,
        unfinished=0,
        jct_mean_s=queue_s + 100,
        jct_p50_s=10.0,
        jct_p99_s=20.0,
        jct_p999_s=30.0,
        queue_mean_s=queue_s,
        queue_p50_s=1.0,
        queue_p99_s=2 * queue_s,
        queue_p999_s=3 * queue_s,
        queue_max_s=1234.0,
        makespan_s=1.0,
        gpu_utilisation_frac=0.5,
        energy_kwh=None,
        preemptions=0,
        decisions=7,
        decision_p99_us=None,
        wall_s=0.1,
        by_vc={},
        by_source={},
        by_gpus={"1": group},
    )


def make_result(
    policy: str,
    queue_s: float,
    case: cases.Case,
    *,
    against: dict[str, float] | None = None,
    jobs: int = 4500,
) -> runs.Result:
    return runs.Result(
        case=case,
        policy=policy,
        policy_id=policy,
        models=False,
        nodes=4,
        gpus=32,
        load_frac=case.load,
        stretch=1.25,
        days=11.0,
        metrics=metrics(queue_s, jobs),
        against={
            name: Comparison(
                jobs=jobs,
                jct_mean_ratio=Ratio(1.5, None, None),
                queue_mean_ratio=Ratio(ratio, 0.1, 2.0),
                wins_frac=0.0,
                losses_frac=0.0,
            )
            for name, ratio in (against or {"qssf": 1.0, "qssf-backfill": 1.0}).items()
        },
    )


CASES = [cases.Case(trace="t/a", part="validation", load=load) for load in (0.85, 0.95)]


def make_results() -> tables.Results:
    """`qssf` is the better reference on the first case, `qssf-backfill` on the second."""
    found = [
        make_result("qssf", 100.0, CASES[0]),
        make_result("qssf-backfill", 200.0, CASES[0]),
        make_result("qssf", 400.0, CASES[1], jobs=3999),
        make_result("qssf-backfill", 300.0, CASES[1], jobs=3999),
        make_result("ppo", 50.0, CASES[0], against={"qssf": 0.51, "qssf-backfill": 0.26}),
        make_result("ppo", 600.0, CASES[1], against={"qssf": 1.51, "qssf-backfill": 2.01}),
    ]
    return {(one.case.name, one.policy, one.models): one for one in found}


def rows_of(policies: list[Policy], tuned: opponents.TunedFile) -> dict[str, list[opponents.Entry]]:
    return {"t/a": opponents.entries(tuned, "t/a", policies)}


def write_tuned_file(**rules: opponents.Tuned) -> opponents.TunedFile:
    return opponents.TunedFile(traces=["t/a"], rules=rules)


def test_the_best_reference_is_found_case_by_case() -> None:
    results = make_results()
    best = [tables.best_reference(results, case, models=False) for case in CASES]
    assert [one.policy for one in best if one] == ["qssf", "qssf-backfill"]
    del results[CASES[0].name, "qssf", False]
    assert tables.best_reference(results, CASES[0], models=False) is None


def test_tables_by_hand() -> None:
    rows = rows_of([Policy("ppo")], write_tuned_file())
    text = tables.section(CASES, rows, make_results(), split="validation", ids=["ppo@1"])
    # queueing 50 / 100 and 600 / 300: geometric mean 1; JCT 150 / 200 and 700 / 400: root of 0.75 x 1.75
    assert "| `ppo` | 2 | 1.000 | 1.146 | 1.000 | 1.000 | 1.000 | 1.000 | 1 : 1 | 2.00 |" in text
    assert "| `ppo` | 50 | 0.510 [0.10, 2.00] | 150 | 1.500 | 10 | 20 | 30 | 1 | 100 | 150 | 1,234 |" in text
    assert "| `ppo` | 600 | 2.010 [0.10, 2.00] | 700 |" in text
    assert "4,500 jobs, 3 rejected, 11.0 days (submission times x 1.25)" in text
    assert "3,999 jobs (fewer than 4,000: all there are)" in text
    assert "best QSSF: `qssf-backfill`" in text


def test_case_without_references_is_left_out_and_counted() -> None:
    results = {key: one for key, one in make_results().items() if key[0] == CASES[0].name}
    text = tables.section(
        CASES, rows_of([Policy("ppo")], write_tuned_file()), results, split="test", ids=["ppo@1"]
    )
    assert text.startswith("Test split, 1 of 2 cases there; under test: ppo@1.")
    assert "load 0.95" not in text


def test_choices_by_hand() -> None:
    rule = "reserve"
    low, high = opponents.GRIDS[rule].names[:2]
    grid = opponents.Grid(values=opponents.GRIDS[rule].values[:2])
    where = [cases.Case(trace=trace, part="train1", load=0.9) for trace in ("t/a", "t/b")]
    ratios = {low: (0.5, 1.62), high: (0.8, 0.8)}
    results = [
        make_result(value, 1.0, case, against={"qssf-backfill": ratio})
        for value, pair in ratios.items()
        for case, ratio in zip(where, pair, strict=True)
    ]
    tried = tune.tried_rule(grid, results)
    assert tried.scores == {low: 0.9, high: 0.8}
    assert tried.ratios[low] == {"t-a-train1-0.9": 0.5, "t-b-train1-0.9": 1.62}
    found = tried.choice
    assert (found.chosen, found.score) == (high, 0.8)
    assert found.chosen_by_trace == {"t/a": low, "t/b": high}
    by_jct = tune.tried_rule(msgspec.structs.replace(grid, measure="jct"), results)
    assert set(by_jct.scores.values()) == {1.5}
    assert by_jct.choice.chosen == low
    whole = msgspec.structs.replace(found, grid=opponents.GRIDS[rule].settings)
    rows = opponents.entries(write_tuned_file(**{rule: whole}), "t/a", [Policy("ppo")])
    by_label = {one.label: one.policy for one in rows}
    assert (by_label[rule], by_label[rule].name) == (grid.values[1], high)
    assert (by_label[f"{rule} (by trace)"], by_label[f"{rule} (by trace)"].name) == (grid.values[0], low)


def test_scores_leave_out_cases_without_waiting() -> None:
    assert tune.score([None, 0.5, 0.02]) == pytest.approx(0.1)
    assert tune.score([0.0]) == tables.LEAST_RATIO
    assert tune.score([None]) == 1.0


def test_ratio_below_zero_counts_as_the_minimum() -> None:
    """Delay is negative if idle cores speed jobs up beyond their unshared speed."""
    found = tables.bounded_ratios([-5.0, 0.0, 64.0, None, 1.0], [10.0, 10.0, 1.0, 1.0, 0.0])
    assert found is not None
    assert found.ratio == pytest.approx((0.01 * 0.01 * 64.0) ** (1 / 3))


def test_log_lines_are_appended_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert journal.read_log(path) == []
    for name in ("one", "two"):
        journal.append_run(path, policies=[name], cases=["c"], checkpoints={name: "x@1"}, tuned="ab")
    assert [run.policies for run in journal.read_log(path)] == [["one"], ["two"]]
    path.write_text("{}\n")
    with pytest.raises(InputError, match="expected a run on the test split a line"):
        journal.read_log(path)


def make_choice(rule: str, *, grid: dict[str, dict[str, Any]] | None = None) -> opponents.Tuned:
    whole = opponents.GRIDS[rule]
    return opponents.Tuned(
        grid=whole.settings if grid is None else grid,
        chosen=whole.names[0],
        score=1.0,
        chosen_by_trace={"t/a": whole.names[1]},
    )


def test_rules_without_a_tuned_value_have_defaults() -> None:
    assert opponents.untuned(None) == list(opponents.GRIDS)
    stale = write_tuned_file(
        **{rule: make_choice(rule) for rule in opponents.GRIDS}
        | {"pack": make_choice("pack", grid={"pack 1": {"share": {}}})}
    )
    assert opponents.untuned(stale) == ["pack"]
    rows = {one.label: one for one in opponents.entries(stale, "t/a", [Policy("ppo")])}
    assert rows["pack"].policy == Policy("pack")
    assert rows["pack"].models
    assert "pack (by trace)" not in rows
    assert [rows[label].policy.name for label in ("lucid", "lucid (by trace)")] == ["lucid 80", "lucid 200"]
    text = tables.section(CASES, {"t/a": list(rows.values())}, {}, split="test", ids=["x"], untuned=["pack"])
    assert "**Not tuned**, at their default values: `pack`." in text


def test_tuning_on_shared_data_uses_the_largest_vcs(shared_data: Path) -> None:
    trace, spec = cases.read_trace(shared_data / "traces", "philly")
    since_s, until_s = cases.time_split(trace).train
    names, counts = np.unique(
        trace.vc[(trace.submit_s >= since_s) & (trace.submit_s < until_s)], return_counts=True
    )
    largest = names[np.argsort(-counts)][:3]
    assert [f"philly/{vc}" for vc in largest] == list(cases.TRACES[1:])
    assert isinstance(spec, ClusterSpec)
