"""A store of decisions returns the task that it was made with."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.origin import keep_origin, task_of
from rlsched_agents.evaluate.task import Task
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.engine import PredictedTimes


@pytest.mark.parametrize("origin", [None, datetime(2024, 3, 1, 9), datetime(2024, 3, 1, 9, tzinfo=UTC)])
def test_trace_is_restored(origin: datetime | None, tmp_path: Path) -> None:
    drawn, spec = synthesize("helios", 20, 0.9, 64, seed=1)
    trace = Trace(**({one.name: getattr(drawn, one.name) for one in fields(drawn)} | {"origin": origin}))
    task = Task(
        Policy("fifo"),
        0,
        trace,
        spec,
        MeasuredWindow(),
        PredictedTimes(trace.duration_s, np.ones(len(trace))),
    )
    keep_origin(task, tmp_path)
    back = task_of(tmp_path).trace
    assert (back.name, back.origin) == (trace.name, origin)
    for header, cells in trace.columns().items():
        np.testing.assert_array_equal(back.columns()[header], cells, err_msg=header)
