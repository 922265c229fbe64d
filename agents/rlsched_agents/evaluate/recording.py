"""Writes the decisions of a replay to a store as they are made, and then the outcomes of jobs and nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from rlsched.cluster.arrays import NODE_DOWN, NODE_DRAINED, NODE_UP
from rlsched.decide.actions import Start
from rlsched.decide.record import DecisionRecord
from rlsched.decisions.outlook import UNKNOWN, Outlook, outlook
from rlsched.decisions.schema import STORE_FILE, JobEvent, NodeChange, StoreInfo
from rlsched.decisions.segments import SUFFIX
from rlsched.decisions.store import DecisionStore
from rlsched.errors import InputError
from rlsched.wire.states import COMPLETED, ENDED, FAILED, QUEUED
from rlsched_agents.evaluate.origin import JOBS_FILE, ORIGIN_FILE, keep_origin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlsched_agents.evaluate.task import Task
    from rlsched_envs.sim.attempt_log import AttemptTable
    from rlsched_envs.sim.job_table import JobTable
    from rlsched_envs.sim.node_events import NodeEvent

BATCH: Final = 128
"""Maximum number of buffered records. Thousands of records would slow down garbage collection."""
KEEP_BYTES: Final = 1 << 50
"""Size limit of a store of decisions, bytes. It is so large that no record is dropped."""
_NEVER_S: Final = math.inf
_STATES: Final = {NODE_DOWN: "down", NODE_DRAINED: "drained", NODE_UP: "up"}


class RunStore:
    """Writes a store of decisions. Use it as a context manager, and as `on_record` of `Engine.run`.

    Args:
        folder: Folder of the store; created if missing. An earlier store in this folder is removed.
        of: Description of the run.

    Raises:
        InputError: the folder is not writable.
    """

    def __init__(self, folder: Path, of: str) -> None:
        self.folder, self._of = folder, of
        self._held: list[DecisionRecord] = []
        self._changes: Sequence[NodeEvent] = ()
        self._expected: dict[tuple[str, float], Outlook] = {}

    def __enter__(self) -> RunStore:
        try:
            _clear(self.folder)
            info = StoreInfo(time="trace", of=self._of)
            self._store = DecisionStore(self.folder, info, keep_bytes=KEEP_BYTES, held_s=_NEVER_S)
        except OSError as error:
            raise self._cannot(error) from error
        return self

    def __call__(self, record: DecisionRecord) -> None:
        """Add one record."""
        self._held.append(record)
        if isinstance(record.action, Start):
            expected = outlook(record, counts_cores=True)
            if expected is not UNKNOWN:
                self._expected[record.names.jobs.get(record.action.seq, ""), record.now_s] = expected
        if len(self._held) >= BATCH:
            self._pass_on()

    def made_with(self, task: Task) -> None:
        """Write the inputs of the replay, so that it can be repeated."""
        self._changes = task.rules.node_events
        try:
            keep_origin(task, self.folder)
        except OSError as error:
            raise self._cannot(error) from error

    def outcome(self, table: JobTable, predicted_s: NDArray[np.float64]) -> None:
        """Add submissions, starts and ends of the jobs, and changes of the states of nodes.

        Args:
            table: Result of the replay.
            predicted_s: (J,) run time of each job as predicted at its submission, seconds.
        """
        try:
            jobs = job_events(table, predicted_s, self._expected)
            self._store.add_events([*node_events(table, self._changes), *jobs])
        except OSError as error:
            raise self._cannot(error) from error

    def __exit__(self, *_: object) -> None:
        self._pass_on()
        try:
            self._store.flush()
        except OSError as error:
            raise self._cannot(error) from error

    def _pass_on(self) -> None:
        try:
            self._store.add_decisions(self._held)
        except OSError as error:
            raise self._cannot(error) from error
        finally:
            self._held.clear()

    def _cannot(self, error: OSError) -> InputError:
        return InputError(f"{self.folder}: cannot write a store of decisions here: {error.strerror}")


def _clear(folder: Path) -> None:
    """Remove the files of a store of decisions from this folder, and no other files."""
    for file in [
        *folder.glob(f"*-[0-9]*{SUFFIX}"),
        *(folder / name for name in (STORE_FILE, ORIGIN_FILE, JOBS_FILE)),
    ]:
        file.unlink(missing_ok=True)


def store_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a store of decisions (name -> content), to send them to another machine."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def put_store(files: dict[str, bytes], folder: Path) -> None:
    """Write the files of a store of decisions that another machine has sent. Removes an earlier store.

    Raises:
        InputError: the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{folder}: cannot write a store of decisions here: {error.strerror}") from error


def node_events(table: JobTable, changes: Sequence[NodeEvent] = ()) -> Iterator[NodeChange]:
    """Yield a record for each node at the start of a replay, then for each change until the last job ends."""
    start_s = float(table.trace.submit_s[0]) if len(table.trace) else 0.0
    nodes = table.spec.expand()
    for node in nodes:
        yield NodeChange(time_s=start_s, node=node.name, num_gpus=node.gpus, gpu_type=node.gpu_type)
    ends_s = table.end_s[np.isfinite(table.end_s)]
    last_s = float(ends_s.max()) if len(ends_s) else start_s
    for change in changes:
        if change.time_s <= last_s:
            node = nodes[change.node]
            yield NodeChange(
                time_s=max(change.time_s, start_s),
                node=node.name,
                num_gpus=node.gpus,
                gpu_type=node.gpu_type,
                state=_STATES[change.status],
            )


def job_events(
    table: JobTable,
    predicted_s: NDArray[np.float64],
    expected: Mapping[tuple[str, float], Outlook] = MappingProxyType({}),
) -> Iterator[JobEvent]:
    """Yield submissions, starts and ends, ordered by time.

    Args:
        table: Result of the replay.
        predicted_s: (J,) run time of each job as predicted at its submission, seconds.
        expected: Speed and energy of each start as the models predicted them, by job ID and start time; empty
            without models.
    """
    trace, attempts = table.trace, table.attempts
    names = [node.name for node in table.spec.expand()]
    first_gpu = np.searchsorted(table.gpu_node, np.arange(len(names)))
    events = [
        JobEvent(
            time_s=float(trace.submit_s[row]),
            kind="submit",
            job=str(trace.job_id[row]),
            name=str(trace.job_name[row]),
            user=str(trace.user[row]),
            vc=str(trace.vc[row]),
            num_gpus=float(trace.num_gpus[row]),
            predicted_s=float(predicted_s[row]),
        )
        for row in range(len(trace))
        if not table.rejected[row]
    ]
    last = {int(row): k for k, row in enumerate(attempts.job.tolist())}
    for k in range(len(attempts)):
        row, start_s, end_s = int(attempts.job[k]), float(attempts.start_s[k]), float(attempts.end_s[k])
        gpus = attempts.gpus(k)
        nodes = [int(table.gpu_node[gpu]) for gpu in gpus]
        length_s = end_s - start_s
        known = attempts.books is not None and length_s > 0.0
        books = attempts.books if known else None
        job = str(trace.job_id[row])
        predicted = expected.get((job, start_s), UNKNOWN)
        start = JobEvent(
            time_s=start_s,
            kind="start",
            job=job,
            name=str(trace.job_name[row]),
            user=str(trace.user[row]),
            vc=str(trace.vc[row]),
            num_gpus=float(trace.num_gpus[row]),
            attempt=int(attempts.attempt[k]),
            nodes=[names[node] for node in nodes],
            gpus=[gpu - int(first_gpu[node]) for gpu, node in zip(gpus, nodes, strict=True)],
            share_milli=1000 if books is None else round(1000 * float(books.share_s[k]) / length_s),
            sm_clock_frac=1.0 if books is None else float(books.clock_s[k]) / length_s,
            predicted_speed_frac=predicted.speed_frac,
            predicted_energy_j=predicted.energy_j,
        )
        events.append(start)
        if not math.isnan(end_s):
            reason = attempts.reason_name(k)
            end = msgspec.structs.replace(
                start,
                time_s=end_s,
                kind="end",
                state=_state(reason, again=last[row] != k),
                reason="" if reason == "ended" else reason,
                run_s=length_s,
                energy_j=math.nan if books is None else float(books.energy_j[k]),
                predicted_speed_frac=math.nan,
                predicted_energy_j=math.nan,
                speed_frac=_speed_frac(attempts, k) if known else math.nan,
            )
            events.append(end)
    rank = {"end": 0, "submit": 1, "start": 2}
    return iter(sorted(events, key=lambda event: (event.time_s, rank[event.kind])))


def _speed_frac(attempts: AttemptTable, k: int) -> float:
    """Return the mean speed of an attempt that ended, relative to full speed; nan if its work is unknown."""
    if attempts.done_s is None:
        return math.nan
    return float(attempts.done_s[k] / (attempts.end_s[k] - attempts.start_s[k]))


def _state(reason: str, *, again: bool) -> str:
    """Return the state of a job after one of its attempts: QUEUED, COMPLETED or FAILED.

    `reason`: why the attempt ended. `again`: whether the job has a later attempt.
    """
    if again or reason == "preempted":
        return QUEUED
    return COMPLETED if reason == ENDED else FAILED
