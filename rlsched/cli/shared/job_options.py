"""Options of `submit`, `run` and `update` that describe a job; most options also have `sbatch`'s names."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_origin

import click

from rlsched.cli.shared.gpus_asked import GpusParam, gpu_types, preferred_types, total_gpus
from rlsched.cli.shared.launch_variables import describes_a_process
from rlsched.cli.shared.options import Command, with_options
from rlsched.cli.shared.sizes import memory_mib, num_cores, size_mib
from rlsched.errors import InputError
from rlsched.wire.declared import Declared, Option, declared
from rlsched.wire.messages import DependencyKind, DependsOn, Submit

if TYPE_CHECKING:
    from rlsched.client.submission_types import Changes

_SUFFIXED: Final = r"(\d+(?:\.\d+)?)(s|m|min|h|d)"
_UNIT_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_DAYS: Final = r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?"
_DEPENDENCY_KINDS: Final[tuple[DependencyKind, ...]] = get_args(DependencyKind)
_TAKEN: Final = ("-t",)
"""Option names of `submit` that `rlsched update` does not use for changes: there they select jobs."""
_CLOCK: Final = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
_MAIL: Final = {"BEGIN": "start", "END": "end", "FAIL": "fail", "REQUEUE": "requeue"}


def time_s(text: str) -> float | None:
    """Parse a time limit as `sbatch` does, and return it in seconds; None: the text means no limit.

    Accepted: minutes, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`, `90s`, `90m`, `1h`, `2d`.

    Raises:
        InputError: the text has none of these forms.
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
    """Return the time between SIGTERM and SIGKILL, seconds, from `--grace`: `60s`, `5m`, or seconds.

    Raises:
        InputError: the text has none of these forms.
    """
    return _span_s("--grace", text, "seconds (60), or a time such as 60s or 5m")


def slack_s(text: str) -> float:
    """Return the delay that a job accepts, seconds, from `--slack`: `6h`, `30m`, or seconds.

    Raises:
        InputError: the text has none of these forms.
    """
    return _span_s("--slack", text, "a time such as 6h or 30m, or seconds")


def _span_s(option: str, text: str, expected: str) -> float:
    """Return the duration in the text of an option, seconds. Numbers without a unit are seconds."""
    from rlsched.settings import Seconds

    try:
        return float(text) if text.isdecimal() else float(Seconds.parse(text))
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected {expected}") from error


def when_s(option: str, text: str, now_s: float) -> float:
    """Return a time, Unix seconds, from `--begin` or an option with the same forms.

    Accepted: `now+1h`, `now+30` (seconds), the next `16:00` or `noon`, a day, or a day with a time.

    Raises:
        InputError: the text has none of these forms.
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
        return unix_s(option, text, now_s)
    except InputError as error:
        raise InputError(
            f"{option} {text!r}: expected now+1h, 16:00, 2026-11-01 or 2026-11-01T13:30"
        ) from error


def dependencies(text: str) -> tuple[list[DependsOn], bool]:
    """Parse `--dependency`, such as `afterok:17:18,singleton`.

    Returns:
        The jobs to wait for, and whether `singleton` is given.

    Raises:
        InputError: the text has another form.
    """
    found: list[DependsOn] = []
    singleton = False
    for part in text.split(","):
        kind, *jobs = part.split(":")
        if part == "singleton":
            singleton = True
        elif kind in _DEPENDENCY_KINDS and jobs and all(job.isdecimal() for job in jobs):
            found += [DependsOn(kind, int(job)) for job in jobs]
        else:
            raise InputError(
                f"--dependency {part!r}: expected singleton, or {', '.join(_DEPENDENCY_KINDS)} with job "
                "numbers, such as afterok:17:18; separate several conditions by commas"
            )
    return found, singleton


def exported(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that `--export` selects.

    Args:
        text: `ALL`, `NONE`, or a list of NAME, `NAME=VALUE` and `ALL`. `ALL` does not include variables that
            a launcher has set for this process (`describes_a_process`); the list can name them.
        own: Variables of this process.

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
                f"--export {text!r}: expected ALL, NONE, or names and NAME=VALUE, separated by commas"
            )
        elif equals:
            found[name] = value
        elif name in own:
            found[name] = own[name]
    return found


def _text_of(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `ALL` selects: with valid text, and not specific to this shell or process."""
    return {
        name: value
        for name, value in own.items()
        if name not in ("_", "OLDPWD", "SHLVL", "PWD") and not name.startswith("BASH_FUNC_")
        if not describes_a_process(name)
        if (text := name + value).isascii() or not any("\udc80" <= letter <= "\udcff" for letter in text)
    }


def notices(notify: str, mail_type: str | None) -> list[str]:
    """Return the events to notify about, from `--notify` and `--mail-type`.

    Raises:
        InputError: a mail type is unknown.
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


def vc_named(text: str) -> str:
    """Return the VC in the text of `--partition`; "" if there is none.

    Raises:
        InputError: the text lists several partitions.
    """
    if "," in text:
        raise InputError(f"--partition {text}: expected one partition (VC), got a list")
    return text


def lost_after_time_s(text: str) -> float:
    """Return the time in the text of `--lost-after`, seconds; 0 for `never`.

    Numbers without a unit are seconds.

    Raises:
        InputError: the text is not a time.
    """
    from rlsched.settings import Seconds

    if text == "never":
        return 0.0
    try:
        return float(Seconds.parse(f"{text}s" if text.isdecimal() else text))
    except ValueError as error:
        raise InputError(f"--lost-after: {error}; `never` is also accepted") from error


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


def submission(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for `Client.submit`, from the options that `job_options` adds.

    Raises:
        InputError: an option is invalid.
    """
    now_s = time.time()
    found: dict[str, Any] = {
        one.keyword: _value(one, asked, now_s)
        for one in declared(Submit).values()
        if any(option.help for option in one.setting.options)
    }
    if asked["dependency"]:
        found["singleton"] = dependencies(asked["dependency"])[1]
    return found


def changes_asked(asked: Mapping[str, Any], now_s: float) -> Changes:
    """Return keyword arguments for `Client.update`, from the options that `change_options` adds.

    Raises:
        InputError: an option is invalid, or none is given.
    """
    found: dict[str, Any] = {
        one.name: _value(one, asked, now_s)
        for one in declared(Submit).values()
        if any(option.update and asked[option.dest] is not None for option in one.setting.options)
    }
    if not found:
        raise InputError("expected something to change, such as --priority or --time-limit")
    if found.get("time_limit_s", 0.0) is None:
        found["time_limit_s"] = math.inf
    if asked["dependency"] is not None:
        found["singleton"] = bool(asked["dependency"]) and dependencies(asked["dependency"])[1]
    return cast("Changes", found)


def _value(one: Declared, asked: Mapping[str, Any], now_s: float) -> Any:
    """Return the value of a setting: from its function in `_TIMES` or `_PARSED`, else as parsed by click."""
    if one.name in _TIMES:
        return _TIMES[one.name](asked, now_s)
    parse = _PARSED.get(one.name)
    return asked[one.setting.options[0].dest] if parse is None else parse(asked)


def _begin_s(asked: Mapping[str, Any], now_s: float) -> float | None:
    return when_s("--begin", asked["begin"], now_s) if asked["begin"] else None


def _time_limit_s(asked: Mapping[str, Any]) -> float | None:
    limit_s: float | None = asked["time_limit"] if asked["time"] is None else time_s(asked["time"])
    return limit_s


def _slack_s(asked: Mapping[str, Any], now_s: float) -> float:
    """Return the delay that a job accepts, seconds, from `--slack`, `--start-by` or `--finish-by`.

    Raises:
        InputError: two of the options are given, one is invalid, or the job cannot end in time.
    """
    given = [name for name in ("slack", "start_by", "finish_by") if asked.get(name) is not None]
    if not given:
        return 0.0
    option, text = f"--{given[0].replace('_', '-')}", asked[given[0]]
    if len(given) > 1:
        raise InputError(f"{option} and --{given[1].replace('_', '-')}: expected one of the two, got both")
    if option == "--slack":
        return slack_s(text)
    left_s = when_s(option, text, now_s) - now_s
    if left_s < 0.0:
        raise InputError(f"{option} {text!r}: expected a time in the future")
    if option == "--start-by":
        return left_s
    limit_s = _time_limit_s(asked)
    if limit_s is None:
        raise InputError(f"{option} {text!r}: expected a time limit too, such as -t 6:00:00")
    if limit_s > left_s:
        raise InputError(
            f"{option} {text!r}: expected a time at least {limit_s / 3600.0:.1f} h from now, which is the "
            f"time limit, got a time {left_s / 3600.0:.1f} h from now"
        )
    return left_s - limit_s


def _environment(asked: Mapping[str, Any]) -> dict[str, str]:
    pairs: tuple[str, ...] = asked["env"]
    wrong = [pair for pair in pairs if not pair.partition("=")[1] or pair.startswith("=")]
    if wrong:
        raise InputError(f"--env {wrong[0]!r}: expected NAME=VALUE")
    given = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    return exported(asked["export"], os.environ) | {"RLSCHED_UMASK": _own_umask()} | given


def _own_umask() -> str:
    """Return the umask of this process, in octal."""
    umask = os.umask(0o077)
    os.umask(umask)
    return f"{umask:04o}"


_PARSED: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "num_gpus": total_gpus,
    "gpu_types": gpu_types,
    "preferred_types": preferred_types,
    "num_cpus": lambda asked: num_cores(asked, total_gpus(asked)),
    "memory_mib": lambda asked: memory_mib(asked, total_gpus(asked)),
    "gpu_memory_mib": lambda asked: size_mib(asked["gpu_memory"] or "0", "--gpu-memory"),
    "vc": lambda asked: vc_named(asked["vc"] or ""),
    "time_limit_s": _time_limit_s,
    "env": _environment,
    "cwd": lambda asked: os.path.abspath(asked["cwd"] or "."),
    "depends_on": lambda asked: dependencies(asked["dependency"])[0] if asked["dependency"] else [],
    "tasks": lambda asked: asked["array"] or "",
    "grace_s": lambda asked: None if asked["grace"] is None else grace_s(asked["grace"]),
    "lost_after_s": lambda asked: (
        None if asked["lost_after"] is None else lost_after_time_s(asked["lost_after"])
    ),
    "notify": lambda asked: notices(asked["notify"], asked["mail_type"]),
}
"""Setting -> function that computes its value from the options. Click parses all other settings."""
_TIMES: Final[Mapping[str, Callable[[Mapping[str, Any], float], float | None]]] = {
    "begin_s": _begin_s,
    "slack_s": _slack_s,
}
"""Setting -> function that computes its value from the options and the current time, Unix seconds."""


def job_options(command: Command) -> Command:
    """Add the options that describe a job; `submission` converts them to keywords of `Client.submit`."""
    return with_options(_options(lambda option: option.help), command)


def change_options(command: Command) -> Command:
    """Add the options that change a job; `changes_asked` converts them to keywords of `Client.update`."""
    return with_options(_options(lambda option: option.update, given=False), command)


def _options(help_of: Callable[[Option], str], *, given: bool = True) -> list[Callable[[Command], Command]]:
    """Return a click option for each declared option for which `help_of` returns a help text.

    `given`: True for `submit`, where options have defaults. False for `update`, where an option that is not
    given changes nothing; `update` does not get the option names in `_TAKEN`.
    """
    return [
        click.option(
            *(name for name in option.names if given or name not in _TAKEN),
            metavar=option.metavar,
            help=help_of(option),
            **_read_as(one, option, given=given),
        )
        for one in declared(Submit).values()
        for option in one.setting.options
        if help_of(option)
    ]


def _read_as(one: Declared, option: Option, *, given: bool) -> dict[str, Any]:
    """Return the arguments of `click.option` for the type and the default of an option."""
    setting, choices = one.setting, get_args(one.type)
    if option.kind == "number" and setting.least is not None:
        kind: Any = click.FloatRange if float in choices else click.IntRange
        return {
            "type": kind(
                min=setting.least,
                max=None if setting.most == math.inf else setting.most,
                min_open=setting.most is None,
            )
        }
    if option.kind:
        return {"type": GpusParam() if option.kind == "gpus" else click.IntRange(min=1)}
    if one.type is bool:
        return {"is_flag": True}
    if choices and all(isinstance(choice, str) for choice in choices):
        default = {"default": one.default, "show_default": True} if given else {}
        return {"type": click.Choice(choices), **default}
    if option.default:
        return {"default": option.default, "show_default": True}
    if get_origin(one.type) is dict:
        return {"multiple": True}
    return {"default": one.default} if given and one.type is str else {}
