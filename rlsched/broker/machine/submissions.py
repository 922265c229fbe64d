"""Checks of submissions. A submission that passes can be journalled, launched and listed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlsched.broker.base.ledger_models import unknown_workload
from rlsched.broker.state.tasks import MAX_TASK, MAX_TASKS, are_distinct, count
from rlsched.terminal.visible import CONTROL, visible
from rlsched.wire.messages import NOTIFY_EVENTS, DryRun, Submit, Tasks, Update

MAX_GANG_GPUS = 65_536
MAX_CORES = 1 << 24
MAX_MEMORY_MIB = 1 << 40
MOST_AT_ONCE = 500
"""Most submissions in one message; the broker does nothing else while it handles them."""
MAX_COMMAND_BYTES = 128 << 10
"""Most bytes of arguments and environment, UTF-8, one more for each: they must fit a launch message."""
MAX_NAME_CHARACTERS = 200
MAX_GPU_TYPES = 16
MAX_TYPE_CHARACTERS = 64
MAX_TIME_S = 253_402_300_800.0
"""The year 10000."""
_MAX_CHARACTERS = {
    "name": MAX_NAME_CHARACTERS,
    "user": 64,
    "vc": 64,
    "account": 64,
    "cwd": 4096,
    "token": 128,
    "workload": 64,
    "notify": 64,
}


def wrong(message: Submit) -> str:
    """Return the error of a submission, in one line; "" if it is valid."""
    if not message.token:
        return "a submission needs a token"
    if not message.command or not message.command[0]:
        return "a job needs a command"
    return _wrong_text(message) or _wrong_command(message) or _wrong_number(message)


def wrong_change(message: Update) -> str:
    """Return the error of a change, in one line; "" if it is valid."""
    if message.name is not None:
        if not message.name:
            return "name: expected some characters"
        refusal = _wrong_characters("name", message.name)
        if refusal:
            return refusal
    if message.time_limit_s is not None and not message.time_limit_s > 0:
        return f"time_limit_s must be above 0, got {message.time_limit_s:g}"
    refusal = _wrong_begin(message.begin_s) or _wrong_types(message.gpu_types or ())
    if not refusal and message.array_limit is not None and message.array_limit < 0:
        return f"array_limit must be 0 or more, got {message.array_limit}"
    return refusal


def wrong_tasks(tasks: list[Tasks]) -> str:
    """Return the error of array tasks in a submission or an order, in one line; "" if they are valid."""
    if any(not (0 <= one.first <= one.last <= MAX_TASK and one.step > 0) for one in tasks):
        return f"tasks: expected numbers of 0 to {MAX_TASK:,}, the first not above the last"
    if count(tasks) > MAX_TASKS:
        return f"tasks: expected at most {MAX_TASKS:,}, got {count(tasks):,}"
    return ""


def wrong_question(question: DryRun) -> str:
    """Return the error of a dry run, in one line, as for a submission; "" if it is valid."""
    as_if = Submit(
        token="dry run",
        command=["true"],
        num_gpus=question.num_gpus,
        num_cpus=question.num_cpus,
        memory_mib=question.memory_mib,
        gpu_memory_mib=question.gpu_memory_mib,
        gpu_types=question.gpu_types,
        vc=question.vc,
        time_limit_s=question.time_limit_s,
        workload=question.workload,
        begin_s=question.tonight_s,
    )
    return wrong(as_if).replace("begin_s", "tonight_s")


def name_of(message: Submit) -> str:
    """Return the job's name: as submitted, else the name of its program."""
    if message.name:
        return message.name
    return visible(message.command[0].rpartition("/")[2])[:MAX_NAME_CHARACTERS]


def _wrong_text(message: Submit) -> str:
    for field, most in _MAX_CHARACTERS.items():
        text = getattr(message, field)
        if text and (refusal := _wrong_characters(field, text, most)):
            return refusal
    return ""


def _wrong_characters(field: str, text: str, most: int = MAX_NAME_CHARACTERS) -> str:
    if len(text) > most:
        return f"{field} must be at most {most:,} characters, got {len(text):,}"
    if not text.isprintable() and CONTROL.search(text):
        return f"{field} must not contain control characters, got {visible(text)}"
    return ""


def _wrong_begin(begin_s: float | None) -> str:
    if begin_s is not None and not 0.0 <= begin_s < MAX_TIME_S:
        return f"begin_s must be a time in Unix seconds, got {begin_s:g}"
    return ""


def _wrong_command(message: Submit) -> str:
    parts = [*message.command, *message.env, *message.env.values()]
    joined = "\0".join(parts)
    if joined.count("\0") >= len(parts):
        return "command and environment must not contain a NUL character"
    if any(not name or "=" in name for name in message.env):
        return "names of environment variables must not be empty or contain `=`"
    size = len(joined.encode()) + 1
    if size > MAX_COMMAND_BYTES:
        return (
            f"command and environment must be at most {MAX_COMMAND_BYTES:,} bytes together, got {size:,}; "
            "put the data into a file"
        )
    return ""


def _wrong_number(message: Submit) -> str:
    if not 1 <= message.num_gpus <= MAX_GANG_GPUS:
        return f"num_gpus must be 1 to {MAX_GANG_GPUS}, got {message.num_gpus}"
    if not 0 <= message.num_cpus <= MAX_CORES:
        return f"num_cpus must be 0 to {MAX_CORES:,}, got {message.num_cpus}"
    for name in ("memory_mib", "gpu_memory_mib"):
        if not 0 <= getattr(message, name) <= MAX_MEMORY_MIB:
            return f"{name} must be 0 to {MAX_MEMORY_MIB:,}, got {getattr(message, name)}"
    limit_s = message.time_limit_s
    if limit_s is not None and not (math.isfinite(limit_s) and limit_s > 0):
        return f"time_limit_s must be above 0, got {limit_s:g}"
    refusal = _wrong_begin(message.begin_s)
    if refusal:
        return refusal
    weight = message.speed_energy
    if weight is not None and not 0.0 <= weight <= 1.0:
        return f"speed_energy must be 0 (speed only) to 1 (energy only), got {weight:g}"
    return _wrong_types(message.gpu_types) or _wrong_tasks(message) or _wrong_words(message)


def _wrong_types(gpu_types: Sequence[str]) -> str:
    if len(gpu_types) > MAX_GPU_TYPES:
        return f"gpu_types: expected at most {MAX_GPU_TYPES}, got {len(gpu_types)}"
    for one in gpu_types:
        if not one.strip() or "|" in one or "," in one:
            return f"gpu_types: expected names of GPU types, such as H100, got {visible(one)!r}"
        if refusal := _wrong_characters("gpu_types", one, MAX_TYPE_CHARACTERS):
            return refusal
    return ""


def _wrong_tasks(message: Submit) -> str:
    if not message.tasks:
        return "" if not message.array_limit else "array_limit: expected an array, got one job"
    refusal = wrong_tasks(message.tasks)
    if refusal:
        return refusal
    if not are_distinct(message.tasks):
        return "tasks: expected each number once"
    return "" if message.array_limit >= 0 else f"array_limit must be 0 or more, got {message.array_limit}"


def _wrong_words(message: Submit) -> str:
    odd = [one for one in message.notify.split(",") if one not in NOTIFY_EVENTS] if message.notify else []
    if odd:
        return f"notify: expected some of {', '.join(NOTIFY_EVENTS)}, got {visible(odd[0])[:20]!r}"
    if message.workload:
        return unknown_workload(message.workload)
    return ""
