"""Connects to a Ray cluster, and turns errors of Ray into errors of one line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import ray

from rlsched.errors import InputError, RlschedError
from rlsched.signals import on_signals
from rlsched_agents.workers.threads import one_thread_each

CONNECT_TIMEOUT_S: Final = 120.0
"""Time limit of the first connection, seconds. Ray's own retries take minutes and cannot be interrupted."""
_TCP_TIMEOUT_S: Final = 5.0
TRANSIENT: Final = ("Starting Ray client server failed", "psutil.ZombieProcess")
"""Error texts of Ray after which another attempt can succeed. For each Ray Client, Ray starts a process on
the head node. If the process's port is in use, the process exits, and Ray reports one of these texts. The
next attempt gets the next port.
"""
_ATTEMPTS: Final = 3
LOST: Final = (ray.exceptions.RayError, ConnectionError)
"""Errors of a call to a cluster that does not answer any more."""
_TRY: Final = """import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
ray.shutdown()"""


@contextmanager
def connected(address: str, workers: int | None) -> Iterator[None]:
    """Connect to a Ray cluster, or start one on this machine (`local`). At the end, disconnect or stop it.

    Args:
        address: Address for `ray.init`: `local`, `auto`, `HOST:PORT` or `ray://HOST:PORT`.
        workers: Number of CPUs of a `local` cluster [default: number of cores].

    Raises:
        InputError: no Ray cluster answers at the address in time.
        RlschedError: the cluster was lost inside the `with` block.
    """
    if address != "local":
        _try_address(address)
    own: dict[str, Any] = {}
    if address == "local":
        own = {"num_cpus": workers or len(os.sched_getaffinity(0)), "include_dashboard": False}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with one_thread_each():  # for workers of a local cluster; not for this process afterwards
        _connect(address, own)
    try:
        yield
    except LOST as error:
        why = last_line(str(error), first=True)
        raise RlschedError(f"--ray {address}: the cluster was lost: {type(error).__name__}: {why}") from error
    finally:
        ray.shutdown()


def _connect(address: str, own: dict[str, Any]) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **own)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            if not is_transient(str(error)) or attempt == _ATTEMPTS:
                raise _unreachable(address, last_line(str(error))) from error
        else:
            return


def _try_address(address: str) -> None:
    """Check that a Ray cluster answers, in a separate process that can be killed after a time-out."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _TCP_TIMEOUT_S).close()
        except OSError as error:
            raise _unreachable(address, str(error.strerror or error)) from error
    elif address != "auto":
        raise InputError(f"--ray: expected local, auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            done = subprocess.run(
                [sys.executable, "-c", _TRY, address],
                capture_output=True,
                text=True,
                timeout=CONNECT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _unreachable(address, f"no answer within {CONNECT_TIMEOUT_S:g} s") from error
        if done.returncode == 0:
            return
        if not is_transient(done.stderr) or attempt == _ATTEMPTS:
            raise _unreachable(address, last_line(done.stderr))


def is_transient(error: str) -> bool:
    """Return whether an error of Ray contains a text of `TRANSIENT`."""
    return any(text in error for text in TRANSIENT)


def _unreachable(address: str, why: str) -> InputError:
    return InputError(
        f"--ray {address}: no Ray cluster is reachable there: {why}; start one with `ray start --head`, or "
        "use --ray local"
    )


@contextmanager
def between_calls() -> Iterator[None]:
    """Delay the KeyboardInterrupt of Ctrl-C to the end of the `with` block.

    Inside a call of Ray, Ray can turn the interrupt into an error of its own. A second Ctrl-C interrupts at
    once.
    """
    pending = list[int]()

    def note(number: int, _frame: FrameType | None) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(number)

    in_main = threading.current_thread() is threading.main_thread()  # other threads cannot set handlers
    with on_signals(note, (signal.SIGINT,) if in_main else ()):
        yield
    if pending:
        raise KeyboardInterrupt


def num_cpus() -> int:
    """Return the number of CPUs of the cluster at present, at least 1."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def failed(who: str, error: BaseException) -> RlschedError:
    """Return a one-line error for a task that failed with an error of Ray. `who`: name of the task."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause if error.cause is not None else error
        return RlschedError(
            f"{who} failed on the Ray cluster: {type(cause).__name__}: {last_line(str(cause))}"
        )
    why = last_line(str(error), first=True)
    return RlschedError(f"{who} failed on the Ray cluster: {type(error).__name__}: {why}")


def last_line(text: str, *, first: bool = False) -> str:
    """Return the last non-blank line of an error text; with `first`, the first non-blank line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    return lines[0 if first else -1]
