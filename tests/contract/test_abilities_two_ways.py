"""Rules with abilities twice over: compiled, and one decision at a time; and models that change nothing.

What a schedule under models has to keep, whoever made it, stands here too; that energy adds up is
`tests/property/test_conservation.py`.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.abilities import read_abilities
from rlsched.decide.rules import Rule
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.heuristics.keeping_room import make_easy, make_reserve, make_sgf_age
from rlsched_agents.heuristics.preemptive import srtf, tiresias
from rlsched_agents.heuristics.queue_order import RULES, QueueOrder
from rlsched_agents.heuristics.random_choice import make_random
from rlsched_agents.heuristics.sharing import PROFILE_MAX_GPUS, PROFILE_S, make_lucid, make_pack
from rlsched_envs.engine import Engine, Predictions, predict_trace
from rlsched_envs.job_table import JobTable
from rlsched_envs.attempt_log import RunRules, PreemptionCosts
from rlsched_envs.modelling import Models

ABLE = {
    "share": "qssf-backfill+share",
    "share, blocking": "qssf+share=0.6",
    "clock": "fifo-backfill+clock=0.75",
    "slowdown": "qssf-backfill+slowdown=0.05",
    "lull": "sjf-backfill+lull=0.1",
    "cores": "qssf-backfill+cores",
    "all": "fifo-backfill+share=0.7+slowdown=0.1+cores",
    "share and lull": "qssf-backfill+share+lull=0.05",
    "weight": "qssf-backfill+weight=0.5",
    "reclock": "qssf-backfill+weight=0.5+reclock=10s",
    "share and reclock": "fifo-backfill+share=0.7+lull=0.2+reclock=60s",
}


def scheduler(name: str) -> QueueOrder:
    """A rule by its name, abilities included."""
    rule, *words = name.split("+")
    made = {"pack": make_pack, "lucid": make_lucid, "easy": make_easy}
    made |= {"sgf-age": make_sgf_age, "reserve": make_reserve}
    plain = made[rule]("", 0) if rule in made else QueueOrder(RULES[rule])
    return plain.with_abilities(name, read_abilities(name, words)) if words else plain


@cache
def workload(like: str, jobs: int = 400) -> tuple[Trace, ClusterSpec, Predictions]:
    """Jobs on 32 V100 with 6 cores each, and their stamps."""
    trace, spec = synthesize(like, jobs=jobs, load=1.1, gpus=32, seed=7)
    spec = ClusterSpec(name="v", nodes=(NodeGroup(count=4, gpus=8, gpu_type="V100", cpus=48),))
    return trace, spec, predict_trace(trace, spec)


def engine(like: str, rule: Rule, models: Models | None, rules: RunRules | None = None) -> Engine:
    trace, spec, stamps = workload(like)
    if rule.information == "oracle":
        stamps = predict_trace(trace, spec, "oracle")
    return Engine(trace, spec, order=rule.order, predictions=stamps, models=models, rules=rules)


def check_equal(one: JobTable, two: JobTable) -> None:
    np.testing.assert_array_equal(one.start_s, two.start_s)
    np.testing.assert_array_equal(one.end_s, two.end_s)
    assert one.gpus == two.gpus
    assert one.energy is not None
    assert two.energy is not None
    np.testing.assert_array_equal(one.energy.job_j, two.energy.job_j)
    assert one.energy.cluster_j == two.energy.cluster_j
    assert one.segments is not None
    assert two.segments is not None
    assert one.segments.books is not None
    assert two.segments.books is not None
    for mine, theirs in zip(one.segments.books, two.segments.books, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def check_books(table: JobTable) -> None:
    """Attempts' energy is their jobs', shares of a GPU never exceed it, and a gang is whole."""
    segments, energy, trace = table.segments, table.energy, table.trace
    assert segments is not None
    assert segments.books is not None
    assert energy is not None
    books, length_s = segments.books, segments.end_s - segments.start_s
    per_job = np.bincount(segments.job, books.energy_j, minlength=len(trace))
    np.testing.assert_allclose(per_job, energy.job_j, rtol=1e-9)
    assert (np.diff(segments.gpu_at) == trace.num_gpus[segments.job]).all()
    for integral in (books.share_s, books.used_s, books.clock_s):
        assert (integral <= length_s * (1 + 1e-9)).all()
        assert (integral >= 0).all()
    assert (books.used_s <= length_s * (1 + 1e-9)).all()
    done_s = np.bincount(segments.job, segments.useful_s, minlength=len(trace))
    np.testing.assert_allclose(done_s[~table.rejected], trace.duration_s[~table.rejected], rtol=1e-9)


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize(
    "name",
    ["pack", "lucid", "pack+cores", "lucid+slowdown=0.05", "easy+share", "sgf-age+share", *ABLE.values()],
)
def test_compiled_equals_one_decision_at_a_time(name: str, like: str) -> None:
    one = scheduler(name)
    compiled = engine(like, one.rule, Models()).run_rule(one.rule)
    stepped = engine(like, one.rule, Models()).run(one)
    check_equal(compiled, stepped)
    check_books(compiled)
    plain = engine(like, one.rule, Models()).run_rule(RULES["qssf-backfill"]) if "qssf" in name else None
    if plain is not None and "cores" not in name:
        assert (plain.start_s != compiled.start_s).any() or (plain.end_s != compiled.end_s).any()


SIZES = st.sampled_from([1, 1, 1, 2, 2, 4, 8])
JOB = st.tuples(
    st.integers(0, 40), st.integers(1, 30), SIZES, st.integers(1, 40), st.sampled_from(["", "a", "b"])
)
GROUP = st.tuples(
    st.integers(1, 2),
    st.integers(1, 4),
    st.sampled_from(["V100", "P100"]),
    st.sampled_from([0, 4, 16]),
    st.sampled_from([None, None, "a"]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(JOB, min_size=2, max_size=20),
    st.lists(GROUP, min_size=1, max_size=3),
    st.sampled_from(["pack", "lucid:3", "easy+share", *ABLE.values()]),
    st.integers(0, 5),
)
def test_both_ways_on_random_jobs_and_mixed_clusters(
    jobs: list[tuple[int, ...]], groups: list[tuple[int, ...]], name: str, seed: int
) -> None:
    submit, duration, gpus, predicted, vc = (list(column) for column in zip(*jobs, strict=True))
    trace = Trace.from_columns(
        name="random", submit_s=submit, duration_s=duration, num_gpus=gpus, predicted_s=predicted, vc=vc
    )
    spec = ClusterSpec(
        name="c",
        nodes=tuple(
            NodeGroup(count=count, gpus=each, gpu_type=kind, cpus=cpus, vc=owner)
            for count, each, kind, cpus, owner in groups
        ),
    )
    one = make_lucid("3", 0) if name == "lucid:3" else scheduler(name)
    stamps = Predictions(trace.predicted_s.copy(), np.ones(len(trace)))
    if one.information == "oracle":
        stamps = Predictions(trace.duration_s.copy(), np.zeros(len(trace)))
    compiled, stepped = (
        Engine(trace, spec, order=one.order, predictions=stamps, models=Models(seed=seed)) for _ in range(2)
    )
    check_equal(compiled.run_rule(one.rule), stepped.run(one))


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("name", [*RULES, "easy", "sgf-age", "reserve", "srtf", "tiresias"])
def test_models_without_abilities_change_no_start_and_no_end(name: str, like: str) -> None:
    """One GPU type, nobody shares, full clock, its fair cores: a job's run time is the trace's."""
    preemptive = {"srtf": srtf(), "tiresias": tiresias()}
    rule = preemptive[name] if name in preemptive else scheduler(name).rule
    without = engine(like, rule, None).run_rule(rule)
    under = engine(like, rule, Models(), RunRules(costs=PreemptionCosts())).run_rule(rule)
    if name in preemptive:  # work is counted by rates instead of by the clock on the wall
        np.testing.assert_allclose(under.start_s, without.start_s, rtol=0, atol=1e-6)
        np.testing.assert_allclose(under.end_s, without.end_s, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(under.start_s, without.start_s)
        np.testing.assert_array_equal(under.end_s, without.end_s)
    assert under.gpus == without.gpus
    assert under.energy is not None
    assert (under.energy.job_j[~under.rejected] > 0).all()
    check_books(under)


@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf"])
def test_the_published_schedules_hold_under_models(shared_data: Path, name: str) -> None:
    """Lucid's simulator on a week of Philly, job for job, as in `test_fidelity`."""
    folder, rule = shared_data / "fidelity", RULES[name]
    trace = Trace.read(folder / "philly_week.csv.gz")
    spec = ClusterSpec.read(folder / "philly_week.cluster.toml")
    made = Engine(trace, spec, order=rule.order, information=rule.information, models=Models())
    table = made.run_rule(rule)
    with gzip.open(folder / f"expected_{name}_60.csv.gz", "rt", encoding="utf-8", newline="") as file:
        expected = {row["job_id"]: (row["start_time"], row["end_time"]) for row in csv.DictReader(file)}
    times = np.array([expected[job] for job in trace.job_id.tolist()], np.float64)
    np.testing.assert_array_equal(table.start_s, times[:, 0])
    np.testing.assert_array_equal(table.end_s, times[:, 1])


def test_random_choices_share_and_set_clocks_and_are_valid() -> None:
    """Every candidate that is legal under models can be acted on."""
    draws = make_random("", 3)
    models = Models(energy_weight=0.5)  # without a weight of energy no clock is offered
    table = engine("helios", RULES["qssf-backfill"], models).run(draws)
    check_books(table)
    assert table.segments is not None
    assert table.segments.books is not None
    length_s = table.segments.end_s - table.segments.start_s
    assert (table.segments.books.share_s < 0.9 * length_s).any()
    assert (table.segments.books.clock_s < 0.9 * length_s).any()
    again = engine("helios", RULES["qssf-backfill"], models).run(make_random("", 3))
    check_equal(table, again)


def test_the_profiler_of_lucid_is_charged_to_longer_jobs_of_up_to_eight_gpus() -> None:
    trace = Trace.from_columns(
        name="p",
        submit_s=[0.0, 10_000.0, 20_000.0],
        duration_s=[PROFILE_S, PROFILE_S + 1, 1000.0],
        num_gpus=[1.0, PROFILE_MAX_GPUS, PROFILE_MAX_GPUS + 8],
    )
    spec = ClusterSpec(name="v", nodes=(NodeGroup(count=2, gpus=8, gpu_type="V100", cpus=48),))
    lucid = make_lucid("", 0)
    for table in (
        Engine(trace, spec, order=lucid.order, models=Models()).run_rule(lucid.rule),
        Engine(trace, spec, order=lucid.order, models=Models()).run(lucid),
    ):
        lasted_s = table.end_s - table.start_s
        assert lasted_s.tolist() == [PROFILE_S, 2 * PROFILE_S + 1, 1000.0]
    assert make_lucid("80", 0).rule.profile_s == 80.0


def test_a_rule_that_shares_keeps_doing_so_with_more_abilities() -> None:
    assert scheduler("pack+clock=0.8").rule.abilities.share == "blocked"
    assert scheduler("lucid+cores").rule.abilities.share == "lucid"
    assert scheduler("lucid+cores").rule.profile_s == PROFILE_S
    pack = engine("helios", scheduler("pack").rule, Models()).run_rule(scheduler("pack").rule)
    share = scheduler("qssf-backfill+share").rule
    check_equal(pack, engine("helios", share, Models()).run_rule(share))
