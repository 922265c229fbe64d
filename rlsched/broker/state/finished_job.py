"""A finished job as one row of a table: columns for queries, and a column with all other fields."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from rlsched.broker.state.jobs import Job, place_of
from rlsched.broker.state.nodes import Node
from rlsched.errors import JournalError
from rlsched.wire.messages import UsedSpan


class EndedJob(NamedTuple):
    """A row of the table `ended_jobs`, in the order of its columns. Times are Unix seconds.

    Attributes:
        job: Job number.
        token: Submission token.
        account: Charged account, "" without accounts.
        submit_s: Time of the submission.
        start_s: Time at which the first attempt got its GPUs; None: the job never started.
        end_s: End of the last rank.
        state: completed, failed, cancelled or rejected.
        gpu_types: GPU types of the last attempt's nodes, sorted, comma-separated.
        nodes: Placement of the last attempt, such as `n0[0,1] n1[3]`.
        gpu_s: GPU-seconds of all attempts. While n jobs share a GPU, each is charged 1 / n of the time.
        energy_j: Energy of all attempts, joules; None if no node measured it.
        wait_s: Queueing delay: first start minus submission, seconds; None if the job never started.
        rest: The other fields of the `Job` as MessagePack. Fields with their default value are left out.
    """

    job: int
    token: str
    name: str
    user: str
    account: str
    vc: str
    submit_s: float
    start_s: float | None
    end_s: float
    state: str
    exit_code: int | None
    reason: str
    num_gpus: int
    gpu_types: str
    nodes: str
    gpu_s: float
    energy_j: float | None
    attempts: int
    preemptions: int
    wait_s: float | None
    rest: bytes

    def checksum(self) -> int:
        """Return the CRC-32 of all columns."""
        return zlib.crc32(_encoder.encode(tuple(self)))


_IN_COLUMNS = {
    "number": "job",
    "submit_s": "submit_s",
    "first_start_s": "start_s",
    "end_s": "end_s",
    "state": "state",
    "exit_code": "exit_code",
    "reason": "reason",
    "gpu_s": "gpu_s",
    "energy_j": "energy_j",
    "attempts": "attempts",
    "preemptions": "preemptions",
}
"""Field of `Job` -> the column that stores it. The other fields are in the column `rest`."""
_SPEC_IN_COLUMNS = {name: name for name in ("job", "token", "name", "user", "vc", "num_gpus")}
"""Field of `JobSubmitted` -> the column that stores it. The other fields are in the column `rest`."""
_UNCOUNTED = {"command": [], "env": {}, "cwd": ""}
"""Fields of the submission that are not stored for a finished job -> their empty values."""
_ALWAYS_WRITTEN = ("num_cpus", "time_limit_s")
"""Fields of the submission that are written even with default values: earlier versions require them."""
_LEAVES = frozenset((type(None), bool, int, float, str, dict))
"""Types of field values that are plain data already."""
_encoder = msgspec.msgpack.Encoder()


def ended_job(job: Job, nodes: Mapping[str, Node]) -> EndedJob:
    """Return the row of a finished job. Call this immediately after applying the entry that ended the job."""
    assert job.end_s is not None
    spec, attempt = job.spec, job.attempt
    ran_on = {rank.node for rank in attempt.ranks} if attempt is not None else set()
    rest = {name: value for name, value in plain(job).items() if name not in _IN_COLUMNS}
    rest["spec"] = {name: getattr(spec, name) for name in _ALWAYS_WRITTEN} | {
        name: value
        for name, value in rest["spec"].items()
        if name not in _SPEC_IN_COLUMNS and name not in _UNCOUNTED
    }
    return EndedJob(
        job=job.number,
        token=spec.token,
        name=spec.name,
        user=spec.user,
        account=spec.account,
        vc=spec.vc,
        submit_s=float(job.submit_s),
        start_s=job.first_start_s,
        end_s=float(job.end_s),
        state=job.state,
        exit_code=job.exit_code,
        reason=job.reason,
        num_gpus=spec.num_gpus,
        gpu_types=",".join(sorted({nodes[name].spec.gpu_type for name in ran_on})),
        nodes=place_of(job),
        gpu_s=float(job.gpu_s),
        energy_j=job.energy_j,
        attempts=job.attempts,
        preemptions=job.preemptions,
        wait_s=job.wait_s,
        rest=_encoder.encode(rest),
    )


def differing(row: EndedJob, other: EndedJob) -> list[str]:
    """Return the columns in which the row `row` of this version and the stored row `other` differ.

    The order of the fields in `rest` is ignored. If `other` lacks `spans`, an earlier version wrote it. This
    version billed an attempt up to the time at which the broker knew its end, so bills are ignored.
    """
    names = [name for name, one, two in zip(row._fields, row, other, strict=True) if one != two]
    if names != ["rest"]:
        return names
    try:
        one, two = (msgspec.msgpack.decode(rest) for rest in (row.rest, other.rest))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return names
    if "spans" not in two:
        for name in ("spans", "cost", "carbon_kg", "currency"):
            one.pop(name, None), two.pop(name, None)
    return [] if one == two else names


def job_of(row: EndedJob) -> Job:
    """Return the job that a row stores, in its final state.

    Raises:
        JournalError: the row's `rest` is damaged, or of another version.
    """
    try:
        found = msgspec.msgpack.decode(row.rest)
        found |= {name: getattr(row, column) for name, column in _IN_COLUMNS.items()}
        found["spec"] |= _UNCOUNTED | {
            name: getattr(row, column) for name, column in _SPEC_IN_COLUMNS.items()
        }
        job = msgspec.convert(found, Job)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise JournalError(
            f"the row of ended job {row.job} is damaged: {error}; `rlsched journal compact --remake-ended` "
            "rebuilds the table"
        ) from error
    job.forget_start()
    return job


class AskedFor(msgspec.Struct, frozen=True):
    """Fields of a finished job's submission that job lists show in addition to the table's columns."""

    array: int = 0
    task: int = 0
    gpu_types: list[str] = []
    preferred_types: list[str] = []


class RowRest(msgspec.Struct, frozen=True):
    """Fields in `EndedJob.rest` that lists of jobs show.

    Attributes:
        spec: Fields of the submission.
        cost, carbon_kg, currency, spans: Cost and carbon of the job's energy, and the times of its use, as in
            `Job`. Rows of earlier versions lack them.
    """

    spec: AskedFor = AskedFor()
    cost: float | None = None
    carbon_kg: float | None = None
    currency: str = ""
    spans: list[UsedSpan] = []


_rest_decoder = msgspec.msgpack.Decoder(RowRest)


def rest_of_row(row: EndedJob) -> RowRest:
    """Return the fields in `rest` that lists of jobs show.

    Raises:
        JournalError: the row's `rest` is damaged, or of another version.
    """
    try:
        return _rest_decoder.decode(row.rest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JournalError(
            f"the row of ended job {row.job} is damaged: {error}; `rlsched journal compact --remake-ended` "
            "rebuilds the table"
        ) from error


def plain(thing: Any) -> Any:
    """Convert an object of the broker's state to plain data: dicts of field values, without defaults."""
    kind = type(thing)
    if kind is list:
        return [plain(one) for one in thing]
    known = _fields(kind)  # type: ignore[arg-type]
    if known is None:
        return thing
    if getattr(getattr(kind, "__struct_config__", None), "array_like", False):
        return msgspec.to_builtins(thing)  # encoded without field names, such as `Tasks` of an array
    found = {}
    for name, default in known:
        value = getattr(thing, name)
        if value != default:
            found[name] = value if type(value) in _LEAVES else plain(value)
    return found


@cache
def _fields(kind: type) -> list[tuple[str, Any]] | None:
    """Return (field, default) of each field of a dataclass or struct; None for other classes.

    The default of a required field is a new `object()`, which is equal to no value of the field.
    """
    required = object()
    if dataclasses.is_dataclass(kind):
        return [
            (
                one.name,
                one.default_factory()
                if one.default_factory is not dataclasses.MISSING
                else required
                if one.default is dataclasses.MISSING
                else one.default,
            )
            for one in dataclasses.fields(kind)
        ]
    if issubclass(kind, msgspec.Struct):
        return [
            (
                one.name,
                one.default_factory()
                if one.default_factory is not msgspec.NODEFAULT
                else required
                if one.default is msgspec.NODEFAULT
                else one.default,
            )
            for one in msgspec.structs.fields(kind)
        ]
    return None
