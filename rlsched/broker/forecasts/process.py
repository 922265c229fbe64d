"""The forecaster's process. The broker starts it with `background_command`, and sends it questions.

The process follows the journal as a standby does, and never writes to the journal. It can be killed without
harm. It runs at the lowest priority, and exits when its broker exits.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rlsched.broker.base.entries import JobSubmitted, TaskSubmitted
from rlsched.broker.base.ledger_models import workload_number
from rlsched.broker.base.pauses import ShortPauses
from rlsched.broker.base.profiles import WorkloadProfile, signature_of
from rlsched.broker.base.rows import JournalRow
from rlsched.broker.forecasts.messages import (
    Answer,
    ForecasterSetup,
    Question,
    Refreshed,
    Tells,
    get_told,
    put,
)
from rlsched.broker.queries.forecasts import wired
from rlsched.broker.queries.never import refused_by_nodes
from rlsched.broker.standby.warm import JournalFollower, Warm
from rlsched.broker.state.job_requests import demand_asked, needs
from rlsched.cluster.arrays import NODE_UP
from rlsched.cluster.demand import Demand
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rules.steps import CompiledRule
from rlsched.decide.scheduler import Scheduler
from rlsched.decisions.reading import last_forecasts
from rlsched.decisions.schema import ForecastSeen as Seen
from rlsched.errors import InputError, JournalError, RlschedError
from rlsched.forecast.arrivals import KEPT_S, RecentJobs
from rlsched.forecast.keeping import Keeping, LiveJob
from rlsched.forecast.record import SIZES, What, score, size_class, size_words
from rlsched.forecast.world import Forecaster, HypotheticalJob, World, load_forecaster
from rlsched.models.gpu_types import stands_for
from rlsched.wire.messages import DryRow, DryRun, ForecastReport, ForecastScore, JobForecast
from rlsched.wire.states import COMPLETED, FAILED
from rlsched.workload.predict import RunningMean

LOOK_S: Final = 0.25
STALE_S: Final = 60.0
"""Maximum age of forecasts, seconds. Older forecasts are renewed, even if the journal has no new entries."""
IDLE_SHARE: Final = 9.0
"""Pause after a refresh of the forecasts, as a multiple of the CPU time of the refresh."""
NO_GPUS: Final = Demand(gpus=0)
"""Demand of a dry run's variant that is not simulated. Such a variant gets a note instead of a forecast."""
FRUGAL_CLOCK_FRAC: Final = 0.6
RECORD_S: Final = 30 * 86_400.0
TELLS: Final = 2_000
"""Maximum number of jobs in a `Refreshed` message. The forecasts of the lowest job numbers are sent."""


class _FollowedBook(Warm):
    """The broker's state, replayed from the journal, with recent jobs (`past`) and mean run times of jobs."""

    keeps_ended = True

    def forget(self) -> None:
        super().forget()
        self.past = RecentJobs()
        self.mean = RunningMean()

    def apply(self, rows: list[JournalRow], checksum: int | None) -> None:
        super().apply(rows, checksum)
        self._let_all_be_awake()
        cluster, since_s = self.state.cluster, time.time() - KEPT_S
        for row in rows:
            if not isinstance(row.entry, JobSubmitted | TaskSubmitted) or row.now_s < since_s:
                continue
            job = self.state.jobs.get(row.entry.job)  # None for an array
            if job is None or job.seq < 0:
                continue
            spec = job.spec
            limit_s = math.nan if spec.time_limit_s is None else spec.time_limit_s
            demand, vc = cluster.demand_number(needs(job)), cluster.vc_number(spec.vc)
            said = (spec.predicted_s, spec.spread, limit_s)
            self.past.add((job.number, row.now_s, math.nan, *said, demand, vc, not spec.preemptible))

    def _let_all_be_awake(self) -> None:
        """Mark sleeping nodes as up, because jobs that need these nodes would wake them."""
        cluster = self.state.cluster
        for node in self.state.nodes.values():
            wakes = node.up and node.sleep and not (node.drained or node.unhealthy)
            if wakes and cluster.arrays.node.status[node.number] != NODE_UP:
                cluster.resume_node(node.number)


class Process:
    """Simulates the cluster's future to forecast the starts and ends of jobs.

    Args:
        setup: First message from the broker.
        tell: Function that sends a message to the broker.
    """

    def __init__(self, setup: ForecasterSetup, tell: Callable[[Tells], None]) -> None:
        self._setup, self._tell = setup, tell
        self._policy = Policy.parse(setup.policy, name=setup.policy_name)
        self._scheduler = load_scheduler(self._policy, seed=setup.seed)
        self._rule_name, self._rule = _rule_of(self._scheduler)
        self._forecaster: Forecaster = load_forecaster(setup.forecaster)
        self._state = _FollowedBook(self._scheduler, "", setup.prediction, setup.half_life_s)
        self._follower = JournalFollower(Path(setup.journal), self._state)
        self._keeping = Keeping()
        self._entry, self._said_s, self._not_before_s = 0, -math.inf, 0.0
        self._refreshes = self._futures = 0
        with contextlib.suppress(Exception):  # without a readable store, the record begins empty
            self._keeping.record.recall(last_forecasts(setup.store, time.time() - RECORD_S))

    def step(self) -> None:
        """Read new journal entries, and send new forecasts (`Refreshed`) if they are due."""
        while self._follower.step():
            pass
        now = time.monotonic()
        changed = self._state.last != self._entry
        if now < self._not_before_s or not (changed or now - self._said_s >= STALE_S):
            return
        began = time.process_time()
        self._entry = self._state.last
        said = self._refresh()
        cpu_s = time.process_time() - began
        self._said_s = time.monotonic()
        rest_s = IDLE_SHARE * cpu_s if self._refreshes else 0.0  # the first refresh loads compiled code
        self._refreshes += 1
        self._not_before_s = self._said_s + max(self._setup.least_s, rest_s)
        self._tell(Refreshed(jobs=said, seen=self._fresh, report=self._report(len(said), cpu_s)))

    def _world(self, now_s: float) -> tuple[World, dict[int, LiveJob]]:
        state = self._state.state
        live = {
            seq: LiveJob(str(job.number), float(job.spec.num_gpus)) for seq, job in state.job_of_seq.items()
        }
        known = {seq: state.predictions.chances(job.number) for seq, job in state.job_of_seq.items()}
        chances = {seq: one for seq, one in known.items() if one is not None}
        numbers = {seq: job.number for seq, job in state.job_of_seq.items()}
        return World(state.cluster, self._rule, now_s, chances, self._state.past, numbers), live

    def _refresh(self) -> dict[int, JobForecast]:
        """Compare earlier forecasts with outcomes, and simulate new forecasts. Return them by job number."""
        now_s = self._now_s()
        self._fresh = self._settle_forecasts()
        if not self._state.state.job_of_seq or not self._state.state.nodes:
            return {}
        world, live = self._world(now_s)
        ahead, listed = self._forecaster.play(world), self._forecaster.list_schedule(world)
        self._futures = ahead.start_s.shape[1]
        said = self._keeping.correct(ahead, listed, live, now_s)
        first = sorted((int(job), when) for job, when in said.items())[:TELLS]
        return {
            job: JobForecast(
                said_s=now_s,
                start_s=None if when.start_s is None else wired(when.start_s),
                end_s=wired(when.end_s),
            )
            for job, when in first
        }

    def _now_s(self) -> float:
        return max(time.time(), self._state.state.now_s)

    def _settle_forecasts(self) -> list[Seen]:
        """Return earlier forecasts whose outcome is now known."""
        jobs = self._state.state.jobs
        for name in self._keeping.open_jobs():
            job = jobs.get(int(name))
            if job is not None and job.first_start_s is not None:
                self._keeping.saw(name, job.first_start_s, math.nan)
        over = self._state.take_finished()
        for ended in over:
            start_s = math.nan if ended.start_s is None else ended.start_s
            own = ended.state in (COMPLETED, FAILED)
            if own and ended.start_s is not None:
                self._state.past.ran(ended.job, ended.end_s - start_s)
                self._state.mean.observe(ended.vc, ended.num_gpus, ended.end_s - start_s)
            self._keeping.saw(str(ended.job), start_s, ended.end_s if own else math.nan)
        found = self._keeping.take_outcomes()
        for ended in over:
            self._keeping.drop_job(str(ended.job))
        return found

    def _report(self, jobs: int, cpu_s: float) -> ForecastReport:
        return ForecastReport(
            note="",
            said_s=self._now_s(),
            jobs=jobs,
            futures=self._futures,
            cpu_s=cpu_s,
            by=self._rule_name,
            scores=scores(self._keeping.record.seen),
        )

    # ---- dry runs ---------------------------------------------------------------------------------

    def answer(self, question: Question) -> None:
        """Simulate the job of a dry run and variants of this job, and send the start and end of each.

        A variant has, for example, fewer GPUs. If an error occurs, send its message instead.
        """
        try:
            while self._follower.step():
                pass
            rows = [self._row(*neighbour) for neighbour in self._neighbours(question.asked, question.user)]
        except (RlschedError, ValueError) as error:
            self._tell(Answer(number=question.number, said_s=self._now_s(), refusal=str(error)))
            return
        self._tell(Answer(number=question.number, said_s=self._now_s(), rows=rows))

    def _neighbours(self, asked: DryRun, user: str) -> Iterable[tuple[str, HypotheticalJob, str]]:
        state = self._state.state
        if not state.nodes:
            raise InputError("no node has registered yet: a forecast needs at least one; try again later")
        demand = demand_asked(asked)
        never = refused_by_nodes(state, asked.vc, demand)
        if never:
            raise InputError(never)
        limit_s = math.nan if asked.time_limit_s is None else asked.time_limit_s
        predicted_s, spread = self._state.mean.predict(asked.vc, asked.num_gpus)
        if not math.isnan(limit_s):
            predicted_s = min(predicted_s, limit_s)
        now_s = self._now_s()
        base = HypotheticalJob(demand, asked.vc, now_s, predicted_s, spread, limit_s, asked.preemptible)
        yield "as asked", base, ""
        if asked.num_gpus > 1:
            fewer = asked.num_gpus // 2
            part = msgspec.structs.replace(
                demand,
                gpus=fewer,
                cpu_milli=round(demand.cpu_milli * fewer / asked.num_gpus),
                memory_mib=round(demand.memory_mib * fewer / asked.num_gpus),
            )
            profiles = state.profiles.profiles_of(signature_of(user, asked.command)) if asked.command else {}
            factor, note = with_fewer(profiles, demand.gpu_types, asked.num_gpus, fewer)
            yield (
                "half the GPUs" if asked.num_gpus == 2 * fewer else "fewer GPUs",
                base._replace(demand=part, predicted_s=predicted_s * factor, limit_s=limit_s * factor),
                note,
            )
        if demand.gpu_types:
            of_any = msgspec.structs.replace(demand, gpu_types=())
            yield "any GPU type", base._replace(demand=of_any), "if its run time is the same on all types"
        if not asked.preemptible:
            yield "preemptible", base._replace(preemptible=True), "if a preemption loses no work"
        shared = "this broker does not let jobs share GPUs"
        if state.models.shares:
            shared = (
                "forecasts assume that new jobs share no GPUs; with --share yes, the job may start sooner"
            )
        yield "shared", base._replace(demand=NO_GPUS), shared
        slower = frugal_factor(asked.workload, state.cluster.kind_names)
        if slower is None:
            note = "the job's workload is unknown; name the workload with --workload"
            yield "frugal clock", base._replace(demand=NO_GPUS), note
        else:
            frugal = base._replace(predicted_s=predicted_s * slower)
            yield (
                "frugal clock",
                frugal,
                f"runs {slower:.2f} times as long at {FRUGAL_CLOCK_FRAC:.0%} of the clock",
            )
        if asked.tonight_s is not None and asked.tonight_s > now_s:
            yield "tonight", base._replace(submit_s=asked.tonight_s), "submitted then"

    def _row(self, what: str, asked: HypotheticalJob, note: str) -> DryRow:
        predicted_s = min(asked.predicted_s, asked.limit_s) if asked.limit_s > 0 else asked.predicted_s
        if asked.num_gpus == 0:
            return DryRow(what=what, num_gpus=0, predicted_s=predicted_s, note=note)
        now_s = self._now_s()
        world, _ = self._world(now_s)
        ahead, listed = self._forecaster.play(world, asked), self._forecaster.list_schedule(world, asked)
        from_s = max(asked.submit_s, now_s)
        kinds: tuple[tuple[What, np.ndarray, np.ndarray], ...] = (
            ("start", ahead.start_s, listed.start_s),
            ("end", ahead.end_s, listed.end_s),
        )
        start_s, end_s = (
            self._keeping.corrected(kind, asked.num_gpus, times[-1:], float(by_list[-1, 0]), from_s)
            for kind, times, by_list in kinds
        )
        end_s = tuple(max(one, other) for one, other in zip(end_s, start_s, strict=True))
        return DryRow(
            what=what,
            num_gpus=asked.num_gpus,
            predicted_s=predicted_s,
            start_s=wired(start_s),
            end_s=wired(end_s),
            note=note,
        )


def with_fewer(
    profiles: Mapping[str, WorkloadProfile], gpu_types: Sequence[str], num_gpus: int, fewer: int
) -> tuple[float, str]:
    """Return the factor by which a job runs longer with fewer GPUs, and the assumption behind the factor.

    The factor is learnt from completed jobs of the same signature (user and command line), on the GPU type
    with the most such jobs. Without such jobs, run times are assumed to be in inverse proportion to the
    number of GPUs.

    Args:
        profiles: Profiles of the job's signature by GPU type.
        gpu_types: GPU types that the job accepts; empty: any type.
        num_gpus: Requested number of GPUs.
        fewer: The smaller number of GPUs.
    """
    known = [
        (name, one.scaling)
        for name, one in profiles.items()
        if {num_gpus, fewer} <= one.scaling.keys()
        and (not gpu_types or any(stands_for(asked, name) for asked in gpu_types))
    ]
    if not known:
        return num_gpus / fewer, "if the run time is inversely proportional to the number of GPUs"
    name, speeds = max(known, key=lambda one: min(one[1][num_gpus].count, one[1][fewer].count))
    factor = speeds[num_gpus].value / speeds[fewer].value
    return factor, f"runs {factor:.2f} times as long, as earlier jobs with this command did on {name}"


def frugal_factor(workload: str, kinds: Sequence[str]) -> float | None:
    """Return the run time of a workload at 60 % of the highest SM clock, relative to the highest clock.

    The result is for the first GPU type of `kinds`; None if the workload is unknown. At about 60 % of the
    clock, most jobs need the least energy (`rlsched.models.clocks`).
    """
    from rlsched.models.catalogue import load_catalogue
    from rlsched.models.clocks import relative_time

    number = workload_number(workload)
    if number == 0 or not kinds:
        return None
    bound = float(load_catalogue().arrays(tuple(kinds)).trait.clock_bound[number, 0])
    return float(relative_time(bound, FRUGAL_CLOCK_FRAC))


def _rule_of(scheduler: Scheduler) -> tuple[str, CompiledRule]:
    """Return (name, rule) of the rule that schedules the jobs in simulations of the future.

    The rule is the policy's own, or the rule on which the policy is based.

    Raises:
        InputError: the policy has no rule.
    """
    if scheduler.rule is not None:
        return scheduler.name, scheduler.rule
    if scheduler.reference is None:
        raise InputError(
            f"policy {scheduler.name!r}: forecasts need a rule, or a policy that follows a rule; this policy "
            "has no rule"
        )
    return f"{scheduler.reference.name}, which {scheduler.name} follows", scheduler.reference.rule


def scores(seen: Iterable[Seen]) -> list[ForecastScore]:
    """Return the accuracy of forecasts by kind and size class.

    The kinds are `start`, `end` (forecast while the job waits) and `end-running` (while the job runs). The
    class `all` contains jobs of all sizes.
    """
    groups: dict[tuple[str, str], list[Seen]] = {}
    for one in seen:
        for size in ("all", size_words(size_class(one.num_gpus))):
            groups.setdefault((one.what, size), []).append(one)
    found = []
    for what in ("start", "end", "end-running"):
        for size in ("all", *map(size_words, range(len(SIZES)))):
            made = score(groups.get((what, size), []))
            if made is not None:
                found.append(
                    ForecastScore(
                        what=what,
                        size=size,
                        jobs=made.jobs,
                        covered_frac=made.covered_frac,
                        loss_s=made.loss_s,
                        rules=made.rules,
                    )
                )
    return found


def main() -> int:
    """Follow the journal, and send forecasts until the broker exits. Return the exit code."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with frames
    setup = get_told(sys.stdin.buffer)
    if not isinstance(setup, ForecasterSetup):
        return 1
    questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    try:
        process = Process(setup, lambda message: put(out, message))
        pauses = ShortPauses()
        while True:
            pauses.step()
            with contextlib.suppress(queue.Empty):
                question = questions.get(timeout=LOOK_S)
                if question is None:
                    return 0
                process.answer(question)
            with contextlib.suppress(JournalError):  # the journal was just restored or compacted
                process.step()
    except BrokenPipeError:
        return 0
    except RlschedError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _listen(questions: queue.SimpleQueue[Question | None]) -> None:
    while isinstance(message := get_told(sys.stdin.buffer), Question):
        questions.put(message)
    questions.put(None)


if __name__ == "__main__":
    sys.exit(main())
