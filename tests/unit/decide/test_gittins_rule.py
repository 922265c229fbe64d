"""`gittins` on clusters so small that every attempt can be worked out by hand; its settings; its records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.decide.actions import Preempt
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.reading import read_records
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, PredictedTimes
from tests.support.sim.play import attempts, trace_of

Span = tuple[str, float, float]
"""Job, start and end of an attempt."""
TAIL_S = 20.0
"""A prediction that is the same for all jobs."""


def spans(
    trace: Trace, spec: ClusterSpec, predicted_s: Sequence[float] = (), *, preempts: bool = True
) -> list[Span]:
    """Every attempt, by start, then job."""
    rule = Policy("gittins").rule
    rule = replace(rule, options=rule.options._replace(preempts=preempts))
    predictions = PredictedTimes(
        np.array(predicted_s or [TAIL_S] * len(trace), np.float64), np.zeros(len(trace))
    )
    rules = RunRules(always=True)
    table = Engine(trace, spec, order=rule.order, predictions=predictions, rules=rules).run_rule(rule)
    return [(job, start_s, end_s) for job, _, start_s, end_s, _, _ in attempts(table)]


class TestByHand:
    def test_new_job_replaces_one_that_has_run_for_long(self) -> None:
        trace = trace_of([(0, 1000, 1), (200, 10, 1)])
        assert spans(trace, ClusterSpec.uniform(1, 1)) == [
            ("a", 0, 200),
            ("b", 200, 210),
            ("a", 210, 210 + 40 + 800),
        ]

    def test_without_events_it_decides_at_the_tick_after_a_step(self) -> None:
        """Job a is sixty seconds old at 70; the first multiple of sixty after that is 120."""
        trace = trace_of([(10, 1000, 1), (20, 10, 1)])
        assert spans(trace, ClusterSpec.uniform(1, 1))[:2] == [("a", 10, 120), ("b", 120, 130)]

    def test_shorter_prediction_goes_first(self) -> None:
        trace = trace_of([(0, 50, 1), (1, 50, 1), (2, 50, 1)])
        assert spans(trace, ClusterSpec.uniform(1, 1), [10.0, 500.0, 100.0]) == [
            ("a", 0, 50),
            ("c", 50, 100),
            ("b", 100, 150),
        ]

    def test_cost_difference_below_the_margin_does_not_preempt(self) -> None:
        """ln(1.6) is 0.47, ln(1.7) is 0.53: the factors by which the running job is predicted longer."""
        trace = trace_of([(0, 50, 1), (1, 10, 1)])
        one = ClusterSpec.uniform(1, 1)
        assert spans(trace, one, [160.0, 100.0])[0] == ("a", 0, 50)
        assert spans(trace, one, [170.0, 100.0])[0] == ("a", 0, 1)

    @pytest.mark.parametrize("preempts", [True, False])
    def test_non_preemptible_job_is_not_preempted(self, preempts: bool) -> None:
        pinned = ["false" if preempts else "true", ""]
        trace = trace_of([(0, 1000, 1), (200, 10, 1)], preemptible=pinned)
        assert spans(trace, ClusterSpec.uniform(1, 1), preempts=preempts) == [
            ("a", 0, 1000),
            ("b", 1000, 1010),
        ]

    def test_preempted_jobs_free_one_node(self) -> None:
        """A job on each of two nodes of two has run for longest; b and d are on the same node as they are."""
        trace = trace_of([(0, 9000, 1), (0, 9000, 1), (500, 9000, 1), (500, 9000, 1), (1000, 10, 2)])
        made = spans(trace, ClusterSpec.uniform(2, 2))
        assert made[:4] == [("a", 0, 1000), ("b", 0, 1000), ("c", 500, 9500), ("d", 500, 9500)]
        assert ("e", 1000, 1010) in made

    def test_no_job_is_preempted_for_a_gang_that_still_would_not_fit(self) -> None:
        """The gang of four needs both nodes, and c on one of them must not be preempted."""
        trace = trace_of(
            [(0, 900, 1), (0, 900, 1), (0, 900, 1), (300, 5, 4)], preemptible=["", "", "false", ""]
        )
        assert spans(trace, ClusterSpec.uniform(2, 2))[:3] == [("a", 0, 900), ("b", 0, 900), ("c", 0, 900)]

    def test_no_job_is_preempted_for_a_job_that_fits_its_other_partition(self) -> None:
        """The node of VC x is taken, the shared one is free."""
        nodes = (NodeGroup(count=1, gpus=1, vc="x"), NodeGroup(count=1, gpus=1))
        trace = trace_of([(0, 1000, 1), (500, 10, 1), (501, 20, 1)], vc=["x", "x", "x"])
        assert spans(trace, ClusterSpec(name="c", nodes=nodes)) == [
            ("a", 0, 501),  # the second one has no other place
            ("b", 500, 510),
            ("c", 501, 521),
            ("a", 510, 510 + 40 + 499),
        ]


class TestSettings:
    def test_parameters_by_name(self) -> None:
        preempt = {"spread": 1.0, "trust": 0.5, "gpus_power": 0.0, "margin": 0.25}
        index = Policy("gittins", preempt=preempt).rule.order.index
        assert (index.spread, index.trust, index.gpus_power, index.margin) == (1.0, 0.5, 0.0, 0.25)
        plain, one = Policy("gittins"), Policy("gittins", preempt={"spread": 1.0})
        assert one.rule.order.index == msgspec.structs.replace(plain.rule.order.index, spread=1.0)
        assert (plain.name, one.name) == ("gittins", "gittins*")
        assert plain.rule.order == Order(by="index")

    @pytest.mark.parametrize("name", ["spread", "trust", "gpus_power", "margin"])
    @pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 10.1])
    def test_parameters_out_of_range_are_refused(self, name: str, value: float) -> None:
        with pytest.raises(InputError) as raised:
            Policy("gittins", preempt={name: value})
        assert f"preempt.{name}: expected a figure from 0 to 10, got {value:g}" in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_other_settings_are_refused(self) -> None:
        with pytest.raises(InputError, match=r"preempt\.spread: expected `float`, got `str`"):
            Policy("gittins", preempt={"spread": "two"})
        with pytest.raises(InputError, match=r"unknown setting 'preempt.spreads'; did you mean 'spread'"):
            Policy("gittins", preempt={"spreads": 1.0})

    def test_its_attributes(self) -> None:
        plain = load_scheduler("gittins").abilities
        preempt, share = {"spread": 1.0, "trust": 0.0}, {"min_speed": 0.5}
        sharing = Policy("gittins", name="both", preempt=preempt, share=share, cores=True)
        scheduler = load_scheduler(sharing)
        able = scheduler.abilities
        assert (plain.preempts, plain.shares, plain.needs_models) == (True, False, False)
        assert (able.preempts, able.shares, able.needs_models) == (True, True, True)
        assert scheduler.name == "both"

    def test_rule_that_shares_needs_models(self) -> None:
        trace, able = trace_of([(0, 10, 1)]), load_scheduler(Policy("gittins", share={}))
        assert able.rule is not None
        for run in (lambda engine: engine.run(able), lambda engine: engine.run_rule(able.rule)):
            with pytest.raises(ValueError, match=r"the rule shares GPUs .* expected an engine with models"):
                run(Engine(trace, ClusterSpec.uniform(1, 1), order=Order(by="index")))


@pytest.mark.slow
def test_records_of_a_run_with_preemptions_can_be_read(tmp_path: Path) -> None:
    from rlsched_agents.cli import evaluate

    trace, spec = synthesize("helios", jobs=120, load=1.1, gpus=16, seed=2)
    trace.write(tmp_path / "t.csv")
    spec.write(tmp_path / "c.toml")
    files = ["--trace", str(tmp_path / "t.csv"), "--cluster", str(tmp_path / "c.toml")]
    out = ["--records", str(tmp_path), "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(evaluate, [*files, *out, "--policy", "gittins"], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads((tmp_path / "out.json").read_text())["policies"]["gittins"]
    records = read_records(tmp_path / "gittins")
    assert len(records) == report["decisions"]
    assert sum(isinstance(record.action, Preempt) for record in records) == report["preemptions"] > 0
