"""Processes are stopped before they are killed, because a stopped process cannot fork."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Iterator

import pytest

from rlsched_node.processes import shim
from tests.support.online.cluster import until


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    fields = shim.read_stat(process.pid)
    return fields is not None and fields[0] == "T"


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_all_are_stopped_before_the_first_is_killed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    """Each listing has one process more, as of a job that forks."""
    listed: list[int] = []

    def find() -> set[int]:
        for process in sleepers[: len(listed)]:
            until(functools.partial(is_stopped, process), "it is stopped")
        listed.extend(process.pid for process in sleepers[len(listed) : len(listed) + 1])
        return set(listed)

    assert shim.kill_all(find) == 3
    assert [process.wait() for process in sleepers] == [-signal.SIGKILL] * 3


def test_processes_that_are_gone_are_not_killed(sleepers: list[subprocess.Popen[bytes]]) -> None:
    """Their process IDs may belong to other processes."""
    gone, kept = sleepers[0], sleepers[1]
    listings = iter([{gone.pid, kept.pid}, {kept.pid}])
    assert shim.kill_all(lambda: next(listings)) == 1
    assert kept.wait() == -signal.SIGKILL
    assert gone.poll() is None


def test_endless_listings_end(sleepers: list[subprocess.Popen[bytes]]) -> None:
    """New processes in each listing: processes of the last listing are killed."""
    assert len(sleepers) == 3
    rounds = 0

    def find() -> set[int]:
        nonlocal rounds
        rounds += 1
        return {(1 << 30) + rounds}

    assert shim.kill_all(find) == 1
    assert rounds == shim.KILL_ROUNDS + 1


def test_nothing_is_left_to_kill() -> None:
    assert shim.kill_all(set) == 0
