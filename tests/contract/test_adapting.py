"""`tuned` and `ppo` adapt to the jobs: they reserve until a job may be preempted, then follow the index."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.journal.journal import Journal
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_arrays import PREEMPTED
from rlsched_envs.sim.engine import Engine
from rlsched_envs.sim.job_table import JobTable
from tests.support.broker.hand import LIMITS, hello, submit
from tests.support.broker.hand_broker import HandBroker

ADAPTS = Policy("easy", order="area^0.7", reserve_after="1h", preempt={"declared": True})
"""The rule of `tuned` without models."""
JOBS = 260


def workload(declared: str) -> tuple[Trace, ClusterSpec]:
    """A busy cluster; `declared`: the jobs that may be preempted."""
    trace, spec = synthesize("philly", JOBS, 1.2, 32, gpus_per_node=4, seed=6)
    says = {
        "none": np.full(JOBS, ""),
        "refused": np.full(JOBS, "false"),
        "all": np.full(JOBS, "true"),
        "late": np.where(np.arange(JOBS) >= 120, np.where(np.arange(JOBS) % 3, "true", "false"), ""),
    }[declared]
    return replace(trace, extra={**trace.extra, "preemptible": says}), spec


def run(policy: Policy, declared: str, preemptible: str = "declared", compiled: bool = True) -> JobTable:
    trace, spec = workload(declared)
    spec = msgspec.structs.replace(spec, preemptible=preemptible)
    scheduler = load_scheduler(policy)
    engine = Engine(trace, spec, order=scheduler.order)
    if compiled and scheduler.rule is not None:
        return engine.run_rule(scheduler.rule)
    return engine.run(scheduler)


def attempts_of(table: JobTable) -> list[tuple[int, float, float, int]]:
    a = table.attempts
    return sorted(zip(a.job.tolist(), a.start_s.tolist(), a.end_s.tolist(), a.reason.tolist(), strict=True))


def preempted(table: JobTable) -> set[int]:
    """Jobs with a preempted attempt."""
    return set(table.attempts.job[table.attempts.reason == PREEMPTED].tolist())


@pytest.mark.parametrize("declared", ["none", "refused"])
def test_without_a_declared_job_it_reserves_and_does_not_preempt(declared: str) -> None:
    easy = Policy("easy", order="area^0.7", reserve_after="1h")
    table = run(ADAPTS, declared)
    assert table.start_s.tolist() == run(easy, declared).start_s.tolist()
    assert not preempted(table)


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "preemptible"), [("all", "declared"), ("none", "all")])
def test_with_all_jobs_preemptible_it_is_gittins(declared: str, preemptible: str) -> None:
    table = run(ADAPTS, declared, preemptible)
    assert attempts_of(table) == attempts_of(run(Policy("gittins"), declared, preemptible))
    assert len(preempted(table)) > 5


@pytest.mark.slow
def test_first_declared_job_changes_the_order() -> None:
    trace, _ = workload("late")
    table, before = run(ADAPTS, "late"), run(ADAPTS, "none")
    first_s = trace.submit_s[120:][trace.extra["preemptible"][120:] == "true"].min()
    early = before.start_s < first_s
    assert 60 < early.sum() < JOBS
    assert table.start_s[early].tolist() == before.start_s[early].tolist()
    assert table.start_s.tolist() != before.start_s.tolist()
    says = trace.extra["preemptible"]
    assert preempted(table)
    assert {str(says[job]) for job in preempted(table)} == {"true"}


@pytest.mark.slow
@pytest.mark.parametrize("declared", ["none", "late", "all"])
@pytest.mark.parametrize("policy", [ADAPTS, Policy("ppo")], ids=["rule", "ppo"])
def test_compiled_and_one_by_one_it_is_the_same(policy: Policy, declared: str) -> None:
    compiled = attempts_of(run(policy, declared))
    assert attempts_of(run(policy, declared, compiled=False)) == compiled


def test_broker_changes_with_the_first_submission_and_stays(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "journal.sqlite")) as journal:
        broker = HandBroker(load_scheduler(ADAPTS), journal, limits=LIMITS)
        broker.says("n0", hello("n0", gpus=4))
        config = broker.state.cluster.arrays.config
        broker.ask(submit(4))
        broker.ask(submit(4))
        assert (config[0].preempts, config[0].reserve_after_s) == (0, 3600.0)
        broker.ask(submit(2, preemptible=True))
        assert (config[0].preempts, config[0].reserve_after_s) == (1, np.inf)
        again = HandBroker(load_scheduler(ADAPTS), journal, limits=LIMITS)
        config = again.state.cluster.arrays.config
        assert (config[0].preempts, config[0].reserve_after_s) == (1, np.inf)
        assert again.state.cluster.digest() == broker.state.cluster.digest()
