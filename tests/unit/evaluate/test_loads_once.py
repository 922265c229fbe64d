"""How often an evaluation loads a policy: a rule once; others for the check and for each replay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rlsched as rs
from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate import run, task
from rlsched_agents.evaluate.run import load_policies

TRACE = Trace.from_columns(name="t", submit_s=[0.0] * 6, duration_s=[60.0] * 6, num_gpus=[4.0] * 6)
SPEC = ClusterSpec.uniform(1, 4)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts calls of `load_scheduler` by policy."""
    counts = Counter[str]()

    def counted(policy: Policy, **more: Any) -> Scheduler:
        counts[policy.name] += 1
        return load_scheduler(policy, **more)

    for module in (run, task):
        monkeypatch.setattr(module, "load_scheduler", counted)
    return counts


@pytest.mark.parametrize("with_records", [False, True])
def test_a_rule_is_loaded_once(loads: Counter[str], tmp_path: Path, *, with_records: bool) -> None:
    """For the check, the predictions, the seeds, the warm-up, the run and the report."""
    folder = tmp_path if with_records else None
    runs = rs.simulate(TRACE, SPEC, ["easy", "fifo"], seeds=(0, 1), records=folder, progress=False)
    assert runs.compare().predicted_by
    assert loads == {"easy": 1, "fifo": 1}


def test_another_scheduler_is_loaded_for_each_replay(loads: Counter[str]) -> None:
    """It may keep what it saw: two seeds, each with a check, a warm-up and a run."""
    rs.simulate(TRACE, SPEC, "random", seeds=(0, 1), progress=False)
    assert loads == {"random": 6}


def test_no_seeds_are_refused() -> None:
    with pytest.raises(InputError, match="seeds: expected one or more seeds, got none"):
        rs.simulate(TRACE, SPEC, "fifo", seeds=())


def test_a_policy_without_models_is_refused_at_any_seed() -> None:
    with pytest.raises(InputError, match="add --models"):
        load_policies([Policy("pack")], None, [0, 1])
