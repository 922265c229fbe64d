"""Pages of running and finished jobs, for lists of jobs and for sums of usage.

Only a limited number of rows is read for a page, so that the time for a page is limited. A page can therefore
have few or no jobs, even if more jobs match. The field `next` is the position of the next page.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

from rlsched.broker.base.shortened import MAX_REASON_CHARS, shortened
from rlsched.broker.nodes.metered import MeteredUsage
from rlsched.broker.queries.pages import MAX_PAGE_ROWS, text_bytes
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.finished_job import EndedJob, rest_of_row
from rlsched.broker.state.finished_table import EndedTable, Filter
from rlsched.broker.state.jobs import Job, place_of
from rlsched.wire.messages import Cursor, History, JobUsage, ListHistory, ListUsage, PastJob, Usage, WhichJobs
from rlsched.wire.states import RUNNING

MAX_PAGE_BYTES = 1 << 16
"""Maximum estimated size of a page, bytes. A page with only one job can be larger."""
MAX_USAGE_BYTES = 1 << 18
"""Maximum estimated size of a page of `JobUsage`, bytes. The last job can exceed it."""
SCANNED = 400
"""Maximum number of rows that are read for a page. Reading 400 rows takes about 4 ms."""
MAX_PLACE_CHARS = 2_000


class HistoryPages:
    """Maker of pages of running and finished jobs."""

    def __init__(self, state: BrokerState, ended: EndedTable, metered: MeteredUsage) -> None:
        self._state, self._ended, self._metered = state, ended, metered

    def history(self, asked: ListHistory, now_s: float) -> History:
        """Return a page of jobs, newest first. `now_s`: Unix seconds."""
        limit = MAX_PAGE_ROWS if asked.limit is None else max(1, min(asked.limit, MAX_PAGE_ROWS))
        jobs: list[PastJob] = []
        left, cursor = MAX_PAGE_BYTES, asked.before
        if cursor is None or math.isinf(cursor[0]):
            for job in self._running(asked):
                row = _running_job(job, self._state, self._metered, now_s)
                left -= _bytes(row)
                if jobs and (left < 0 or len(jobs) == limit):
                    return History(jobs=jobs, next=cursor)
                jobs.append(row)
                cursor = (math.inf, job.number)
            if len(jobs) == limit:
                return History(jobs=jobs, next=cursor)
            cursor = None
        found, after = self._ended.scan(_filter(asked), cursor, SCANNED, limit - len(jobs))
        for ended in found:
            row = _past_job(ended)
            left -= _bytes(row)
            if jobs and (left < 0 or len(jobs) == limit):
                return History(jobs=jobs, next=_last_of(jobs[-1]))
            jobs.append(row)
        return History(jobs=jobs, next=after)

    def usage(self, asked: ListUsage, now_s: float) -> Usage:
        """Return a page of jobs with the fields of `JobUsage`, newest first. `now_s`: Unix seconds."""
        jobs: list[JobUsage] = []
        left, cursor = MAX_USAGE_BYTES, asked.before
        if RUNNING in asked.states and (cursor is None or math.isinf(cursor[0])):
            for job in self._running(asked, is_waiting_too=True):
                if left < 0 or len(jobs) == MAX_PAGE_ROWS:
                    return Usage(jobs=jobs, next=cursor)
                jobs.append(_used_so_far(job, self._state, self._metered, now_s))
                left -= _usage_bytes(jobs[-1])
                cursor = (math.inf, job.number)
        before = None if cursor is None or math.isinf(cursor[0]) else cursor
        found, after = self._ended.scan(_filter(asked), before, SCANNED, SCANNED)
        for ended in found:
            if jobs and left < 0:
                return Usage(jobs=jobs, next=cursor)
            jobs.append(_used_by(ended))
            left -= _usage_bytes(jobs[-1])
            cursor = (ended.end_s, ended.job)
        return Usage(jobs=jobs, next=after)

    def _running(self, asked: WhichJobs, *, is_waiting_too: bool = False) -> list[Job]:
        """Return the running jobs that match a question, newest first.

        `is_waiting_too`: also return waiting jobs that have used GPUs.
        """
        if asked.states and RUNNING not in asked.states:
            return []
        below = math.inf if asked.before is None else asked.before[1]
        return [
            job
            for job in reversed(self._state.job_of_seq.values())
            if job.number < below
            and (job.active is not None or (is_waiting_too and job.gpu_s > 0.0))
            and _is_wanted(job, asked)
        ]


def _is_wanted(job: Job, asked: WhichJobs) -> bool:
    spec = job.spec
    return (
        asked.user in (None, spec.user)
        and asked.vc in (None, spec.vc)
        and asked.account in (None, spec.account)
        and (not asked.name or fnmatchcase(spec.name, asked.name))
        and (asked.until_s is None or (job.first_start_s or 0.0) < asked.until_s)
    )


def _filter(asked: WhichJobs) -> Filter:
    return Filter(
        since_s=asked.since_s,
        until_s=asked.until_s,
        user=asked.user,
        vc=asked.vc,
        account=asked.account,
        states=tuple(asked.states),
        name=asked.name,
    )


def _last_of(job: PastJob) -> Cursor:
    return (math.inf if job.end_s is None else job.end_s, job.job)


def _running_job(job: Job, state: BrokerState, metered: MeteredUsage, now_s: float) -> PastJob:
    attempt, spec, bill = job.attempt, job.spec, metered.bill(job, now_s)
    assert attempt is not None
    types = {state.nodes[rank.node].spec.gpu_type for rank in attempt.ranks}
    return PastJob(
        job=job.number,
        name=shortened(spec.name),
        user=shortened(spec.user),
        account=shortened(spec.account),
        vc=shortened(spec.vc),
        state=job.state,
        num_gpus=spec.num_gpus,
        submit_s=job.submit_s,
        start_s=job.first_start_s,
        end_s=None,
        wait_s=job.wait_s,
        gpu_s=job.gpu_s + spec.num_gpus * attempt.held_until_s(now_s),
        energy_j=metered.energy_j(job, now_s),
        exit_code=None,
        reason="",
        nodes=shortened(place_of(job), MAX_PLACE_CHARS),
        gpu_types=shortened(",".join(sorted(types))),
        attempts=job.attempts,
        preemptions=job.preemptions,
        array=spec.array,
        task=spec.task,
        asked_gpu_types=shortened(",".join(spec.gpu_types)),
        preferred_types=shortened(",".join(spec.preferred_types)),
        cost=bill.cost,
        carbon_kg=bill.carbon_kg,
        currency=shortened(bill.currency),
    )


def _past_job(row: EndedJob) -> PastJob:
    rest = rest_of_row(row)
    asked = rest.spec
    return PastJob(
        job=row.job,
        name=shortened(row.name),
        user=shortened(row.user),
        account=shortened(row.account),
        vc=shortened(row.vc),
        state=row.state,
        num_gpus=row.num_gpus,
        submit_s=row.submit_s,
        start_s=row.start_s,
        end_s=row.end_s,
        wait_s=row.wait_s,
        gpu_s=row.gpu_s,
        energy_j=row.energy_j,
        exit_code=row.exit_code,
        reason=shortened(row.reason, MAX_REASON_CHARS),
        nodes=shortened(row.nodes, MAX_PLACE_CHARS),
        gpu_types=shortened(row.gpu_types),
        attempts=row.attempts,
        preemptions=row.preemptions,
        array=asked.array,
        task=asked.task,
        asked_gpu_types=shortened(",".join(asked.gpu_types)),
        preferred_types=shortened(",".join(asked.preferred_types)),
        cost=rest.cost,
        carbon_kg=rest.carbon_kg,
        currency=shortened(rest.currency),
    )


def _used_by(row: EndedJob) -> JobUsage:
    rest = rest_of_row(row)
    return JobUsage(
        row.user,
        row.account,
        row.vc,
        row.end_s,
        row.state,
        row.gpu_s,
        row.energy_j,
        row.wait_s,
        rest.cost,
        rest.carbon_kg,
        shortened(rest.currency),
        row.job,
        rest.spans,
    )


def _used_so_far(job: Job, state: BrokerState, metered: MeteredUsage, now_s: float) -> JobUsage:
    spec, attempt, bill, spans = job.spec, job.active, metered.bill(job, now_s), job.spans
    if attempt is not None:
        spans = spans + state.spans_of(job, attempt, metered.attempt_j(job, now_s), now_s)
    return JobUsage(
        spec.user,
        spec.account,
        spec.vc,
        math.inf,
        job.state,
        job.gpu_s + (0.0 if attempt is None else spec.num_gpus * attempt.held_until_s(now_s)),
        metered.energy_j(job, now_s),
        job.wait_s,
        bill.cost,
        bill.carbon_kg,
        shortened(bill.currency),
        job.number,
        spans,
    )


def _usage_bytes(row: JobUsage) -> int:
    texts = row.user, row.account, row.vc, row.currency
    return 70 + 56 * len(row.spans) + sum(map(text_bytes, texts))


def _bytes(row: PastJob) -> int:
    types = row.gpu_types, row.asked_gpu_types, row.preferred_types
    texts = row.name, row.user, row.account, row.vc, row.reason, row.nodes, row.currency, *types
    return 440 + sum(map(text_bytes, texts))
