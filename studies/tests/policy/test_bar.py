"""Rows of the bar: compared policies, good predictions, delay, sharing, energy, tables by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched.workload.describe import spearman
from rlsched.workload.predict.informed import TraceQuantiles, size_classes
from rlsched.workload.predictability import CAUSAL_CORRELATION, predict, predict_known
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import Metrics, schedule_metrics
from rlsched_agents.evaluate.pairs import Comparison, Ratio
from rlsched_envs.sim.engine import Engine, predict_trace, run_time_s
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from studies.policy import bar_studies, bar_tables, dial_tables, measures, opponents, predictions
from studies.policy.abilities import CORES, SHARING, able, lull, share, weighed
from studies.policy.cases import Case
from studies.policy.dial_tables import Point
from studies.policy.measures import GPUS_ALONE, GroupDelay, Measures
from studies.policy.runs import Job, Result

PREEMPT50, EVERYTHING = bar_studies.STUDIES["preempt50"], bar_studies.STUDIES["everything"]


def make_trace(jobs: int = 3000) -> Trace:
    trace, _ = synthesize("helios", jobs, 0.9, 64, seed=3)
    return trace


class TestSettings:
    def test_no_two_settings_share_a_result(self) -> None:
        paths = [
            Job(case=case, policy=Policy("qssf"), models=study.models).path(Path())
            for study in bar_studies.STUDIES.values()
            for case in study.cases(["t/a"], "validation", [0.95])
        ]
        settings = {
            (study.models, study.preemptible_frac, study.declared, study.predictions, study.part)
            for study in bar_studies.STUDIES.values()
        }
        assert len(set(paths)) == len(settings) < len(bar_studies.STUDIES)  # two of them differ only in rows

    @pytest.mark.parametrize("setting", opponents.MORE_GRIDS)
    def test_every_value_of_every_grid_is_a_policy(self, setting: str) -> None:
        for rule, grid in opponents.MORE_GRIDS[setting].items():
            assert len(set(grid.values)) == len(grid.values) > 1
            assert len(set(grid.names)) == len(grid.values)
            for value in grid.values:
                settings = value.settings
                assert (settings.predictions == "revised") == rule.endswith("-revised")
                if rule.endswith("-clear"):
                    assert settings.preempt is not None
                    assert settings.preempt.by == "service"
                assert load_scheduler(value).name == value.name

    @pytest.mark.parametrize("study", bar_studies.STUDIES.values(), ids=bar_studies.STUDIES)
    def test_every_row_is_a_policy_and_fits_its_study(self, study: bar_studies.Study) -> None:
        rows = bar_studies.rows_of(study, opponents.read_tuned(), "philly/6214e9", [Policy("fifo")])
        assert [one.policy.name for one in rows[:2]] == list(opponents.REFERENCES)
        labels = [one.label for one in rows]
        assert len(set(labels)) == len(labels)
        for one in rows:
            scheduler = load_scheduler(one.policy)
            assert one.models == study.models
            assert scheduler.oracle == (one.role == "oracle")
            assert study.models or not scheduler.abilities.needs_models
        assert ("fifo" in labels) == (study.tested != "never")
        names = ("good", "unseen", "sizes", "preempt100", "preempt50", "unseen100", "unseen50")
        default = {name: [Policy("ppo")] for name in names}
        assert bar_studies.tested_in(study, []) == default.get(study.name, [])

    def test_tuned_value_of_the_setting_counts_and_a_stale_one_does_not(self) -> None:
        own = make_choice("preemptible0.5", "gittins", 1)
        tuned = write_tuned_file({"preemptible0.5": {"gittins": own}})
        rows = {one.label: one.policy for one in bar_studies.rows_of(PREEMPT50, tuned, "t/a", [])}
        assert rows["gittins (default)"] == Policy("gittins")
        assert (rows["gittins"], rows["gittins (by trace)"]) == (own.policy(), own.policy("t/a"))
        assert rows["gittins"] != rows["gittins (by trace)"]
        assert rows["tiresias"] == Policy("tiresias")
        assert bar_studies.untuned_in(tuned, PREEMPT50) == ["tiresias", "tiresias-clear", "gittins-revised"]
        found = {one.label: one.policy for one in bar_studies.rows_of(EVERYTHING, tuned, "t/a", [])}
        assert found["gittins share 0.5 cores"] == able(own.policy(), share(0.5), CORES)
        alone = {
            one.label: one.policy
            for one in bar_studies.rows_of(bar_studies.STUDIES["sharing"], tuned, "t/a", [])
        }
        assert alone["gittins share 0.5"] == able(own.policy(), share(0.5))
        easy = opponents.default_of("easy-revised")  # untuned here
        assert alone["easy revised share 0.5"] == able(easy, share(0.5))
        stale = msgspec.structs.replace(own, grid={"gittins 1": {"preempt": {"spread": 1.0}}})
        tuned = write_tuned_file({"preemptible0.5": {"gittins": stale}})
        rows = {one.label: one.policy for one in bar_studies.rows_of(PREEMPT50, tuned, "t/a", [])}
        assert rows["gittins"] == Policy("gittins")
        assert not {"gittins (by trace)", "gittins (default)"} & set(rows)

    def test_values_tuned_with_all_jobs_preemptible_are_found_in_the_base(self) -> None:
        base = make_choice(opponents.BASE, "tiresias", 2)
        tuned = write_tuned_file({}, tiresias=base)
        rows = {
            one.label: one.policy
            for one in bar_studies.rows_of(bar_studies.STUDIES["preempt100"], tuned, "t/a", [])
        }
        assert rows["tiresias"] == base.policy()
        assert "tiresias" not in bar_studies.untuned_in(tuned, bar_studies.STUDIES["preempt100"])
        rows = {one.label: one.policy for one in bar_studies.rows_of(PREEMPT50, tuned, "t/a", [])}
        assert rows["tiresias"] == base.policy()  # no value for this setting, which is reported
        assert "tiresias" in bar_studies.untuned_in(tuned, PREEMPT50)


def make_choice(setting: str, rule: str, at: int) -> opponents.Tuned:
    _, grid = bar_studies.grid_of(setting, rule)
    return opponents.Tuned(
        grid=grid.settings,
        chosen=grid.names[at],
        score=1.0,
        chosen_by_trace={"t/a": grid.names[at + 1]},
    )


def write_tuned_file(
    settings: dict[str, dict[str, opponents.Tuned]], **rules: opponents.Tuned
) -> opponents.TunedFile:
    return opponents.TunedFile(traces=["t/a"], rules=rules, settings=settings)


class TestGoodPredictions:
    def test_they_correlate_as_published_and_stay_within_a_class(self) -> None:
        trace = make_trace()
        found, truth_s = predictions.good_predictions(trace), run_time_s(trace)
        rank = spearman(found.predicted_s, truth_s)
        assert rank is not None
        assert 0.6 < rank < 0.8
        size_class = size_classes(trace.num_gpus)
        for k in np.unique(size_class):
            mine = size_class == k
            assert found.predicted_s[mine].min() >= truth_s[mine].min() - 0.5
            assert found.predicted_s[mine].max() <= truth_s[mine].max() + 0.5
        error = np.log(np.maximum(truth_s, 1.0) / found.predicted_s)
        assert error.std() == pytest.approx(float(np.sqrt(np.mean(found.spread**2))), rel=0.15)
        assert abs(error.mean()) < 0.2

    def test_jobs_of_a_burst_share_their_errors(self) -> None:
        """Equal jobs, one minute or one hour apart: their predictions are alike only in the first case."""
        rng = np.random.default_rng(0)
        submit_s = np.repeat(np.arange(500) * 3600.0, 2) + np.tile([0.0, 30.0], 500)
        trace = Trace.from_columns(
            name="pairs",
            submit_s=submit_s,
            duration_s=np.rint(rng.lognormal(8, 2, 1000)),
            num_gpus=[1.0] * 1000,
        )
        noise = np.log(predictions.good_predictions(trace).predicted_s)
        truth = np.log(run_time_s(trace))
        left = noise - np.polyval(np.polyfit(truth, noise, 1), truth)
        assert np.corrcoef(left[::2], left[1::2])[0, 1] == pytest.approx(0.7, abs=0.1)
        assert abs(np.corrcoef(left[1:-1:2], left[2::2])[0, 1]) < 0.15

    def test_a_load_does_not_change_the_draws(self) -> None:
        trace = make_trace(600)
        stretched = Trace.from_columns(
            name="s",
            submit_s=trace.submit_s * 1.37,
            duration_s=trace.duration_s,
            num_gpus=trace.num_gpus,
        )
        first, second = (
            predictions.good_predictions(trace),
            predictions.good_predictions(stretched, stretch=1.37),
        )
        np.testing.assert_array_equal(first.predicted_s, second.predicted_s)

    def test_small_class_joins_the_one_below(self) -> None:
        gpus = np.array([1.0] * 60 + [4.0] * 3 + [8.0] * 70 + [64.0] * 5)
        assert np.unique(size_classes(gpus)).tolist() == [0, 1]
        assert size_classes(gpus)[[0, 61, 63, -1]].tolist() == [0, 0, 1, 1]

    def test_given_correlation_is_the_named_level(self) -> None:
        size_class, z = np.zeros(400, np.int64), np.random.default_rng(1).standard_normal(400)
        quantiles = TraceQuantiles(size_class, 8.0 + 2.0 * z)
        burst = np.arange(400) // 4
        named = predict("causal", quantiles, size_class, z, burst, np.random.default_rng(5))
        known = np.full(400, CAUSAL_CORRELATION)
        given = predict_known(known, quantiles, size_class, z, burst, np.random.default_rng(5))
        assert named is not None
        for ours, theirs in zip(given, named, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def replay(trace: Trace, spec: ClusterSpec, policy: Policy, models: Models | None) -> JobTable:
    engine = Engine(trace, spec, order=policy.rule.order, oracle=True, models=models)
    return engine.run_rule(policy.rule)


class TestMeasures:
    def test_delay_by_hand(self) -> None:
        """One GPU: b waits 90 s for a, and c 140 s for both; a's reference is itself."""
        trace = Trace.from_columns(
            name="t", submit_s=[0, 10, 60], duration_s=[100, 100, 50], num_gpus=[1, 1, 1]
        )
        spec = ClusterSpec.uniform(1, 1)
        table = replay(trace, spec, Policy("fifo"), None)
        everyone = np.ones(3, np.bool_)
        found = measures.measures_of(
            [table], {"qssf": [table]}, everyone, predict_trace(trace, spec, oracle=True), spec
        )
        assert found.delay_mean_s == pytest.approx((0 + 90 + 140) / 3)
        assert found.delay_max_s == 140
        assert found.rank_correlation == pytest.approx(1.0)
        assert found.delay_ratio["qssf"] is not None
        assert found.delay_ratio["qssf"].ratio == 1.0
        assert found.groups["1"] == GroupDelay(jobs=3, jct_mean_s=(250 + 230) / 3, delay_mean_s=230 / 3)
        assert found.groups["8 and more"].jobs == 0
        assert found.groups[measures.LONGEST].delay_mean_s == 45  # a and b are equal, and both the longest
        assert (found.shared_jobs, found.gpu_kwh) == (None, None)

    def test_sharing_and_energy(self) -> None:
        trace, spec = synthesize("philly", 400, 1.2, 16, seed=1)
        everyone = np.ones(len(trace), np.bool_)
        stamps_of = predict_trace(trace, spec, oracle=True)
        alone = replay(trace, spec, Policy("qssf-backfill"), GPUS_ALONE)
        shared = replay(trace, spec, Policy("pack", share={"min_speed": 0.5}), GPUS_ALONE)
        without = measures.measures_of([alone], {}, everyone, stamps_of, spec)
        found = measures.measures_of([shared], {"qssf-backfill": [alone]}, everyone, stamps_of, spec)
        assert (without.shared_jobs, without.kept_frac) == (0, None)
        share = schedule_metrics(shared, spec.num_gpus).shared_frac
        whole = np.count_nonzero(trace.num_gpus >= 1)
        assert share is not None
        assert found.shared_jobs == pytest.approx(share * whole)
        assert found.shared_jobs > 20
        speeds = measures.shared_speeds(shared, everyone)
        assert speeds is not None
        assert found.kept_frac == np.mean(speeds >= 0.85) < 1
        assert 0.3 < speeds.min() < speeds.max() <= 1.0 + 1e-9
        assert shared.energy is not None
        drawn_j = shared.energy.idle_j + shared.energy.job_j.sum()
        assert found.gpu_kwh == pytest.approx(drawn_j / 3.6e6)
        assert found.gpus_idle_w == measures.idle_w(spec) > 0
        assert found.gpu_kwh * 3.6e6 > found.gpus_idle_w * found.replay_s

    def test_no_policy_decides_by_uncounted_power(self) -> None:
        trace, spec = synthesize("philly", 300, 1.1, 16, seed=2)
        for policy in (
            able(Policy("gittins"), share(0.5), weighed(0.6)),
            able(Policy("qssf-backfill"), SHARING, lull(0.2), CORES),
        ):
            ours, theirs = (replay(trace, spec, policy, models) for models in (GPUS_ALONE, Models()))
            np.testing.assert_array_equal(ours.end_s, theirs.end_s)
            assert ours.energy is not None
            assert theirs.energy is not None
            assert ours.energy.cluster_j < theirs.energy.cluster_j


def make_result(case: Case, policy: str, jct_s: float, delay_s: float, **other: float) -> Result:
    """A run of 4,000 jobs; `against` has its own means relative to `qssf`'s 100 s and 50 s."""
    group = GroupDelay(jobs=10, jct_mean_s=jct_s, delay_mean_s=2 * delay_s)
    metrics = Metrics(
        jobs=4000,
        rejected=0,
        unfinished=0,
        jct_mean_s=jct_s,
        jct_p50_s=10.0,
        jct_p99_s=20.0,
        jct_p999_s=30.0,
        queue_mean_s=other.get("queue_s", delay_s),
        queue_p50_s=1.0,
        queue_p99_s=1.0,
        queue_p999_s=1.0,
        queue_max_s=1.0,
        makespan_s=1.0,
        gpu_utilisation_frac=0.5,
        energy_kwh=1.0,
        preemptions=1000,
        decisions=7,
        decision_p99_us=None,
        wall_s=0.1,
        by_vc={},
        by_source={},
        by_gpus={},
        shared_frac=0.25,
    )
    return Result(
        case=case,
        policy=policy,
        policy_id=policy,
        models=True,
        nodes=4,
        gpus=32,
        load_frac=case.load,
        stretch=1.0,
        days=11.0,
        metrics=metrics,
        against={
            name: Comparison(
                jobs=4000,
                jct_mean_ratio=Ratio(jct_s / 100, 0.5, 1.5),
                queue_mean_ratio=None,
                wins_frac=0.0,
                losses_frac=0.0,
            )
            for name in opponents.REFERENCES
        },
        measures=Measures(
            delay_mean_s=delay_s,
            delay_p99_s=3 * delay_s,
            delay_p999_s=4 * delay_s,
            delay_max_s=5 * delay_s,
            delay_ratio=dict.fromkeys(opponents.REFERENCES, Ratio(delay_s / 50, 0.25, 1.75)),
            groups=dict.fromkeys((*(one for one, _, _ in measures.SIZES), measures.LONGEST), group),
            rank_correlation=0.5 + case.load / 10,
            shared_jobs=1000,
            kept_frac=0.75,
            gpu_kwh=other.get("gpu_kwh", 10.0),
            replay_s=other.get("replay_s", 3600.0),
            gpus_idle_w=1000.0,
        ),
    )


CASES = [Case(trace="t/a", part="validation", load=load, preemptible_frac=0.5) for load in (0.7, 0.95, 1.05)]
ROWS = {
    "t/a": [
        opponents.Entry(policy=Policy("qssf"), label="qssf", role="reference", models=True),
        opponents.Entry(policy=Policy("qssf-backfill"), label="qssf-backfill", role="reference", models=True),
        opponents.Entry(
            policy=Policy("pack", name="pack 0.5", share={"min_speed": 0.5}),
            label="pack",
            role="rule",
            models=True,
        ),
        opponents.Entry(policy=Policy("gittins"), label="gittins", role="rule", models=True),
    ]
}


def make_results() -> dict[tuple[str, str, bool], Result]:
    found = []
    for case, (pack, gittins) in zip(CASES, ((1.0, 1.0), (40.0, 25.0), (45.0, 100.0)), strict=True):
        found += [
            make_result(case, "qssf", 100.0, 50.0),
            make_result(case, "qssf-backfill", 120.0, 70.0),
            make_result(case, "pack 0.5", 90.0, pack),
            make_result(case, "gittins", 80.0, gittins),
        ]
    return {(one.case.name, one.policy, one.models): one for one in found}


class TestTables:
    def test_mean_of_all_traces_by_hand(self) -> None:
        """Delays of 25 and 100 s, divided by 50: ratio 1. Load 0.7 has a separate line and enters no mean."""
        text = bar_tables.study_section(EVERYTHING, CASES, ROWS, make_results(), untuned=["pack"])
        assert (
            "| `gittins` | 2 | 1.000 | 0.800 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 1 : 1 |"
            in text
        )
        assert "| 2.00 | 0.25 | 25% | 75% |" in text
        assert "**Not tuned** here, at the values of the base setting or their defaults: `pack`." in text
        assert "0.57 to 0.60 by case" in text
        # relative to pack: 25 / 40 and 100 / 45
        assert f"| `gittins` | {(25 / 40 * 100 / 45) ** 0.5:.3f}, 1 : 1, 2.22 |" in text
        assert "| t/a, 0.7 | 4,000 | 50 (`qssf`) | 0.020 [0.25, 1.75] | 0.020 [0.25, 1.75] |" in text
        assert "| t/a, 1.05 | 4,000 | 50 (`qssf`) | 0.900 [0.25, 1.75] | 2.000 [0.25, 1.75] |" in text

    def test_preemption_is_ranked_by_jct(self) -> None:
        text = bar_tables.study_section(
            msgspec.structs.replace(PREEMPT50, models=True), CASES, ROWS, make_results()
        )
        assert "| `gittins` | 2 | 0.800 | 1.000 |" in text
        assert "| t/a, 1.05 | 4,000 | 100 (`qssf`) | 0.900 [0.50, 1.50] | 0.800 [0.50, 1.50] |" in text

    def test_sharing_is_ranked_where_lucid_queues(self) -> None:
        lucid = opponents.Entry(policy=Policy("lucid"), label="lucid", role="rule", models=True)
        rows = {"t/a": [*ROWS["t/a"], lucid]}
        results = make_results()
        for case, queue_s in zip(CASES, (90.0, 31.0, 29.0), strict=True):
            one = make_result(case, "lucid", 100.0, 50.0, queue_s=queue_s)
            results[case.name, "lucid", True] = one
        text = bar_tables.study_section(bar_studies.STUDIES["sharing"], CASES, rows, results)
        assert "worst case (1 cases)" in text
        assert "| `gittins` | 0.500, 1 : 0, 0.50 | 0.625, 1 : 0, 0.62 |" in text

    def test_case_has_a_separate_table(self) -> None:
        text = bar_tables.case_tables(EVERYTHING, CASES, ROWS, make_results())
        assert text.count("**t/a, load") == 3
        assert (
            "| `gittins` | 80 | 0.800 [0.50, 1.50] | 100 | 2.000 [0.25, 1.75] | 10 | 20 | 300 | 400 | 500 |"
            in text
        )
        assert text.rstrip().endswith("| 200 | 200 | 200 | 200 | 200 | 1,000 | 25% | 75% | 10 |")

    def test_few_jobs_are_only_in_the_first_table(self) -> None:
        """Two cases of a study with its own traces: the case with 299 jobs is not in the second table."""
        study = msgspec.structs.replace(EVERYTHING, own=("t/a",))
        results = make_results()
        for key, one in results.items():
            if key[0] == CASES[1].name:
                metrics = msgspec.structs.replace(one.metrics, jobs=bar_tables.MANY_JOBS - 1)
                results[key] = msgspec.structs.replace(one, metrics=metrics)
        whole, _, many = bar_tables.study_section(study, CASES, ROWS, results).partition(
            "Only cases with 300 measured jobs or more:"
        )
        assert "| `gittins` | 2 | 1.000 |" in whole
        assert "| `gittins` | 1 | 2.000 |" in many
        assert "300 jobs or more" not in bar_tables.study_section(study, CASES, ROWS, make_results())

    def test_wall_times_by_hand(self) -> None:
        """0.1 s for 7 decisions; a case without a run has an empty cell."""
        results = make_results()
        del results[CASES[2].name, "gittins", True]
        text = "\n".join(bar_tables.wall_times(CASES, ROWS, results))
        assert "| policy | t/a, 0.7 | t/a, 0.95 | t/a, 1.05 |" in text
        assert "| `gittins` | 14,286 (7) | 14,286 (7) |  |" in text
        assert "| `qssf` | 14,286 (7) | 14,286 (7) | 14,286 (7) |" in text

    def test_results_of_an_older_version_are_refused(self) -> None:
        old = msgspec.structs.replace(make_result(CASES[0], "qssf", 1.0, 1.0), measures=None)
        with pytest.raises(InputError, match=r"an older version.*give another --out"):
            _ = old.measured


class TestDial:
    def test_dominated_settings(self) -> None:
        hand = {"fast": Point(0.9, 1.0), "frugal": Point(1.2, 0.7)}
        assert dial_tables.beaten_by(Point(0.9, 1.0), hand) == []
        assert dial_tables.beaten_by(Point(0.9, 1.01), hand) == ["fast"]
        assert dial_tables.beaten_by(Point(1.3, 1.1), hand) == ["fast", "frugal"]
        assert dial_tables.beaten_by(Point(1.0, 0.8), hand) == []

    def test_energy_counts_until_the_last_replay_has_ended(self) -> None:
        """`gittins` ends an hour earlier: its GPUs, 1 kW in all, are idle meanwhile."""
        case = CASES[0]
        results = {
            (case.name, one.policy, True): one
            for one in (
                make_result(case, "qssf-backfill", 100.0, 50.0, gpu_kwh=10.0, replay_s=7200.0),
                make_result(case, "gittins", 50.0, 25.0, gpu_kwh=6.0, replay_s=3600.0),
            )
        }
        found = dial_tables.points(case, ROWS["t/a"], results)
        assert found == {"qssf-backfill": Point(1.0, 1.0), "gittins": Point(0.5, 0.7)}
        text = "\n".join(dial_tables.dial_lines([case], ROWS, results))
        assert "| `gittins` | 0.500 | 0.700 | 1 of 1 |  |" in text
        assert "| over all | `qssf-backfill` | 1.000 | `gittins` | 0.700 |" in text

    def test_dominated_setting_names_the_better_one(self) -> None:
        case = CASES[0]
        results = {
            (case.name, policy, True): make_result(case, policy, jct_s, 1.0, gpu_kwh=kwh)
            for policy, jct_s, kwh in (
                ("qssf-backfill", 100.0, 10.0),
                ("pack 0.5", 90.0, 9.0),
                ("gittins", 95.0, 9.5),
            )
        }
        text = "\n".join(dial_tables.dial_lines([case], ROWS, results))
        assert "| `gittins` | 0.950 | 0.950 | 0 of 1 | `pack` |" in text
        assert "| `qssf-backfill` | 1.000 | 1.000 | 0 of 1 | `pack` |" in text
