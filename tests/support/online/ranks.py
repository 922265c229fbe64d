"""Ranks as real processes, for tests of their life."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.gpu.simulated import SimulatedGpus
from rlsched_node.isolation.limits import RankLimits
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes.launch import Terms, rank_environment
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.steps import Event, Exited
from rlsched_node.processes.store import AttemptDir, AttemptStore, MpsTerms
from rlsched_node.usage.processes import children_of_all

KEY = AttemptKey(1, 1, 0, "c1")
DEADLINE_S = 60.0
NO_LIMITS = RankLimits()


def own_children() -> set[int]:
    """Children of this process, which belong to no rank: multiprocessing's servers of other tests."""
    return set(children_of_all().get(os.getpid(), ()))


def unused_user() -> JobUser | None:
    """A user without processes, as root has no limit of processes; None: the user of the test."""
    if os.geteuid() != 0:
        return None
    uid = 60_000 + os.getpid() % 5_000
    return JobUser("rlsched-test", uid, uid, "/", "/bin/sh")


def order_of(key: AttemptKey, *command: str, **fields: Any) -> Launch:
    """The order to launch the only rank of an attempt on GPU 1, or with other fields of `Launch`."""
    alone: dict[str, Any] = {"num_ranks": 1, "nodes": ["n0"], "gpus": [1], "env": {}, "cwd": "/"}
    return Launch(
        epoch=1, job=key.job, attempt=key.attempt, rank=0, command=list(command), **(alone | fields)
    )


def start(
    ranks: LiveRanks,
    store: AttemptStore,
    *command: str,
    key: AttemptKey = KEY,
    cwd: str = "/",
    limit_s: float | None = None,
    env: dict[str, str] | None = None,
    max_output_mib: int = 0,
    limits: RankLimits = NO_LIMITS,
    user: JobUser | None = None,
    mps: MpsTerms | None = None,
    output: str = "",
    error: str = "",
    appends: bool = False,
    whole_lines: bool = False,
) -> AttemptDir:
    order = order_of(
        key,
        *command,
        env=env or {},
        cwd=cwd,
        time_limit_s=limit_s,
        output=output,
        error=error,
        appends=appends,
        whole_lines=whole_lines,
    )
    directory = store.directories_of(key)
    ranks.start(
        key,
        order,
        rank_environment(
            order,
            gpus=SimulatedGpus(2),
            directory=str(directory.job_path),
            is_local=True,
            inherited={"PATH": os.environ["PATH"]},
        ),
        Terms(max_output_mib=max_output_mib, limits=limits, user=user, mps=mps),
    )
    return directory


def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    give_up_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_s, "deadline passed"
        time.sleep(0.005)


def collect(ranks: LiveRanks, kind: type[Event]) -> list[Event]:
    """Events up to and including the first of this kind; the times of ranks' ends are checked here, and left
    out.
    """
    began_s = time.time()
    events: list[Event] = []

    def found() -> bool:
        events.extend(ranks.collect())
        return any(isinstance(event, kind) for event in events)

    until(found)
    ends = [event.ended_s for event in events if isinstance(event, Exited)]
    assert all(end_s is not None and began_s - 30.0 < end_s <= time.time() for end_s in ends)
    return [
        replace(event, ended_s=None, ran_s=None) if isinstance(event, Exited) else event for event in events
    ]


def output(directory: AttemptDir) -> str:
    return directory.read_output(0, 1 << 20)[0].decode()


def has_output(directory: AttemptDir, text: str) -> Callable[[], bool]:
    return lambda: text in output(directory)
