"""Pages of lists of jobs and nodes. Each page fits a message frame, and takes about a millisecond to make."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from rlsched.broker.base.limits import Limits
from rlsched.broker.nodes.members import Members
from rlsched.broker.nodes.sharing import ways_of
from rlsched.broker.queries.views import array_info, co_tenants, job_info, lent_cpus, natural, node_info
from rlsched.broker.queries.waiting import WaitingReasons
from rlsched.broker.state.arrays import JobArray
from rlsched.broker.state.broker_state import BrokerState
from rlsched.broker.state.jobs import Job
from rlsched.wire.messages import MPS, JobForecast, JobInfo, Jobs, ListJobs, ListNodes, NodeInfo, Nodes
from rlsched.wire.states import QUEUED

MAX_PAGE_BYTES = 1 << 16
"""Maximum estimated size of a page, bytes. A page with only one row can be larger."""
MAX_PAGE_ROWS = 250
MAX_PAST_ROWS = 50
"""Maximum number of jobs that are read from the journal for a page. Reading 50 jobs takes about 4 ms."""
MAX_JOB_NODES = 4_000
"""Maximum number of nodes named in a job's row."""
Row = TypeVar("Row", JobInfo, NodeInfo)


class Pages:
    """Maker of pages of jobs and nodes.

    Args:
        members: The nodes, with measurements that are not in the state.
        forecast: Function that returns the latest forecast of a job's start and end, or None.
    """

    def __init__(
        self,
        state: BrokerState,
        members: Members,
        limits: Limits,
        forecast: Callable[[Job], JobForecast | None],
    ) -> None:
        self._state, self._members, self._limits, self._forecast = state, members, limits, forecast
        self._reasons = WaitingReasons(state)
        self._names: list[str] = []

    def job(self, number: int, now_s: float) -> Jobs:
        """Return a page with one job; empty if the job does not exist. `now_s`: Unix seconds."""
        job = self._state.job(number)
        return Jobs(jobs=[] if job is None else [self._row(job, now_s)])

    def jobs(self, asked: ListJobs, now_s: float) -> Jobs:
        """Return a page of the latest jobs with job numbers below `before`, oldest first.

        The field `omitted` of the page is the number of older jobs. `now_s`: Unix seconds.
        """
        limit = MAX_PAGE_ROWS if asked.limit is None else max(1, min(asked.limit, MAX_PAGE_ROWS))
        if asked.finished:
            latest, first = self._of_all(asked.before, limit)
        else:
            latest, first = self._of_live(asked.before, limit)
        rows = _page((self._row(job, now_s) for job in latest), _job_bytes)
        rows.reverse()
        return Jobs(jobs=rows, omitted=first + len(latest) - len(rows))

    def _of_live(self, before: int | None, limit: int) -> tuple[list[Job | JobArray], int]:
        """Return the latest live jobs, newest first, and the number of older live jobs.

        The tasks of an array that have never run are listed together, as one row for the array.
        """
        state = self._state
        live: list[Job | JobArray] = list(state.job_of_seq.values())  # in the order of their numbers
        if state.arrays.live:
            hidden = {array.live[task] for array in state.arrays.live.values() for task in array.fresh}
            shown = [job for job in live if job.number not in hidden]
            live = sorted([*shown, *state.arrays.live.values()], key=_number)
        end = len(live) if before is None else bisect_left(live, before, key=_number)
        first = max(0, end - limit)
        return live[first:end][::-1], first

    def _of_all(self, before: int | None, limit: int) -> tuple[list[Job | JobArray], int]:
        """Return the latest jobs, finished or not, newest first, and the number of older jobs."""
        numbers = self._state.numbers
        end = len(numbers) if before is None else numbers.below(before)
        found: list[Job | JobArray] = []
        left = MAX_PAST_ROWS
        for number in reversed(numbers.numbers_between(end - limit, end)):
            left -= number not in self._state.jobs
            job = self._state.job(number)
            if left < 0 or job is None:
                break
            found.append(job)
        return found, end - len(found)

    def _row(self, job: Job | JobArray, now_s: float) -> JobInfo:
        if isinstance(job, JobArray):
            return array_info(self._state, job)
        key = self._state.cluster.queue_key(job.seq) if job.state == QUEUED else None
        return job_info(
            job,
            self._reasons,
            MAX_JOB_NODES,
            queue_key=key,
            forecast=self._forecast(job),
            speed_frac=self._speed_frac(job),
            beside=co_tenants(self._state, job),
            usage=self._members.metered.job(job, self._state.now_s),
            energy_j=self._members.metered.energy_j(job, now_s),
            bill=self._members.metered.bill(job, now_s),
            grace_s=self._limits.grace_of(job.spec.grace_s) if job.live else None,
            shared_by=ways_of(self._state, job),
            seen=self._members.metered.speeds.of(job, self._state.now_s),
            lent_cpus=lent_cpus(self._state, job),
        )

    def _speed_frac(self, job: Job) -> float | None:
        attempt = job.active
        if attempt is None:
            return None
        gpu_type = self._state.nodes[attempt.ranks[0].node].spec.gpu_type
        alone_frac = self._state.models.speed_frac(job.spec.workload, gpu_type, attempt.sm_clock_frac)
        return alone_frac * self._state.models.shared_frac(job.seq)

    def _outside_mps(self, name: str) -> list[str]:
        """Return the IDs of the jobs that should use a node's GPUs through MPS, but use them without MPS."""
        node, metered = self._state.nodes[name], self._members.metered
        if node.spec.capabilities.sharing != MPS:
            return []
        jobs = (self._state.jobs[number] for number in sorted(node.live_jobs))
        return [job.called for job in jobs if name in metered.outside_mps(job, self._state.now_s)]

    def nodes(self, asked: ListNodes) -> Nodes:
        """Return a page of the nodes after node `asked.after`, in natural order (n2 before n10).

        The field `omitted` of the page is the number of later nodes.
        """
        if len(self._names) != len(self._state.nodes):
            self._names = sorted(self._state.nodes, key=natural)
        foreign = self._members.foreign.infos(self._state.now_s)
        names = self._names if not foreign else sorted({*self._names, *foreign}, key=natural)
        first = bisect_right(names, natural(asked.after), key=natural) if asked.after else 0
        left = [name for name in names[first:] if name in foreign or not self._state.nodes[name].removed]
        infos = (
            foreign.get(name)
            or node_info(
                self._state,
                name,
                self._members.leases.seen_s(name),
                self._members.clock_skew_s(name),
                self._members.power_w(name),
                self._members.metered.node(name, self._state.now_s),
                self._outside_mps(name),
            )
            for name in left[:MAX_PAGE_ROWS]
        )
        rows = _page(infos, _node_bytes)
        return Nodes(nodes=rows, omitted=len(left) - len(rows))


def _number(job: Job | JobArray) -> int:
    return job.number


def _page(rows: Iterable[Row], size: Callable[[Row], int]) -> list[Row]:
    """Return as many of the first rows as fit on a page, at least one."""
    page: list[Row] = []
    left = MAX_PAGE_BYTES
    for row in rows:
        left -= size(row)
        if left < 0 and page:
            break
        page.append(row)
    return page


def _job_bytes(row: JobInfo) -> int:
    more = row.currency, *row.gpu_types, *row.preferred_types
    texts = row.name, row.user, row.account, row.vc, row.workload, row.reason, *row.nodes, *more
    used = 0 if row.usage is None else 460
    return (
        590
        + used
        + sum(map(text_bytes, row.beside))
        + sum(map(text_bytes, texts))
        + 4 * sum(map(len, row.gpus))
    )


def _node_bytes(row: NodeInfo) -> int:
    texts = row.name, row.gpu_type, row.vc, row.clocks_note, row.reason, *row.notes
    return 250 + sum(map(text_bytes, texts)) + 30 * len(row.jobs)


def text_bytes(text: str) -> int:
    """Return the maximum number of bytes that a text can take in a message."""
    return 8 + (len(text) if text.isascii() else 4 * len(text))
