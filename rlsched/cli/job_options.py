"""What a job is asked for with: options of `submit` and `run`, also by the names of `sbatch`."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rlsched.cli.gpus_asked import GpusParam, gpu_types, total_gpus, types_named
from rlsched.cli.launch_variables import describes_a_process
from rlsched.cli.options import PRIORITIES, Command
from rlsched.cli.sizes import memory_mib, size_mib
from rlsched.errors import InputError

if TYPE_CHECKING:
    from rlsched.client.asked import Changes
    from rlsched.wire.messages import DependsOn

_SUFFIXED: Final = r"(\d+(?:\.\d+)?)(s|m|min|h|d)"
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_DAYS: Final = r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
_DEPENDENCY_KINDS: Final = ("after", "afterany", "afterok", "afternotok")
_CLOCK: Final = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
_MAIL: Final = {"BEGIN": "start", "END": "end", "FAIL": "fail", "REQUEUE": "requeue"}


def time_s(text: str) -> float | None:
    """A time limit as `sbatch` takes it, in seconds; None: no limit.

    Minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; also with a unit: `90s`, `90m`, `1h`, `2d`.

    Raises:
        InputError: it is none of these.
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
    """The time between SIGTERM and SIGKILL that `--grace` asks for, in seconds: 60s, 5m, or seconds.

    Raises:
        InputError: it is neither.
    """
    from rlsched.settings import Seconds

    try:
        return float(text) if text.isdecimal() else float(Seconds.of(text))
    except ValueError as error:
        raise InputError(f"--grace {text!r}: expected seconds (60), or a time such as 60s or 5m") from error


def begin_s(text: str, now_s: float) -> float:
    """When a job may begin: `now+1h`, `now+30` (seconds), `16:00` or `noon` (the next), a day or a time.

    Unix seconds.

    Raises:
        InputError: it is none of these.
    """
    from rlsched.cli.when import unix_s

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
    """What `--dependency` says, such as `afterok:17:18,singleton`: what to wait for, and whether it is one.

    Raises:
        InputError: it says something else.
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
    """What `--export` takes of this environment: `ALL`, `NONE`, or names and `NAME=VALUE`, ALL among them.

    ALL leaves out what a launcher has set for this process (`describes_a_process`), unless it is named.

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
    """Variables that can be sent: text, and none that means this very shell, terminal, job or process."""
    return {
        name: value
        for name, value in own.items()
        if name not in ("_", "OLDPWD", "SHLVL", "PWD") and not name.startswith("BASH_FUNC_")
        if not describes_a_process(name)
        if (text := name + value).isascii() or not any("\udc80" <= letter <= "\udcff" for letter in text)
    }


def notices(notify: str, mail_type: str | None) -> list[str]:
    """What is to be told, by `--notify` and by `--mail-type`.

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
    """Keywords of `Client.submit`, from the options below.

    Raises:
        InputError: one of them cannot be.
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
    """Keywords of `Client.update`, from options that are named as those below.

    Raises:
        InputError: one of them cannot be, or there is none.
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
    """A time of `--lost-after`, seconds; 0: never. A plain number is one of seconds, as it was at first.

    Raises:
        InputError: it is none.
    """
    from rlsched.settings import Seconds

    if text == "never":
        return 0.0
    try:
        return float(Seconds.of(f"{text}s" if text.isdecimal() else text))
    except ValueError as error:
        raise InputError(f"--lost-after: {error}, or never") from error


def command_of(command: Sequence[str], wrap: str | None) -> list[str]:
    """What a job runs.

    Raises:
        click.UsageError: nothing, or both of these.
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
    click.option("-G", "--gpus", type=_GPUS, metavar="N", help="GPUs of the gang.  [default: 1]"),
    click.option(
        "--gpu-type",
        metavar="TYPE,...",
        help="GPUs of these types alone, as `rlsched nodes` has them or shorter: H100; A100,H100; any.",
    ),
    click.option("-C", "--constraint", metavar="TYPE|...", help="The same, as in Slurm."),
    click.option("-J", "--name", "--job-name", default="", help="For people  [default: the program's name]"),
    click.option("-p", "--vc", "--partition", default="", metavar="VC", help="Virtual cluster."),
    click.option(
        "-t",
        "--time",
        metavar="TIME",
        help="End the job after so long: minutes, 1:30:00, 1-12 (days-hours), 90m or 1h.",
    ),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="The same, in seconds.",
    ),
    click.option("--env", "variables", multiple=True, metavar="K=V", help="Environment variable; repeat it."),
    click.option(
        "--export",
        default="ALL",
        show_default=True,
        metavar="WHAT",
        help="What the job has of this environment: ALL, NONE, or names and NAME=VALUE with commas between.",
    ),
    click.option("-D", "--cwd", "--chdir", metavar="DIR", help="Directory to run in  [default: this one]"),
    click.option("-H", "--hold", is_flag=True, help="It waits until `rlsched release`."),
    click.option("-b", "--begin", metavar="TIME", help="Not before: now+1h, 16:00, 2026-11-01T13:30."),
    click.option(
        "-d",
        "--dependency",
        metavar="WHAT",
        help="Wait for other jobs: after, afterany, afterok, afternotok with numbers (afterok:17:18), "
        "singleton; all of several with commas between.",
    ),
    click.option(
        "-a",
        "--array",
        default="",
        metavar="TASKS",
        help="As many jobs, with RLSCHED_ARRAY_TASK in their environment: 0-99, 1,3,7; %8: so many at once.",
    ),
    click.option("--gpus-per-node", type=_GPUS, metavar="N", help="As in Slurm, times --nodes."),
    click.option("--gres", metavar="gpu:N", help="The same; gpu:TYPE:N and TYPE:N say the type too."),
    click.option("--gpus-per-task", type=_GPUS, metavar="N", help="As in Slurm, times --ntasks."),
    click.option(
        "-N", "--nodes", type=_ABOVE_0, metavar="N", help="Multiplies --gpus-per-node and --gres alone."
    ),
    click.option("-n", "--ntasks", type=_ABOVE_0, metavar="N", help="Multiplies --gpus-per-task, -c."),
    click.option(
        "-c",
        "--cpus-per-task",
        type=_ABOVE_0,
        metavar="N",
        help="CPU cores of its own, times --ntasks  [default: those that no job asked for, shared]",
    ),
    click.option(
        "--mem",
        metavar="SIZE",
        help="Host memory on each node (times --nodes), as 64G, 500M or MiB: more ends it, out of memory  "
        "[default: the part that goes with its GPUs, where the node has control groups]",
    ),
    click.option(
        "--gpu-memory",
        metavar="SIZE",
        help="What each of its GPUs has at least, and has free when it starts  [default: any will do]",
    ),
    click.option("--mem-per-gpu", metavar="SIZE", help="The same for each GPU."),
    click.option("--mem-per-cpu", metavar="SIZE", help="The same for each core of -c."),
    click.option(
        "--launch",
        "launcher",
        type=click.Choice(["none", "torchrun", "per-gpu"]),
        default="none",
        show_default=True,
        help="How it is started: once on each node; under torchrun, which starts a process for each GPU; or "
        "once for each GPU, with RANK, WORLD_SIZE and LOCAL_RANK set.",
    ),
    click.option(
        "--grace",
        metavar="TIME",
        help="Between SIGTERM and SIGKILL, at its time limit and when it is cancelled or preempted: 60s, 5m; "
        "at most the broker's --max-grace-s  [default: the broker's --grace-s]",
    ),
    click.option(
        "--preemptible",
        is_flag=True,
        help="It may be stopped for another job's sake (SIGTERM, then SIGKILL), and is started again later, "
        "unless it left exit code 0: then it is done.",
    ),
    click.option(
        "--speed-energy",
        type=click.FloatRange(min=0, max=1),
        metavar="W",
        help="What energy counts against time here: 0 speed alone, 1 energy alone  [default: the broker's]",
    ),
    click.option(
        "--workload",
        default="",
        metavar="NAME",
        help="What it computes, as `rlsched models` lists it; its clock goes by that  [default: unknown]",
    ),
    click.option(
        "--share",
        type=click.Choice(["auto", "yes", "no"]),
        default="auto",
        show_default=True,
        help="Whether it may share its GPUs with other jobs, where the broker has --share. auto: where its "
        "--workload is named, or jobs of its command have been measured.",
    ),
    click.option(
        "--lost-after",
        metavar="TIME",
        help="How long a node of it may be unreachable, or the broker away, before the node ends it and the "
        "broker queues it again: 10m, 1h, never.  [default: the broker's --lost-after, which is never]",
    ),
    click.option(
        "--priority",
        type=click.Choice(PRIORITIES),
        default="normal",
        show_default=True,
        help="Jobs of a higher one go first; who may ask for which, the broker says.",
    ),
    click.option(
        "--notify",
        default="",
        metavar="WHAT",
        help="Be told of it, where the operator runs `rlsched notify`: some of start, requeue, end, fail, "
        "with commas in between. fail: ends that are failures alone.",
    ),
    click.option(
        "--mail-type", metavar="WHAT", help="Likewise, as in Slurm: BEGIN, END, FAIL, REQUEUE, ALL."
    ),
    click.option(
        "--user", default="", metavar="NAME", help="In whose name, for admins  [default: your key's]"
    ),
    click.option(
        "-A",
        "--account",
        default="",
        metavar="NAME",
        help="What to charge it to  [default: your first account]",
    ),
)


def job_options(command: Command) -> Command:
    """What a job is asked for with; `submission` makes keywords of `Client.submit` of it."""
    option: Callable[[Command], Command]
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
