"""Checks submissions. A submission that passes the checks can be journalled, launched and listed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rlsched.broker.base.ledger_models import unknown_workload
from rlsched.broker.base.output_files import wrong_pattern
from rlsched.broker.state.job_requests import types_asked
from rlsched.broker.state.tasks import MAX_TASK, MAX_TASKS, are_distinct, count
from rlsched.models.gpu_types import in_common
from rlsched.terminal.visible import CONTROL, visible
from rlsched.wire.declared import declared
from rlsched.wire.messages import NOTIFY_EVENTS, DryRun, Submit, Tasks, Update
from rlsched.wire.messages.job_settings import MAX_NAME_CHARACTERS, JobNeeds

MOST_AT_ONCE = 500
"""Maximum number of submissions in one message. While the broker processes them, it does nothing else."""
MAX_COMMAND_BYTES = 128 << 10
"""Maximum size of a job's arguments and environment together, bytes, so that they fit into a launch message.

Counted in UTF-8, with one more byte for each argument, variable name and value.
"""
MAX_GPU_TYPES = 16
MAX_TYPE_CHARACTERS = 64
_TEXTS: Final = [(name, one.setting.characters) for name, one in declared(Submit).items() if one.type is str]


def wrong(message: Submit) -> str:
    """Return what is wrong with a submission, in one line; "" if the submission is valid."""
    if not message.token:
        return "a submission needs a token"
    if not message.command or not message.command[0]:
        return "a job needs a command"
    refusal = _wrong_text(message) or _wrong_command(message) or _wrong_number(message)
    if not refusal and message.time_limit_s == math.inf:
        return "time_limit_s must be above 0, got inf"
    refusal = refusal or wrong_types(message.gpu_types, message.preferred_types)
    return refusal or _wrong_tasks(message) or _wrong_words(message)


def wrong_change(message: Update) -> str:
    """Return what is wrong with an update of a job, in one line; "" if the update is valid."""
    if message.name is not None:
        if not message.name:
            return "name: expected some characters"
        refusal = _wrong_characters("name", message.name)
        if refusal:
            return refusal
    return _wrong_number(message) or wrong_types(message.gpu_types or (), message.preferred_types or ())


def wrong_types(gpu_types: Sequence[str], preferred_types: Sequence[str]) -> str:
    """Return what is wrong with accepted and preferred GPU types, in one line; "" if they are valid."""
    refusal = _wrong_names("gpu_types", gpu_types) or _wrong_names("preferred_types", preferred_types)
    accepted, preferred = types_asked(gpu_types), types_asked(preferred_types)
    if refusal or in_common(accepted, preferred):
        return refusal
    return (
        f"--prefer {','.join(preferred)}: expected a GPU type that --gpu-type accepts "
        f"({', '.join(accepted)}); change one of the two options"
    )


def wrong_tasks(tasks: list[Tasks]) -> str:
    """Return what is wrong with array tasks in a request, in one line; "" if they are valid."""
    if any(not (0 <= one.first <= one.last <= MAX_TASK and one.step > 0) for one in tasks):
        return f"tasks: expected numbers of 0 to {MAX_TASK:,}, and ranges with first <= last and step > 0"
    if count(tasks) > MAX_TASKS:
        return f"tasks: expected at most {MAX_TASKS:,}, got {count(tasks):,}"
    return ""


def wrong_question(question: DryRun) -> str:
    """Return what is wrong with the job settings of a dry run, in one line; "" if they are valid."""
    asked = {name: getattr(question, name) for name in JobNeeds.__struct_fields__}
    command = list(question.command) or ["true"]
    as_if = Submit(token="dry run", command=command, begin_s=question.tonight_s, **asked)
    return wrong(as_if).replace("begin_s", "tonight_s")


def name_of(message: Submit) -> str:
    """Return the job name of a submission, or the name of the job's program if it has no job name."""
    if message.name:
        return message.name
    return visible(message.command[0].rpartition("/")[2])[:MAX_NAME_CHARACTERS]


def _wrong_text(message: Submit) -> str:
    for field, most in _TEXTS:
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


def _wrong_number(message: Submit | Update) -> str:
    """Return an error message if a number in a submission or an update is out of range, else ""."""
    for name, one in declared(Submit).items():
        if one.setting.least is not None and hasattr(message, name):
            refusal = one.setting.out_of_range(name, getattr(message, name))
            if refusal:
                return refusal
    return ""


def _wrong_names(field: str, types: Sequence[str]) -> str:
    if len(types) > MAX_GPU_TYPES:
        return f"{field}: expected at most {MAX_GPU_TYPES}, got {len(types)}"
    for one in types:
        if not one.strip() or "|" in one or "," in one:
            return f"{field}: expected names of GPU types, such as H100, got {visible(one)!r}"
        if refusal := _wrong_characters(field, one, MAX_TYPE_CHARACTERS):
            return refusal
    return ""


def _wrong_tasks(message: Submit) -> str:
    if not message.tasks:
        return "" if not message.array_limit else "array_limit: expected an array, got one job"
    refusal = wrong_tasks(message.tasks)
    return refusal or ("" if are_distinct(message.tasks) else "tasks: expected each number once")


def _wrong_words(message: Submit) -> str:
    odd = [one for one in message.notify.split(",") if one not in NOTIFY_EVENTS] if message.notify else []
    if odd:
        return f"notify: expected some of {', '.join(NOTIFY_EVENTS)}, got {visible(odd[0])[:20]!r}"
    if refusal := wrong_pattern("output", message.output) or wrong_pattern("error", message.error):
        return refusal
    if message.workload:
        return unknown_workload(message.workload)
    return ""
