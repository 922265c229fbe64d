"""Rules with start options: compiled and one decision at a time; models that change nothing.

Properties of any schedule under models are tested here too; conservation of energy is in
`tests/property/test_conservation.py`.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlsched.cluster.spec import ClusterSpec, NodeGroup, Placement
from rlsched.decide.options import BLOCKED, LUCID
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.settings import ProfilerSettings
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes, predict_trace
from rlsched_envs.sim.job_table import JobTable
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.sim.modelled_runs import check_books, check_equal

PROFILE = ProfilerSettings()
GREEDY = ("fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill")
POLICIES = {
    "pack": Policy("pack"),
    "lucid": Policy("lucid"),
    "easy, share": Policy("easy", share={}),
    "share": Policy("qssf-backfill", share={}),
    "share, blocking": Policy("qssf", share={"min_speed": 0.6}),
    "clock": Policy("fifo-backfill", clock={"rule": "fixed", "at": 0.75}),
    "slowdown": Policy("qssf-backfill", clock={"rule": "slowdown", "slowdown": 0.05}),
    "lull": Policy("sjf-backfill", clock={"rule": "lull", "slowdown": 0.1}),
    "cores": Policy("qssf-backfill", cores=True),
    "all": Policy(
        "fifo-backfill", share={"min_speed": 0.7}, clock={"rule": "slowdown", "slowdown": 0.1}, cores=True
    ),
    "share and lull": Policy("qssf-backfill", share={}, clock={"rule": "lull", "slowdown": 0.05}),
    "weight": Policy("qssf-backfill", clock={"rule": "weighed", "energy_weight": 0.5}),
    "share more and lull": Policy(
        "fifo-backfill", share={"min_speed": 0.7}, clock={"rule": "lull", "slowdown": 0.2}
    ),
}
MORE = {
    **POLICIES,
    "pack, cores": Policy("pack", cores=True),
    "lucid, slowdown": Policy("lucid", clock={"rule": "slowdown", "slowdown": 0.05}),
}


@cache
def workload(like: str, jobs: int = 400) -> tuple[Trace, ClusterSpec, PredictedTimes]:
    """Jobs on 32 V100 with 6 cores each, and their predictions."""
    trace, spec = synthesize(like, jobs=jobs, load=1.1, gpus=32, seed=7)
    spec = ClusterSpec(name="v", nodes=(NodeGroup(count=4, gpus=8, gpu_type="V100", cpus=48),))
    return trace, spec, predict_trace(trace, spec)


def engine(like: str, policy: Policy, models: Models | None, rules: RunRules | None = None) -> Engine:
    trace, spec, predictions = workload(like)
    if policy.oracle:
        predictions = predict_trace(trace, spec, oracle=True)
    return Engine(trace, spec, order=policy.rule.order, predictions=predictions, models=models, rules=rules)


def run_rule(like: str, policy: Policy, models: Models | None, rules: RunRules | None = None) -> JobTable:
    return engine(like, policy, models, rules).run_rule(policy.rule)


@pytest.mark.parametrize("like", quick(["helios", "philly"], "helios".__eq__, rest=pytest.mark.soak))
@pytest.mark.parametrize("name", quick(MORE, {"share", "slowdown", "cores", "all"}.__contains__))
def test_compiled_equals_one_decision_at_a_time(name: str, like: str) -> None:
    policy = MORE[name]
    compiled = run_rule(like, policy, Models())
    stepped = engine(like, policy, Models()).run(RuleScheduler(policy))
    check_equal(compiled, stepped)
    check_books(compiled)
    if policy.settings.order == "area" and not policy.settings.cores:
        plain = run_rule(like, Policy("qssf-backfill"), Models())
        assert (plain.start_s != compiled.start_s).any() or (plain.end_s != compiled.end_s).any()


@pytest.mark.parametrize("name", quick(["cores", "all", "pack, cores"], {"all"}.__contains__))
def test_compiled_equals_one_decision_at_a_time_if_cores_are_lent(name: str) -> None:
    policy, lends = MORE[name], Models(lends_cores=True)
    compiled = run_rule("helios", policy, lends)
    check_equal(compiled, engine("helios", policy, lends).run(RuleScheduler(policy)))
    check_books(compiled)
    assert (compiled.end_s != run_rule("helios", policy, Models()).end_s).any()


CORES_OF_GPU = 8


def with_parts(seed: int, jobs: int = 200) -> Trace:
    """Jobs that get whole GPUs or parts of GPUs, and request at most the cores of these GPUs."""
    rng = random.Random(seed)
    num_gpus = [rng.choice((0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 4.0)) for _ in range(jobs)]
    return Trace.from_columns(
        name="parts",
        submit_s=sorted(rng.uniform(0.0, 13_000.0) for _ in range(jobs)),
        duration_s=[rng.uniform(60.0, 2_000.0) for _ in range(jobs)],
        num_gpus=num_gpus,
        num_cpus=[max(0.5, CORES_OF_GPU * size * rng.choice((0.25, 0.5, 1.0))) for size in num_gpus],
    )


@pytest.mark.parametrize("placement", ["consolidate", "best-fit", "worst-fit", "spread", "fgd"])
@pytest.mark.parametrize("name", quick(["pack", "tuned"], {"pack"}.__contains__))
def test_jobs_start_with_fewer_cores_if_jobs_that_share_gpus_have_taken_them(
    name: str, placement: Placement
) -> None:
    trace, policy = with_parts(seed=1), Policy(name)
    nodes = NodeGroup(count=3, gpus=4, gpu_type="V100", cpus=4 * CORES_OF_GPU)
    spec = ClusterSpec(name="v", nodes=(nodes,), placement=placement)
    predictions = PredictedTimes(trace.duration_s.copy(), np.ones(len(trace)))

    def made() -> Engine:
        return Engine(trace, spec, order=policy.rule.order, predictions=predictions, models=Models())

    compiled = made().run_rule(policy.rule)
    check_equal(compiled, made().run(RuleScheduler(policy)))
    assert np.isfinite(compiled.end_s).all(), "all jobs have run"


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


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(JOB, min_size=2, max_size=20),
    st.lists(GROUP, min_size=1, max_size=3),
    st.sampled_from([Policy("lucid", profile={"run": 3.0}), *POLICIES.values()]),
    st.integers(0, 5),
    st.booleans(),
)
def test_both_ways_on_random_jobs_and_mixed_clusters(
    jobs: list[tuple[int, ...]], groups: list[tuple[int, ...]], policy: Policy, seed: int, lends: bool
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
    predictions = PredictedTimes(trace.predicted_s.copy(), np.ones(len(trace)))
    if policy.oracle:
        predictions = PredictedTimes(trace.duration_s.copy(), np.zeros(len(trace)))
    compiled, stepped = (
        Engine(
            trace,
            spec,
            order=policy.rule.order,
            predictions=predictions,
            models=Models(workload_seed=seed, lends_cores=lends),
        )
        for _ in range(2)
    )
    check_equal(compiled.run_rule(policy.rule), stepped.run(RuleScheduler(policy)))


@pytest.mark.parametrize("like", ["helios", "philly"])
@pytest.mark.parametrize("name", [*GREEDY, *quick(["easy", "reserve", "srtf", "tiresias"], lambda _: False)])
def test_models_without_start_options_change_no_start_and_no_end(name: str, like: str) -> None:
    """One GPU type, no sharing, full clock, fair cores: run times equal the trace's."""
    policy = Policy(name)
    without = run_rule(like, policy, None)
    under = run_rule(like, policy, Models(), RunRules(costs=PreemptionCosts()))
    if policy.rule.options.preempts:  # work is counted by rates instead of by the clock on the wall
        np.testing.assert_allclose(under.start_s, without.start_s, rtol=0, atol=1e-6)
        np.testing.assert_allclose(under.end_s, without.end_s, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(under.start_s, without.start_s)
        np.testing.assert_array_equal(under.end_s, without.end_s)
    assert under.gpus == without.gpus
    assert under.energy is not None
    assert (under.energy.job_j[~under.rejected] > 0).all()
    check_books(under)


@pytest.mark.slow
def test_random_choices_set_clocks_and_are_valid() -> None:
    draws, qssf = load_scheduler("random", seed=3), Policy("qssf-backfill")
    models = Models(energy_weight=0.5)  # without a weight of energy no clock is lowered
    table = engine("helios", qssf, models).run(draws)
    check_books(table)
    assert table.log is not None
    assert table.log.books is not None
    length_s = table.log.end_s - table.log.start_s
    assert (table.log.books.clock_s < 0.9 * length_s).any()
    again = engine("helios", qssf, models).run(load_scheduler("random", seed=3))
    check_equal(table, again)


def test_lucid_profiler_is_charged_to_longer_jobs_of_up_to_eight_gpus() -> None:
    trace = Trace.from_columns(
        name="p",
        submit_s=[0.0, 10_000.0, 20_000.0],
        duration_s=[PROFILE.run, PROFILE.run + 1, 1000.0],
        num_gpus=[1.0, PROFILE.max_gpus, PROFILE.max_gpus + 8],
    )
    spec = ClusterSpec(name="v", nodes=(NodeGroup(count=2, gpus=8, gpu_type="V100", cpus=48),))
    lucid = Policy("lucid")
    for table in (
        Engine(trace, spec, order=lucid.rule.order, models=Models()).run_rule(lucid.rule),
        Engine(trace, spec, order=lucid.rule.order, models=Models()).run(RuleScheduler(lucid)),
    ):
        lasted_s = table.end_s - table.start_s
        assert lasted_s.tolist() == [PROFILE.run, 2 * PROFILE.run + 1, 1000.0]
    assert Policy("lucid", profile={"run": "80s"}).rule.profile_s == 80.0


def test_rule_that_shares_still_shares_with_more_settings() -> None:
    assert Policy("pack", clock={"rule": "fixed", "at": 0.8}).rule.options.start.share == BLOCKED
    lucid = Policy("lucid", cores=True)
    assert lucid.rule.options.start.share == LUCID
    assert lucid.rule.profile_s == PROFILE.run
    share = Policy("qssf-backfill", share={})
    check_equal(run_rule("helios", Policy("pack"), Models()), run_rule("helios", share, Models()))
