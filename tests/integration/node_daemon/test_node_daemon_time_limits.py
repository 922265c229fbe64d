"""`rlsched node` as a process: changed time limits of a running rank, also across a restart of the daemon."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path

from rlsched.wire.messages import Launched, LimitTime, TimeLimited
from tests.support.online.processes import FakeBroker, Node, gated


def limit(broker: FakeBroker, limit_s: float, job: int) -> float:
    broker.send(LimitTime(epoch=1, job=job, attempt=1, rank=0, limit_s=limit_s))
    return broker.receive(TimeLimited, lambda said: said.job == job).limit_s


def test_limit_is_lowered_removed_and_reported_after_a_restart(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path
) -> None:
    broker.hears_limits = True
    node = start_node()
    broker.greet()
    for job in (1, 2):
        broker.launch(*gated(tmp_path), job=job, gpus=[job], limit_s=3_000.0 if job == 1 else None)
        told = broker.receive(Launched, lambda said, job=job: said.job == job)  # type: ignore[misc]
        assert told.limit_s == (3_000.0 if job == 1 else math.inf)
    assert limit(broker, math.inf, 1) == math.inf
    assert limit(broker, 2_000.0, 2) == 2_000.0
    node.signal(signal.SIGKILL)
    start_node()
    reports = {report.job: report.limit_s for report in broker.greet().attempts}
    assert reports == {1: math.inf, 2: 2_000.0}
    assert limit(broker, 0.001, 2) == 0.001  # it has run longer
    over = broker.end_of(2)
    assert (over.exit_code, over.reason) == (124, "time_limit")
    assert "time limit of 0.001 s reached" in node.output_of(2)
    (tmp_path / "gate").write_text("go\n")
    assert (broker.end_of(1).exit_code, broker.log(1).eof) == (0, True)
