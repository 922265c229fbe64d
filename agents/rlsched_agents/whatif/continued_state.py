"""Continues the state of a broker from a point in its journal, without a running broker."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final

import msgspec

from rlsched.broker.base.entries import (
    AttemptEnding,
    AttemptOver,
    BrokerStarted,
    Decided,
    EligibilityReviewed,
    Entry,
    GpuMemorySeen,
    JobCancelled,
    JobHeld,
    JobUnshared,
    JobUpdated,
    MemberSet,
    NodeAway,
    NodeDown,
    NodeSlept,
    NodeUp,
    NodeWoken,
    PairSeen,
    RankEnded,
    TasksCancelled,
    TasksHeld,
)
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.base.states import Outcome
from rlsched.broker.machine.store_events import events_of_fact
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.gates import NEVER
from rlsched.broker.state.jobs import Attempt, Job
from rlsched.broker.state.predictions import Predictions
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Preempt, Start, Wait
from rlsched.decide.loop import decide_all
from rlsched.decide.record import DecisionRecord
from rlsched.decide.scheduler import Decision, Scheduler, permit
from rlsched.decisions.candidates import Candidate
from rlsched.decisions.schema import JobEvent, NodeChange
from rlsched.decisions.timeline import Timeline
from rlsched.errors import InputError, RlschedError
from rlsched.wire.states import CANCELLED, COMPLETED, FAILED, QUEUED
from rlsched.workload.predict.kinds import RUNNING_MEAN
from rlsched_agents.whatif.course import Watch
from rlsched_agents.whatif.other_choice import other_decision

STOP_S: Final = 1.0
"""Time between a request to stop a job and the release of its GPUs, seconds."""
_MAX_SIGMA: Final = 3.0
_TAIL_SIGMA: Final = 30.0
_MIN_SPREAD: Final = 0.1
_STANDARD: Final = NormalDist()
_OWN_ENDS: Final[dict[str, Outcome]] = {COMPLETED: COMPLETED, FAILED: FAILED}


class Ends:
    """Determines when attempts end, and with which outcome, from what the journal has recorded.

    Args:
        timeline: Timeline of the whole journal.

    Attributes:
        by_predictions: Jobs for which a predicted run time was used, because the journal has no run time.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.by_predictions: set[int] = set()

    def end_of(self, job: Job, attempt: Attempt) -> tuple[float, Outcome]:
        """Return the end time of an attempt, and the outcome of its job.

        - The job completed or failed in a recorded attempt: `attempt` ends at the recorded time if it has the
          same start, or if the job already ran at the start of the journal. Otherwise, it runs for the
          recorded run time.
        - The job was cancelled: `attempt` ends at the recorded time if it has the same start as the job's
          last recorded attempt. Otherwise, the time is infinite, because the cancellation will end the
          attempt.
        - Otherwise the run time is predicted.
        """
        spec, ran_s = job.spec, 0.0
        seen = self._timeline.jobs.get(job.called)
        if seen is not None:
            if seen.state == CANCELLED:  # another attempt ends when the cancellation is applied
                as_it_was = bool(seen.attempts) and seen.attempts[-1].start_s == attempt.start_s
                return (seen.end_s if as_it_was else math.inf), CANCELLED
            own = _OWN_ENDS.get(seen.state)
            if not seen.attempts and own:  # the job was running at the start of the journal
                return seen.end_s, own
            for one in seen.attempts:
                if own := _OWN_ENDS.get(one.state):
                    as_it_was = one.start_s == attempt.start_s
                    end_s = one.end_s if as_it_was else attempt.start_s + (one.end_s - one.start_s)
                    return end_s, own
                if one.end_s == math.inf and one.start_s == attempt.start_s:  # the attempt is still running
                    ran_s = self._timeline.last_s - one.start_s
        self.by_predictions.add(job.number)
        run_s = ran_s + median_time_left(ran_s, spec.predicted_s, spec.spread)
        limit_s = math.inf if spec.time_limit_s is None else spec.time_limit_s
        return attempt.start_s + max(min(run_s, limit_s), ran_s), COMPLETED


def median_time_left(ran_s: float, predicted_s: float, spread: float) -> float:
    """Return the median remaining run time of an attempt that has run for `ran_s` seconds, seconds.

    The total run time is assumed to be lognormal.

    Args:
        ran_s: Run time so far, seconds.
        predicted_s: Median of the total run time, seconds.
        spread: Standard deviation of the natural logarithm of the total run time.
    """
    spread, predicted_s = max(spread, _MIN_SPREAD), max(predicted_s, 1.0)
    z = math.log(ran_s / predicted_s) / spread if ran_s > 0 else -math.inf
    if z > _TAIL_SIGMA:  # the tail of a normal distribution falls as exp(-z^2 / 2) there
        median = math.sqrt(z * z + 2.0 * math.log(2.0))
    else:
        median = -_STANDARD.inv_cdf(0.25 * math.erfc(z / math.sqrt(2.0)))
    return max(predicted_s * math.exp(spread * min(median, max(_MAX_SIGMA, z + 1.0))) - ran_s, 1.0)


class _WaitOnce(Scheduler):
    """A scheduler that decides to *wait* in one partition. In the other partitions, a policy decides."""

    def __init__(self, policy: Scheduler, partition: int, said: Decision) -> None:
        self.name, self.policy_id, self.order = policy.name, policy.policy_id, policy.order
        self.abilities = policy.abilities
        self._policy, self._partition, self._said = policy, partition, said

    def keeps_limit(self) -> bool:
        """Forward the call to the policy."""
        return self._policy.keeps_limit()

    def begin_instant(self, state: ClusterState, now_s: float) -> None:
        """Forward the call to the policy."""
        self._policy.begin_instant(state, now_s)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Return `said`, the fixed decision to *wait*, for its partition. Elsewhere, the policy decides."""
        if partition == self._partition:
            return self._said
        return self._policy.decide(state, partition, now_s, record=record)


class Life:
    """The state of a broker, which can continue from any entry of the journal without a running broker.

    Args:
        scheduler: The policy that makes the decisions.
        watch: Time limit of the replay.

    Attributes:
        state: The current state.
        timeline: Events up to the last call of `past_events`.
    """

    def __init__(self, scheduler: Scheduler, watch: Watch) -> None:
        self.state = BrokerState(Predictions(RUNNING_MEAN), scheduler.order)
        self.timeline = Timeline()
        self._scheduler, self._watch = scheduler, watch
        self._events: list[JobEvent | NodeChange] = []
        self._planned: list[tuple[float, int, int, Outcome]] = []  # time, job, attempt, outcome of the job
        self._waits: tuple[float, int, Decision] | None = None  # time, partition, and the decision
        self._kept_awake: set[str] = set()  # nodes that slept in the journal, and run jobs here
        permit(self.state.cluster, scheduler)

    def follow(self, rows: Iterable[JournalRow]) -> None:
        """Apply these entries of the journal to the state."""
        for row in rows:
            self.state.follow([row], self._scheduler)
            self._events += events_of_fact(row.entry, self.state, row.now_s)

    def choose(self, record: DecisionRecord, choice: Candidate) -> None:
        """Make another choice at a recorded decision, which must be the next decision of the journal.

        Raises:
            InputError: the state differs from the state before the recorded decision, or the choice is not
                possible.
        """
        state, now_s = self.state, record.now_s
        self._scheduler.begin_instant(state.cluster, now_s)
        if state.cluster.digest() != record.state_digest:
            raise InputError(
                f"a replay of the journal does not reach the state in which decision {record.number} was "
                "made: another version of rlsched made this decision (use that version), or the journal "
                "was restored from a backup"
            )
        partition = state.cluster.partition_names.index(record.partition)
        decision = other_decision(self._scheduler, record, choice, state.cluster, partition, now_s)
        self._decided(partition, decision, now_s)
        if isinstance(decision.action, Wait):
            self._waits = (now_s, partition, decision)

    def go_on(self, ends: Ends, outside: Sequence[JournalRow], to_s: float) -> float:
        """Advance the state to `to_s`, and return the time of the last event, seconds.

        Args:
            ends: Determines when attempts end.
            outside: Recorded events after the present state that do not depend on decisions, such as
                submissions.
            to_s: Time at which to stop, seconds.
        """
        state, self._ends = self.state, ends
        for job in list(state.job_of_seq.values()):
            if job.active is not None:
                self._plan(job)
        now_s, at, dirty = state.now_s, 0, True
        while True:
            if dirty:
                self._decide(now_s)
            due_s = self._due_s(now_s)
            next_s = min(
                outside[at].now_s if at < len(outside) else math.inf,
                self._planned[0][0] if self._planned else math.inf,
                due_s,
            )
            if not next_s < to_s:
                return state.now_s
            now_s, dirty = next_s, next_s >= due_s
            self._watch.check_time(now_s)
            while self._planned and self._planned[0][0] <= now_s:
                _, number, attempt, outcome = heapq.heappop(self._planned)
                dirty |= self._end(number, attempt, outcome, now_s)
            while at < len(outside) and outside[at].now_s <= now_s:
                dirty |= self._comes(outside[at].entry, now_s)
                at += 1
            if now_s >= min(state.quotas.due_s, state.gates.due_s):
                dirty |= self._note(EligibilityReviewed(), now_s)
            while state.gates.hopeless:
                job_number, why = next(iter(state.gates.hopeless.items()))
                dirty |= self._note(JobCancelled(job=job_number, reason=why), now_s)
            for name in [name for name, at_s in state.asked_for_s.items() if at_s <= now_s]:
                del state.asked_for_s[name]

    def past_events(self) -> Timeline:
        """Return the timeline with all events up to now."""
        self.timeline.add(self._events)
        self._events = []
        return self.timeline

    def _due_s(self, now_s: float) -> float:
        """Return when the next *wait* (decision to start no job) ends, or jobs may become eligible, seconds.

        The time is rounded up to milliseconds; infinite: there is no such event.
        """
        asked_s = min(self.state.asked_for_s.values(), default=math.inf)
        reviewed_s = min(self.state.quotas.due_s, self.state.gates.due_s)
        due_s = min(asked_s, reviewed_s)
        return max(math.ceil(due_s * 1000.0) / 1000.0, now_s + 0.001) if due_s < math.inf else due_s

    def _note(self, entry: Entry, now_s: float) -> bool:
        try:
            self.state.apply(entry, now_s)
        except (RlschedError, KeyError, IndexError, AttributeError) as error:
            raise InputError(
                f"the replay reached an event that is not possible after the other choice: {error}; choose "
                "another candidate"
            ) from error
        self._events += events_of_fact(entry, self.state, now_s)
        return True

    def _decide(self, now_s: float) -> None:
        cluster = self.state.cluster
        scheduler = self._scheduler
        if self._waits is not None and self._waits[0] == now_s:  # the other choice was to wait
            scheduler = _WaitOnce(scheduler, *self._waits[1:])
        for partition, decision in decide_all(cluster, scheduler, now_s):
            self._decided(partition, decision, now_s, already=True)

    def _decided(self, partition: int, decision: Decision, now_s: float, *, already: bool = False) -> None:
        state = self.state
        entry = Decided(
            number=state.cluster.decisions - already,
            partition=state.cluster.partition_names[partition],
            source=decision.source,
            action=decision.action,
            contested=False,
            guard="",
        )
        state.apply(entry, now_s, already_decided=already)
        self._events += events_of_fact(entry, state, now_s)
        if not already:
            return  # `go_on` plans the ends
        if isinstance(decision.action, Start):
            self._plan(state.job_of_seq[decision.action.seq])
        elif isinstance(decision.action, Preempt):
            job = state.job_of_seq[decision.action.seq]
            assert job.attempt is not None
            heapq.heappush(self._planned, (now_s + STOP_S, job.number, job.attempt.number, QUEUED))

    def _plan(self, job: Job) -> None:
        attempt = job.active
        assert attempt is not None
        end_s, outcome = self._ends.end_of(job, attempt)
        if attempt.ending:  # the end of the attempt was requested
            left_s = self.state.now_s + STOP_S
            end_s, outcome = min(end_s, left_s), QUEUED if attempt.ending == "preempted" else attempt.ending
        heapq.heappush(self._planned, (end_s, job.number, attempt.number, outcome))

    def _end(self, number: int, attempt: int, outcome: Outcome, now_s: float) -> bool:
        """End an attempt if it is still active, and return whether it was."""
        job = self.state.jobs.get(number)
        if job is None or job.active is None or job.active.number != attempt:
            return False
        code = {COMPLETED: 0, FAILED: 1}.get(outcome)
        for rank in job.active.live_ranks():
            self._note(
                RankEnded(job=number, attempt=attempt, rank=rank, exit_code=code or 0, reason=""), now_s
            )
        over = AttemptOver(job=number, attempt=attempt, outcome=outcome, exit_code=code, reason="")
        self.state.seats.emptied.clear()
        return self._note(over, now_s)

    def _updates(self, entry: JobUpdated, now_s: float) -> bool:
        """Apply an update of a job, and return whether the scheduler must decide.

        Begin time and dependencies are updated only if the job is queued.
        """
        job = self.state.jobs.get(entry.job)
        if entry.job not in self.state.arrays.live:
            if job is None or not job.live:
                return False
            if job.state != QUEUED:
                entry = msgspec.structs.replace(entry, begin_s=None, depends_on=None)
        return self._note(entry, now_s)

    def _stays_awake(self, entry: Entry) -> bool:
        """Return whether an event is part of a recorded sleep of a node that stays awake here.

        A node that runs a job when it was put to sleep stays awake until it registered again.
        """
        if isinstance(entry, NodeSlept) and self.state.nodes[entry.name].live_jobs:
            self._kept_awake.add(entry.name)
        elif isinstance(entry, NodeUp):
            self._kept_awake.discard(entry.name)
        return (
            isinstance(entry, NodeSlept | NodeWoken | NodeAway | NodeDown) and entry.name in self._kept_awake
        )

    def _comes(self, entry: Entry, now_s: float) -> bool:
        """Apply an external event, and return whether the scheduler must decide."""
        state = self.state
        if self._stays_awake(entry):
            return False
        if isinstance(entry, JobCancelled | JobHeld) and entry.job in state.arrays.live:
            return self._note(entry, now_s)
        if isinstance(entry, JobCancelled | AttemptEnding):
            job = state.jobs.get(entry.job)
            cancels = entry.outcome == CANCELLED if isinstance(entry, AttemptEnding) else True
            follows = entry.reason.startswith(NEVER)  # outcomes of other jobs may differ here
            if job is None or not job.live or not cancels or follows:
                return False
            if job.active is not None:
                if self._ends.end_of(job, job.active)[0] < math.inf:
                    return False  # the attempt releases its GPUs at its recorded end
                return self._end(job.number, job.active.number, CANCELLED, now_s)
            return self._note(JobCancelled(job=job.number, reason=entry.reason), now_s)
        if isinstance(entry, TasksHeld | TasksCancelled) and entry.array not in state.arrays.live:
            return False
        if isinstance(entry, JobUpdated):
            return self._updates(entry, now_s)
        if isinstance(entry, JobHeld) and (
            entry.job not in state.jobs or state.jobs[entry.job].state != QUEUED
        ):
            return False
        self._note(entry, now_s)
        if isinstance(entry, NodeDown):
            lost = sorted(state.nodes[entry.name].live_jobs)
            for number in lost:
                job = state.jobs[number]
                if job.active is not None:
                    self._end(number, job.active.number, QUEUED, now_s)
        return not isinstance(entry, BrokerStarted | MemberSet | PairSeen | GpuMemorySeen | JobUnshared)
