"""Job scripts: what their lines `#RLSCHED` and `#SBATCH` ask for, and how the script is run.

As with `sbatch`, the script is taken as it stands at submission. Directives are the lines before the first
command. Options on the command line stand above them.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NamedTuple

import click

from rlsched.errors import InputError

SHELLS: Final = ("sh", "bash", "dash", "ksh", "zsh")
MARKS: Final = ("#RLSCHED", "#SBATCH")
_VALUED: Final = (
    *("--output", "-o", "--error", "-e", "--open-mode"),
    *("--signal", "--mail-user", "--ntasks-per-node", "--cpus-per-gpu", "--qos", "-q", "--nice", "--comment"),
    *("--kill-on-invalid-dep", "--gpu-bind", "--cpu-bind", "--ntasks-per-gpu", "--threads-per-core"),
    *("--hint", "--tmp", "--kill-on-bad-exit"),
)
_FLAGS: Final = (
    *("--exclusive", "--requeue", "--no-requeue", "--verbose", "-v", "--quiet", "-Q", "--get-user-env"),
    *("--label", "-l", "--unbuffered"),
)
NO_MEANING: Final = frozenset((*_VALUED, *_FLAGS))
"""Options of `sbatch` and `srun` without which a job still runs, where and when the policy says."""


class Script(NamedTuple):
    """A job script.

    Attributes:
        command: What runs it.
        arguments: Options of its directives.
        left_out: Those that mean nothing here.
    """

    command: list[str]
    arguments: list[str]
    left_out: list[str]


def read_script(words: list[str], command: click.Command) -> Script | None:
    """The script that a job's command names; None where it names a program.

    Args:
        words: The job's command.
        command: The verb; its options are the ones that directives may give.

    Raises:
        InputError: a directive asks for what there is not, or is not closed.
    """
    try:
        with open(words[0], "rb") as file:
            head = file.read(2)
            if head != b"#!":
                return None
            text = (head + file.read()).decode()
    except (OSError, UnicodeDecodeError):
        return None
    from pathlib import Path  # a program is no script

    path = Path(words[0])
    runs = _by_shell(text, [str(path.absolute()), *words[1:]])
    if runs is None:
        runs = [str(path.absolute()) if os.access(path, os.X_OK) else words[0], *words[1:]]
    return Script(runs, *directives(str(path), text.splitlines(), command))


def piped_script(command: click.Command) -> Script | None:
    """The script that standard input is; None where that is a terminal, or empty.

    Raises:
        InputError: it is no script of a shell, or as of `read_script`.
    """
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not text:
        return None
    runs = _by_shell(text, ["stdin"]) if text.startswith("#!") else None
    if runs is None:
        raise InputError(
            f"standard input: expected a script that begins with #! and a shell, got {text[:20]!r}"
        )
    return Script(runs, *directives("standard input", text.splitlines(), command))


def _by_shell(text: str, words: list[str]) -> list[str] | None:
    """How a script's shell runs its text; None where it is for something else."""
    interpreter = text.split("\n", 1)[0][2:].split()
    shell = next((os.path.basename(word) for word in reversed(interpreter) if not word.startswith("-")), "")
    return [*interpreter, "-c", text, *words] if shell in SHELLS else None


def directives(where: str, lines: list[str], command: click.Command) -> tuple[list[str], list[str]]:
    """Options that the lines of a script give, and those that mean nothing here.

    Raises:
        InputError: a line asks for what there is not, or is not closed.
    """
    import shlex  # a program has no directives

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
                "`rlsched submit --help` lists those that there are"
            )
        arguments += taken.arguments
        left_out += taken.left_out
    return arguments, left_out


class _Taken(NamedTuple):
    """Words that are options: those of a verb, those that mean nothing, and from the first other word on."""

    arguments: list[str]
    left_out: list[str]
    odd: list[str]


def _options(words: list[str], command: click.Command, *, left_out: bool) -> _Taken:
    """Sort options; `left_out`: those that mean nothing here are none that there are not."""
    known = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts)}
    taken = _Taken([], [], list(words))
    while taken.odd:
        name, equals, _ = taken.odd[0].partition("=")
        if not name.startswith("--") and len(name) > 2:
            name, equals = name[:2], "="  # as -N2
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


class BatchCommand(click.Command):
    """A verb whose command may be a job script with directives, also one that comes on standard input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and again with the script's own options before those that were given."""
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
        if left_out:
            what = f"{words[0]}: " if words and script is not None else ""
            click.echo(f"note: {what}means nothing here, and is left out: {', '.join(left_out)}", err=True)
        return rest

    def _takes_stdin(self, ctx: click.Context) -> bool:
        """Whether a script may come on standard input: not where something else says what is run."""
        others = ("wrap", "table", "dry_run")
        return (
            "wrap" in ctx.params
            and not ctx.resilient_parsing
            and not any(ctx.params.get(name) for name in others)
        )
