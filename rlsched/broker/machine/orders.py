"""Orders about jobs (cancel, hold, release, requeue, update), and the dependencies of new jobs."""

from __future__ import annotations

from typing import Final

import msgspec

from rlsched.broker.base.entries import (
    JobCancelled,
    JobHeld,
    JobSubmitted,
    JobUpdated,
    TasksCancelled,
    TasksHeld,
)
from rlsched.broker.base.limits import Limits
from rlsched.broker.machine.submissions import wrong_change, wrong_types
from rlsched.broker.nodes.launches import Launches
from rlsched.broker.nodes.time_limits import TimeLimits
from rlsched.broker.outbox import Outbox
from rlsched.broker.queries.never import refused_by_nodes
from rlsched.broker.state.arrays import JobArray
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.gates import is_met
from rlsched.broker.state.job_requests import demand_of, types_asked
from rlsched.broker.state.jobs import Job, called
from rlsched.broker.state.tasks import common, count, in_words, includes_task, minus
from rlsched.broker.state.updates import CHANGEABLE, OF_TASKS, WHILE_RUNNING, WORDS, changes_of
from rlsched.errors import InputError
from rlsched.transport.roles import Peer
from rlsched.wire.messages import Cancel, DependsOn, Hold, JobOrder, Release, Requeue, Submit, Update
from rlsched.wire.states import CANCELLED, QUEUED, RUNNING, WITHDRAWN

MOST_DEPENDENCIES: Final = 1_000


class JobOrders:
    """Carries out clients' orders about jobs."""

    def __init__(
        self,
        state: BrokerState,
        attempts: Launches,
        time_limits: TimeLimits,
        limits: Limits,
        out: Outbox,
    ) -> None:
        self._state, self._attempts, self._time_limits, self._out = state, attempts, time_limits, out
        self._limits = limits

    def obey(self, order: JobOrder, job: Job, by: Peer) -> None:
        """Carry out an order. A repeated order has no further effect.

        Raises:
            InputError: the job has ended, or its state does not allow the order.
        """
        if not job.live:
            if isinstance(order, Cancel) and job.state == CANCELLED:
                return
            raise InputError(f"job {job.called} has ended already: {job.state}")
        match order:
            case Cancel(waiting=True) if job.state != QUEUED:
                raise InputError(
                    f"job {job.called} no longer waits: it is {job.state}, and continues; omit --state to "
                    "cancel the job in any state"
                )
            case Cancel():
                self._cancel(job, by)
            case Hold():
                self._hold(job, by)
            case Release():
                self._release(job.spec, by)
            case Requeue():
                if job.active is not None:
                    self._attempts.end(job, QUEUED, f"requeued by {by.person or by.name}", charged=False)
            case Update():
                self._update(order, job, by)

    def obey_all(self, order: JobOrder, array: JobArray, by: Peer) -> None:
        """Carry out an order for all tasks of an array, including tasks that are not jobs yet.

        Raises:
            InputError: the array has ended, or an admin holds it.
        """
        if array.end_s is not None:
            if isinstance(order, Cancel) and array.state == CANCELLED:
                return
            raise InputError(f"array {array.number} has ended already: {array.state}")
        tasks = [self._state.jobs[number] for number in array.live.values()]
        waiting = [job for job in tasks if job.state == QUEUED]
        match order:
            case Cancel(waiting=True):
                self._set_aside(array, msgspec.structs.replace(order, tasks=array.spec.tasks), by)
                tasks = waiting
            case Cancel():
                self._out.record(JobCancelled(job=array.number, reason=_why(by)))
            case Hold() if array.num_left:
                self._note_hold(array.spec, by)
            case Release():
                self._release(array.spec, by)
                self._set_aside(array, Release(job=array.number, tasks=array.spec.tasks), by)
            case Update():
                waits = bool(waiting) and set(changes_of(order)) <= {*OF_TASKS}
                self._out.record(self._update_of(order, array.spec, array.num_left > 0 or waits))
                order = msgspec.structs.replace(
                    order, begin_s=None, depends_on=None, singleton=False, array_limit=None
                )
                tasks = waiting = waiting if changes_of(order) else []
        for job in tasks if isinstance(order, Cancel | Requeue) else waiting:
            self.obey(order, job, by)

    def obey_some(self, order: JobOrder, array: JobArray, by: Peer) -> None:
        """Carry out an order for the tasks `order.tasks` of an array, including tasks that are not jobs yet.

        If an order for several tasks applies only to waiting jobs, tasks that no longer wait are skipped.

        Raises:
            InputError: the array has no such task, all these tasks have ended, or a task's state does not
                allow the order.
        """
        own, number = array.spec.tasks, array.number
        strange = minus(order.tasks, own)
        if strange:
            raise InputError(f"array {number} has no task {in_words(strange)}: it has {in_words(own)}")
        jobs = [self._state.jobs[job] for task, job in array.live.items() if includes_task(order.tasks, task)]
        if not self._set_aside(array, order, by) and not jobs:
            self._say_over(order, array)
        passes_over = isinstance(order, Hold | Update) or (isinstance(order, Cancel) and order.waiting)
        if count(order.tasks) > 1 and passes_over:
            jobs = [job for job in jobs if job.state == QUEUED]  # several tasks: skip running ones
        for job in jobs:
            self.obey(msgspec.structs.replace(order, tasks=[]), job, by)

    def _say_over(self, order: JobOrder, array: JobArray) -> None:
        """Refuse an order for tasks that have all ended, unless it repeats an earlier cancel.

        A cancel of one task is a repetition if the task was cancelled. A cancel of several tasks is a
        repetition if all of them were cancelled before they were jobs of their own.

        Raises:
            InputError: the order is refused.
        """
        is_gone = not minus(order.tasks, array.dropped)
        if count(order.tasks) == 1:
            job = self._state.task(array, order.tasks[0].first)
            known = None if job is None else self._state.job(job)
            is_gone = is_gone or (known is not None and known.state == CANCELLED)
        if not (is_gone and isinstance(order, Cancel)):
            said = in_words(order.tasks)
            which = (
                f"task {said} of array {array.number} has"
                if count(order.tasks) == 1
                else f"tasks {said} of array {array.number} have"
            )
            raise InputError(f"{which} ended already")

    def _set_aside(self, array: JobArray, order: JobOrder, by: Peer) -> bool:
        """Carry out an order for the tasks in `order.tasks` that are not jobs yet.

        Return whether there are any such tasks.

        Raises:
            InputError: an admin holds these tasks, or a setting cannot change for single tasks of an array.
        """
        if array.end_s is not None or array.stopped:
            return False
        held = {who: common(tasks, order.tasks) for who, tasks in array.aside.items()}
        coming = common(array.coming, order.tasks)
        everything = [*coming, *(one for tasks in held.values() for one in tasks)]
        if not everything:
            return False
        match order:
            case Cancel():
                self._out.record(TasksCancelled(array=array.number, tasks=everything, reason=_why(by)))
            case Hold():
                holder = self._holder(array.spec, by)
                chosen = coming if holder == "user" else [*coming, *held.get("user", [])]
                if chosen:
                    self._out.record(TasksHeld(array=array.number, tasks=chosen, by=holder))
            case Release():
                theirs = [] if by.role == "admin" else held.get("admin", [])
                if theirs:
                    said = f"{array.number}_{in_words(theirs)}"
                    raise InputError(f"job {said} is held by an admin; only an admin can release it")
                tasks = [one for some in held.values() for one in some]
                if tasks:
                    self._out.record(TasksHeld(array=array.number, tasks=tasks, by=""))
            case Update():
                odd = [name for name in changes_of(order) if name not in OF_TASKS]
                if odd:
                    said = f"{array.number}_{in_words(everything)}"
                    raise InputError(
                        f"job {said} is not in the queue yet: {WORDS[odd[0]]} cannot change per task; "
                        f"change it for the whole array {array.number}"
                    )
                entry = self._update_of(order, array.spec, waits=True)
                self._out.record(msgspec.structs.replace(entry, tasks=everything))
        return True

    def _update(self, order: Update, job: Job, by: Peer) -> None:
        limits = order.time_limit_s is not None and job.state != QUEUED
        entry = self._update_of(order, job.spec, job.state == QUEUED, job.called, limits=limits)
        if limits and order.time_limit_s is not None:
            self._time_limits.check(job, order.time_limit_s, by_admin=by.role == "admin")
        self._out.record(entry)
        if limits:
            self._time_limits.send_limit(job)

    def _update_of(
        self, order: Update, spec: JobSubmitted, waits: bool, name: str = "", *, limits: bool = False
    ) -> JobUpdated:
        """Return the journal entry for an update of a job or an array.

        Args:
            order: The update.
            spec: The submission of the job or the array.
            waits: Whether the job waits. If not, only some settings can be changed.
            name: ID of the job in error messages; "": the job number.
            limits: Whether the time limit can be changed even if the job does not wait.

        Raises:
            InputError: a setting cannot be changed (now or ever), or no node can satisfy a new value.
        """
        number = name or str(spec.job)
        changes = changes_of(order)
        if not changes:
            raise InputError("expected something to change, such as --priority or --time-limit")
        always = (*WHILE_RUNNING, "array_limit", *(["time_limit_s"] if limits else []))
        late = [one for one in changes if one not in always] if not waits else []
        if late:
            raise InputError(
                f"job {number} has GPUs: {WORDS[late[0]]} can change only while a job waits; "
                f"`rlsched requeue {number}` ends it and queues it again"
            )
        if order.array_limit is not None and not spec.tasks:
            raise InputError(f"job {number} is not an array: {WORDS['array_limit']} is a setting of arrays")
        refusal = wrong_change(order) or self._limits.wrong_time(order)
        if refusal:
            raise InputError(refusal)
        types = self._types_of(order, spec)
        others = None
        if "depends_on" in changes:
            others = self._waits_for(order.depends_on or [])
            if order.singleton:
                others = self.alone(msgspec.structs.replace(spec, depends_on=others)).depends_on
            self._check_circle(spec.job, number, others)
        asked = {name: getattr(order, name) for name in CHANGEABLE}
        return JobUpdated(job=spec.job, **asked | {"depends_on": others} | types)

    def _types_of(self, order: Update, spec: JobSubmitted) -> dict[str, list[str]]:
        """Return the accepted and preferred GPU types that an update sets, by name of the field.

        Raises:
            InputError: no node has such GPUs, or the job does not accept any of its preferred types.
        """
        fields = {"gpu_types": order.gpu_types, "preferred_types": order.preferred_types}
        changed = {field: types_asked(types) for field, types in fields.items() if types is not None}
        after = msgspec.structs.replace(spec, **changed)
        never = wrong_types(after.gpu_types, after.preferred_types) if changed else ""
        if changed and self._state.nodes:
            never = never or refused_by_nodes(self._state, spec.vc, demand_of(after))
        if never:
            raise InputError(never)
        return changed

    def _check_circle(self, job: int, name: str, others: list[DependsOn]) -> None:
        """Check that new dependencies do not make a job wait for itself, directly or through other jobs.

        Raises:
            InputError: the job would wait for itself.
        """
        left, seen = [one.job for one in others], set[int]()
        while left:
            other = left.pop()
            if other == job:
                raise InputError(
                    f"job {name} would wait for itself, directly or through other jobs; omit this dependency"
                )
            if other not in seen:
                seen.add(other)
                left += [one.job for one in self._state.gates.open_dependencies(other)]
                array = self._state.arrays.live.get(other)
                left += array.live.values() if array is not None else ()

    def _cancel(self, job: Job, by: Peer) -> None:
        if job.state == QUEUED:
            self._out.record(JobCancelled(job=job.number, reason=_why(by)))
        else:
            self._attempts.end(job, CANCELLED, _why(by))

    def _hold(self, job: Job, by: Peer) -> None:
        if job.state != QUEUED:
            raise InputError(
                f"job {job.called} is {job.state}: only waiting jobs are held; "
                f"`rlsched requeue {job.called}` ends it and queues it again"
            )
        self._note_hold(job.spec, by)

    def _note_hold(self, job: JobSubmitted, by: Peer) -> None:
        holder = self._holder(job, by)
        if self._state.gates.holder(job.job) not in (holder, "admin"):
            self._out.record(JobHeld(job=job.job, by=holder))

    def _holder(self, job: JobSubmitted, by: Peer) -> str:
        return "admin" if by.role == "admin" and by.person != job.user else "user"

    def _release(self, job: JobSubmitted, by: Peer) -> None:
        holder = self._state.gates.holder(job.job)
        if holder == "admin" and by.role != "admin":
            raise InputError(f"job {called(job)} is held by an admin; only an admin can release it")
        if holder:
            self._out.record(JobHeld(job=job.job, by=""))

    def waits_for(self, submit: Submit) -> list[DependsOn]:
        """Return the dependencies of a new job that are not met yet.

        Raises:
            InputError: a job does not exist, a dependency can no longer be met, or there are too many
                dependencies.
        """
        return self._waits_for(submit.depends_on)

    def _waits_for(self, depends_on: list[DependsOn]) -> list[DependsOn]:
        _check_number(len(depends_on))  # checked first: each job may have to be read from the journal
        found: dict[DependsOn, None] = {}
        for one in depends_on:
            job = self._state.arrays.known.get(one.job) or self._state.job(one.job)
            if job is None:
                raise InputError(
                    f"there is no job {one.job} to wait for; `rlsched queue --all` lists all jobs"
                )
            met = self._is_met(one, job)
            if met is False:
                name = self._state.called(one.job)
                raise InputError(f"{one.kind}:{name} can never be satisfied: job {name} is {job.state}")
            if met is None:
                found[one] = None
        return list(found)

    def alone(self, entry: JobSubmitted, beside: int = 0) -> JobSubmitted:
        """Return the entry of a singleton job with its dependencies added.

        A singleton job depends on all earlier live jobs and arrays with the same user and job name. Call this
        just before the job is journalled.

        Args:
            entry: The entry of the job.
            `beside`: Number of earlier jobs with this user and name that are not in the state yet. They count
                only towards the limit of dependencies.

        Raises:
            InputError: there are too many dependencies.
        """
        live: list[Job | JobArray] = [*self._state.job_of_seq.values(), *self._state.arrays.live.values()]
        alike = sorted(
            one.number
            for one in live
            if one.spec.user == entry.user and one.spec.name == entry.name
            if one.number < entry.job and one.number != entry.array
            if one.spec.array not in self._state.arrays.live  # skip tasks: their array is in the list
        )
        found = dict.fromkeys([*entry.depends_on, *(DependsOn("afterany", number) for number in alike)])
        _check_number(len(found) + beside)
        return msgspec.structs.replace(entry, depends_on=list(found))

    def _is_met(self, one: DependsOn, job: Job | JobArray) -> bool | None:
        if job.end_s is not None:
            return is_met(one.kind, job.state)
        started_s = job.start_s if isinstance(job, JobArray) else job.first_start_s  # it may be queued again
        return None if started_s is None else is_met(one.kind, RUNNING)


def _check_number(others: int) -> None:
    if others > MOST_DEPENDENCIES:
        raise InputError(f"expected at most {MOST_DEPENDENCIES:,} jobs to wait for, got {others:,}")


def _why(by: Peer) -> str:
    return WITHDRAWN if by.role == "engine" else "cancelled by its user"
