"""Adopts, at the daemon's start, the attempts that an earlier daemon left on disk.

A shim is the process that starts and supervises one rank. It claims the attempt before it starts the command.
"""

from __future__ import annotations

import logging
import math

from rlsched.wire.messages import AttemptKey
from rlsched_node.processes.attempt import EXIT_VANISHED, VANISHED, LocalRank, Phase
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.store import AttemptDir, AttemptStore, ExitRecord
from rlsched_node.usage.meter import kept_usage

_log = logging.getLogger("rlsched.node")


def adopt_attempts(store: AttemptStore, ranks: LiveRanks) -> list[LocalRank]:
    """Return every attempt on disk that a shim has claimed. Each attempt is in one of three states.

    - Running: the shim still runs, and this daemon watches it.
    - Ended: there is an exit record, and processes that it reports as left are killed first. The end is
      reported until the broker acknowledges it.
    - Vanished: the shim does not run, and there is no exit record. Remaining processes are killed; the exit
      code is 137. If the machine has rebooted since the shim started, the reason is `node_stopped`, and the
      broker can requeue the job. Otherwise, the reason is copied from the daemon's order to end the attempt;
      without an order, it is `vanished`.

    An attempt that no shim has claimed never started. This function claims it and removes it from disk, so
    that its shim cannot start the command. The broker sends its launch order again.
    """
    attempts = []
    for key, directory in store.scan().items():
        try:
            attempt = _adopt(key, directory, ranks)
        except Exception:
            _log.exception("attempt %s is skipped: %s cannot be read", key, directory.path)
            continue
        if attempt is not None:
            attempts.append(attempt)
    return attempts


def _adopt(key: AttemptKey, directory: AttemptDir, ranks: LiveRanks) -> LocalRank | None:
    record = directory.exit()
    if directory.is_acknowledged:
        known = record or ExitRecord(EXIT_VANISHED)
        return LocalRank(key, exit_code=known.exit_code, reason=known.reason, is_acknowledged=True)
    process = directory.process()
    if record is None and process is None and _drop_unclaimed(key, directory):
        return None
    process = process or directory.process()  # the shim may have claimed the attempt just now
    launch = directory.launch()
    gpus, pid = tuple(launch.gpus) if launch else (), process.pid if process else 0
    workload = launch.workload if launch else ""
    if record is None and process is not None and process.is_alive():
        ranks.adopt(key, process)
        return LocalRank(key, gpus, Phase.RUNNING, pid, limit_s=_limit_s(directory), workload=workload)
    record = record or directory.exit()  # the shim may have written the record just now
    has_left = record is None or record.has_left
    if record is None:
        reason = "node_stopped" if directory.is_of_earlier_boot else directory.told_to_end() or VANISHED
        record = directory.record_exit(EXIT_VANISHED, reason)
    if not ranks.clear(key, record, has_left=has_left):
        return LocalRank(key, gpus, Phase.RUNNING, pid)
    return LocalRank(
        key,
        exit_code=record.exit_code,
        reason=record.reason,
        ended_s=record.when_s,
        ran_s=record.ran_s,
        usage=kept_usage(directory.usage()),
    )


def _drop_unclaimed(key: AttemptKey, directory: AttemptDir) -> bool:
    """Claim an attempt and remove it from disk. Return False if its shim has claimed it already."""
    if not directory.abandon():
        return False
    _log.info("attempt %s was never started: removed from disk; the broker may order it again", key)
    directory.drop()
    return True


def has_running_attempts(store: AttemptStore) -> bool:
    """Return whether any attempt on disk has a running shim. Removes attempts that no shim has claimed.

    Call this function only while no daemon runs.
    """
    for key, directory in store.scan().items():
        if directory.is_acknowledged or directory.exit() is not None:
            continue
        process = directory.process()
        if process is None and not _drop_unclaimed(key, directory):
            process = directory.process()
        if process is not None and process.is_alive():
            return True
    return False


def _limit_s(directory: AttemptDir) -> float | None:
    """Return the time limit that an attempt's shim enforces, seconds; infinite if there is no limit.

    None: a daemon of an older version started the shim, which accepts no new limit.
    """
    launch = directory.launch()
    if launch is None or not launch.hears_limits:
        return None
    ordered = directory.limit_ordered()
    if ordered is not None:
        return ordered
    return math.inf if launch.time_limit_s is None else launch.time_limit_s
