"""Runs the tasks of an evaluation on a Ray cluster. Compiled rules still run in this process.

A worker receives the jobs, the predictions and the files that a policy names, and returns the outcome as
bytes. A worker with another version of rlsched's code rejects the task, because its results could differ.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray

from rlsched.decide.own import NO_PATHS, file_of, is_inline, is_own, rule_in_copy
from rlsched.decide.policies.files import model_file
from rlsched.decide.policies.policy import Policy
from rlsched.errors import RlschedError
from rlsched_agents.evaluate.recording import put_store, store_files
from rlsched_agents.evaluate.run import (
    REPORT_EVERY_S,
    Outcome,
    Progress,
    Task,
    draw_curves,
    is_compiled,
    run_task,
    say_nothing,
)
from rlsched_agents.workers.ray_cluster import LOST, between_calls, connected, failed
from rlsched_agents.workers.same_code import build_id, other_code
from rlsched_envs.sim.engine import PredictedTimes

_SAY_EVERY_S: Final = 1.0
"""Minimum time between two progress reports of a worker, seconds. One actor receives all reports."""


@dataclass(frozen=True)
class _Order:
    """Message to a worker, without the jobs.

    Attributes:
        number: Index of the task in the evaluation.
        task: The task without output files. Jobs and predictions are sent separately, once for all tasks.
        wants_records: Whether the worker also returns a store of decisions.
        files: Contents of the files that the policy's settings name, by setting.
        build: `build_id()` of the sender.
    """

    number: int
    task: Task
    wants_records: bool
    files: dict[str, bytes]
    build: str


@dataclass(frozen=True)
class _Answer:
    """Answer of a worker: the outcome without the jobs, or the error that ended the task."""

    outcome: Outcome | None = None
    records: dict[str, bytes] = field(default_factory=dict)
    error: RlschedError | None = None


class _Reports:
    """Actor that collects the progress of the workers."""

    def __init__(self) -> None:
        self._done: dict[int, float] = {}

    def say(self, number: int, done: float) -> None:
        self._done[number] = done

    def drain(self) -> dict[int, float]:
        done, self._done = self._done, {}
        return done


def run_on_ray(
    tasks: list[Task], address: str, *, workers: int | None = None, progress: Progress | None = None
) -> list[Outcome]:
    """Run all tasks: compiled rules locally, others on Ray. Outcomes are in the order of the tasks.

    The results are the same as with `run.run_tasks`, except for measured times. The decisions of a task are
    written on this machine after the task has finished.

    Args:
        tasks: The tasks of one evaluation; they share their jobs.
        address: Address for `ray.init`: `local`, `auto`, `HOST:PORT` or `ray://HOST:PORT`.
        workers: Number of concurrent tasks [default: number of CPUs of the cluster].
        progress: Called with the progress of each task.

    Raises:
        InputError: no Ray cluster answers at the address in time, or decisions cannot be written.
        RlschedError: a task failed (the other tasks are then cancelled), or the cluster was lost.
    """
    for task in tasks:
        if task.records is not None:
            put_store({}, task.records)
    with connected(address, workers):
        return _Sweep(tasks, workers or len(tasks), progress or say_nothing).run()


class _Sweep:
    """The tasks of one evaluation: waiting, running on the cluster, or finished."""

    def __init__(self, tasks: list[Task], limit: int, say: Progress) -> None:
        self._tasks, self._say = tasks, say
        self._outcomes: dict[int, Outcome] = {}
        self._waiting = [number for number, task in enumerate(tasks) if not is_compiled(task)]
        self._limit = max(1, min(limit, len(self._waiting)))
        self._number_of: dict[Any, int] = {}
        self._shared: dict[int, Any] = {}
        self._remote = ray.remote(num_cpus=1, max_retries=0)(_work)
        self._reports = ray.remote(num_cpus=0)(_Reports).remote()
        self._looked_s = time.monotonic()

    def run(self) -> list[Outcome]:
        try:
            with between_calls():
                self._submit()
            for number, task in enumerate(self._tasks):
                if is_compiled(task):
                    self._outcomes[number] = run_task(task, partial(self._say, task.policy.name, task.seed))
            while self._number_of:
                with between_calls():
                    ended, _ = ray.wait(list(self._number_of), timeout=REPORT_EVERY_S)
                    for ref in ended:
                        self._take(self._number_of.pop(ref), ref)
                    self._submit()
                    self._look()
        finally:
            with suppress(*LOST):
                for ref in self._number_of:
                    ray.cancel(ref, force=True)
        return [self._outcomes[number] for number in range(len(self._tasks))]

    def _submit(self) -> None:
        while self._waiting and len(self._number_of) < self._limit:
            number = self._waiting.pop(0)
            task = self._tasks[number]
            if id(task.trace) not in self._shared:
                self._shared[id(task.trace)] = ray.put(pickle.dumps((task.trace, task.predictions), 5))
            nothing = PredictedTimes(np.empty(0), np.empty(0))
            bare = replace(
                task, trace=task.trace.select(slice(0, 0)), predictions=nothing, records=None, logdir=None
            )
            order = _Order(number, bare, task.records is not None, _files_of(task.policy), build_id())
            ref = self._remote.remote(pickle.dumps(order, 5), self._shared[id(task.trace)], self._reports)
            self._number_of[ref] = number

    def _take(self, number: int, ref: Any) -> None:
        """Store the result of a task. If the task failed, raise its error, which ends the evaluation."""
        task = self._tasks[number]
        who = f"{task.policy.name} seed {task.seed}"
        try:
            answer: _Answer = pickle.loads(ray.get(ref))
        except ray.exceptions.RayError as error:
            raise failed(who, error) from error
        if answer.error is not None or answer.outcome is None:
            raise answer.error or RlschedError(f"{who}: expected an outcome from Ray, got none; run again")
        table = answer.outcome.table
        jobs = task.trace.select(slice(0, len(table.start_s)))
        self._outcomes[number] = replace(answer.outcome, table=replace(table, trace=jobs))
        if task.records is not None:
            put_store(answer.records, task.records)
            draw_curves(task)
        self._say(task.policy.name, task.seed, 1.0)

    def _look(self) -> None:
        """Forward the progress of the workers, at most once per `_SAY_EVERY_S`."""
        if time.monotonic() - self._looked_s < _SAY_EVERY_S or not self._number_of:
            return
        self._looked_s = time.monotonic()
        running = set(self._number_of.values())
        for number, done in ray.get(self._reports.drain.remote()).items():
            if number in running:
                self._say(self._tasks[number].policy.name, self._tasks[number].seed, done)


def _work(order_bytes: bytes, jobs: bytes, reports: Any) -> bytes:
    """Run one task in a Ray worker, and return the pickled `_Answer`: the outcome, or an `RlschedError`."""
    order: _Order = pickle.loads(order_bytes)
    if (error := other_code(order.build)) is not None:
        return pickle.dumps(_Answer(error=error), 5)
    trace, predictions = pickle.loads(jobs)
    with tempfile.TemporaryDirectory(prefix="rlsched-") as folder:
        task = replace(order.task, trace=trace, predictions=predictions)
        if order.wants_records:
            task = replace(task, records=Path(folder) / "store")
        for name, content in order.files.items():
            path = Path(folder) / _FILE_NAMES[name]
            path.write_bytes(content)
            there = rule_in_copy(task.policy.settings.rule, path) if name == "rule" else str(path)
            policy = task.policy.with_settings(**{name: there})
            task = replace(task, policy=policy.named(order.task.policy.name))
        try:
            outcome = run_task(task, _teller(order.number, reports))
        except RlschedError as failure:
            return pickle.dumps(_Answer(error=failure), 5)
        records = {} if task.records is None else store_files(task.records)
    table = replace(outcome.table, trace=outcome.table.trace.select(slice(0, 0)))
    return pickle.dumps(_Answer(replace(outcome, policy=order.task.policy, table=table), records), 5)


def _teller(number: int, reports: Any) -> Callable[[float], None]:
    """Return a worker's progress callback, which limits the rate of reports."""
    said_s = time.monotonic()

    def tell(done: float) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= _SAY_EVERY_S:
            said_s = time.monotonic()
            reports.say.remote(number, done)

    return tell


_FILE_NAMES: Final = {"checkpoint": "model.zip", "dials": "dials.json", "rule": "own_rule.py"}


def _files_of(policy: Policy) -> dict[str, bytes]:
    """Return the contents of the files that a policy's settings name, by setting.

    Files that are part of rlsched are left out: workers have them.
    """
    settings, files = policy.settings, dict[str, bytes]()
    if policy.scheduler == "sb3" and _is_path(settings.checkpoint):
        files["checkpoint"] = model_file(settings.checkpoint).read_bytes()
    if _is_path(settings.dials):
        files["dials"] = Path(settings.dials).read_bytes()
    if is_own(settings.rule):
        files["rule"] = file_of(settings.rule).read_bytes()
    return files


def _is_path(setting: str) -> bool:
    return setting not in NO_PATHS and not is_inline(setting)
