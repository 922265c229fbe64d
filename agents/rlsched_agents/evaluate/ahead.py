"""Compiles in parallel the kernels that several replays need and that are not in the cache yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlsched.compile.ahead import compile_pieces
from rlsched.compile.compiling import COMPILING
from rlsched.compile.kernel_cache import is_kept
from rlsched_agents.evaluate.task import Task, engine_of
from rlsched_envs.sim.attempt_log import needs_log
from rlsched_envs.sim.engine import PredictedTimes


def first_jobs(task: Task) -> Task:
    """Return a copy of a task with only its first two jobs; the copy's replay needs the same kernels."""
    return replace(
        task,
        trace=task.trace.select(slice(0, 2)),
        predictions=PredictedTimes(*(prediction[:2] for prediction in task.predictions)),
        rules=replace(task.rules, always=needs_log(task.trace, task.rules)),
    )


def compile_together(tasks: Sequence[Task], workers: int, replay: Callable[[Task], object]) -> int:
    """Compile missing kernels of compiled rules in `workers` processes; return the number of missing kernels.

    Nothing is compiled with one missing kernel, with one process, or outside of an `rlsched` command
    (`rlsched.compile.ahead`). Outside of a command, the result is 0.

    Args:
        tasks: Replays of compiled rules.
        workers: Number of processes.
        replay: Replays a task in a worker process; it must be picklable.
    """
    missing: dict[Any, Task] = {}
    if not COMPILING.by_verb:
        return 0
    for task in map(first_jobs, tasks):
        scheduler = task.scheduler()
        if scheduler.rule is not None:
            kernel = engine_of(task, scheduler).begun_by(scheduler.rule)
            if not is_kept(kernel.py_func):
                missing.setdefault(kernel, task)
    compile_pieces([partial(replay, task) for task in missing.values()], workers)
    return len(missing)
