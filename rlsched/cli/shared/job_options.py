"""Options of `submit` and `run` that describe a job, also by their names in `sbatch`."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rlsched.cli.shared.gpus_asked import GpusParam, gpu_types, total_gpus, types_named
from rlsched.cli.shared.launch_variables import describes_a_process
from rlsched.cli.shared.options import PRIORITIES, Command
from rlsched.cli.shared.sizes import memory_mib, size_mib
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.submission_types import Changes
    from rlsched.wire.messages import DependsOn

_SUFFIXED: Final = r"(\d+(?:\.\d+)?)(s|m|min|h|d)"
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_DAYS: Final = r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
_DEPENDENCY_KINDS: Final = ("after", "afterany", "afterok", "afternotok")
_CLOCK: Final = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
_MAIL: Final = {"BEGIN": "start", "END": "end", "FAIL": "fail", "REQUEUE": "requeue"}


def time_s(text: str) -> float | None:
    """Parse a time limit as `sbatch` does, seconds; None: no limit.

    Minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; also with a unit: `90s`, `90m`, `1h`, `2d`.

    Raises:
        InputError: the text is none of these.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    suffixed, days = re.fullmatch(_SUFFIXED, text), re.fullmatch(_DAYS, text)
    parts = text.split(":")
    found_s = 0.0
    if suffixed:
        found_s = float(suffixed[1]) * _UNIT_S[suffixed[2]]
    elif days:
        day, hour, minute, second = (float(part or 0) for part in days.groups())
        found_s = day * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second
    elif len(parts) <= 3 and all(part.isdecimal() for part in parts):
        units = {1: (60.0,), 2: (60.0, 1.0), 3: (3_600.0, 60.0, 1.0)}[len(parts)]
        found_s = sum(float(part) * unit for part, unit in zip(parts, units, strict=True))
    if not 0.0 < found_s < math.inf:
        raise InputError(f"--time {text!r}: expected minutes (90), 1:30:00, 1-12 (days-hours), 90m or 1h")
    return found_s


def grace_s(text: str) -> float:
    """Parse `--grace`, the time between SIGTERM and SIGKILL, seconds: 60s, 5m, or seconds.

    Raises:
        InputError: the text is neither.
    """
    from rlsched.settings import Seconds

    try:
        return float(text) if text.isdecimal() else float(Seconds.parse(text))
    except ValueError as error:
        raise InputError(f"--grace {text!r}: expected seconds (60), or a time such as 60s or 5m") from error


def begin_s(text: str, now_s: float) -> float:
    """Parse `--begin`, Unix seconds: `now+1h`, `now+30` (seconds), next `16:00` or `noon`, a day or a time.

    Raises:
        InputError: the text is none of these.
    """
    from rlsched.cli.shared.when import unix_s

    later = re.fullmatch(r"now(?:\+(\d+(?:\.\d+)?)\s*([a-z]*))?", text)
    if later:
        unit = {"": "s"}.get(later[2] or "", (later[2] or "").removesuffix("s") or "s")
        unit = {"second": "s", "minute": "m", "hour": "h", "day": "d"}.get(unit, unit)
        if unit in _UNIT_S:
            return now_s + float(later[1] or 0) * _UNIT_S[unit]
    if text in ("today", "tomorrow"):
        return now_s + (86_400.0 if text == "tomorrow" else 0.0)
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", _CLOCK.get(text, text))
    if clock and int(clock[1]) < 24 and int(clock[2]) < 60 and int(clock[3] or 0) < 60:
        today = list(time.localtime(now_s))
        today[3:6] = int(clock[1]), int(clock[2]), int(clock[3] or 0)
        for days in (0, 1):
            today[2] += days
            when_s = time.mktime((*today[:8], -1))  # type: ignore[arg-type]
            if when_s > now_s:
                return when_s
    try:
        return unix_s("--begin", text, now_s)
    except InputError as error:
        raise InputError(
            f"--begin {text!r}: expected now+1h, 16:00, 2026-11-01 or 2026-11-01T13:30"
        ) from error


def dependencies(text: str) -> tuple[list[DependsOn], bool]:
    """Parse `--dependency`, such as `afterok:17:18,singleton`: the jobs to wait for, and whether singleton.

    Raises:
        InputError: the text is something else.
    """
    from rlsched.wire.messages import DependsOn

    found: list[DependsOn] = []
    singleton = False
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if part == "singleton":
            singleton = True
        elif kind in _DEPENDENCY_KINDS and jobs and all(job.isdecimal() for job in jobs):
            found += [DependsOn(kind, int(job)) for job in jobs]  # type: ignore[arg-type]
        else:
            raise InputError(
                f"--dependency {part!r}: expected {', '.join(_DEPENDENCY_KINDS)} with job numbers, such as "
                "afterok:17:18, or singleton; several with commas in between, and all of them have to be met"
            )
    return found, singleton


def exported(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `own` that `--export` takes: `ALL`, `NONE`, or a list of NAME and `NAME=VALUE`.

    `ALL` may stand in the list. It omits variables that a launcher has set for this process
    (`describes_a_process`), unless they are named.

    Raises:
        InputError: a name is missing.
    """
    if text == "NONE":
        return {}
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if part == "ALL":
            found = _text_of(own) | found
        elif not name or " " in name:
            raise InputError(
                f"--export {text!r}: expected ALL, NONE, or names and NAME=VALUE with commas between"
            )
        elif equals:
            found[name] = value
        elif name in own:
            found[name] = own[name]
    return found


def _text_of(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to send: text, and not specific to this shell, terminal, job or process."""
    return {
        name: value
        for name, value in own.items()
        if name not in ("_", "OLDPWD", "SHLVL", "PWD") and not name.startswith("BASH_FUNC_")
        if not describes_a_process(name)
        if (text := name + value).isascii() or not any("\udc80" <= letter <= "\udcff" for letter in text)
    }


def notices(notify: str, mail_type: str | None) -> list[str]:
    """Return the events to notify of, from `--notify` and `--mail-type`.

    Raises:
        InputError: an unknown mail type.
    """
    found = [one.strip() for one in notify.split(",")] if notify else []
    for one in mail_type.upper().split(",") if mail_type else ():
        if one == "ALL":
            found += _MAIL.values()
        elif one in _MAIL:
            found.append(_MAIL[one])
        elif one != "NONE":
            raise InputError(f"--mail-type {one}: expected some of {', '.join(_MAIL)}, ALL or NONE")
    return found


def submission(asked: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of `Client.submit`, from the options below.

    Raises:
        InputError: an option is invalid.
    """
    variables: tuple[str, ...] = asked["variables"]
    wrong = [pair for pair in variables if not pair.partition("=")[1] or pair.startswith("=")]
    if wrong:
        raise InputError(f"--env {wrong[0]!r}: expected NAME=VALUE")
    given = {key: value for key, _, value in (pair.partition("=") for pair in variables)}
    waits, singleton = dependencies(asked["dependency"]) if asked["dependency"] else ([], False)
    limit_s = asked["time_limit"]
    if asked["time"] is not None:
        limit_s = time_s(asked["time"])
    return {
        "num_gpus": total_gpus(asked),
        "num_cpus": (asked["cpus_per_task"] or 0) * (asked["ntasks"] or 1),
        "memory_mib": memory_mib(asked, total_gpus(asked)),
        "gpu_memory_mib": size_mib(asked["gpu_memory"], "--gpu-memory") if asked["gpu_memory"] else 0,
        "gpu_types": gpu_types(asked),
        "env": exported(asked["export"], os.environ) | given,
        "cwd": os.path.abspath(asked["cwd"] or "."),
        "time_limit_s": limit_s,
        "lost_after_s": None if asked["lost_after"] is None else lost_after_time_s(asked["lost_after"]),
        "notify": notices(asked["notify"], asked["mail_type"]),
        "begin_s": begin_s(asked["begin"], time.time()) if asked["begin"] else None,
        "depends_on": waits,
        "singleton": singleton,
        **{
            name: asked[name]
            for name in (
                *(
                    "name",
                    "vc",
                    "user",
                    "preemptible",
                    "speed_energy",
                    "workload",
                    "priority",
                    "share",
                ),
                *("account", "hold", "array", "launcher"),
            )
        },
        "grace_s": None if asked["grace"] is None else grace_s(asked["grace"]),
    }


def changes_asked(asked: Mapping[str, Any], now_s: float) -> Changes:
    """Return keywords of `Client.update`, from options with the names below.

    Raises:
        InputError: an option is invalid, or none is given.
    """
    found: Changes = {}
    limit_s = asked["time_limit"]
    if asked["time"] is not None:
        limit_s = time_s(asked["time"]) or math.inf
    if limit_s is not None:
        found["time_limit_s"] = limit_s
    if asked["begin"] is not None:
        found["begin_s"] = begin_s(asked["begin"], now_s)
    if asked["dependency"] is not None:
        waits, singleton = dependencies(asked["dependency"]) if asked["dependency"] else ([], False)
        found["depends_on"], found["singleton"] = waits, singleton
    if asked["gpu_type"] is not None:
        found["gpu_types"] = types_named(asked["gpu_type"], "--gpu-type")
    if asked["lost_after"] is not None:
        found["lost_after_s"] = lost_after_time_s(asked["lost_after"])
    if asked["grace"] is not None:
        found["grace_s"] = grace_s(asked["grace"])
    for name in ("name", "priority", "share", "array_limit"):
        if asked[name] is not None:
            found[name] = asked[name]
    if not found:
        raise InputError("expected something to change, such as --priority or --time-limit")
    return found


def lost_after_time_s(text: str) -> float:
    """Parse `--lost-after`, seconds; 0: never. A plain number is in seconds, as in earlier versions.

    Raises:
        InputError: the text is not a time.
    """
    from rlsched.settings import Seconds

    if text == "never":
        return 0.0
    try:
        return float(Seconds.parse(f"{text}s" if text.isdecimal() else text))
    except ValueError as error:
        raise InputError(f"--lost-after: {error}, or never") from error


def command_of(command: Sequence[str], wrap: str | None) -> list[str]:
    """Return the command that a job runs.

    Raises:
        click.UsageError: neither a command nor `--wrap` is given, or both are.
    """
    if wrap is not None and command:
        raise click.UsageError("expected a command or --wrap, got both")
    if wrap is not None:
        return ["/bin/sh", "-c", wrap]
    if not command:
        raise click.UsageError("expected a command, such as `-- python train.py`, or a script")
    return list(command)


_ABOVE_0: Final = click.IntRange(min=1)
_GPUS: Final = GpusParam()
_OPTIONS: Final = (
    click.option("-G", "--gpus", type=_GPUS, metavar="N", help="GPUs of the whole job.  [default: 1]"),
    click.option(
        "--gpu-type",
        metavar="TYPE,...",
        help="Only these GPU types, as `rlsched nodes` shows them or shorter: H100; A100,H100; any.",
    ),
    click.option("-C", "--constraint", metavar="TYPE|...", help="Same as --gpu-type, as in Slurm."),
    click.option(
        "-J", "--name", "--job-name", default="", help="Name of the job  [default: the program's name]"
    ),
    click.option("-p", "--vc", "--partition", default="", metavar="VC", help="Virtual cluster to run in."),
    click.option(
        "-t",
        "--time",
        metavar="TIME",
        help="Time limit, after which the job is ended: minutes, 1:30:00, 1-12 (days-hours), 90m or 1h.",
    ),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Same as --time, in seconds.",
    ),
    click.option(
        "--env", "variables", multiple=True, metavar="K=V", help="Environment variable; may be repeated."
    ),
    click.option(
        "--export",
        default="ALL",
        show_default=True,
        metavar="WHAT",
        help="Environment variables to pass on: ALL, NONE, or names and NAME=VALUE separated by commas.",
    ),
    click.option(
        "-D", "--cwd", "--chdir", metavar="DIR", help="Working directory  [default: the current one]"
    ),
    click.option("-H", "--hold", is_flag=True, help="Hold the job until `rlsched release`."),
    click.option("-b", "--begin", metavar="TIME", help="Earliest start: now+1h, 16:00, 2026-11-01T13:30."),
    click.option(
        "-d",
        "--dependency",
        metavar="WHAT",
        help="Wait for other jobs: after, afterany, afterok, afternotok with job numbers (afterok:17:18), "
        "singleton; separate several by commas, all have to be met.",
    ),
    click.option(
        "-a",
        "--array",
        default="",
        metavar="TASKS",
        help="Queue a task per number, with RLSCHED_ARRAY_TASK in its environment: 0-99, 1,3,7; %8: at most "
        "8 at once.",
    ),
    click.option(
        "--gpus-per-node",
        type=_GPUS,
        metavar="N",
        help="GPUs on each node, as in Slurm; multiplied by --nodes.",
    ),
    click.option(
        "--gres", metavar="gpu:N", help="Same as --gpus-per-node; gpu:TYPE:N and TYPE:N name the type too."
    ),
    click.option(
        "--gpus-per-task",
        type=_GPUS,
        metavar="N",
        help="GPUs of each task, as in Slurm; multiplied by --ntasks.",
    ),
    click.option(
        "-N",
        "--nodes",
        type=_ABOVE_0,
        metavar="N",
        help="Number of nodes; only multiplies --gpus-per-node, --gres, --mem.",
    ),
    click.option(
        "-n",
        "--ntasks",
        type=_ABOVE_0,
        metavar="N",
        help="Number of tasks; only multiplies --gpus-per-task, -c.",
    ),
    click.option(
        "-c",
        "--cpus-per-task",
        type=_ABOVE_0,
        metavar="N",
        help="Dedicated CPU cores per task; multiplied by --ntasks  [default: cores that no job requested, "
        "shared]",
    ),
    click.option(
        "--mem",
        metavar="SIZE",
        help="Host memory on each node, multiplied by --nodes: 64G, 500M or MiB. A job that uses more is "
        "ended, out of memory  [default: the share of its GPUs, if the node has control groups]",
    ),
    click.option(
        "--gpu-memory",
        metavar="SIZE",
        help="Minimum memory of each GPU, free when the job starts  [default: any GPU]",
    ),
    click.option("--mem-per-gpu", metavar="SIZE", help="Host memory per GPU."),
    click.option("--mem-per-cpu", metavar="SIZE", help="Host memory per core of -c."),
    click.option(
        "--launch",
        "launcher",
        type=click.Choice(["none", "torchrun", "per-gpu"]),
        default="none",
        show_default=True,
        help="none: once on each node; torchrun: under torchrun, which starts a process per GPU; per-gpu: "
        "once per GPU, with RANK, WORLD_SIZE and LOCAL_RANK set.",
    ),
    click.option(
        "--grace",
        metavar="TIME",
        help="Time between SIGTERM and SIGKILL, at the time limit and when the job is cancelled or "
        "preempted: 60s, 5m; at most the broker's --max-grace-s  [default: the broker's --grace-s]",
    ),
    click.option(
        "--preemptible",
        is_flag=True,
        help="Allow preemption for other jobs (SIGTERM, then SIGKILL). The job is started again later, "
        "unless it exits with code 0.",
    ),
    click.option(
        "--speed-energy",
        type=click.FloatRange(min=0, max=1),
        metavar="W",
        help="Weight of energy against time: 0 only speed, 1 only energy  [default: the broker's]",
    ),
    click.option(
        "--workload",
        default="",
        metavar="NAME",
        help="Workload as `rlsched models` lists it; the SM clock depends on it  [default: unknown]",
    ),
    click.option(
        "--share",
        type=click.Choice(["auto", "yes", "no"]),
        default="auto",
        show_default=True,
        help="Whether the job may share its GPUs with other jobs, if the broker has --share. auto: if "
        "--workload is given, or jobs with this command have been measured.",
    ),
    click.option(
        "--lost-after",
        metavar="TIME",
        help="Time a node of the job may be unreachable, or the broker down, before the node ends the job "
        "and the broker requeues it: 10m, 1h, never.  [default: the broker's --lost-after, which is never]",
    ),
    click.option(
        "--priority",
        type=click.Choice(PRIORITIES),
        default="normal",
        show_default=True,
        help="Higher-priority jobs start first. The broker limits the highest a user may request.",
    ),
    click.option(
        "--notify",
        default="",
        metavar="WHAT",
        help="Events to notify of, if the operator runs `rlsched notify`: some of start, requeue, end, fail, "
        "separated by commas. fail: only if the job fails.",
    ),
    click.option(
        "--mail-type",
        metavar="WHAT",
        help="Same as --notify, with Slurm's names: BEGIN, END, FAIL, REQUEUE, ALL.",
    ),
    click.option(
        "--user",
        default="",
        metavar="NAME",
        help="Submit as this user, for admins  [default: your key's user]",
    ),
    click.option(
        "-A",
        "--account",
        default="",
        metavar="NAME",
        help="Account to charge  [default: your first account]",
    ),
)


def job_options(command: Command) -> Command:
    """Add the options that describe a job; `submission` makes keywords of `Client.submit` from them."""
    option: Callable[[Command], Command]
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
