"""Stores the inputs of a replay with its decisions, so that the replay can be repeated."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import msgspec
import numpy as np

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.files import with_whole_paths
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.task import Task
from rlsched_agents.evaluate.windows import MeasuredWindow
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import PredictedTimes
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import NodeEvent

ORIGIN_VERSION: Final = 1
ORIGIN_FILE: Final = "made_with.json"
JOBS_FILE: Final = "made_with.npz"
_PREDICTED, _SPREAD, _EXTRA = "predictions.predicted_s", "predictions.spread", "extra."


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a replay, except its jobs.

    Attributes:
        version: Version of the file format (`ORIGIN_VERSION`).
        trace: Name of the trace; its jobs and their predictions are in `JOBS_FILE`.
        trace_origin: Wall-clock time of second 0 of the trace; None: unknown.
        policy: Name of the policy.
        policy_toml: Settings of the policy, with absolute paths.
        seed: Seed of the policy.
        until_s: The replay ran until all jobs submitted before this time had ended, seconds of the trace;
            None: until all jobs had ended.
        cluster: The simulated cluster, after scaling.
        models: Models of speed and power; None: jobs ran as recorded in the trace.
        max_retries: How many times a job is requeued after a failure (`RunRules`); None: no limit.
        costs: Restart costs (`RunRules`).
        node_events: Failures, drains and returns of nodes.
    """

    version: int = ORIGIN_VERSION
    trace: str
    policy: str
    policy_toml: str
    seed: int
    until_s: float | None
    cluster: ClusterSpec
    models: Models | None
    max_retries: int | None
    costs: PreemptionCosts | None
    node_events: tuple[NodeEvent, ...]
    trace_origin: datetime | None = None


def keep_origin(task: Task, folder: Path) -> None:
    """Write the inputs of a replay, `task`, to the replay's store of decisions in `folder`.

    Raises:
        OSError: the folder is not writable.
    """
    origin = Origin(
        trace=task.trace.name,
        policy=task.policy.name,
        policy_toml=with_whole_paths(task.policy).toml,
        seed=task.seed,
        until_s=task.window.until_s if np.isfinite(task.window.until_s) else None,
        cluster=task.spec,
        models=task.models,
        max_retries=task.rules.max_retries,
        costs=task.rules.costs,
        node_events=task.rules.node_events,
        trace_origin=task.trace.origin,
    )
    arrays: dict[str, Any] = {
        one.name: getattr(task.trace, one.name)
        for one in fields(task.trace)
        if one.name not in ("name", "extra", "origin")
    }
    arrays |= {_EXTRA + header: cells for header, cells in task.trace.extra.items()}
    arrays |= {_PREDICTED: task.predictions.predicted_s, _SPREAD: task.predictions.spread}
    np.savez_compressed(folder / JOBS_FILE, allow_pickle=False, **arrays)
    (folder / ORIGIN_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(origin)))


def task_of(folder: Path) -> Task:
    """Return the replay (as a `Task`) whose decisions a store contains, from the inputs in the store.

    Raises:
        InputError: the store has no inputs, or inputs of another version.
    """
    try:
        origin = msgspec.json.decode((folder / ORIGIN_FILE).read_bytes(), type=Origin)
        if origin.version != ORIGIN_VERSION:
            raise InputError(
                f"{folder / ORIGIN_FILE}: has version {origin.version}, this rlsched reads version "
                f"{ORIGIN_VERSION}; replay with the rlsched that wrote it"
            )
        with np.load(folder / JOBS_FILE, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        predictions = PredictedTimes(arrays.pop(_PREDICTED), arrays.pop(_SPREAD))
        extra = {
            name.removeprefix(_EXTRA): arrays.pop(name) for name in list(arrays) if name.startswith(_EXTRA)
        }
        trace = Trace(name=origin.trace, extra=extra, origin=origin.trace_origin, **arrays)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder}: expected a store with the inputs of its replay ({ORIGIN_FILE}, {JOBS_FILE}), found "
            "none; replay again with `rlsched evaluate --records`"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, BadZipFile, msgspec.MsgspecError) as error:
        raise InputError(
            f"{folder}: the inputs of this store's replay cannot be read: {error}; replay again with "
            "`rlsched evaluate --records`"
        ) from error
    return Task(
        Policy.parse(origin.policy_toml, name=origin.policy, where=str(folder / ORIGIN_FILE)),
        origin.seed,
        trace,
        origin.cluster,
        MeasuredWindow(until_s=np.inf if origin.until_s is None else origin.until_s),
        predictions,
        rules=RunRules(origin.costs, origin.max_retries, origin.node_events),
        models=origin.models,
    )
