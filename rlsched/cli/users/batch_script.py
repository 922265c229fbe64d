"""Job scripts: options in `#RLSCHED` and `#SBATCH` directives, and the command that runs the script.

As in `sbatch`, a job runs the text that the script has at submission. Directives are lines before the first
command of the script. Options on the command line override directives.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from rlsched.cli.shared.gpus_asked import num_tasks
from rlsched.errors import InputError

SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
MARKS: Final = ("#RLSCHED", "#SBATCH")
_VALUED: Final = (
    *("--signal", "--mail-user", "--qos", "-q", "--nice", "--comment"),
    *("--kill-on-invalid-dep", "--gpu-bind", "--cpu-bind", "--threads-per-core"),
    *("--hint", "--tmp", "--kill-on-bad-exit"),
)
_FLAGS: Final = (
    *("--requeue", "--no-requeue", "--verbose", "-v", "--quiet", "-Q", "--get-user-env"),
    *("--label", "-l", "--unbuffered"),
)
_CALLS: Final = re.compile(
    r"(?:^|[;&|`{]|[$]\(|=[\"']|\s-\w*c\s+[\"']|\b(?:do|then|else|if|while|until)\s)\s*"
    r"(?:\(\s*|(?:!|exec|time|nohup|\w+=\S*)\s+)*"
    r"(srun|scontrol|sbcast|sbatch|salloc|sattach|squeue|scancel|sacct|sinfo|sstat)"
    r"(?:$|(?=[;&|)`])|\s+(?!\())([^\s;&|)`]*)\s*([^\s;&|)`\"]*)"
)
"""Pattern of a call of a Slurm command; the call can be quoted, as in `RUN="srun -n 2"`."""
_COMMENTS: Final = re.compile(r"(?:^|\s)#.*")
_PROGRAMS: Final = ("bin", "sbin")
"""Names of directories whose programs can exist on the nodes without existing on this machine."""
_SCRIPTS: Final = (".sh", ".bash", ".sbatch", ".slurm")
_VARIABLES: Final = re.compile(r"[$][{]?[#!]?SLURMD?_[A-Z]")
_SERVED: Final = (("scontrol", "show", "hostnames"), ("scontrol", "show", "hostname"))
_STARTERS: Final = re.compile(r"\b(srun|mpirun|mpiexec|prun)\b")
_REFUSED: Final = {
    "--signal": "give --grace too: a job gets SIGTERM at its time limit, and SIGKILL after the time of "
    "--grace, such as --grace 120s",
    "--no-requeue": "the job can be requeued; to end it then, write `[ $RLSCHED_ATTEMPT = 1 ] || exit 1` in "
    "the script",
}
"""Option of `sbatch` that rlsched rejects, because the job would differ without it -> what to do instead.
`--signal` is accepted and ignored if the job has `--grace`, so that one script suits both Slurm and rlsched.
"""
NO_MEANING: Final = frozenset((*_VALUED, *_FLAGS))
"""Options of `sbatch` and `srun` that rlsched accepts and ignores: the policy decides on places and times."""


class Call(NamedTuple):
    """A call of a Slurm command in a script.

    Attributes:
        line: Line number of the call.
        command: The command, such as `srun`.
        is_served: Whether a job that can start steps (`srun`) can use the command.
    """

    line: int
    command: str
    is_served: bool


class Script(NamedTuple):
    """A job script.

    Attributes:
        command: Command that runs the script.
        arguments: Options in the script's directives.
        left_out: Options in the directives that rlsched ignores.
        is_slurms: Whether the script is for Slurm: it has `#SBATCH` lines, or is a shell script that calls
            `srun` or `scontrol show hostnames`. If so, the job runs on its first node, gets variables with
            Slurm's names, and can start steps (`srun`).
        reads_variables: Whether the script reads variables with Slurm's names.
        calls: Calls of Slurm's commands, in a script for Slurm.
        uses_nodes: Whether the script contains a command, such as `srun`, that starts processes on all nodes.
        interpreter: Words of the `#!` line that must precede `command`, because the script is not executable.
    """

    command: list[str]
    arguments: list[str]
    left_out: list[str]
    is_slurms: bool
    reads_variables: bool
    calls: list[Call]
    uses_nodes: bool
    interpreter: Sequence[str] = ()


def read_script(words: list[str], command: click.Command) -> Script | None:
    """Return the job script that a command runs; None: the command is not a script.

    Args:
        words: Command of the job: path of a script or program, and arguments.
        command: The verb of rlsched, whose options directives can set.

    Raises:
        InputError: a directive has an unknown option or an unclosed quote, or the file is no script that can
            be read.
    """
    path = words[0]
    try:
        with open(path, "rb") as file:
            head = file.read(2)
            if head != b"#!":
                return None
            whole = head + file.read()
    except OSError:
        return None
    own = [os.path.abspath(path), *words[1:]]
    text = whole.decode(errors="replace")
    try:
        runs = _by_shell(whole.decode(), own)
    except UnicodeDecodeError:
        runs = None
    if runs is None and not os.access(path, os.X_OK):
        interpreter = text.split("\n", 1)[0][2:].split()
        return _script(own, path, text, command)._replace(interpreter=interpreter)
    return _script(runs or own, path, text, command)


def _refuse_no_command(path: str, cwd: str) -> None:
    """Check that the first word of a command can be a program. Call this only if the word is no script.

    A name without a slash can be a program in PATH on the job's nodes, unless it is a script's name such as
    `train.sh`.

    Args:
        path: First word of the command.
        cwd: Working directory of the job.

    Raises:
        InputError: the file is missing from a directory that exists here, is a directory or not executable,
            or is a text file without `#!`.
    """
    is_name = "/" not in path
    where = path if is_name else os.path.join(cwd, path)
    in_path = (os.path.join(one, path) for one in os.get_exec_path())
    if is_name and (
        any(os.access(one, os.X_OK) for one in in_path)
        or not (os.path.isfile(where) or path.endswith(_SCRIPTS))
    ):
        return
    if not os.path.lexists(where):
        folder = os.path.dirname(where) or "."
        if os.path.isdir(folder) and not (os.path.isabs(path) and os.path.basename(folder) in _PROGRAMS):
            raise InputError(f"{path}: no such file")
        return
    if os.path.isdir(where):
        raise InputError(f"{path}: expected a script or a program, got a directory")
    try:
        with open(where, "rb") as file:
            head = file.read(512) if os.path.isfile(where) else b"\0"
    except OSError:
        return
    if b"\0" not in head and not head.startswith(b"#!"):
        raise InputError(f"{path}: expected a script whose first line begins with #!, such as #!/bin/bash")
    if b"\0" in head and not os.access(where, os.X_OK):
        raise InputError(f"{path}: the file is not executable")


def piped_script(command: click.Command) -> Script | None:
    """Return the script on standard input; None if standard input is a terminal or empty.

    Raises:
        InputError: the text is not a shell script, or a directive is invalid as in `read_script`.
    """
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not text:
        return None
    runs = _by_shell(text, ["stdin"]) if text.startswith("#!") else None
    if runs is None:
        raise InputError(
            f"standard input: expected a script that begins with #! and a shell, got {text[:20]!r}"
        )
    return _script(runs, "standard input", text, command)


def _script(runs: list[str], where: str, text: str, command: click.Command) -> Script:
    """Parse the text of a job script.

    `runs`: the command that runs the script. `where`: name of the text in error messages.

    Raises:
        InputError: a directive has an unknown option or an unclosed quote.
    """
    lines = text.splitlines()
    arguments, left_out = directives(where, lines, command)
    has_directives = any(line.startswith("#SBATCH") for line in lines)
    found = _slurms(runs, text, is_slurms=has_directives)
    calls_steps = _shell_of(text) is not None and any(call.is_served for call in found.calls)
    if not (has_directives or calls_steps):
        return found._replace(arguments=arguments, left_out=left_out, calls=[])
    return found._replace(arguments=arguments, left_out=left_out, is_slurms=True)


def _slurms(runs: list[str], text: str, *, is_slurms: bool) -> Script:
    """Parse a job script, but not its directives. `runs`: the command that runs the script."""
    lines = text.splitlines()
    reads_variables = re.search(_VARIABLES, text) is not None
    return Script(
        runs, [], [], is_slurms, reads_variables, _calls(lines), re.search(_STARTERS, text) is not None
    )


def _calls(lines: list[str]) -> list[Call]:
    """Return the calls of Slurm commands in the lines of a script, outside comments."""
    return [
        Call(
            number,
            f"scontrol {call[2]}" if call[1] == "scontrol" else call[1],
            call[1] == "srun" or call.groups() in _SERVED,
        )
        for number, line in enumerate(lines, 1)
        for call in re.finditer(_CALLS, re.sub(_COMMENTS, "", line))
    ]


def _by_shell(text: str, words: list[str]) -> list[str] | None:
    """Return the command that runs the text of a script in a shell; None: its `#!` line names no shell."""
    interpreter = _shell_of(text)
    return None if interpreter is None else [*interpreter, "-c", text, *words]


def _shell_of(text: str) -> list[str] | None:
    """Return the words of the `#!` line of a script; None: they name no shell."""
    interpreter = text.split("\n", 1)[0][2:].split()
    shell = next((os.path.basename(word) for word in reversed(interpreter) if not word.startswith("-")), "")
    return interpreter if shell in SHELLS else None


def directives(where: str, lines: list[str], command: click.Command) -> tuple[list[str], list[str]]:
    """Parse the directives of a script. Return the options of the verb, and the options that are ignored.

    Raises:
        InputError: a directive has an unknown option or an unclosed quote.
    """
    import shlex  # only scripts have directives

    arguments: list[str] = []
    left_out: list[str] = []
    for number, line in enumerate(lines[1:], 2):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        mark = line.split(maxsplit=1)[0] if line.strip() else ""
        if mark not in MARKS:
            continue
        try:
            words = shlex.split(line[len(mark) :], comments=True)
        except ValueError as error:
            raise InputError(f"{where}, line {number}: {error}: {line.strip()}") from error
        taken = _options(words, command, left_out=mark == "#SBATCH")
        if taken.odd:
            raise InputError(
                f"{where}, line {number}: {mark} {' '.join(taken.odd)}: rlsched has no such option; "
                "`rlsched submit --help` lists the options"
            )
        arguments += taken.arguments
        left_out += taken.left_out
    return arguments, left_out


class _Taken(NamedTuple):
    """Words of a directive or command line, split into three lists.

    Attributes:
        arguments: Options of the verb, with their values.
        left_out: Options of Slurm that rlsched ignores.
        odd: All words from the first word on that is no option.
    """

    arguments: list[str]
    left_out: list[str]
    odd: list[str]


def _options(words: list[str], command: click.Command, *, left_out: bool) -> _Taken:
    """Split words into the options at the beginning and the remaining words.

    `left_out`: whether the options of Slurm that rlsched ignores are accepted.
    """
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    taken = _Taken([], [], list(words))
    while taken.odd:
        name, equals, _ = taken.odd[0].partition("=")
        if not name.startswith("--") and len(name) > 2:
            name, equals = name[:2], "="  # such as -N2
        option = known.get(name)
        is_flag = name in _FLAGS or (isinstance(option, click.Option) and option.is_flag)
        size = 1 if equals or is_flag else 2
        if isinstance(option, click.Option):
            taken.arguments.extend(taken.odd[:size])
        elif left_out and name in NO_MEANING:
            taken.left_out.append(" ".join(taken.odd[:size]))
        else:
            break
        del taken.odd[:size]
    return taken


def slurms_variables(asked: Mapping[str, Any], *, has_steps: bool) -> list[str]:
    """Return the variables that `sbatch` would set at submission, as NAME=VALUE.

    If the script can start steps, the list also has a random key for the steps (RLSCHED_STEPS_KEY). A
    node adds further variables of Slurm if SLURM_SUBMIT_DIR is set.

    Args:
        asked: The options of the job.
        has_steps: Whether the script runs only on the first node, and can start steps by `srun`.
    """
    import socket  # only for scripts

    variables = {
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_SUBMIT_HOST": socket.gethostname(),
        "SLURM_JOB_ACCOUNT": asked["account"],
        "SLURM_JOB_NAME": asked["name"],
        "SLURM_CPUS_PER_TASK": asked["cpus_per_task"],
        "SLURM_CPUS_PER_GPU": asked["cpus_per_gpu"],
    }
    if has_steps:
        per_task, per_gpu = asked["gpus_per_task"], asked["ntasks_per_gpu"]
        variables |= {
            "SLURM_NNODES": asked["nodes"],
            "SLURM_NTASKS": num_tasks(asked),
            "SLURM_NTASKS_PER_NODE": asked["ntasks_per_node"],
            "SLURM_GPUS_PER_TASK": per_task and per_task.number,
            "SLURM_NTASKS_PER_GPU": per_gpu,
            "SLURM_GPU_BIND": per_gpu and f"single:{per_gpu}",
            "RLSCHED_STEPS_KEY": os.urandom(32).hex(),
        }
    given = [f"{name}={value}" for name, value in variables.items() if value]
    return [*given, f"SLURM_JOB_PARTITION={asked['vc']}"]  # empty without a VC


def _note_calls(where: str, script: Script, asked: Mapping[str, Any], *, has_steps: bool) -> None:
    """Print notes on Slurm's commands that the job cannot call, and on nodes that the script does not use."""
    missing = [f"line {one.line}: {one.command}" for one in script.calls if not (has_steps and one.is_served)]
    if missing and has_steps:
        why = "of Slurm's commands, a job has only srun and scontrol show hostnames"
        click.echo(f"note: {where}, {', '.join(missing)}: {why}", err=True)
    elif missing:
        why = f"with --launch {asked['launch']} the script runs on each node, without Slurm's commands"
        click.echo(f"note: {where}, {', '.join(missing)}: {why}", err=True)
    if has_steps and (asked["nodes"] or 1) > 1 and not script.uses_nodes:
        why = "without srun, the script uses only the job's first node; --launch none runs it on each node"
        click.echo(f"note: {where}: {why}", err=True)


def _as_slurms(ctx: click.Context, where: str, script: Script) -> None:
    """Give the job Slurm's variables if its script needs them, and print notes on Slurm's commands."""
    asked = ctx.params
    has_launcher = ctx.get_parameter_source("launch") is ParameterSource.COMMANDLINE
    has_steps = script.is_slurms and not has_launcher
    if script.is_slurms or script.reads_variables:
        asked["env"] = (*slurms_variables(asked, has_steps=has_steps), *asked["env"])
    if script.is_slurms:
        _note_calls(where, script, asked, has_steps=has_steps)
    elif script.reads_variables and not has_launcher and (asked["nodes"] or 1) > 1:
        why = (
            "without #SBATCH lines and srun, the script runs once on each node; --launch none omits this note"
        )
        click.echo(f"note: {where}: {why}", err=True)


class BatchCommand(click.Command):
    """A verb that takes a command, or a job script with directives. The script can be on standard input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        If the command is a script, its options are parsed before the command line, which overrides them. The
        text of `--wrap` is a script for Slurm.
        """
        typed = _options(list(args), self, left_out=True)
        given = [*typed.arguments, *typed.odd]
        rest = super().parse_args(ctx, list(given))
        words = list(ctx.params.get("command") or ())
        script = read_script(words, self) if words else None
        is_program = words and script is None and ctx.params.get("launch") != "torchrun"
        if is_program and not ctx.resilient_parsing:
            _refuse_no_command(words[0], ctx.params.get("cwd") or "")
        if script is None and not words and self._takes_stdin(ctx):
            script = piped_script(self)
        left_out = list(typed.left_out)
        if script is not None:
            left_out += script.left_out
            ctx.params.clear()
            own = given[: len(given) - len(words)]
            if own and own[-1] == "--":
                own.pop()
            rest = super().parse_args(ctx, [*script.arguments, *own, "--", *words])
            ctx.params["command"] = (*script.interpreter, *script.command)
            if script.interpreter and ctx.params.get("launch") == "torchrun":
                ctx.params["command"] = tuple(words)  # torchrun runs a Python file
            if not ctx.params.get("name"):
                ctx.params["name"] = os.path.basename(words[0]) if words else "sbatch"
        elif ctx.params.get("wrap") is not None and not words and not ctx.params.get("table"):
            script = _slurms([], ctx.params["wrap"], is_slurms=True)
            ctx.params["name"] = ctx.params.get("name") or "wrap"
        if script is not None:
            where = words[0] if words else "standard input" if script.command else "--wrap"
            _as_slurms(ctx, where, script)
        what = f"{words[0]}: " if words and script is not None else ""
        for option in left_out:
            name = option.replace("=", " ").split()[0]
            if name in _REFUSED and not (name == "--signal" and ctx.params.get("grace")):
                raise InputError(f"{what}{option}: rlsched has no such option; {_REFUSED[name]}")
        if left_out:
            click.echo(f"note: {what}ignored, has no effect in rlsched: {', '.join(left_out)}", err=True)
        return rest

    def _takes_stdin(self, ctx: click.Context) -> bool:
        """Return whether to read a script from standard input: without --wrap, --from and --dry-run."""
        others = ("wrap", "table", "dry_run")
        return (
            "wrap" in ctx.params
            and not ctx.resilient_parsing
            and not any(ctx.params.get(name) for name in others)
        )
