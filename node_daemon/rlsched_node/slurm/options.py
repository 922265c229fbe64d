"""Options of `srun`, as in Slurm's manual."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

DEFAULTS: Final[dict[str, Any]] = {
    "ntasks": None,
    "nodes": None,
    "ntasks_per_node": None,
    "nodelist": None,
    "exclude": None,
    "relative": None,
    "cpus_per_task": None,
    "gpus_per_task": None,
    "gpus": None,
    "gpus_per_node": None,
    "gpu_bind": "",
    "distribution": "block",
    "export": "ALL",
    "output": None,
    "error": None,
    "input": None,
    "open_mode": "truncate",
    "chdir": None,
    "time_s": None,
    "wait_s": 0.0,
    "label": False,
    "unbuffered": False,
    "overlap": False,
    "exclusive": False,
    "kill_on_bad_exit": False,
    "quiet": False,
    "job_ntasks": None,
    "job_ntasks_per_node": None,
}
"""Options of a step with their defaults; None: the job decides. Only the environment sets `job_ntasks` and
`job_ntasks_per_node`, which describe the job."""
USAGE: Final = """\
usage: srun [-n N] [-N N] [--ntasks-per-node N] [-w NODES] [-x NODES] [-r N] [-c N] [-m block|cyclic]
    [--gpus-per-task N] [-G N] [--gpus-per-node N] [--gres gpu:N] [--gpu-bind WHAT] [--exact] [--overlap]
    [-o FILE] [-e FILE] [--open-mode append|truncate] [-i FILE|all|none|TASK] [-l] [-u] [-D DIR]
    [--export WHAT] [-t TIME] [-W SECONDS] [-K[0|1]] [-Q] COMMAND [ARGUMENT...]"""


class UsageError(Exception):
    """An option is unknown or has an invalid value."""


class Parsed(NamedTuple):
    """The command line of `srun`.

    Attributes:
        options: Values by the keys of `DEFAULTS`.
        command: The command, with its arguments.
        ignored: Options that have no effect in rlsched.
        wants_help: Whether `--help` is given.
    """

    options: dict[str, Any]
    command: list[str]
    ignored: list[str]
    wants_help: bool


_VALUED: Final[dict[str, str]] = {
    "-n": "--ntasks",
    "-N": "--nodes",
    "-w": "--nodelist",
    "-x": "--exclude",
    "-r": "--relative",
    "-c": "--cpus-per-task",
    "-G": "--gpus",
    "-m": "--distribution",
    "-o": "--output",
    "-e": "--error",
    "-i": "--input",
    "-D": "--chdir",
    "-t": "--time",
    "-W": "--wait",
    "-J": "--job-name",
    **dict.fromkeys(("--ntasks-per-node", "--gpus-per-task", "--gpus-per-node", "--gres", "--gpu-bind"), ""),
    **dict.fromkeys(("--export", "--open-mode", "--mpi", "--jobid"), ""),
}
_FLAGS: Final[dict[str, str]] = {
    "-l": "--label",
    "-u": "--unbuffered",
    "-Q": "--quiet",
    "-h": "--help",
    "-v": "--verbose",
    "-s": "--oversubscribe",
    "-O": "--overcommit",
    "-k": "--no-kill",
    **dict.fromkeys(("--exact", "--overlap"), ""),
}
_OPTIONAL: Final = {"-K": "--kill-on-bad-exit", "": "--exclusive"}
_NO_EFFECT: Final[dict[str, str]] = {
    "-p": "--partition",
    "-A": "--account",
    "-q": "--qos",
    "-C": "--constraint",
    "-T": "--threads",
    **dict.fromkeys(("--mem", "--mem-per-cpu", "--mem-per-gpu", "--cpu-bind", "--mem-bind", "--hint"), ""),
    **dict.fromkeys(("--threads-per-core", "--cores-per-socket", "--cpu-freq", "--network", "--comment"), ""),
    **dict.fromkeys(("--acctg-freq", "--profile", "--gres-flags", "--ntasks-per-socket", "--tmp"), ""),
}
_LONG_NO_EFFECT: Final = frozenset(long or short for short, long in _NO_EFFECT.items())
_AS_HERE: Final = (("--cpu-bind", "none"), ("--mem-bind", "none"), ("--mem", "0"))
"""(Option, value) pairs that describe the usual behaviour of rlsched. `srun` prints no warning for them."""
_SILENT: Final = ("--help", "--verbose", "--oversubscribe", "--overcommit", "--no-kill", "--job-name")
_LONG_VALUED: Final = frozenset(long or short for short, long in (_VALUED | _NO_EFFECT).items())
_LONG_FLAGS: Final = frozenset(long or short for short, long in _FLAGS.items())
_LONG: Final = (*sorted(_LONG_VALUED | _LONG_FLAGS), *_OPTIONAL.values())
_INSTEAD: Final = {
    "--pty": "; tasks have no terminal",
    "--multi-prog": "; run a script that chooses the program by SLURM_PROCID",
}
"""Advice for options that rlsched does not have."""
_COUNTS: Final = ("--ntasks", "--ntasks-per-node", "--cpus-per-task")
_VARIABLES: Final = (
    ("SLURM_NTASKS", "job_ntasks", "--ntasks"),
    ("SLURM_NTASKS_PER_NODE", "job_ntasks_per_node", "--ntasks-per-node"),
    ("SLURM_GPUS_PER_TASK", "gpus_per_task", "--gpus-per-task"),
    ("SLURM_GPU_BIND", "gpu_bind", "--gpu-bind"),
    ("SRUN_CPUS_PER_TASK", "cpus_per_task", "--cpus-per-task"),
    ("SLURM_WAIT", "wait_s", "--wait"),
    ("SLURM_KILL_BAD_EXIT", "kill_on_bad_exit", "--kill-on-bad-exit"),
    ("SLURM_LABELIO", "label", "--label"),
    ("SLURM_UNBUFFEREDIO", "unbuffered", "--unbuffered"),
)
"""Environment variables that set options: name of the variable, key in `DEFAULTS`, and the option of `srun`
whose values have the same format."""


def parsed(words: list[str], environ: Mapping[str, str]) -> Parsed:
    """Parse the arguments of `srun`.

    Args:
        words: The arguments.
        environ: The environment. As under Slurm, its `SLURM_*` and `SRUN_*` variables set some defaults.

    Raises:
        UsageError: an option is unknown or has an invalid value.
    """
    given, command = _split(words)
    options, ignored = _of_environment(environ), list[str]()
    for name, value in given:
        if name in _LONG_NO_EFFECT:
            if (name, value) not in _AS_HERE:
                ignored.append(f"{name}={value}")
        elif name not in _SILENT:
            _set(options, name, value, environ)
    return Parsed(options, command, ignored, ("--help", "") in given)


def _of_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults, changed by the values of Slurm's environment variables."""
    options = dict(DEFAULTS)
    for variable, key, option in _VARIABLES:
        value = environ.get(variable, "")
        if value in ("", "0"):
            continue
        try:
            own: dict[str, Any] = {}
            _set(own, option, value, environ)
        except UsageError as error:
            raise UsageError(f"{variable}: {error}") from error
        (options[key],) = own.values()
    return options


def _split(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split the arguments. Return (long name, value) of each option, and the words of the command."""
    given: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = _full_name(name)
            if name in _LONG_VALUED and not equals:
                value = _next(rest, name)
            elif name in _LONG_FLAGS and equals:
                raise UsageError(f"{name}: expected no value, got {value!r}")
            given.append((name, value))
            continue
        letters = word[1:]
        while letters:
            short, letters = f"-{letters[0]}", letters[1:]
            if short in _FLAGS:
                given.append((_FLAGS[short], ""))
            elif short in _OPTIONAL:
                given.append((_OPTIONAL[short], letters))
                letters = ""
            elif short in _VALUED or short in _NO_EFFECT:
                value = letters or _next(rest, short)
                given.append(((_VALUED | _NO_EFFECT)[short], value))
                letters = ""
            else:
                raise UsageError(f"{short}: rlsched's srun has no such option")
    return given, rest


def _full_name(name: str) -> str:
    """Return the full name of a long option, which may be abbreviated."""
    found = [one for one in _LONG if one.startswith(name)]
    if name in _LONG:
        return name
    if len(found) != 1:
        raise UsageError(f"{name}: rlsched's srun has no such option{_INSTEAD.get(name, '')}")
    return found[0]


def _next(rest: list[str], name: str) -> str:
    if not rest:
        raise UsageError(f"{name}: expected a value")
    return rest.pop(0)


def _set(options: dict[str, Any], name: str, value: str, environ: Mapping[str, str]) -> None:
    """Set an option from its text."""
    key = name[2:].replace("-", "_")
    if name in _COUNTS:
        options[key] = _number(name, value)
    elif name == "--relative":
        options[key] = _number(name, value, least=0)
    elif name == "--nodes":
        options[key] = _number(name, value.rpartition("-")[2])
    elif name in ("--gpus", "--gpus-per-node", "--gpus-per-task"):
        options[key] = _gpus(name, value)
    elif name == "--gres":
        options["gpus_per_node"] = 0 if value == "none" else _gpus(name, value, is_gres=True)
    elif name == "--gpu-bind":
        options[key] = _gpu_bind(value)
    elif name == "--distribution":
        options[key] = _distribution(value)
    elif name == "--open-mode":
        options[key] = _choice(name, value, {"a": "append", "t": "truncate"})
    elif name == "--time":
        options["time_s"] = time_s(value)
    elif name == "--wait":
        options["wait_s"] = float(_number(name, value, least=0))
    elif name == "--kill-on-bad-exit":
        options[key] = value != "0"
    elif name == "--exclusive" and value not in ("", "user"):
        raise UsageError(f"--exclusive={value}: expected --exclusive")
    elif name in ("--exact", "--exclusive"):
        options["exclusive"] = True
    elif name == "--mpi":
        _choice(name, value, {"none": "none"}, " (there is no start of MPI; use mpirun in the script)")
    elif name == "--jobid":
        _choice(name, value, {one: one for one in (environ.get("SLURM_JOB_ID", ""),)}, ", this job")
    else:
        options[key] = value if name in _LONG_VALUED else True


def _choice(name: str, value: str, known: Mapping[str, str], why: str = "") -> str:
    """Return the full name of an option's value. `known`: short name -> full name; `value`: either of them.

    Raises:
        UsageError: the value is not known.
    """
    if value not in known and value not in known.values():
        raise UsageError(f"{name} {value!r}: expected {' or '.join(sorted(set(known.values())))}{why}")
    return known.get(value, value)


def _number(name: str, value: str, least: int = 1) -> int:
    if not value.isdecimal() or int(value) < least:
        raise UsageError(f"{name} {value!r}: expected a number from {least}")
    return int(value)


def _gpus(name: str, value: str, *, is_gres: bool = False) -> int:
    """Return the number of GPUs in a value such as `2` or `a100:2`; for `--gres`, `gpu:2` or `gpu:a100:2`."""
    head = r"(?:gres[/:])?gpu(?::[A-Za-z][\w.-]*)?" if is_gres else r"(?:[A-Za-z][\w.-]*:)?"
    found = re.fullmatch(head + (r"(?::(\d+))?" if is_gres else r"(\d+)"), value)
    if found is None:
        raise UsageError(
            f"{name} {value!r}: expected a number of GPUs, such as {'gpu:2' if is_gres else '2'}"
        )
    return int(found[1] or 1)


def _gpu_bind(value: str) -> str:
    """Return the value of `--gpu-bind` without `verbose` or `quiet`; "": tasks are not bound to GPUs."""
    value = re.sub(r"^(?:verbose|v|quiet|q),?", "", value)
    if value in ("", "none", "closest"):
        return ""
    if re.fullmatch(
        r"(?:single|per_task):[1-9]\d*|map_gpu:\d+(?:,\d+)*|mask_gpu:0x[0-9a-fA-F]+(?:,0x[0-9a-fA-F]+)*",
        value,
    ):
        return value
    raise UsageError(
        f"--gpu-bind {value!r}: expected none, closest, single:N, per_task:N, map_gpu:LIST or mask_gpu:LIST"
    )


def _distribution(value: str) -> str:
    first = re.split(r"[:,]", value)[0]
    return _choice(
        "--distribution", "block" if first == "*" else first, {"block": "block", "cyclic": "cyclic"}
    )


def time_s(text: str) -> float | None:
    """Return a time limit, seconds, in Slurm's forms: minutes, `MM:SS`, `HH:MM:SS`, `D-HH[:MM[:SS]]`.

    None or infinite: no limit.

    Raises:
        UsageError: the text has another form.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")) or len(parts) > 3:
        raise UsageError(f"--time {text!r}: expected minutes, 1:30:00 or 1-12 (days-hours)")
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = 86_400 * int(days or 0) + sum(
        int(part) * unit for part, unit in zip(parts, units, strict=False)
    )
    return float(seconds) if seconds else math.inf
