"""Philly (Microsoft): `cluster_job_log` (a JSON list of jobs and their attempts) and `cluster_machine_list`.

Keys and notes: msr-fiddle/philly-traces, README.md, commit 29a1b87fa2d9ed80b83c9e3a37f3a88d382b031d.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rlsched.cluster.spec import ClusterSpec
from rlsched.errors import TraceError
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Conversion, JobFrame, Node, Request, node_gpus, nodes_to_cluster
from rlsched.workload.formats.lines import TextRow, read_csv, read_text
from rlsched.workload.formats.places import beside, title
from rlsched.workload.formats.spans import queueing

MAIN = ("cluster_job_log",)
NODES = ("cluster_machine_list",)
ZONE = "America/Los_Angeles"
"""Time zone of the job log. The log does not state it, but the publisher's other logs state PDT and PST."""

LOST = (
    "attempts: the run time is the sum of their lengths, in which the GPUs were held; x_span_s is the "
    "time from first start to last end (the run time in the publisher's notebook), x_attempts the number",
    "the machines and GPUs of an attempt",
    "VCs have no capacity in the files, so the nodes of a cluster file serve every VC",
    "there are no CPU cores, job names, GPU models or time limits",
)

_KEYS = ("status", "vc", "jobid", "attempts", "submitted_time", "user")
_JOB = re.compile(r"\{\s*\"(?:" + "|".join(_KEYS) + r")\"\s*:")
_SPACE = re.compile(r"[\s,]*")


class _PhillyAttempt(NamedTuple):
    start_s: float | None
    end_s: float | None
    gpus: int


def convert(request: Request) -> Conversion:
    """Read a `cluster_job_log`.

    Raises:
        TraceError: the file is not a JSON list, no job is left, or `request.strict` is true and a job is
            malformed.
    """
    account = Account(request.path, request.strict)
    jobs = JobFrame(("queue_s", "x_attempts", "x_span_s"))
    clock = TimeParser(request.timezone or ZONE)

    def use(item: tuple[int, Any]) -> None:
        _add(*item, jobs, clock, account)

    account.read(_items(request.path), use, _fields)
    trace, origin_s = jobs.trace(title(request.path), account, at=clock.instant)
    accounts, cluster = [account], None
    if request.cluster_name is not None:
        machines, cluster = _cluster(request)
        accounts.append(machines)
    return Conversion(trace, tuple(accounts), clock.show(origin_s), LOST, cluster)


def _items(path: Path) -> Iterator[tuple[int, tuple[int, Any] | MalformedError]]:
    """Yield (line number, row) for each item of the JSON list; a row is (line number, value of the item).

    A row repeats the line number, because `Account.read` passes on only the row. For a damaged item, the row
    is a `MalformedError`, and reading continues at the next text that looks like a job.
    """
    text = read_text(path)
    at = len(text) - len(text.lstrip())
    if not text.startswith("[", at):
        raise TraceError(f"{path}: line 1: expected a JSON list of jobs, got {text[at : at + 40]!r}")
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    at += 1
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, at), at
        if text.startswith("]", at):
            return
        if at >= len(text):
            yield line, MalformedError("JSON", "expected the list to end with ], got the end of the file")
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            yield line, MalformedError("JSON", f"expected a job in JSON, got: {error}")
            following = _JOB.search(text, at + 1)
            if following is None:
                return
            at = following.start()
        else:
            yield line, (line, value)


def _fields(item: tuple[int, Any]) -> bytes:
    """Return a job as bytes that do not depend on the order of its keys."""
    return json.dumps(item[1], sort_keys=True).encode()


def _add(line: int, job: Any, jobs: JobFrame, clock: TimeParser, account: Account) -> None:
    if not isinstance(job, dict) or not isinstance(job.get("attempts"), list):
        raise MalformedError("job", f"expected a job with {', '.join(_KEYS)}, got {str(job)[:60]!r}")
    submit_s = _time(job.get("submitted_time"), "submitted_time", clock)
    if submit_s is None:
        raise LeftOutError("no submission time")
    attempts = _attempts(job["attempts"], submit_s, clock)
    if not attempts:
        raise LeftOutError("no attempt recorded: it never started")
    if attempts[-1].end_s is None:
        raise LeftOutError("no end of the last attempt: it was still running")
    gpus = [attempt.gpus for attempt in attempts if attempt.gpus]
    if not gpus:
        raise LeftOutError("no GPUs recorded")
    whole = [
        (one.start_s, one.end_s) for one in attempts if one.start_s is not None and one.end_s is not None
    ]
    if not whole:
        raise LeftOutError("no attempt with both start and end")
    if any(end_s < start_s for start_s, end_s in whole):
        raise MalformedError(
            "end before start", "expected attempts that end after their start, got an end before the start"
        )
    if len(set(gpus)) > 1:
        account.note(line, "attempts on different numbers of GPUs, the first attempt counts")
    if len(whole) < len(attempts):
        account.note(line, "an attempt without start or end is not in the run time")
    jobs.add(
        job_id=_text(job, "jobid"),
        submit_s=submit_s,
        duration_s=sum(end_s - start_s for start_s, end_s in whole),
        num_gpus=gpus[0],
        user=_text(job, "user"),
        vc=_text(job, "vc"),
        status=_text(job, "status"),
        extra=(
            queueing(submit_s, attempts[0].start_s, line, account),
            str(len(attempts)),
            whole[-1][1] - whole[0][0],
        ),
    )


def _attempts(items: list[Any], submit_s: float, clock: TimeParser) -> list[_PhillyAttempt]:
    attempts: list[_PhillyAttempt] = []
    earlier_s = submit_s
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("detail", []), list):
            raise MalformedError(
                "attempt", f"expected an attempt with start_time, end_time and detail, got {str(item)[:60]!r}"
            )
        start_s = _time(item.get("start_time"), "start_time", clock, earlier_s)
        earlier_s = earlier_s if start_s is None else start_s
        end_s = _time(item.get("end_time"), "end_time", clock, earlier_s)
        earlier_s = earlier_s if end_s is None else end_s
        attempts.append(_PhillyAttempt(start_s, end_s, sum(_gpus(place) for place in item.get("detail", []))))
    return attempts


def _gpus(place: Any) -> int:
    if not isinstance(place, dict) or not isinstance(place.get("gpus"), list):
        raise MalformedError("detail", f"detail: expected an entry with ip and gpus, got {str(place)[:60]!r}")
    return len(place["gpus"])


def _time(value: Any, key: str, clock: TimeParser, not_before_s: float | None = None) -> float | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedError(key, f"{key}: expected a time, got {str(value)[:40]!r}")
    return clock.read(value, key, not_before_s)


def _text(job: dict[str, Any], key: str) -> str:
    value = job.get(key)
    if value is not None and not isinstance(value, str):
        raise MalformedError(key, f"{key}: expected text, got {str(value)[:40]!r}")
    return "" if value is None or not value.strip() else value


def _cluster(request: Request) -> tuple[Account, ClusterSpec]:
    """Read the nodes of `cluster_machine_list`. Their GPU type is the size of the GPU memory."""
    path = beside(request.path, NODES)
    account = Account(path, request.strict)
    nodes: list[Node] = []

    def use(row: TextRow) -> None:
        gpus = row.need("number of GPUs")
        nodes.append((node_gpus(gpus), row.word("single GPU mem") or "generic", 0, 0, None))

    account.read(read_csv(path, ("machineId", "number of GPUs", "single GPU mem")), use, TextRow.fields)
    return account, nodes_to_cluster(request.cluster_name or "", nodes, path)
