"""Runs windows in worker processes of this machine.

`Judge` sends the runs to a `Runner`. The runner of this module starts processes. The runner of `ray_windows`
sends the runs to a Ray cluster. Both call `run_windows` in their workers. A *message* to a worker contains
several runs. A *pool* is a set of windows.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.decide.policies.policy import Policy
from rlsched.signals import exit_with_parent
from rlsched_envs.training.windows import Windows, WindowsInTurn

Floats = NDArray[np.float64]
Layers = Sequence[Floats]
Run = tuple[int, Layers, int]
"""One run of a window: (index of the pool, strategy, index of the window in this pool)."""

MOST_RUNS: Final = 8
"""Maximum number of runs per message. A worker needs a second or less for this number of runs."""


class Runner(Protocol):
    """Runs windows of the pools (sets of windows) with which it was created."""

    def run(self, runs: Sequence[Run], policy: Policy | None) -> Floats:
        """Run n windows, and return the (n, NUM_TERMS) terms of their costs, in the order of `runs`.

        `policy`: run the windows under this policy; None: under the policy that each pool was created with.
        """
        ...

    def close(self) -> None:
        """Stop what still runs, and release the workers."""
        ...


MakeRunner = Callable[[Sequence[Windows]], Runner]


def run_windows(
    pools: Sequence[Windows] | Sequence[WindowsInTurn], runs: Sequence[Run], policy: Policy | None
) -> Floats:
    """Run windows in this process; arguments and result are as in `Runner.run`."""
    return np.array([pools[pool].run(layers, [at], policy)[0].terms for pool, layers, at in runs])


def in_messages(runs: Sequence[Run], size: int) -> list[Sequence[Run]]:
    """Split runs into messages of `size` runs; the last message can be smaller."""
    return [runs[at : at + size] for at in range(0, len(runs), size)]


_pools: tuple[Windows, ...] = ()
"""Pools (sets) of windows that this worker process can run; empty outside of worker processes."""


def _use(pools: tuple[Windows, ...]) -> None:
    """Store the pools in `_pools`. A worker process calls this function when it starts."""
    global _pools
    exit_with_parent()
    _pools = pools


def _run(runs: Sequence[Run], policy: Policy | None) -> Floats:
    return run_windows(_pools, runs, policy)


class LocalRunner:
    """Runs windows in processes of this machine.

    Args:
        pools: Pools (sets) of windows.
        workers: Number of processes; None: one per core.
    """

    def __init__(self, pools: Sequence[Windows], workers: int | None = None) -> None:
        self._processes = ProcessPoolExecutor(
            workers or os.cpu_count() or 1,
            mp_context=multiprocessing.get_context("fork"),
            initializer=_use,
            initargs=(tuple(pools),),
        )

    def run(self, runs: Sequence[Run], policy: Policy | None) -> Floats:
        """Run windows; see `Runner.run`."""
        messages = in_messages(runs, MOST_RUNS)
        return np.concatenate(list(self._processes.map(_run, messages, repeat(policy))))

    def close(self) -> None:
        """Stop the processes."""
        self._processes.shutdown(cancel_futures=True)
