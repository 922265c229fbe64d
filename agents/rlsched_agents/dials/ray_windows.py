"""Runs windows of a training run on a Ray cluster.

A worker receives the windows of a `RayRunner` only once. It loads each window when it runs the window, so
that it needs memory for one window only. If a worker is lost, Ray repeats its runs on another worker. A run
has the same result on each worker.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import numpy as np
import ray

from rlsched.decide.policies.policy import Policy
from rlsched.errors import RlschedError
from rlsched_agents.dials.window_runs import MOST_RUNS, Floats, Run, in_messages, run_windows
from rlsched_agents.workers.ray_cluster import LOST, between_calls, failed, num_cpus
from rlsched_agents.workers.same_code import build_id, other_code
from rlsched_envs.training.windows import Windows, WindowsInTurn

REPEATS: Final = 5
"""Maximum number of times that Ray repeats a message (a group of runs) because its worker was lost."""
_WAIT_S: Final = 0.2
"""Time after which a wait for results ends, so that Ctrl-C has an effect, seconds."""
_MESSAGES_EACH: Final = 2
"""Minimum number of messages (groups of runs) per worker, so that workers finish at about the same time."""

_held: tuple[str, list[WindowsInTurn]] = ("", [])
"""In a worker: ID and windows of the latest runner."""


def run_on_worker(build: str, key: str, packed: Any, message: bytes) -> Floats | RlschedError:
    """Run the windows of a message in a Ray worker. Return the terms of their costs, or an error.

    Args:
        build: `build_id()` of the sender.
        key: ID of the `RayRunner` that sent the message.
        packed: Pickled inputs of this runner's pools of windows, as an array of bytes. Only read if this is
            the worker's first message from the runner.
        message: The arguments of `Runner.run`, pickled.
    """
    global _held
    if (error := other_code(build)) is not None:
        return error
    if _held[0] != key:
        _held = (key, [WindowsInTurn(inputs) for inputs in pickle.loads(packed)])
    runs, policy = pickle.loads(message)
    return run_windows(_held[1], runs, policy)


class RayRunner:
    """Runs windows on the Ray cluster that this process is connected to.

    Args:
        pools: Pools (sets) of windows.
        workers: Maximum number of messages (groups of runs) in progress at a time [default: all messages].
    """

    def __init__(self, pools: Sequence[Windows], workers: int | None = None) -> None:
        self._workers, self._num_cpus = workers, num_cpus()
        self._key = uuid4().hex
        inputs = pickle.dumps([one.inputs for one in pools], 5)
        self._remote = ray.remote(num_cpus=1, max_retries=REPEATS)(run_on_worker)
        with between_calls():
            self._packed = ray.put(np.frombuffer(inputs, np.uint8))

    def run(self, runs: Sequence[Run], policy: Policy | None) -> Floats:
        """Run windows; see `Runner.run`.

        Raises:
            RlschedError: a run failed, or a worker was lost more than `REPEATS` times.
        """
        size = -(-len(runs) // (_MESSAGES_EACH * (self._workers or self._num_cpus)))
        waiting = deque(enumerate(in_messages(runs, min(size, MOST_RUNS))))
        limit = self._workers or len(waiting)
        number_of: dict[Any, int] = {}
        found: dict[int, Floats] = {}
        try:
            while waiting or number_of:
                with between_calls():
                    while waiting and len(number_of) < limit:
                        number, message = waiting.popleft()
                        ref = self._remote.remote(
                            build_id(), self._key, self._packed, pickle.dumps((message, policy), 5)
                        )
                        number_of[ref] = number
                    ended, _ = ray.wait(list(number_of), timeout=_WAIT_S)
                    for ref in ended:
                        found[number_of.pop(ref)] = _terms(ref)
        finally:
            with suppress(*LOST):
                for ref in number_of:
                    ray.cancel(ref, force=True)
        return np.concatenate([found[number] for number in sorted(found)])

    def close(self) -> None:
        """Release the windows in the cluster's memory."""
        self._packed = None


def _terms(ref: Any) -> Floats:
    try:
        found: Floats | RlschedError = ray.get(ref)
    except ray.exceptions.RayError as error:
        raise failed("a run of a window", error) from error
    if isinstance(found, RlschedError):
        raise found
    return found
