"""Slurm: the output of `sacct --allusers --duplicates --parsable2 --format=...`: jobs, attempts and steps.

Fields, times and states: the manual page sacct(1) of Slurm 22.05.8, and what that version prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from rlsched.errors import TraceError
from rlsched.workload.formats.account import Account, LeftOutError, MalformedError
from rlsched.workload.formats.clock import Clock
from rlsched.workload.formats.frame import Conversion, Jobs, Request
from rlsched.workload.formats.lines import Row, read_csv
from rlsched.workload.formats.places import title
from rlsched.workload.formats.spans import queueing

REQUIRED = ("JobID", "State", "Submit", "Start", "End")
DELIMITER = "|"
REQUEUED = frozenset(("REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"))
"""States of an attempt after which Slurm runs the same job again, under the same number."""
UNLIMITED = frozenset(("", "UNLIMITED", "Partition_Limit", "INVALID"))
_ELAPSED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[nc]?")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SLACK_S = 1.0

LOST = (
    "job steps, and what they used",
    "attempts that ended in a requeue: a job has the run time of its last one; their number and time "
    "are carried along as x_requeues and x_lost_s",
    "partitions become VCs, which are hard: sacct does not tell whether two share nodes; accounts and "
    "qualities of service are carried along as x_account and x_qos",
    "which nodes a job ran on (their number is x_num_nodes), and the nodes themselves, which sacct does"
    " not list",
    "dependencies, which sacct does not print, and the link between the parts of a heterogeneous job",
    "the wall clock: second 0 is the first submission",
)


@dataclass(slots=True)
class _Attempt:
    """One line of a job."""

    row: Row
    submit_s: float
    start_s: float
    elapsed_s: float
    state: str


def convert(request: Request) -> Conversion:
    """Read the output of sacct, with its header line.

    Raises:
        TraceError: another header, no job, or, if strict, a malformed line.
        InputError: an unknown time zone.
    """
    account = Account(request.path, request.strict)
    clock = Clock(request.timezone)
    attempts: dict[str, list[_Attempt]] = {}
    open_ids: set[str] = set()

    def use(row: Row) -> None:
        try:
            attempt = _attempt(row, clock, account)
        except LeftOutError:
            open_ids.add(row.text("JobID"))
            raise
        _resources(row)  # a malformed one is found here, while its line can still be skipped
        attempts.setdefault(row.text("JobID"), []).append(attempt)

    rows = read_csv(request.path, REQUIRED, delimiter=DELIMITER)
    account.read(_checked(rows, request), use)
    jobs = Jobs(
        (
            *("queue_s", "memory_mib", "array_id", "x_num_nodes", "x_account", "x_qos", "x_gpu_type"),
            *("x_requeues", "x_lost_s"),
        )
    )
    for job_id, found in attempts.items():
        lines = sorted(found, key=lambda one: (one.submit_s, one.start_s))
        for number, job in enumerate(_jobs_of(lines), start=1):
            if number > 1:
                account.note(job[-1].row.line, "a job number that was given again: #2, #3, ... added to it")
            state = job[-1].state
            if state == "REQUEUED" or (state in REQUEUED and job[-1] is lines[-1] and job_id in open_ids):
                for attempt in job:
                    account.leave_out(attempt.row.line, "requeued, and not ended since")
                continue
            for earlier in job[:-1]:
                account.leave_out(earlier.row.line, "attempt that ended in a requeue")
            name = job_id if number == 1 else f"{job_id}#{number}"
            account.use_later(job[-1].row.line, partial(_add, name, job, jobs, account))
    trace, origin_s = jobs.trace(title(request.path), account)
    return Conversion(trace, (account,), clock.show(origin_s), LOST)


def _checked(
    rows: Iterable[tuple[int, Row | MalformedError]], request: Request
) -> Iterable[tuple[int, Row | MalformedError]]:
    """The same rows, once the header is known to say how many GPUs a job has."""
    asked = False
    for line, row in rows:
        if not asked and isinstance(row, Row):
            if "AllocTRES" not in row.places and "ReqTRES" not in row.places:
                got = ", ".join(row.places)
                raise TraceError(
                    f"{request.path}: line 1: expected AllocTRES or ReqTRES in the header, got {got}"
                )
            asked = True
        yield line, row


def _attempt(row: Row, clock: Clock, account: Account) -> _Attempt:
    job_id, state = row.text("JobID"), row.text("State").partition(" ")[0]
    if not job_id:
        raise MalformedError("JobID", "JobID: expected a job number, got a blank")
    if "." in job_id:
        raise LeftOutError("job step")
    start_s = _time(row, "Start", clock)
    if start_s is None or "[" in job_id:
        raise LeftOutError("never started")
    end_s = _time(row, "End", clock, start_s)
    if end_s is None:
        raise LeftOutError("no end recorded: it was still running")
    submit_s = _time(row, "Submit", clock)
    if submit_s is None:
        raise MalformedError("Submit", "Submit: expected a time, got a blank")
    if end_s < start_s:
        raise MalformedError("end before start", f"expected End after Start, got {end_s - start_s:.15g} s")
    elapsed_s = _elapsed(row)
    if elapsed_s is None:
        elapsed_s = end_s - start_s
    elif abs(elapsed_s - (end_s - start_s)) > _SLACK_S:
        account.note(
            row.line, "Elapsed, which is taken, is not End - Start: suspended, or clocks were changed"
        )
    if not elapsed_s and row.text("NodeList") in ("", "None assigned") and not row.text("AllocTRES"):
        raise LeftOutError("never started")
    return _Attempt(row, submit_s, start_s, elapsed_s, state)


def _time(row: Row, column: str, clock: Clock, not_before_s: float | None = None) -> float | None:
    text = row.text(column)
    if text.isdecimal():  # SLURM_TIME_FORMAT=%s
        return float(text)
    return clock.read(text, column, not_before_s)


def _elapsed(row: Row) -> float | None:
    """Seconds that the job ran, without those for which it was suspended; None: no such column."""
    raw = row.number("ElapsedRaw")
    return raw if raw is not None else _seconds(row.text("Elapsed"), "Elapsed")


def _seconds(text: str, column: str) -> float | None:
    if text in UNLIMITED:
        return None
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise MalformedError(column, f"{column}: expected [days-]hours:minutes:seconds, got {text[:40]!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _jobs_of(lines: list[_Attempt]) -> Iterable[list[_Attempt]]:
    """The jobs of one number, each as its attempts: Slurm gives a number again when its counter is reset."""
    job: list[_Attempt] = []
    for attempt in lines:
        if job and (job[-1].state not in REQUEUED or _who(job[-1]) != _who(attempt)):
            yield job
            job = []
        job.append(attempt)
    yield job


def _who(attempt: _Attempt) -> tuple[str, str]:
    return attempt.row.text("User"), attempt.row.text("JobName")


def _add(job_id: str, job: list[_Attempt], jobs: Jobs, account: Account) -> None:
    last = job[-1]
    row = last.row
    gpus, cpus, memory_mib, gpu_type, given_type = _resources(row)
    array, underscore, _ = job_id.partition("_")
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
        time_limit_s=_limit(row),
        extra=(
            queueing(job[0].submit_s, job[0].start_s, row.line, account),
            memory_mib,
            array if underscore else "",
            row.number("NNodes"),
            row.text("Account"),
            row.text("QOS"),
            given_type,
            str(len(job) - 1) if len(job) > 1 else "",
            sum(one.elapsed_s for one in job[:-1]) if len(job) > 1 else "",
        ),
    )


def _limit(row: Row) -> float | None:
    minutes = row.text("TimelimitRaw")
    if minutes.isdecimal():
        return 60.0 * float(minutes)
    return _seconds(row.text("Timelimit"), "Timelimit")


def _resources(row: Row) -> tuple[float, float | None, float | None, str, str]:
    """GPUs, CPU cores, MiB, the GPU type that was asked for, and the one that was given."""
    given, asked = _tres(row, "AllocTRES"), _tres(row, "ReqTRES")
    held = given or asked
    typed = {key.partition(":")[2]: value for key, value in held.items() if key.startswith("gres/gpu:")}
    text = held.get("gres/gpu") or ""
    gpus = _count(text) if text else sum(_count(value) for value in typed.values())
    cpus = _count(held["cpu"]) if "cpu" in held else row.number("AllocCPUS")
    memory = given.get("mem") or asked.get("mem")  # given only where memory is a resource that Slurm counts
    wanted = [key.partition(":")[2] for key in asked if key.startswith("gres/gpu:")]
    _limit(row)
    return (
        gpus,
        row.number("NCPUS") if cpus is None else cpus,
        _memory_mib(memory) if memory else None,
        "|".join(wanted),
        "|".join(typed),
    )


def _tres(row: Row, column: str) -> dict[str, str]:
    """Trackable resources: `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`."""
    text = row.text(column)
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
