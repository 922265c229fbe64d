"""Changes of a job after its submission. The module `gates` applies new begin times and dependencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rlsched.broker.base.entries import JobSubmitted, JobUpdated
from rlsched.broker.state.job_requests import sharing_of
from rlsched.wire.declared import declared
from rlsched.wire.messages.job_settings import JobSettings

if TYPE_CHECKING:
    from rlsched.broker.state.gates import Gates
    from rlsched.broker.state.priorities import Priorities
    from rlsched.cluster.state import ClusterState
    from rlsched.wire.messages import Update

_SETTINGS: Final = {name: one.setting for name, one in declared(JobSettings).items() if one.setting.changes}
WHILE_RUNNING: Final = tuple(name for name, one in _SETTINGS.items() if one.changes == "running")
"""Fields that can change while the job has GPUs, because the job's processes do not depend on them."""
OF_TASKS: Final = tuple(name for name, one in _SETTINGS.items() if one.changes != "waiting")
"""Fields that can change for single tasks of an array, if the tasks are not jobs yet."""
CHANGEABLE: Final = tuple(_SETTINGS)
WORDS: Final = {name: one.options[0].name for name, one in _SETTINGS.items()}
"""Command-line option by field."""


def changes_of(order: Update) -> list[str]:
    """Return the names of the fields that a client's update changes."""
    found = [name for name in CHANGEABLE if getattr(order, name) is not None]
    return [*found, "depends_on"] if order.singleton and order.depends_on is None else found


def updated(spec: JobSubmitted, entry: JobUpdated) -> JobSubmitted:
    """Return a submission to which an update has been applied."""
    found: dict[str, Any] = {
        name: value for name in CHANGEABLE if (value := getattr(entry, name)) is not None
    }
    if found.get("time_limit_s") == math.inf:
        found["time_limit_s"] = None
    return msgspec.structs.replace(spec, **found)


def difference(before: JobSubmitted, now: JobSubmitted) -> JobUpdated | None:
    """Return the settings that changed from `before` to `now`, without dependencies; None: no change."""
    found = {
        name: getattr(now, name)
        for name in CHANGEABLE
        if name != "depends_on" and getattr(now, name) != getattr(before, name)
    }
    if "time_limit_s" in found and found["time_limit_s"] is None:
        found["time_limit_s"] = math.inf
    return JobUpdated(job=now.job, **found) if found else None


def change_ledger(
    state: ClusterState,
    priorities: Priorities,
    gates: Gates,
    seq: int,
    spec: JobSubmitted | None,
    entry: JobUpdated,
    now_s: float,
    *,
    learnt_gpu_mib: int = 0,
    alone: bool = False,
) -> None:
    """Apply a change of a live job or array to the ledger, priorities and gates.

    Args:
        state: The ledger (cluster state).
        priorities: Levels and weights of live jobs.
        gates: Holds, begin times and dependencies.
        seq: Sequence number of the job in the ledger, -1 for an array.
        spec: The submission after the change; None for an array.
        entry: The change.
        now_s: Time of the change, Unix seconds.
        learnt_gpu_mib: GPU memory that the job needs according to a failed attempt, MiB; 0: unknown.
        `alone`: True if the job must not share GPUs, even if its submission permits it.
    """
    gates.update_gates(seq, entry, now_s)
    if seq < 0:
        return
    if entry.time_limit_s is not None:
        state.limit_job(seq, math.nan if entry.time_limit_s == math.inf else entry.time_limit_s)
    if entry.slack_s is not None:
        state.set_slack(seq, entry.slack_s, now_s)
    if entry.gpu_types is not None or entry.preferred_types is not None:
        state.ask_for_types(seq, entry.gpu_types, preferred_types=entry.preferred_types)
    if entry.share is not None and spec is not None:
        state.share_job(seq, **sharing_of(spec, learnt_gpu_mib, alone=alone))
    if entry.priority is not None:
        priorities.set(entry.job, entry.priority, now_s)
