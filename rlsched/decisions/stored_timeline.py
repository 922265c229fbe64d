"""History of a store's jobs, attempts and nodes, in columns. Objects of jobs are made only on request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsched.decisions import columns
from rlsched.decisions.schema import schemas
from rlsched.decisions.timeline import (
    CLASS_NAMES,
    JOB_COLUMNS,
    NODE_COLUMNS,
    SIZE_CLASSES,
    AttemptSeen,
    JobSeen,
    NodeSeen,
    Timeline,
)
from rlsched.wire.states import QUEUED

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_SUBMIT, _START, _END = range(3)
_KINDS: Final = {"submit": _SUBMIT, "start": _START, "end": _END}
_NUMBERS: Final = ("time_s", "num_gpus", "attempt", "share_milli", "sm_clock_frac", "run_s", "energy_j")
_THERE: Final = frozenset({"up", "drained", "unreachable", "asleep", "waking"})
"""States in which a node's GPUs count as part of the cluster."""
_MOST_GPUS: Final = 1 << 20
"""More than the number of GPUs of a node."""


class Steps:
    """A quantity that changes at given times.

    Args:
        when_s: (N,) times of the changes, seconds.
        by: (N,) amounts of the changes. Changes at the same time are added in this order.
    """

    def __init__(self, when_s: Floats, by: Floats) -> None:
        order = np.argsort(when_s, kind="stable")
        self._when_s = when_s[order]
        self._sums = np.concatenate([[0.0], np.cumsum(by[order])])

    def __len__(self) -> int:
        return len(self._when_s)

    def at(self, at_s: Floats) -> Floats:
        """Return the (M,) sums of all changes up to each of the (M,) times; negative sums become 0."""
        found: Floats = np.maximum(self._sums[np.searchsorted(self._when_s, at_s, side="right")], 0.0)
        return found


@dataclass(frozen=True)
class Attempts:
    """The attempts of a store, in the order of their starts in the store.

    Attributes:
        event: (A,) index of the event of the start.
        job: (A,) index of the job.
        nth: (A,) index of the attempt among the attempts of its job.
        start_s: (A,) time of the start, seconds.
        end_s: (A,) time of the end, seconds; infinite while the attempt runs.
        share_milli: (A,) fraction of each GPU that the attempt has, in thousandths.
        sm_clock_frac: (A,) SM clock, as a fraction of the maximum.
        num_gpus: (A,) number of GPUs.
        asked_frac: (A,) fraction of each GPU that the job requests: 1, or less for a part of a GPU.
        measured: (A,) whether the energy of the attempt is known.
    """

    event: Ints
    job: Ints
    nth: Ints
    start_s: Floats
    end_s: Floats
    share_milli: Floats
    sm_clock_frac: Floats
    num_gpus: Floats
    asked_frac: Floats
    measured: NDArray[np.bool_]


@dataclass(frozen=True)
class _Derived:
    """Results of a pass over all events of jobs. J jobs."""

    attempts: Attempts
    first_event: Ints  # (J,)
    submit_s: Floats  # (J,) nan: unknown
    end_s: Floats  # (J,) infinite: not finished
    waiting: list[Steps]
    power: Steps


class StoredTimeline:
    """All jobs, attempts and nodes of a store, or of a part of it.

    Attributes:
        nodes: Nodes by name, in the order of their first events.
        first_s: Start of the period with events, seconds; nan before the first event.
        last_s: End of the period with events, seconds; nan before the first event.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeSeen] = {}
        self.first_s = self.last_s = math.nan
        self._there: list[float] = []  # time, change, time, change, ...
        self._batches: list[Any] = []  # of events of jobs
        self._first_event = [0]  # of each batch; last, the number of all events
        self._index: dict[str, int] = {}  # job -> its index, in the order of the first events
        self._listed: list[str] = []
        self._added: dict[str, list[NDArray[Any]]] = {
            name: [] for name in (*_NUMBERS, "kind", "job", "gpus", "queued")
        }
        self._objects, self._has_all = Timeline(), True  # of the jobs that were asked for

    # ---- events -------------------------------------------------------------------------------

    def saw(self, *times_s: float) -> None:
        """Extend the period from `first_s` to `last_s` so that it includes `times_s`."""
        self.first_s = min(times_s if math.isnan(self.first_s) else (self.first_s, *times_s))
        self.last_s = max(times_s if math.isnan(self.last_s) else (self.last_s, *times_s))

    def add_nodes(self, batch: Any) -> None:
        """Add a batch of the table `nodes`."""
        self._saw_batch(batch)
        for time_s, name, num_gpus, gpu_type, state, reason in columns.rows(batch, NODE_COLUMNS, math.nan):
            node = self.nodes.get(name)
            before = 0
            if node is None:
                node = self.nodes[name] = NodeSeen(name, num_gpus, gpu_type)
            elif node.changes[-1][1] in _THERE:
                before = node.num_gpus
            if num_gpus:
                node.num_gpus, node.gpu_type = num_gpus, gpu_type or node.gpu_type
            node.changes.append((time_s, state, reason))
            self._there += (time_s, (node.num_gpus if state in _THERE else 0) - before)

    def add_jobs(self, batch: Any) -> None:
        """Add a batch of the table `jobs`. Events of unknown kinds are ignored."""
        import pyarrow.compute as pc

        if not batch.num_rows:
            return
        self._saw_batch(batch)
        kind = _codes(batch.column("kind"), _KINDS)
        if kind.min() < 0:
            batch, kind = batch.filter(kind >= 0), kind[kind >= 0]
        self._batches.append(batch)
        self._first_event.append(self._first_event[-1] + batch.num_rows)
        words = batch.column("job").dictionary_encode()
        index = self._index
        codes = [index.setdefault(job, len(index)) for job in words.dictionary.to_pylist()]
        found = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in _NUMBERS} | {
            "kind": kind.astype(np.int8),
            "job": np.array(codes, np.int32)[words.indices.to_numpy()],
            "gpus": batch.column("gpus").value_lengths().to_numpy(),
            "queued": pc.equal(batch.column("state"), QUEUED).to_numpy(zero_copy_only=False),
        }
        for name, values in found.items():
            self._added[name].append(values)
        self._objects, self._has_all = Timeline(), False
        for cached in ("_derived", "_on", "_job", "_busy", "_unmeasured"):
            self.__dict__.pop(cached, None)

    def _saw_batch(self, batch: Any) -> None:
        times_s = batch.column("time_s").to_numpy()
        self.saw(float(times_s.min()), float(times_s.max()))

    def _column(self, name: str) -> NDArray[Any]:
        """Return a column of all events of jobs. The parts are not replaced: most are views of `_batches`."""
        parts = self._added[name]
        return np.concatenate(parts) if parts else np.zeros(0, bool if name == "queued" else np.float64)

    @cached_property
    def _job(self) -> NDArray[Any]:
        """(N,) index of the job of each event."""
        return self._column("job")

    @cached_property
    def _derived(self) -> _Derived:
        return _derive({name: self._column(name) for name in self._added}, len(self._index))

    # ---- objects ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._index)

    def __contains__(self, job: str) -> bool:
        return job in self._index

    @property
    def jobs(self) -> dict[str, JobSeen]:
        """Jobs by displayed ID. The first use makes the objects of all jobs, about 5 us for each event."""
        if not self._has_all:
            self._objects, self._has_all = Timeline(), True
            for batch in self._batches:
                self._objects.add_rows(*columns.rows_by_kind(batch, JOB_COLUMNS, math.nan))
        return self._objects.jobs

    @property
    def attempts(self) -> list[AttemptSeen]:
        """Attempts in the order of their starts. The first use makes the objects of all jobs."""
        return self._objects.attempts if self.jobs else []

    def job(self, job: str) -> JobSeen | None:
        """Return a job; None if the store has no such job."""
        found = self._jobs_at([self._index[job]]) if job in self._index else [None]
        return found[0]

    def _jobs_at(self, wanted: Iterable[int]) -> list[JobSeen]:
        """Return the jobs with these indices, in the given order."""
        wanted = list(wanted)
        names = [self.names[index] for index in wanted]
        known = self._objects.jobs
        missing = [index for index, name in zip(wanted, names, strict=True) if name not in known]
        if missing:
            events = np.flatnonzero(np.isin(self._job, missing))
            for batch in self._events(events):
                self._objects.add_rows(*columns.rows_by_kind(batch, JOB_COLUMNS, math.nan))
        return [known[name] for name in names]

    @property
    def names(self) -> list[str]:
        """Displayed IDs of all jobs, in the order of their first events."""
        if len(self._listed) != len(self._index):
            self._listed = list(self._index)
        return self._listed

    def _events(self, events: Ints) -> Iterator[Any]:
        """Yield batches with these events, given as ascending indices."""
        bounds = np.searchsorted(events, self._first_event).tolist()
        for number, batch in enumerate(self._batches):
            mine = events[bounds[number] : bounds[number + 1]]
            if len(mine):
                yield batch.take(mine - self._first_event[number])

    def _columns_of(self, events: Ints, names: Sequence[str]) -> list[Any]:
        """Return the named columns of these events, given as ascending indices, as `pyarrow.Array`."""
        import pyarrow as pa

        kinds = schemas()["jobs"]
        chunks: list[list[Any]] = [[pa.array([], kinds.field(name).type)] for name in names]
        bounds = np.searchsorted(events, self._first_event).tolist()
        for number, batch in enumerate(self._batches):
            mine = events[bounds[number] : bounds[number + 1]]
            if len(mine):
                taken = pa.array(mine - self._first_event[number])
                for chunk, name in zip(chunks, names, strict=True):
                    chunk.append(batch.column(name).take(taken))
        return [pa.concat_arrays(chunk) for chunk in chunks]

    def attempts_at(self, wanted: Ints) -> list[AttemptSeen]:
        """Return the attempts with these indices in `table`."""
        table = self.table
        jobs = self._jobs_at(table.job[wanted].tolist())
        return [job.attempts[nth] for job, nth in zip(jobs, table.nth[wanted].tolist(), strict=True)]

    # ---- questions ----------------------------------------------------------------------------

    @property
    def table(self) -> Attempts:
        """All attempts, as columns."""
        return self._derived.attempts

    def about(self, jobs: Ints) -> list[dict[str, Any]]:
        """Return ID, name, user, VC and number of GPUs of the jobs with these indices, without objects."""
        events = self._derived.first_event[jobs]
        order = np.argsort(events)
        fields = ("job", "name", "user", "vc", "num_gpus")
        found = [columns.values(column) for column in self._columns_of(events[order], fields)]
        about: list[dict[str, Any]] = [{}] * len(events)
        for at, row in zip(order.tolist(), zip(*found, strict=True), strict=True):
            about[at] = dict(zip(fields, row, strict=True))
        return about

    def first_starts(self) -> tuple[list[str], Floats, Floats]:
        """Return the J jobs, their (J,) submissions and the (J,) first starts, seconds; nan: unknown."""
        table, start_s = self.table, np.full(len(self), math.nan)
        first = table.nth == 0
        start_s[table.job[first]] = table.start_s[first]
        return self.names, self._derived.submit_s, start_s

    def find(self, text: str, most: int) -> list[JobSeen]:
        """Return the first `most` jobs whose ID, user or VC is `text`, or whose name begins with `text`."""
        import pyarrow.compute as pc

        found = dict[int, None]()
        for batch, first in zip(self._batches, self._first_event, strict=False):
            hits = pc.starts_with(batch.column("name"), text)
            for name in ("job", "user", "vc"):
                hits = pc.or_(hits, pc.equal(batch.column(name), text))
            events = np.flatnonzero(hits.to_numpy(zero_copy_only=False)) + first
            found |= dict.fromkeys(self._job[events].tolist())
            if len(found) >= most:
                break
        return self._jobs_at([*found][:most])

    def queue_at(self, at_s: float) -> list[JobSeen]:
        """Return the jobs that wait at a time, ordered by submission."""
        known, table = self._derived, self.table
        waits = (known.submit_s <= at_s) & (at_s < known.end_s)
        waits[table.job[self._runs_at(at_s)]] = False
        jobs = np.flatnonzero(waits)
        return self._jobs_at(jobs[np.argsort(known.submit_s[jobs], kind="stable")].tolist())

    def _runs_at(self, at_s: float) -> NDArray[np.bool_]:
        return (self.table.start_s <= at_s) & (at_s < self.table.end_s)

    def num_running_at(self, at_s: float) -> int:
        """Return the number of attempts that run at a time."""
        return int(np.count_nonzero(self._runs_at(at_s)))

    def running_at(self, at_s: float) -> list[AttemptSeen]:
        """Return the attempts that run at a time."""
        return self.attempts_at(np.flatnonzero(self._runs_at(at_s)))

    def sharing_with(self, attempt: AttemptSeen) -> list[AttemptSeen]:
        """Return the other attempts that used a GPU of this attempt while this attempt ran."""
        table, mine = self.table, self._index_of(attempt)
        beside = (table.start_s < attempt.end_s) & (attempt.start_s < table.end_s) & self._shares_gpus(mine)
        beside[mine] = False
        return self.attempts_at(np.flatnonzero(beside))

    def before_on(self, attempt: AttemptSeen) -> list[AttemptSeen]:
        """Return the earlier attempts that used GPUs of this attempt and had not ended before its start."""
        table, mine = self.table, self._index_of(attempt)
        before = (table.start_s < attempt.start_s) & (attempt.start_s <= table.end_s)
        return self.attempts_at(np.flatnonzero(before & self._shares_gpus(mine)))

    def started_on(self, attempt: AttemptSeen, at_s: float) -> list[AttemptSeen]:
        """Return the attempts of other jobs that started at `at_s`, and got a GPU of this attempt."""
        table, mine = self.table, self._index_of(attempt)
        others = (table.start_s == at_s) & (table.job != table.job[mine])
        return self.attempts_at(np.flatnonzero(others & self._shares_gpus(mine)))

    def left_free(self, attempt: AttemptSeen) -> dict[str, tuple[int, int]]:
        """Return a dict: node of an attempt -> (free GPUs, all GPUs), just after the start of the attempt.

        Attempts that start at the same time, but come later in `table`, are ignored. Nodes with an unknown
        number of GPUs are left out.
        """
        mine = self._index_of(attempt)
        there = self._runs_at(attempt.start_s)
        there[mine], there[mine + 1 :] = True, False
        owner, node, gpu, names = self._on
        shown = there[owner]
        held = np.unique(node[shown] * _MOST_GPUS + gpu[shown]) // _MOST_GPUS
        count = dict(zip(*(one.tolist() for one in np.unique(held, return_counts=True)), strict=True))
        return {
            name: (self.nodes[name].num_gpus - count.get(names[name], 0), self.nodes[name].num_gpus)
            for name in dict.fromkeys(attempt.nodes)
            if name in self.nodes
        }

    def _index_of(self, attempt: AttemptSeen) -> int:
        """Return the index of an attempt in `table`."""
        ours = np.flatnonzero(self.table.job == self._index[attempt.job.job])
        return int(ours[next(nth for nth, one in enumerate(attempt.job.attempts) if one is attempt)])

    def _shares_gpus(self, mine: int) -> NDArray[np.bool_]:
        """Return whether each attempt has a GPU of the attempt with index `mine`."""
        owner, node, gpu, _ = self._on
        places = node * _MOST_GPUS + gpu
        found = np.zeros(len(self.table.event), np.bool_)
        found[owner[np.isin(places, places[owner == mine])]] = True
        return found

    @cached_property
    def _on(self) -> tuple[Ints, Ints, Ints, dict[str, int]]:
        """Result of `_gpus_of` for all attempts."""
        return self._gpus_of(np.arange(len(self.table.event)))

    def _gpus_of(self, wanted: Ints) -> tuple[Ints, Ints, Ints, dict[str, int]]:
        """Return the GPUs of some attempts: (G,) attempt, (G,) node, (G,) index of the GPU; node -> number.

        `wanted`: indices in `table`, ascending.
        """
        nodes, gpus = self._columns_of(self.table.event[wanted], ("nodes", "gpus"))
        words = nodes.flatten().dictionary_encode()
        numbers = {name: number for number, name in enumerate(words.dictionary.to_pylist())}
        owner = np.repeat(wanted, self.table.num_gpus[wanted].astype(np.int64))
        node, gpu = words.indices.to_numpy().astype(np.int64), gpus.flatten().to_numpy().astype(np.int64)
        return owner, node, gpu, numbers

    def rows_of_gpus(self, wanted: Ints, first_row: dict[str, int]) -> tuple[Ints, Ints]:
        """Return the chart rows of the GPUs of some attempts: (G,) attempt, (G,) row.

        `wanted`: indices in `table`, ascending. `first_row`: node -> row of its first GPU. GPUs of other
        nodes are left out.
        """
        owner, node, gpu, names = self._gpus_of(wanted)
        first = np.array([first_row.get(name, -1) for name in names], np.int64)
        known = first[node] >= 0
        return owner[known], first[node[known]] + gpu[known]

    def curves(self, at_s: Floats) -> dict[str, Floats]:
        """Return the counts of waiting jobs by size class, of busy GPUs and of all GPUs at N times.

        `at_s`: (N,) times, seconds. The result is a dict: name of a count -> its (N,) values. `busy_gpus`
        adds up the requested shares on each GPU, up to 1: two jobs that request half of a GPU each, or one
        GPU each and share it, are 1 busy GPU.
        """
        known = self._derived
        found = {
            f"waiting {name}": steps.at(at_s) for name, steps in zip(CLASS_NAMES, known.waiting, strict=True)
        }
        when_s, by = np.array(self._there).reshape(-1, 2).T
        return found | {"busy_gpus": self._busy.at(at_s), "gpus": Steps(when_s, by).at(at_s)}

    def power(self, at_s: Floats) -> dict[str, Floats] | None:
        """Return the total power of the attempts at N times; None: the energy of no attempt is known.

        `at_s`: (N,) times, seconds. `power_w` (N,) is the sum of the attempts' mean powers, which are known
        only after their ends, W. `measured_gpus` (N,) is the part of `busy_gpus` with known power; if it is
        less than `busy_gpus`, `power_w` is too low.
        """
        if not len(self._derived.power):
            return None
        measured_gpus = self._busy.at(at_s) - self._unmeasured.at(at_s)
        return {"power_w": self._derived.power.at(at_s), "measured_gpus": measured_gpus}

    def busy_gpus_met(self, at_s: float, before: Ints, after: Ints) -> float:
        """Return the number of busy GPUs at a time, before some events of this time.

        `before`, `after`: indices in `table` of the attempts that these events end and start.
        """
        there = self._runs_at(at_s)
        there[before], there[after] = True, False
        owner, place = self._places(there)
        places = np.unique(place, return_inverse=True)[1]
        return float(np.minimum(np.bincount(places, self.table.asked_frac[owner]), 1.0).sum())

    @cached_property
    def _busy(self) -> Steps:
        """Number of busy GPUs, as in `curves`."""
        return self._busy_with(np.ones(len(self.table.event), np.bool_))

    @cached_property
    def _unmeasured(self) -> Steps:
        """Number of GPUs that are busy with attempts of unknown energy."""
        return self._busy_with(~self.table.measured)

    def _places(self, wanted: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the GPUs of some attempts: (G,) attempt, (G,) number of the GPU.

        `wanted`: (A,) whether the attempt is included.
        """
        owner, node, gpu, _ = self._on
        shown = wanted[owner]
        return owner[shown], node[shown] * _MOST_GPUS + gpu[shown]

    def _busy_with(self, wanted: NDArray[np.bool_]) -> Steps:
        """Return the number of GPUs that are busy with some attempts.

        `wanted`: (A,) whether the attempt is included.
        """
        table = self.table
        if (table.share_milli >= 1000.0 * table.asked_frac - 1.0).all():  # no two attempts share a GPU
            owner, by = np.flatnonzero(wanted), table.num_gpus[wanted] * table.asked_frac[wanted]
            return _spans(table.start_s[owner], table.end_s[owner], by)
        owner, place = self._places(wanted)
        ends = np.isfinite(table.end_s[owner])
        when_s = np.concatenate([table.start_s[owner], table.end_s[owner][ends]])
        place = np.concatenate([place, place[ends]])
        asked = table.asked_frac[owner]
        order = np.lexsort((when_s, place))
        sums = np.cumsum(np.concatenate([asked, -asked[ends]])[order])
        first = np.flatnonzero(_differs(place[order]))  # of each GPU
        before = np.concatenate([[0.0], sums])[first]
        level = np.minimum(sums - np.repeat(before, np.diff([*first, len(sums)])), 1.0)
        change = np.diff(level, prepend=0.0)
        change[first] = level[first]
        return Steps(when_s[order], change)


def _codes(column: Any, known: dict[str, int]) -> Ints:
    """Return the numbers that `known` has for the texts of a column; -1: unknown."""
    words = column.dictionary_encode()
    codes = np.array([known.get(word, -1) for word in words.dictionary.to_pylist()], np.int64)
    found: Ints = codes[words.indices.to_numpy()]
    return found


def _derive(event: dict[str, NDArray[Any]], num_jobs: int) -> _Derived:
    """Return the attempts and curves of all events of jobs, in the order of the store.

    `event` has the columns of `StoredTimeline._added`. A later segment repeats the submission and the start
    of an unfinished job. These repetitions are ignored.
    """
    order = np.argsort(event["job"], kind="stable")  # the events of a job are together, in order
    job, kind, time_s = event["job"][order].astype(np.int64), event["kind"][order], event["time_s"][order]
    submits, starts, ends = (np.flatnonzero(kind == one) for one in (_SUBMIT, _START, _END))
    submits = submits[_differs(job[submits], time_s[submits])]
    starts = starts[_differs(job[starts], time_s[starts], event["attempt"][order][starts])]
    submit_s = np.full(num_jobs, math.nan)
    submit_s[job[submits]] = time_s[submits]

    # the attempt that each end belongs to: the last start of the job before it, if no other end came first
    last = np.searchsorted(starts, ends) - 1
    runs = last >= 0
    runs[runs] = job[starts[last[runs]]] == job[ends[runs]]
    runs[1:] &= ~((last[1:] == last[:-1]) & (job[ends[1:]] == job[ends[:-1]]))
    queued = event["queued"][order][ends]
    before = np.searchsorted(submits, ends) - 1
    submitted = (
        (before >= 0) & (job[submits[before]] == job[ends]) if len(submits) else np.zeros(len(ends), bool)
    )
    end_s = np.full(num_jobs, math.inf)
    end_s[job[ends[~queued]]] = time_s[ends[~queued]]

    attempt_end_s = np.full(len(starts), math.inf)
    attempt_end_s[last[runs]] = time_s[ends[runs]]
    nth = np.arange(len(starts)) - np.searchsorted(job[starts], job[starts])
    back = np.argsort(order[starts])  # in the order of the store
    ours = starts[back]
    num_gpus = event["gpus"][order][ours].astype(np.float64)
    run_s, energy_j = event["run_s"][order][ends], event["energy_j"][order][ends]
    drew = runs & (run_s > 0.0) & (energy_j >= 0.0)
    measured = np.zeros(len(starts), np.bool_)
    measured[last[drew]] = True
    table = Attempts(
        event=order[ours],
        job=job[ours],
        nth=nth[back],
        start_s=time_s[ours],
        end_s=attempt_end_s[back],
        share_milli=event["share_milli"][order][ours].astype(np.float64),
        sm_clock_frac=event["sm_clock_frac"][order][ours],
        num_gpus=num_gpus,
        asked_frac=np.minimum(event["num_gpus"][order][ours] / np.maximum(num_gpus, 1.0), 1.0),
        measured=measured[back],
    )

    size = np.zeros(num_jobs)
    size[job[::-1]] = event["num_gpus"][order][::-1]  # of the first event of each job
    of_class = np.searchsorted(np.array(SIZE_CLASSES), size)
    waits = ends[queued | (~runs & submitted)]
    by_of_ends = np.where(queued, 1.0, -1.0)[queued | (~runs & submitted)]
    changed = np.concatenate([submits, starts, waits])
    by = np.concatenate([np.ones(len(submits)), -np.ones(len(starts)), by_of_ends])
    waiting = [
        _steps(changed[mine], by[mine], time_s, order)
        for mine in (of_class[job[changed]] == k for k in range(len(SIZE_CLASSES)))
    ]
    power = _spans(time_s[starts[last[drew]]], time_s[ends[drew]], energy_j[drew] / run_s[drew])
    return _Derived(
        table,
        order[np.searchsorted(job, np.arange(num_jobs))],
        submit_s,
        end_s,
        waiting,
        power,
    )


def _spans(start_s: Floats, end_s: Floats, amounts: Floats) -> Steps:
    """Return the sum of amounts, (N,), each from its start to its end, seconds; infinite: no end."""
    ends = np.isfinite(end_s)
    return Steps(np.concatenate([start_s, end_s[ends]]), np.concatenate([amounts, -amounts[ends]]))


def _differs(*values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each element differs from the one before, in at least one of the arrays."""
    found = np.ones(len(values[0]), np.bool_)
    found[1:] = np.any([one[1:] != one[:-1] for one in values], axis=0)
    return found


def _steps(events: Ints, by: Floats, time_s: Floats, order: Ints) -> Steps:
    """Return the steps at these events; at the same time, in the order of the store."""
    stored = np.argsort(order[events])
    return Steps(time_s[events[stored]], by[stored])
