"""Files that a row of a trace passes, measured."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import Kernel
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.registry import load_scheduler
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.recording import RunStore
from rlsched_envs.sim.engine import Engine, predict_trace
from studies.house.in_source import PACKAGES, ROOT

SPEC: Final = ClusterSpec.uniform(2, 4)
POLICY: Final = "easy"


def row_files() -> list[str]:
    """Files of all functions called between reading a trace and the records of its decisions."""
    with tempfile.TemporaryDirectory() as folder, patch.object(Kernel, "__call__", _as_python):
        path = Path(folder) / "t.csv"
        gpus = [4.0, 4.0, 8.0, 1.0, 1.0, 1.0]
        trace = Trace.from_columns(name="t", submit_s=[0.0] * 6, duration_s=[60.0] * 6, num_gpus=gpus)
        trace.write(path)
        _read_and_replay(path)  # later calls need no imports and no one-time work
        with _called() as of_rows:
            _read_and_replay(path)
        with _called() as of_cluster:
            ClusterState.from_spec(SPEC, OrderedQueue(load_scheduler(POLICY).order), slots=16)
    return sorted({path for path, _, _ in of_rows - of_cluster})


def _read_and_replay(path: Path) -> None:
    trace, scheduler = Trace.read(path), load_scheduler(POLICY)
    engine = Engine(trace, SPEC, order=scheduler.order, predictions=predict_trace(trace, SPEC))
    with RunStore(path.with_suffix(""), POLICY) as records:
        engine.run(scheduler, on_record=records)


def _as_python(kernel: Any, *args: Any) -> Any:
    return kernel.py_func(*args)


@contextmanager
def _called() -> Iterator[set[tuple[str, str, int]]]:
    """Context manager: collect (file, function, line) of all functions of the product called in the block."""
    found = set[tuple[str, str, int]]()
    product = tuple(f"{ROOT / package}/" for package in PACKAGES)

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(product):
            path = str(Path(code.co_filename).relative_to(ROOT))
            found.add((path, code.co_qualname, code.co_firstlineno))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
