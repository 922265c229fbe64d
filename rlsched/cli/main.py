"""The command `rlsched`: finds its verbs (subcommands) by entry points, and prints errors as one line."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import click

import rlsched
from rlsched.cli.points import loaded, own_point, points
from rlsched.cli.verbs import ELSEWHERE, SECTIONS, SUMMARIES, extra_for
from rlsched.compile.compiling import COMPILING
from rlsched.errors import InputError, RlschedError, nearest

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EPILOG = """\b
Example:
  rlsched trace synth --like helios --jobs 2000 --load 0.9 --gpus 64 --seed 1 -o t.csv.gz --cluster-out c.toml
  rlsched evaluate --trace t.csv.gz --cluster c.toml --policy fifo --policy qssf-backfill --policy tuned
  rlsched up --nodes 2 --gpus 4
"""


class VerbGroup(click.Group):
    """The click group of all verbs (entry points `rlsched.commands`). A verb is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return rlsched's verbs in the order of the help page, then the verbs of other packages by name."""
        installed = points()
        return [verb for verb in SUMMARIES if verb in installed] + sorted(set(installed) - set(SUMMARIES))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a verb and return its command; None: there is no such verb.

        Raises:
            RlschedError: the verb needs an extra that is not installed, or its entry point names a module or
                object that is missing.
        """
        own = own_point(cmd_name)
        point = None if own else points().get(cmd_name)
        if not own and point is None:
            return None
        try:
            command = loaded(own) if point is None else point.load()
        except ModuleNotFoundError as error:
            raise _missing(error, cmd_name) from error
        except AttributeError as error:
            raise RlschedError(f"verb {cmd_name!r} is not part of this installation: {error}") from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb. For an unknown word, the error suggests the verb with a similar name or purpose."""
        wanted = bool(args) and not args[0].startswith("-") and not ctx.resilient_parsing
        if not wanted:
            return super().resolve_command(ctx, args)
        command = self.get_command(ctx, args[0])
        if command is None:
            known = self.list_commands(ctx)
            here = ELSEWHERE.get(args[0])
            hint = f"it is `rlsched {here}` here; " if here else nearest(args[0], known)
            raise click.UsageError(f"no verb {args[0]!r}; {hint}`rlsched --help` lists all verbs", ctx)
        return args[0], command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs by section. The verbs are not imported."""
        installed = self.list_commands(ctx)
        for section, verbs in SECTIONS.items():
            rows = [(verb, line) for verb, line in verbs.items() if verb in installed]
            if rows:
                with formatter.section(section):
                    formatter.write_dl(rows)
        others = [verb for verb in installed if verb not in SUMMARIES]
        if others:
            with formatter.section("From other packages"):
                formatter.write_dl([(verb, points()[verb].value) for verb in others])


@click.group(
    cls=VerbGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(rlsched.__version__, prog_name="rlsched", message="%(prog)s %(version)s")
def cli() -> None:
    """Schedule jobs on GPU clusters: simulate, train and compare policies, and run real clusters."""


def main() -> None:
    """Entry point of the command `rlsched`."""
    COMPILING.told = COMPILING.by_verb = True
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; without this, Python prints another error at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or EXIT_FAILED
    gc.freeze()  # without this, the garbage collector scans the compiled kernels at exit, for 0.3 s
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Only this function prints errors.

    A verb returns its exit code, or None for 0. It can also call `ctx.exit(code)`.
    """
    try:
        result = cli.main(args=list(args), prog_name="rlsched", standalone_mode=False)
    except RlschedError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            error.show()
            return EXIT_USAGE
        from rlsched.cli.shared.bad_values import message_of

        command = error.ctx.command_path if error.ctx else "rlsched"
        return _fail(f"{message_of(error)} (see: {command} --help)", EXIT_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        failure = _missing(error, args[0] if args else "")
        if extra_for(error.name or "", "") is None:
            raise
        return _fail(str(failure), failure.exit_code)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    from rlsched.logs import fail  # imports logging, which most verbs do not need

    fail(" ".join(message.split()))
    return code


def _missing(error: ModuleNotFoundError, verb: str) -> RlschedError:
    """Return the error for a verb that needs a missing module."""
    module = error.name or ""
    extra = extra_for(module, verb)
    if extra:
        from rlsched.installing import install_command

        return InputError(f"{verb} needs {module}, which is not installed; run: {install_command(extra)}")
    return RlschedError(f"verb {verb!r} is not part of this installation: no module named {module!r}")


if __name__ == "__main__":
    main()
