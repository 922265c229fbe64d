"""The format of a store of decisions: its tables, their columns, and the file that describes the store."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rlsched.errors import InputError

STORE_VERSION: Final = 1
STORE_FILE: Final = "store.json"
KEEP_MIB: Final = 2048
"""Default size limit for a broker's store, MiB; a decision takes about half a kilobyte."""
KEEP_DAYS: Final = math.inf
"""Default age limit for a broker's store, days; infinite: only the size is limited."""

JobKind = Literal["submit", "start", "end"]
TimeKind = Literal["unix", "trace"]


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a store, in the file `STORE_FILE`.

    Attributes:
        version: Version of the format (`STORE_VERSION`) with which the store was created.
        time: Unit of times in the store: Unix seconds (`unix`), or seconds of a trace (`trace`).
        of: Source of the decisions as text: the identity of a cluster, or a policy and a trace.
    """

    version: int = STORE_VERSION
    time: TimeKind
    of: str


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a job.

    Attributes:
        time_s: Time of the event, seconds.
        kind: `submit`; `start` or `end` of an attempt. A job that never started can also have an `end`.
        job: Displayed ID of the job: its number in the broker, or its ID in the trace.
        name: Name of the job, "" if it has no name.
        user: Owner of the job.
        vc: Virtual cluster of the job.
        num_gpus: Number of GPUs that the job requests.
        predicted_s: In a `submit`, predicted run time, seconds; nan if unknown, and in other events.
        attempt: Number of the attempt; 0 before the first attempt.
        nodes: Name of the node of each GPU of the attempt.
        gpus: Index of each GPU on its node.
        share_milli: Fraction of each GPU that the attempt has, in thousandths (500: half of a GPU).
        sm_clock_frac: SM clock, as a fraction of the maximum.
        state: In an `end`, the new state of the job: `completed`, `failed`, `cancelled`, `rejected`, or
            `queued` if another attempt follows.
        reason: In an `end`, its reason, for users.
        run_s: Run time of the attempt, seconds; nan if it did not run.
        energy_j: Energy of the attempt, joules; nan if not measured.
        predicted_speed_frac: In a `start`, predicted speed of the attempt; nan if not predicted. At speed 1,
            the job takes its stated run time; if the job states no GPU type, 1 is the speed on the same GPUs
            at full clock without co-tenants. Files of earlier versions lack this column and the next two.
        predicted_energy_j: In a `start`, predicted energy until the job ends, joules; nan if not predicted.
        speed_frac: In an `end`, mean speed of the attempt, in the unit of `predicted_speed_frac`; nan if not
            measured.
    """

    time_s: float
    kind: JobKind
    job: str
    name: str = ""
    user: str = ""
    vc: str = ""
    num_gpus: float = 0.0
    predicted_s: float = float("nan")
    attempt: int = 0
    nodes: list[str] = []
    gpus: list[int] = []
    share_milli: int = 1000
    sm_clock_frac: float = 1.0
    state: str = ""
    reason: str = ""
    run_s: float = float("nan")
    energy_j: float = float("nan")
    predicted_speed_frac: float = float("nan")
    predicted_energy_j: float = float("nan")
    speed_frac: float = float("nan")


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A registration of a node, or a change of its state.

    Attributes:
        time_s: Time of the event, seconds.
        node: Name of the node.
        num_gpus: Number of GPUs of the node.
        gpu_type: Type of the GPUs, "" if unknown.
        state: `up`, `unreachable`, `down`, `drained`, `asleep`, `waking` or `removed`.
        reason: Reason for the state, for users.
    """

    time_s: float
    node: str
    num_gpus: int
    gpu_type: str = ""
    state: str = "up"
    reason: str = ""


class ForecastSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast with its outcome. All times except `time_s` and `said_s` are seconds after `said_s`.

    Attributes:
        time_s: Time at which the outcome became known, seconds.
        job: Displayed ID of the job.
        num_gpus: Number of GPUs that the job requests.
        what: Event that was forecast: `start`; `end`, forecast while the job waited; `end-running`: the end,
            forecast while the job ran.
        said_s: Time at which the forecast was made, seconds.
        low_s: 10 % quantile of the forecast.
        median_s: 50 % quantile of the forecast.
        high_s: 90 % quantile of the forecast; infinite: after the horizon of the forecast.
        seen_s: Outcome: the time at which the event happened.
        raw: The three quantiles before the correction, which is computed from earlier outcomes.
        last_s: Baseline (a simpler forecast for comparison): the last outcome for a job of the same size
            class; nan if there was none.
        week: Baseline: 10, 50 and 90 % quantiles of the outcomes in the same size class in the week before;
            nan if there were none.
        list_s: Baseline: result of list scheduling with predicted run times.
    """

    time_s: float
    job: str
    num_gpus: float
    what: str
    said_s: float
    low_s: float
    median_s: float
    high_s: float
    seen_s: float
    raw: list[float]
    last_s: float = float("nan")
    week: list[float] = []
    list_s: float = float("nan")


ADDED: Final = frozenset({"predicted_speed_frac", "predicted_energy_j", "speed_frac"})
"""Columns that files of earlier versions do not have. When such files are read, the values are nan."""


def schemas() -> dict[str, Any]:
    """Return a dict: table -> its Arrow schema. The columns have the names of the structs' fields."""
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    decisions = {
        "number": whole,
        "time_s": number,
        "partition": text,
        "source": text,
        "policy": text,
        "kind": text,
        "job": text,
        "turn": text,
        "guard": text,
        "took_us": number,
        "record": pa.binary(),
    }
    jobs = {
        "time_s": number,
        "kind": text,
        "job": text,
        "name": text,
        "user": text,
        "vc": text,
        "num_gpus": number,
        "predicted_s": number,
        "attempt": whole,
        "nodes": pa.list_(text),
        "gpus": pa.list_(pa.int32()),
        "share_milli": pa.int32(),
        "sm_clock_frac": number,
        "state": text,
        "reason": text,
        "run_s": number,
        "energy_j": number,
        "predicted_speed_frac": number,
        "predicted_energy_j": number,
        "speed_frac": number,
    }
    nodes = {
        "time_s": number,
        "node": text,
        "num_gpus": whole,
        "gpu_type": text,
        "state": text,
        "reason": text,
    }
    forecasts = {
        "time_s": number,
        "job": text,
        "num_gpus": number,
        "what": text,
        "said_s": number,
        "low_s": number,
        "median_s": number,
        "high_s": number,
        "seen_s": number,
        "raw": pa.list_(number),
        "last_s": number,
        "week": pa.list_(number),
        "list_s": number,
    }
    tables = {"decisions": decisions, "jobs": jobs, "nodes": nodes, "forecasts": forecasts}
    return {name: pa.schema(list(columns.items())) for name, columns in tables.items()}


def is_store(folder: str | Path) -> bool:
    """Return whether a folder is a store of decisions."""
    return (Path(folder) / STORE_FILE).is_file()


def read_info(folder: str | Path) -> StoreInfo:
    """Return the description of a store.

    Raises:
        InputError: the folder is not a store, or the store has another version.
    """
    path = Path(folder) / STORE_FILE
    try:
        info = msgspec.json.decode(path.read_bytes(), type=StoreInfo)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder}: expected a store of decisions (a folder with {STORE_FILE}), as `rlsched evaluate "
            "--records` and a broker write it"
        ) from error
    except (msgspec.MsgspecError, OSError) as error:
        raise InputError(
            f"{path}: expected the description of a store of decisions, as JSON: {error}"
        ) from error
    if info.version != STORE_VERSION:
        raise InputError(
            f"{path}: a store of version {info.version}, this rlsched reads version {STORE_VERSION}; "
            "read it with the rlsched that wrote it"
        )
    return info


def begin_store(folder: str | Path, info: StoreInfo) -> None:
    """Create the folder and the description of a store. An existing store is not changed.

    Raises:
        InputError: the folder has a store of another version, or with another `StoreInfo.time`.
        OSError: the description cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if is_store(folder):
        known = read_info(folder)
        if known.time != info.time:
            raise InputError(
                f"{folder}: times of this store are {known.time} seconds, expected {info.time} seconds; "
                "use another folder"
            )
        return
    draft = folder / f"{STORE_FILE}.draft"
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(info)))
    draft.replace(folder / STORE_FILE)
