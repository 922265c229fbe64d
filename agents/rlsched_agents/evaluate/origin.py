"""What a replay was made with, kept in its store of decisions: whoever has the store can run it again."""

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
from rlsched_agents.evaluate.windows import Window
from rlsched_envs.sim.attempt_log import PreemptionCosts, RunRules
from rlsched_envs.sim.engine import Predictions
from rlsched_envs.sim.modelling import Models
from rlsched_envs.sim.node_events import NodeEvent

ORIGIN_VERSION: Final = 1
ORIGIN_FILE: Final = "made_with.json"
JOBS_FILE: Final = "made_with.npz"
_PREDICTED, _SPREAD, _EXTRA = "predictions.predicted_s", "predictions.spread", "extra."


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay was made with, beside its jobs.

    Attributes:
        version: `ORIGIN_VERSION` of who wrote it.
        trace: Name of the trace; its jobs and their predictions are in `JOBS_FILE`.
        trace_origin: Wall-clock time of its second 0; None: not known.
        policy: Name of the policy.
        policy_toml: Its settings, paths absolute.
        seed: Of its draws.
        until_s: Jobs submitted before this were replayed to their end; None: all.
        cluster: What was replayed on, after scaling.
        models: How fast jobs ran and what they drew; None: as the trace says.
        max_retries: As in `RunRules`, and so the next two.
        costs: Restart costs.
        node_events: Nodes that went down, drained and came up.
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
    """Write down what a task is made of.

    Raises:
        OSError: the folder cannot be written.
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


def has_origin(folder: Path) -> bool:
    """Whether a store says what it was made with."""
    return (folder / ORIGIN_FILE).is_file()


def task_of(folder: Path) -> Task:
    """The task that made a store.

    Raises:
        InputError: the store does not say it, or in another version's way.
    """
    try:
        origin = msgspec.json.decode((folder / ORIGIN_FILE).read_bytes(), type=Origin)
        if origin.version != ORIGIN_VERSION:
            raise InputError(
                f"{folder / ORIGIN_FILE}: of version {origin.version}, this rlsched reads version "
                f"{ORIGIN_VERSION}; replay with the rlsched that wrote it"
            )
        with np.load(folder / JOBS_FILE, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        predictions = Predictions(arrays.pop(_PREDICTED), arrays.pop(_SPREAD))
        extra = {
            name.removeprefix(_EXTRA): arrays.pop(name) for name in list(arrays) if name.startswith(_EXTRA)
        }
        trace = Trace(name=origin.trace, extra=extra, origin=origin.trace_origin, **arrays)
    except FileNotFoundError as error:
        raise InputError(
            f"{folder}: this store does not say what it was made with ({ORIGIN_FILE}, {JOBS_FILE}); replay "
            "again with `rlsched evaluate --records`"
        ) from error
    except (OSError, ValueError, TypeError, KeyError, BadZipFile, msgspec.MsgspecError) as error:
        raise InputError(f"{folder}: what this store was made with cannot be read: {error}") from error
    return Task(
        Policy.parse(origin.policy_toml, name=origin.policy, where=str(folder / ORIGIN_FILE)),
        origin.seed,
        trace,
        origin.cluster,
        Window(until_s=np.inf if origin.until_s is None else origin.until_s),
        predictions,
        rules=RunRules(origin.costs, origin.max_retries, origin.node_events),
        models=origin.models,
    )
