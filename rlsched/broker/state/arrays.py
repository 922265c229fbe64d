"""Job arrays: submissions of many tasks. Only a few tasks of an array at a time become jobs.

An array has its own job number. Each task gets the next free job number when it enters the queue, and is a
job from then on. An array of 100,000 tasks is therefore submitted in one journal entry, and the ledger
(`ClusterState`) contains only the tasks that are jobs. At most `WINDOW` tasks of an array wait in the queue:
they request the same resources, so a policy gains nothing from more. While an array is held, or waits for its
begin time or for other jobs (`gates`), no further task enters the queue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from rlsched.broker.base.entries import JobSubmitted, JobUpdated, TasksCancelled, TasksHeld, TaskSubmitted
from rlsched.broker.state.gates import Gates
from rlsched.broker.state.jobs import Job
from rlsched.broker.state.tasks import Head, count, minus, numbers, without
from rlsched.wire.messages import DependsOn, Tasks
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, QUEUED, RUNNING

WINDOW: Final = 64
"""Maximum number of tasks of an array that are in the ledger (`ClusterState`) and have never run."""
MOST_OVER: Final = 10_000
"""Number of finished arrays that stay in memory for queries. When it is exceeded by more than 10 %, the
arrays that finished first are removed. Their tasks stay in the journal's table of ended jobs.
"""
NO_SEQ: Final = -1
"""Sequence number of an array. The ledger contains only tasks of arrays, so an array has no own number."""


@dataclass(slots=True, kw_only=True)
class JobArray(Head):
    """A job array, finished or not.

    Attributes:
        submit_s: Time of the submission, Unix seconds.
        spec: The submission. Command, environment and paths are removed when the array finishes.
        coming: Tasks that are not jobs yet, in order, except the tasks in `aside`.
        aside: Tasks that are held individually and are not jobs yet, by who holds them: `user` or `admin`.
        dropped: Tasks that were cancelled before they became jobs.
        live: Job number of each task that is an unfinished job, by task number.
        fresh: Task numbers in `live` whose jobs have never had GPUs.
        outcomes: Number of finished tasks, by state.
        stopped: Reason why no more tasks become jobs; "" if the array was not stopped.
        end_s: End of the last task, Unix seconds; None while the array is unfinished.
        start_s: Time at which the first task got GPUs, Unix seconds; None if no task has.
    """

    submit_s: float
    coming: list[Tasks]
    aside: dict[str, list[Tasks]] = field(default_factory=dict)
    dropped: list[Tasks] = field(default_factory=list)
    live: dict[int, int] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    outcomes: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    end_s: float | None = None
    start_s: float | None = None

    @property
    def number(self) -> int:
        """Job number of the array, as users see it."""
        return self.spec.job

    @property
    def num_left(self) -> int:
        """Number of tasks that are not jobs yet, including held tasks; 0 if the array is stopped."""
        return 0 if self.stopped else count(self.coming) + self.num_aside

    @property
    def num_aside(self) -> int:
        """Number of tasks that are not jobs yet and are held individually."""
        return sum(map(count, self.aside.values()))

    @property
    def state(self) -> str:
        """State of the array, one of the states of a job.

        An unfinished array is `running` if one of its unfinished tasks has had GPUs, else `queued`. A
        finished array is `cancelled` if it was stopped or all tasks were cancelled, `completed` if all tasks
        completed, else `failed`.
        """
        if self.end_s is None:
            return RUNNING if len(self.live) > len(self.fresh) else QUEUED
        if self.stopped or set(self.outcomes) == {CANCELLED}:
            return CANCELLED
        return COMPLETED if set(self.outcomes) <= {COMPLETED} else FAILED

    @property
    def has_left(self) -> bool:
        """Whether tasks remain that can become jobs."""
        return not self.stopped and bool(self.coming or self.aside)

    def num_wanted(self, held: int) -> int:
        """Return how many more tasks should become jobs now.

        `held`: number of held jobs among the live tasks. They do not count towards `WINDOW` and the array's
        limit of running tasks.
        """
        most = self.spec.array_limit - len(self.live) + held if self.spec.array_limit else WINDOW
        most = min(WINDOW - len(self.fresh) + held, most)
        return 0 if self.stopped or most <= 0 else sum(1 for _ in islice(numbers(self.coming), most))


class Arrays:
    """All arrays of a journal.

    Args:
        gates: Holds, begin times and dependencies of jobs and arrays.
    """

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self.known: dict[int, JobArray] = {}
        self.live: dict[int, JobArray] = {}
        self.tokens: dict[str, int] = {}

    def array_of_token(self, token: str) -> JobArray | None:
        """Return the array that was submitted with this token; None if there is none."""
        return self.known.get(self.tokens.get(token, -1))

    def restore_array(self, array: JobArray, held: str, depends_on: list[DependsOn], now_s: float) -> None:
        """Restore an array from a base (stored state). The caller must restore the array's jobs first."""
        self.known[array.number] = array
        self.tokens[array.spec.token] = array.number
        if array.end_s is None:
            self.live[array.number] = array
            spec = msgspec.structs.replace(array.spec, held=held, depends_on=depends_on)
            self._gates.add_gates(NO_SEQ, spec, now_s)

    # ---- events -----------------------------------------------------------------------------------

    def add_array(self, entry: JobSubmitted, now_s: float) -> None:
        """Add a submitted array."""
        array = JobArray(entry, submit_s=now_s, coming=entry.tasks)
        self.known[entry.job] = self.live[entry.job] = array
        self.tokens[entry.token] = entry.job
        self._gates.add_gates(NO_SEQ, entry, now_s)

    def add_task(self, job: JobSubmitted) -> None:
        """Move a task that has become job `job` from its array's `coming` to `live`; ignore other jobs."""
        if job.array:
            array = self.live[job.array]
            array.coming = without(array.coming, job.task)
            array.live[job.task] = job.job
            array.fresh.add(job.task)

    def start_task(self, job: JobSubmitted, now_s: float) -> None:
        """Apply the start of a task; ignore other jobs. The first start of a task starts the array."""
        array = self.live.get(job.array)
        if array is not None:
            array.fresh.discard(job.task)
            if array.start_s is None:
                array.start_s = now_s
                self._gates.resolve_start(array.number, now_s)

    def end_task(self, job: JobSubmitted, state: str, now_s: float) -> None:
        """Apply the end of a task; ignore other jobs. The end of the last task ends the array."""
        array = self.live.get(job.array)
        if array is not None:
            del array.live[job.task]
            array.fresh.discard(job.task)
            array.outcomes[state] = array.outcomes.get(state, 0) + 1
            self._end_if_done(array, now_s)

    def hold_tasks(self, entry: TasksHeld) -> None:
        """Hold or release the tasks `entry.tasks`, which are not jobs yet."""
        array = self.live[entry.array]
        array.coming = minus(array.coming, entry.tasks)
        for by, tasks in array.aside.items():
            array.aside[by] = minus(tasks, entry.tasks)
        if entry.by:
            array.aside[entry.by] = [*array.aside.get(entry.by, []), *entry.tasks]
        else:
            array.coming = sorted([*array.coming, *entry.tasks], key=lambda one: one.first)
        array.aside = {by: tasks for by, tasks in array.aside.items() if tasks}

    def cancel_tasks(self, entry: TasksCancelled, now_s: float) -> None:
        """Cancel the tasks `entry.tasks`, which are not jobs yet."""
        array = self.live[entry.array]
        array.coming = minus(array.coming, entry.tasks)
        array.aside = {by: left for by, tasks in array.aside.items() if (left := minus(tasks, entry.tasks))}
        array.dropped += entry.tasks
        array.outcomes[CANCELLED] = array.outcomes.get(CANCELLED, 0) + count(entry.tasks)
        self._end_if_done(array, now_s)

    def update_array(self, entry: JobUpdated) -> None:
        """Change the settings of an array's tasks that are not jobs yet."""
        self.live[entry.job].update(entry)

    def stop_array(self, number: int, reason: str, now_s: float) -> None:
        """Stop an array: no more of its tasks become jobs."""
        array = self.live[number]
        array.stopped = reason
        self._gates.remove_gates(number)  # some of its tasks may still run
        self._end_if_done(array, now_s)

    def _end_if_done(self, array: JobArray, now_s: float) -> None:
        if array.live or array.has_left:
            return
        array.end_s = now_s
        array.spec = msgspec.structs.replace(
            array.spec, command=[], env={}, cwd="", output="", error="", depends_on=[]
        )
        array.changes, array.coming, array.aside = [], [], {}
        del self.live[array.number]
        self._gates.resolve_end(array.number, array.state, now_s)
        over = len(self.known) - len(self.live)
        if over > MOST_OVER + MOST_OVER // 10:
            self._forget(over - MOST_OVER)

    def _forget(self, many: int) -> None:
        """Remove the `many` arrays that finished first from memory; a replay removes the same arrays."""
        over = sorted((one.end_s, one.number) for one in self.known.values() if one.end_s is not None)
        for _, number in over[:many]:
            del self.tokens[self.known.pop(number).spec.token]

    # ---- tasks that become jobs -------------------------------------------------------------------

    def wants_tasks(self) -> bool:
        """Return whether any array has tasks that should become jobs now."""
        return any(self._num_wanted(array) for array in self.live.values())

    def _num_wanted(self, array: JobArray) -> int:
        if not self._gates.is_open(array.number):
            return 0
        return array.num_wanted(self._gates.held_among(array.live.values()))

    def drafts(self, after: int) -> list[JobSubmitted]:
        """Return the tasks that should become jobs now, without predictions.

        The first task gets the job number `after` + 1.
        """
        found: list[JobSubmitted] = []
        for array in self.live.values():
            for task in islice(numbers(array.coming), self._num_wanted(array)):
                number = after + len(found) + 1
                entry = TaskSubmitted(job=number, array=array.number, task=task, predicted_s=0.0, spread=0.0)
                found.append(array.task(entry))
        return found

    def progress_line(self, number: int, jobs: dict[int, Job]) -> str:
        """Describe the progress of an array in one line for users."""
        array = self.known[number]
        states = Counter(jobs[job].state for job in array.live.values())
        waiting = array.num_left + states.pop(QUEUED, 0)
        parts = (
            [] if array.end_s is not None else ["1 task waits" if waiting == 1 else f"{waiting:,} tasks wait"]
        )
        parts += [f"{array.num_aside:,} of them held"] if array.num_aside and not array.stopped else []
        running = sum(states.values())
        parts += [f"{running:,} run"] if running else []
        parts += [f"{many:,} {state}" for state, many in sorted(array.outcomes.items())]
        return ", ".join([*parts, *([array.stopped] if array.stopped else [])])
