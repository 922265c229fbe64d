"""Slurm: the output of `sacct --allusers --duplicates --parsable2 --format=...`: jobs, attempts and steps.

Fields, times and states: the manual page sacct(1) of Slurm 22.05.8, and the output of that version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from pathlib import Path

from rlsched.errors import TraceError
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Conversion, JobFrame, Request
from rlsched.workload.formats.lines import TextRow, read_csv
from rlsched.workload.formats.places import title
from rlsched.workload.formats.spans import enforced_limit, queueing

REQUIRED = ("JobID", "State", "Submit", "Start", "End")
DELIMITER = "|"
REQUEUED = frozenset(("REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"))
"""States of an attempt after which Slurm can run the job again with the same job ID."""
ENDED_BY_LIMIT = frozenset(("TIMEOUT", "DEADLINE"))
"""States of a job that Slurm ended because the job reached a limit."""
GPUS = (
    "expected gres/gpu in AllocTRES or ReqTRES; ask sacct for both columns (--format ...,ReqTRES,AllocTRES). "
    "Slurm records GPUs there where slurm.conf has AccountingStorageTRES=gres/gpu"
)
"""Advice for a history in which no job has GPUs."""
NO_NODES = "None assigned"
"""Text that sacct prints for an empty NodeList."""
NO_QOS = "Unknown"
"""Text that sacct prints for a QOS that is no longer in the database."""
UNLIMITED = frozenset(("", "UNLIMITED", "Partition_Limit", "INVALID"))
NO_BARS = frozenset(
    (
        *("JobIDRaw", "User", "UID", "Group", "GID", "Account", "Cluster", "Partition", "QOS", "QOSRAW"),
        *("State", "ExitCode", "DerivedExitCode", "Priority", "Flags", "NodeList", "ReqNodes", "AllocNodes"),
        *("Submit", "Eligible", "Start", "End", "Suspended", "Reserved", "Planned", "Restarts"),
        *("Elapsed", "ElapsedRaw", "Timelimit", "TimelimitRaw", "CPUTime", "CPUTimeRAW", "TotalCPU"),
        *("NNodes", "NCPUS", "NTasks", "AllocCPUS", "ReqCPUS", "ReqMem", "ReqTRES", "AllocTRES"),
    )
)
"""Columns that never contain the delimiter: they have a fixed format, or are names that an admin chooses."""
_ENDS_IN_JOB_ID = re.compile(r".*\d(?:\+\d+|_\d+|_\[[^]]*\])?(?:\.\w+)?", re.DOTALL)
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[nc]?")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SLACK_S = 1.0
_KILL_S = 120.0
"""Longest time that a job can run after its limit, s.

Slurm checks limits every 30 s, and waits `KillWait` (30 s) between SIGTERM and SIGKILL.
"""

LOST = (
    "job steps, and the resources that they used",
    "attempts that ended in a requeue: a job has the run time of its last attempt; x_requeues has their "
    "number, x_lost_s their total time",
    "nodes that partitions share: partitions become VCs, which share no nodes; accounts and qualities of "
    "service are kept only as x_account and x_qos",
    "the nodes on which a job ran (their number is x_num_nodes), and a list of the nodes, which sacct does"
    " not print",
    "dependencies, which sacct does not print, and the link between the parts of a heterogeneous job",
)


@dataclass(slots=True)
class _SacctLine:
    """One line of sacct's output: one attempt of a job."""

    row: TextRow
    account: Account
    submit_s: float
    start_s: float
    elapsed_s: float
    state: str


def convert(request: Request) -> Conversion:
    """Read one or more outputs of sacct with header lines; the times that they cover may overlap.

    Raises:
        TraceError: a header lacks a required column, no job is left, or `request.strict` is true and a line
            is malformed.
        InputError: the time zone is unknown.
    """
    accounts: list[Account] = []
    clock = _Times(request.timezone)
    attempts: dict[str, list[_SacctLine]] = {}
    open_ids: set[str] = set()

    def use(row: TextRow, account: Account) -> None:
        try:
            attempt = _attempt(row, clock, account)
        except LeftOutError:
            open_ids.add(row.word("JobID"))
            raise
        _resources(row)  # raises MalformedError now, while the line can still be skipped
        attempts.setdefault(row.word("JobID"), []).append(attempt)

    for path in (request.path, *request.more):
        account = Account(path, request.strict, seen=accounts[0].seen if accounts else set())
        accounts.append(account)
        rows = read_csv(path, REQUIRED, delimiter=DELIMITER, quotes=False, joined=_joined)
        account.read(_checked(rows, path), partial(use, account=account), TextRow.fields)
    jobs = JobFrame(
        (
            *("queue_s", "memory_mib", "array_id", "x_num_nodes", "x_account", "x_qos", "x_gpu_type"),
            *("x_requeues", "x_lost_s", "x_time_limit_s"),
        )
    )
    for job_id, found in attempts.items():
        lines = sorted(found, key=lambda one: (one.submit_s, one.start_s))
        for number, job in enumerate(_jobs_of(lines), start=1):
            if number > 1:
                job[-1].account.note(
                    job[-1].row.line, "a job number that was given again: #2, #3, ... added to it"
                )
            state = job[-1].state
            if state == "REQUEUED" or (state in REQUEUED and job[-1] is lines[-1] and job_id in open_ids):
                for attempt in job:
                    attempt.account.leave_out(attempt.row.line, "requeued, and not ended since")
                continue
            for earlier in job[:-1]:
                earlier.account.leave_out(earlier.row.line, "attempt that ended in a requeue")
            name = job_id if number == 1 else f"{job_id}#{number}"
            job[-1].account.use_later(job[-1].row.line, partial(_add, name, job, jobs))
    trace, origin_s = jobs.trace(title(request.path), *accounts, at=clock.instant)
    return Conversion(trace, tuple(accounts), clock.show(origin_s), LOST, exports=len(accounts))


class _Times(TimeParser):
    """Parser of the times that sacct prints. Seconds since 1970 (`SLURM_TIME_FORMAT=%s`) need no zone."""

    def read_column(self, row: TextRow, column: str, not_before_s: float | None = None) -> float | None:
        """Return the time in a column, seconds since 1970; None if it is unknown."""
        text = row.word(column)
        if not text.isdecimal():
            return self.read(text, column, not_before_s)
        self._zone = self._zone or UTC
        return float(text)


def _joined(header: Sequence[str], cells: list[str]) -> list[str] | None:
    """Return the correct fields of a line whose job name contains the delimiter; None: they are ambiguous.

    If `JobName` follows `JobID`, and no other column can contain the delimiter, all surplus fields belong to
    `JobName`. If a part of the name ends with a job ID, two lines were joined, and the result is None.
    """
    if tuple(header[:2]) != ("JobID", "JobName") or not NO_BARS.issuperset(header[2:]):
        return None
    behind = len(cells) - len(header) + 2
    name = cells[1:behind]
    if any(_ENDS_IN_JOB_ID.fullmatch(part) for part in name[:-1]):
        return None
    return [cells[0], DELIMITER.join(name), *cells[behind:]]


def _checked(
    rows: Iterable[tuple[int, TextRow | MalformedError]], path: Path
) -> Iterable[tuple[int, TextRow | MalformedError]]:
    """Check that the header has `AllocTRES` or `ReqTRES` (they contain the GPUs), and yield the rows."""
    asked = False
    for line, row in rows:
        if not asked and isinstance(row, TextRow):
            if "AllocTRES" not in row.places and "ReqTRES" not in row.places:
                got = ", ".join(row.places)
                raise TraceError(f"{path}: line 1: expected AllocTRES or ReqTRES in the header, got {got}")
            asked = True
        yield line, row


def _attempt(row: TextRow, clock: _Times, account: Account) -> _SacctLine:
    job_id, state = row.word("JobID"), row.word("State").partition(" ")[0]
    if not job_id:
        raise MalformedError("JobID", "JobID: expected a job number, got a blank")
    if "." in job_id:
        raise LeftOutError("job step")
    start_s = clock.read_column(row, "Start")
    if start_s is None or "[" in job_id:
        raise LeftOutError("never started")
    end_s = clock.read_column(row, "End", start_s)
    if end_s is None:
        raise LeftOutError("no end recorded: it was still running")
    submit_s = clock.read_column(row, "Submit")
    if submit_s is None:
        raise MalformedError("Submit", "Submit: expected a time, got a blank")
    if end_s < start_s:
        raise MalformedError("end before start", f"expected End after Start, got {end_s - start_s:.15g} s")
    elapsed_s = _elapsed(row)
    if elapsed_s is None:
        elapsed_s = end_s - start_s
    elif abs(elapsed_s - (end_s - start_s)) > _SLACK_S:
        account.note(
            row.line, "Elapsed, which is used, is not End - Start: suspended, or clocks were changed"
        )
    if not elapsed_s and not row.word("NodeList", NO_NODES) and not row.word("AllocTRES"):
        raise LeftOutError("never started")
    if not row.word("AllocTRES") and not row.word("ReqTRES"):
        raise LeftOutError("no resources recorded: AllocTRES and ReqTRES are blank")
    return _SacctLine(row, account, submit_s, start_s, elapsed_s, state)


def _elapsed(row: TextRow) -> float | None:
    """Return the run time without suspended time, seconds; None: the file has no column with this time."""
    raw = row.number("ElapsedRaw")
    return raw if raw is not None else _seconds(row.word("Elapsed"), "Elapsed")


def _seconds(text: str, column: str) -> float | None:
    if text in UNLIMITED:
        return None
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise MalformedError(column, f"{column}: expected [days-]hours:minutes:seconds, got {text[:40]!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _jobs_of(lines: list[_SacctLine]) -> Iterable[list[_SacctLine]]:
    """Split the lines with one job ID into jobs; a job is a list of its attempts.

    After a reset of its counter of job IDs, Slurm uses a job ID again for another job.
    """
    job: list[_SacctLine] = []
    for attempt in lines:
        if job and (job[-1].state not in REQUEUED or _who(job[-1]) != _who(attempt)):
            yield job
            job = []
        job.append(attempt)
    yield job


def _who(attempt: _SacctLine) -> tuple[str, str]:
    return attempt.row.text("User"), attempt.row.text("JobName")


def _add(job_id: str, job: list[_SacctLine], jobs: JobFrame) -> None:
    last = job[-1]
    row = last.row
    gpus, cpus, memory_mib, gpu_type, given_type = _resources(row)
    array, underscore, _ = job_id.partition("_")
    limit_s, asked_s = _limit(row), None
    over_s = last.elapsed_s - limit_s if limit_s else 0.0
    if last.state in ENDED_BY_LIMIT and 0 < over_s <= _KILL_S:
        last.account.note(
            row.line, "ended by its time limit some seconds late: a replay ends it at the limit"
        )
    else:
        limit_s, asked_s = enforced_limit(limit_s, last.elapsed_s, row.line, last.account)
    jobs.add(
        job_id=job_id,
        submit_s=job[0].submit_s,
        duration_s=last.elapsed_s,
        num_gpus=gpus,
        user=row.text("User"),
        vc=row.text("Partition"),
        job_name=row.text("JobName"),
        status=last.state,
        gpu_type=gpu_type,
        num_cpus=cpus,
        time_limit_s=limit_s,
        extra=(
            queueing(job[0].submit_s, job[0].start_s, row.line, last.account),
            memory_mib,
            array if underscore else "",
            row.number("NNodes"),
            row.text("Account"),
            row.text("QOS", NO_QOS),
            given_type,
            str(len(job) - 1) if len(job) > 1 else "",
            sum(one.elapsed_s for one in job[:-1]) if len(job) > 1 else "",
            asked_s,
        ),
    )


def _limit(row: TextRow) -> float | None:
    minutes = row.word("TimelimitRaw")
    if minutes.isdecimal():
        return 60.0 * float(minutes)
    if minutes not in UNLIMITED:
        raise MalformedError(
            "TimelimitRaw", f"TimelimitRaw: expected minutes or UNLIMITED, got {minutes[:40]!r}"
        )
    return _seconds(row.word("Timelimit"), "Timelimit")


def _resources(row: TextRow) -> tuple[float, float | None, float | None, str, str]:
    """Return GPUs, CPU cores, memory in MiB, the requested GPU type, and the allocated GPU type."""
    given, asked = _tres(row, "AllocTRES"), _tres(row, "ReqTRES")
    held = given or asked
    typed = {key.partition(":")[2]: value for key, value in held.items() if key.startswith("gres/gpu:")}
    text = held.get("gres/gpu") or ""
    gpus = _count(text) if text else sum(_count(value) for value in typed.values())
    cpus = _count(held["cpu"]) if "cpu" in held else row.number("AllocCPUS")
    memory = given.get("mem") or asked.get("mem")  # AllocTRES has mem only if Slurm counts memory
    wanted = [key.partition(":")[2] for key in asked if key.startswith("gres/gpu:")]
    _limit(row)
    return (
        gpus,
        row.number("NCPUS") if cpus is None else cpus,
        _memory_mib(memory) if memory else None,
        "|".join(wanted),
        "|".join(typed),
    )


def _tres(row: TextRow, column: str) -> dict[str, str]:
    """Parse trackable resources such as `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`."""
    text = row.word(column)
    if not text:
        return {}
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and key and value for key, equals, value in pairs):
        raise MalformedError(column, f"{column}: expected resource=amount,..., got {text[:60]!r}")
    return {key: value for key, _, value in pairs}


def _count(text: str) -> float:
    if not text.isdecimal():
        raise MalformedError("TRES", f"expected a whole number of GPUs or CPUs, got {text[:40]!r}")
    return float(text)


def _memory_mib(text: str) -> float:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise MalformedError("TRES", f"mem: expected an amount such as 64G, got {text[:40]!r}")
    return float(match[1]) * _MIB[match[2]]
