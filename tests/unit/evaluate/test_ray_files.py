"""Files that a policy names reach the workers of a sweep on Ray; Ray itself is not needed for that."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.errors import RlschedError
from rlsched.workload.trace import Trace
from rlsched_agents import workers
from rlsched_agents.evaluate import run
from rlsched_agents.evaluate.windows import window_of
from rlsched_envs.sim.engine import predict_trace
from tests.unit.dials.test_strategy import LINEAR


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the sweep, imported without Ray, under a name of its own."""
    errors = SimpleNamespace(RayError=RuntimeError, RayTaskError=RuntimeError)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(exceptions=errors))
    name = "rlsched_agents.workers.ray_cluster"
    monkeypatch.setattr(workers, "ray_cluster", None, raising=False)  # both are as before after the test
    monkeypatch.setitem(sys.modules, name, None)
    del sys.modules[name]
    source = Path(run.__file__).with_name("ray_sweep.py")
    spec = importlib.util.spec_from_file_location("sweep_without_ray", source)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_worker_has_the_strategy_file_of_a_policy(
    sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LINEAR.write(tmp_path / "strategy.json")
    (tmp_path / "mine.toml").write_text('base = "tuned"\ndials = "strategy.json"\n', encoding="utf-8")
    policy = Policy.of(tmp_path / "mine.toml")
    trace = Trace.from_columns(name="t", submit_s=[0.0], duration_s=[60.0], num_gpus=[1.0])
    spec = ClusterSpec.uniform(1, 4)
    (task,) = run.replay_tasks(
        trace, spec, window_of(trace, None, None), predict_trace(trace, spec), [policy], [0]
    )
    order = sweep._Order(0, task, False, sweep._files_of(policy), sweep.build_id())
    (tmp_path / "strategy.json").unlink()
    found = []

    def replay(task: run.Task, _: object) -> run.Outcome:
        assert task.policy.name == policy.name
        found.append(Strategy.of_setting(task.policy.settings.dials))
        raise RlschedError("enough")

    monkeypatch.setattr(sweep, "run_task", replay)
    jobs = pickle.dumps((trace, task.predictions))
    answer = pickle.loads(sweep._work(pickle.dumps(order), jobs, None))
    assert str(answer.error) == "enough"
    assert found == [LINEAR]


def test_a_strategy_in_the_settings_needs_no_file(sweep: Any) -> None:
    text = Strategy.from_layers(np.zeros_like(np.asarray(LINEAR.layers[0]))).text
    assert sweep._files_of(Policy("tuned", dials=text)) == {}
    assert sweep._files_of(Policy("tuned")) == {}
