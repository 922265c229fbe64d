"""At the daemon's start: what became of the attempts that an earlier daemon left on disk."""

from __future__ import annotations

import time

from rlsched_node import shim
from rlsched_node.attempt import EXIT_VANISHED, Attempt, AttemptKey, Phase
from rlsched_node.ranks import Ranks, kill_leftovers
from rlsched_node.store import AttemptDir, AttemptStore, ExitRecord

CLAIM_WAIT_S = 2.0
"""How long a shim that was just being started gets to claim its attempt, before the daemon claims it."""
_CLAIM_POLL_S = 0.01


def adopt_attempts(store: AttemptStore, ranks: Ranks) -> list[Attempt]:
    """Every attempt on disk, each in one of three states.

    Still running (its shim is the very process in `pid`, told by start time and boot): watched again.
    Ended: to be reported until the broker acknowledges. Vanished without an exit record: its leftovers are
    killed, and it has ended with 137, for the reason of the order to end it, if one came; with reason
    `node_stopped` when the machine was booted since, so that the broker may queue the job again.
    """
    attempts = []
    deadline_s = time.monotonic() + CLAIM_WAIT_S
    for key, directory in store.scan().items():
        record = directory.exit()
        if directory.is_acknowledged:
            known = record or ExitRecord(EXIT_VANISHED)
            attempts.append(
                Attempt(key, exit_code=known.exit_code, reason=known.reason, is_acknowledged=True)
            )
        elif record is not None:
            attempts.append(_ended(key, record))
        else:
            attempts.append(_adopt(key, directory, ranks, deadline_s))
    return attempts


def _adopt(key: AttemptKey, directory: AttemptDir, ranks: Ranks, deadline_s: float) -> Attempt:
    while (process := directory.process()) is None:
        if time.monotonic() > deadline_s and directory.abandon():
            break
        time.sleep(_CLAIM_POLL_S)
    launch = directory.launch()
    if process is not None and process.is_alive():
        ranks.adopt(key, process)
        return Attempt(key, tuple(launch.gpus) if launch else (), Phase.RUNNING, process.pid)
    record = directory.exit()  # it may have been written just now
    if record is None:
        kill_leftovers(directory)
        is_reboot = process is not None and process.boot_id not in ("", shim.boot_id())
        record = directory.record_exit(
            EXIT_VANISHED, "node_stopped" if is_reboot else directory.told_to_end()
        )
    return _ended(key, record)


def _ended(key: AttemptKey, record: ExitRecord) -> Attempt:
    return Attempt(key, exit_code=record.exit_code, reason=record.reason, ended_s=record.when_s)
