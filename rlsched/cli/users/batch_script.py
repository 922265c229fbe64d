"""Job scripts: options in `#RLSCHED` and `#SBATCH` directives, and the command that runs the script.

As in `sbatch`, a job runs the script's content at submission. Directives are lines before the first command
of the script. Options on the command line override directives.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from rlsched.errors import InputError

SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
MARKS: Final = ("#RLSCHED", "#SBATCH")
_VALUED: Final = (
    *("--signal", "--mail-user", "--ntasks-per-node", "--cpus-per-gpu", "--qos", "-q", "--nice", "--comment"),
    *("--kill-on-invalid-dep", "--gpu-bind", "--cpu-bind", "--ntasks-per-gpu", "--threads-per-core"),
    *("--hint", "--tmp", "--kill-on-bad-exit"),
)
_FLAGS: Final = (
    *("--requeue", "--no-requeue", "--verbose", "-v", "--quiet", "-Q", "--get-user-env"),
    *("--label", "-l", "--unbuffered"),
)
_SLURMS: Final = re.compile(r"(?:^[^\S\n]*(?:exec |time )?|[$]\(\s*|`)(srun|scontrol|sbcast)\s(?!\()")
NO_MEANING: Final = frozenset((*_VALUED, *_FLAGS))
"""Options of `sbatch` and `srun` that rlsched ignores, because the policy decides where and when jobs run."""


class Script(NamedTuple):
    """A job script.

    Attributes:
        command: Command that runs the script.
        arguments: Options in the script's directives.
        left_out: Ignored options in the directives.
        is_slurms: Whether the script has `#SBATCH` lines; if so, the job gets variables with Slurm's names.
        calls: Slurm commands in the script that a job cannot run, such as `line 9: srun`.
    """

    command: list[str]
    arguments: list[str]
    left_out: list[str]
    is_slurms: bool
    calls: list[str]


def read_script(words: list[str], command: click.Command) -> Script | None:
    """Return the job script that the command names; None if the command is another program.

    Args:
        words: The job's command: the script's path and its arguments.
        command: The verb; directives can set its options.

    Raises:
        InputError: a directive has an unknown option or an unclosed quote.
    """
    try:
        with open(words[0], "rb") as file:
            head = file.read(2)
            if head != b"#!":
                return None
            text = (head + file.read()).decode()
    except (OSError, UnicodeDecodeError):
        return None
    from pathlib import Path  # not needed for a program

    path = Path(words[0])
    runs = _by_shell(text, [str(path.absolute()), *words[1:]])
    if runs is None:
        runs = [str(path.absolute()) if os.access(path, os.X_OK) else words[0], *words[1:]]
    return Script(runs, *directives(str(path), text.splitlines(), command), _is_slurms(text), _calls(text))


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
    found = directives("standard input", text.splitlines(), command)
    return Script(runs, *found, _is_slurms(text), _calls(text))


def _is_slurms(text: str) -> bool:
    return any(line.startswith("#SBATCH") for line in text.splitlines())


def _calls(text: str) -> list[str]:
    """Return the lines of a Slurm script that call a Slurm command, directly or in a command substitution."""
    if not _is_slurms(text):
        return []
    found = ((number, re.search(_SLURMS, line)) for number, line in enumerate(text.splitlines(), 1))
    return [f"line {number}: {call[1]}" for number, call in found if call]


def _by_shell(text: str, words: list[str]) -> list[str] | None:
    """Return the command that runs the script's text in a shell; None if the script's `#!` names no shell."""
    interpreter = text.split("\n", 1)[0][2:].split()
    shell = next((os.path.basename(word) for word in reversed(interpreter) if not word.startswith("-")), "")
    return [*interpreter, "-c", text, *words] if shell in SHELLS else None


def directives(where: str, lines: list[str], command: click.Command) -> tuple[list[str], list[str]]:
    """Return two lists from a script's directives: options of the verb, and options that rlsched ignores.

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
    """Parsed words: options of the verb, ignored options, and all words from the first unknown word on."""

    arguments: list[str]
    left_out: list[str]
    odd: list[str]


def _options(words: list[str], command: click.Command, *, left_out: bool) -> _Taken:
    """Split words into options and other words.

    `left_out`: whether to accept also the Slurm options that rlsched ignores.
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


def _slurms_variables(asked: Mapping[str, Any]) -> list[str]:
    """Return the variables that `sbatch` sets at submission. Nodes add others if SLURM_SUBMIT_DIR is set."""
    found = [f"SLURM_SUBMIT_DIR={os.getcwd()}", f"SLURM_JOB_NAME={asked['name']}"]
    cores = asked["cpus_per_task"]
    return [*found, f"SLURM_CPUS_PER_TASK={cores}"] if cores else found


class BatchCommand(click.Command):
    """A verb for a command or a job script with directives. The script can be on standard input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        If the command is a script, parse again with the script's options first, so that options on the
        command line override them.
        """
        typed = _options(list(args), self, left_out=True)
        given = [*typed.arguments, *typed.odd]
        rest = super().parse_args(ctx, list(given))
        words = list(ctx.params.get("command") or ())
        script = read_script(words, self) if words else None
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
            ctx.params["command"] = tuple(script.command)
            if not ctx.params.get("name"):
                ctx.params["name"] = os.path.basename(words[0]) if words else "sbatch"
            if script.is_slurms:
                ctx.params["env"] = (*_slurms_variables(ctx.params), *ctx.params["env"])
        if left_out:
            what = f"{words[0]}: " if words and script is not None else ""
            click.echo(f"note: {what}ignored, has no effect in rlsched: {', '.join(left_out)}", err=True)
        if script is not None and script.calls:
            where = words[0] if words else "standard input"
            click.echo(
                f"note: {where}, {', '.join(script.calls)}: there is no Slurm in a job; the script runs once "
                "on each node, and with --launch per-gpu once for each GPU",
                err=True,
            )
        return rest

    def _takes_stdin(self, ctx: click.Context) -> bool:
        """Return whether a script is read from standard input: only if no option names another source."""
        others = ("wrap", "table", "dry_run")
        return (
            "wrap" in ctx.params
            and not ctx.resilient_parsing
            and not any(ctx.params.get(name) for name in others)
        )
