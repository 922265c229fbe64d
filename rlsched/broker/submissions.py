"""What a submission may look like. What passes here can be journalled, launched and listed."""

from __future__ import annotations

import math

from rlsched.broker.clocks import unknown_workload
from rlsched.terminal import CONTROL, visible
from rlsched.wire.messages import NOTIFY_EVENTS, Submit

MAX_GANG_GPUS = 65_536
MAX_COMMAND_BYTES = 128 << 10
"""Of arguments and environment together, UTF-8, one more for each: a launch holds them and much else."""
MAX_NAME_CHARACTERS = 200
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
    """What is wrong with a submission, in one line; "" if nothing."""
    if not message.token:
        return "a submission needs a token"
    if not message.command or not message.command[0]:
        return "a job needs a command"
    return _wrong_text(message) or _wrong_command(message) or _wrong_number(message)


def name_of(message: Submit) -> str:
    """What the job is called: by its submitter, else after the program."""
    if message.name:
        return message.name
    return visible(message.command[0].rpartition("/")[2])[:MAX_NAME_CHARACTERS]


def _wrong_text(message: Submit) -> str:
    for field, most in _MAX_CHARACTERS.items():
        text: str = getattr(message, field)
        if len(text) > most:
            return f"{field} must be at most {most:,} characters, got {len(text):,}"
        if not text.isprintable() and CONTROL.search(text):
            return f"{field} must not contain control characters, got {visible(text)}"
    return ""


def _wrong_command(message: Submit) -> str:
    parts = [*message.command, *message.env, *message.env.values()]
    if any("\0" in part for part in parts):
        return "command and environment must not contain a NUL character"
    if any(not name or "=" in name for name in message.env):
        return "names of environment variables must not be empty or contain `=`"
    size = sum(len(part.encode()) + 1 for part in parts)
    if size > MAX_COMMAND_BYTES:
        return (
            f"command and environment must be at most {MAX_COMMAND_BYTES:,} bytes together, got {size:,}; "
            "put the data into a file"
        )
    return ""


def _wrong_number(message: Submit) -> str:
    if not 1 <= message.num_gpus <= MAX_GANG_GPUS:
        return f"num_gpus must be 1 to {MAX_GANG_GPUS}, got {message.num_gpus}"
    if message.num_cpus < 0:
        return f"num_cpus must be 0 or more, got {message.num_cpus}"
    limit_s = message.time_limit_s
    if limit_s is not None and not (math.isfinite(limit_s) and limit_s > 0):
        return f"time_limit_s must be above 0, got {limit_s:g}"
    weight = message.speed_energy
    if weight is not None and not 0.0 <= weight <= 1.0:
        return f"speed_energy must be 0 (speed alone) to 1 (energy alone), got {weight:g}"
    odd = [one for one in message.notify.split(",") if one not in NOTIFY_EVENTS] if message.notify else []
    if odd:
        return f"notify: expected some of {', '.join(NOTIFY_EVENTS)}, got {visible(odd[0])[:20]!r}"
    if message.workload:
        return unknown_workload(message.workload)
    return ""
