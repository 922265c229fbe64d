"""The wall time of a replay does not include compilation."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.compile.compiling import COMPILING
from rlsched.decide.policies.policy import Policy
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate import run
from rlsched_agents.evaluate.windows import window_of
from rlsched_envs.sim.engine import predict_trace

COMPILES_S = 1.0
TRACE = Trace.from_columns(name="t", submit_s=[0.0] * 6, duration_s=[60.0] * 6, num_gpus=[4.0] * 6)
SPEC = ClusterSpec.uniform(1, 4)


def test_kernels_that_are_compiled_in_the_replay_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first jobs can miss a kernel that the whole trace needs."""
    replay = run._replay

    def compiling_replay(task: run.Task, *more: Any) -> Any:
        if len(task.trace) == len(TRACE):
            COMPILING.waits()
            time.sleep(COMPILES_S)
            COMPILING.ends(())
        return replay(task, *more)

    monkeypatch.setattr(run, "_replay", compiling_replay)
    (task,) = run.replay_tasks(
        TRACE, SPEC, window_of(TRACE, None, None), predict_trace(TRACE, SPEC), [Policy("fifo")], [0]
    )
    began_s, compiled_s = time.monotonic(), COMPILING.took_s
    outcome = run.run_task(task, lambda _: None)
    assert COMPILING.took_s - compiled_s >= COMPILES_S
    assert 0.0 < outcome.wall_s <= time.monotonic() - began_s - COMPILES_S
