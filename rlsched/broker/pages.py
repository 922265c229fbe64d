"""Lists of jobs and nodes, a page at a time: each fits its frame, and takes about a millisecond."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import TypeVar

from rlsched.broker.book import Book
from rlsched.broker.jobs import Job
from rlsched.broker.views import job_info, natural, node_info
from rlsched.broker.waiting import WaitingReasons
from rlsched.wire.messages import JobInfo, Jobs, ListJobs, ListNodes, NodeInfo, Nodes

MAX_PAGE_BYTES = 1 << 16
"""Estimated; a single row may be larger."""
MAX_PAGE_ROWS = 250
MAX_PAST_ROWS = 50
"""Where jobs may have to be read from the journal: about 4 ms."""
MAX_JOB_NODES = 4_000
"""Nodes that a job's row names."""
Row = TypeVar("Row", JobInfo, NodeInfo)


class Pages:
    """Makes the pages.

    Args:
        book: What is known.
        seen_s: When a node was heard of last, Unix seconds.
        clock_skew_s: How far its clock is ahead, seconds; None where it did not say.
    """

    def __init__(
        self,
        book: Book,
        seen_s: Callable[[str], float],
        clock_skew_s: Callable[[str], float | None],
    ) -> None:
        self._book, self._seen_s, self._clock_skew_s = book, seen_s, clock_skew_s
        self._reasons = WaitingReasons(book)
        self._names: list[str] = []

    def job(self, number: int) -> Jobs:
        """One job."""
        job = self._book.job(number)
        return Jobs(jobs=[] if job is None else [self._row(job)])

    def jobs(self, asked: ListJobs) -> Jobs:
        """The latest jobs whose number is below `before`, oldest first, and how many older ones there are."""
        limit = MAX_PAGE_ROWS if asked.limit is None else max(1, min(asked.limit, MAX_PAGE_ROWS))
        if asked.finished:
            latest, first = self._of_all(asked.before, limit)
        else:
            latest, first = self._of_live(asked.before, limit)
        rows = _page(map(self._row, latest), _job_bytes)
        rows.reverse()
        return Jobs(jobs=rows, omitted=first + len(latest) - len(rows))

    def _of_live(self, before: int | None, limit: int) -> tuple[list[Job], int]:
        """The latest live jobs, and how many older ones there are."""
        live = list(self._book.job_of_seq.values())  # in the order of their numbers
        end = len(live) if before is None else bisect_left(live, before, key=_number)
        first = max(0, end - limit)
        return live[first:end][::-1], first

    def _of_all(self, before: int | None, limit: int) -> tuple[list[Job], int]:
        """The latest jobs, and how many older ones there are."""
        numbers = self._book.numbers
        end = len(numbers) if before is None else numbers.below(before)
        found: list[Job] = []
        left = MAX_PAST_ROWS
        for number in reversed(numbers.between(end - limit, end)):
            left -= number not in self._book.jobs
            job = self._book.job(number)
            if left < 0 or job is None:
                break
            found.append(job)
        return found, end - len(found)

    def _row(self, job: Job) -> JobInfo:
        return job_info(job, self._reasons, MAX_JOB_NODES)

    def nodes(self, asked: ListNodes) -> Nodes:
        """The nodes after a name, in the order of their numbers, and how many more there are."""
        if len(self._names) != len(self._book.nodes):
            self._names = sorted(self._book.nodes, key=natural)
        first = bisect_right(self._names, natural(asked.after), key=natural) if asked.after else 0
        left = [name for name in self._names[first:] if not self._book.nodes[name].removed]
        infos = (
            node_info(self._book, name, self._seen_s(name), self._clock_skew_s(name))
            for name in left[:MAX_PAGE_ROWS]
        )
        rows = _page(infos, _node_bytes)
        return Nodes(nodes=rows, omitted=len(left) - len(rows))


def _number(job: Job) -> int:
    return job.number


def _page(rows: Iterable[Row], size: Callable[[Row], int]) -> list[Row]:
    """The first rows that a page holds, one at least."""
    page: list[Row] = []
    left = MAX_PAGE_BYTES
    for row in rows:
        left -= size(row)
        if left < 0 and page:
            break
        page.append(row)
    return page


def _job_bytes(row: JobInfo) -> int:
    texts = row.name, row.user, row.account, row.vc, row.workload, row.reason, *row.nodes
    return 400 + sum(map(text_bytes, texts)) + 4 * sum(map(len, row.gpus))


def _node_bytes(row: NodeInfo) -> int:
    texts = row.name, row.gpu_type, row.vc, row.clocks_note, row.reason, *row.notes
    return 200 + sum(map(text_bytes, texts)) + 9 * len(row.jobs)


def text_bytes(text: str) -> int:
    """Of a text in a message, at most."""
    return 8 + (len(text) if text.isascii() else 4 * len(text))
