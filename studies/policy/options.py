"""Common options of the command lines of tuning and comparing."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlsched.decide.policies.policy import Policy
from rlsched.errors import RlschedError
from rlsched_agents.evaluate.run import distinct


def add_common(parser: argparse.ArgumentParser, *, out: Path) -> None:
    """Add options for folders, number of processes, and time."""
    add_folders(parser, out=out)
    add_trace(parser)
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: one a core"
    )


def add_folders(parser: argparse.ArgumentParser, *, out: Path) -> None:
    """Add options for folders and time."""
    add_traces(parser)
    parser.add_argument("--out", type=Path, default=out, help="folder of the results, one file each")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="start nothing after this time, s")


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Add the option for the input folder."""
    data = Path(os.environ.get("RLSCHED_DATA", "../shared"))
    parser.add_argument("--traces", type=Path, default=data / "traces", help="folder of traces and clusters")


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the option for traces."""
    parser.add_argument("--trace", action="append", metavar="NAME[/VC]", help="default: all four")


class _Said(argparse.Action):
    """Action that collects `--policy` and `--set` in order: a list of [text of a policy, changes of it]."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Begin a policy, or change the last one."""
        said: list[tuple[str, list[str]]] = [*(getattr(namespace, self.dest) or [])]
        if option_string == "--set":
            if not said:
                parser.error(f"--set {values}: expected a --policy before it")
            text, changes = said.pop()
            said.append((text, [*changes, str(values)]))
        else:
            said.append((str(values), []))
        setattr(namespace, self.dest, said)


def add_policy(parser: argparse.ArgumentParser, *, default: str, required: bool = False) -> None:
    """Add the options for policies (`policies_of`); `default`: description of the default policies."""
    parser.add_argument(
        "--policy",
        action=_Said,
        metavar="NAME|PATH",
        required=required,
        help="a preset, the folder of a trained policy, sb3:PATH, or a TOML or Python file; may be repeated; "
        f"default: {default}",
    )
    parser.add_argument(
        "--set",
        action=_Said,
        dest="policy",
        metavar="KEY=VALUE",
        help="change a setting of the policy before it, such as preempt.spread=2.5; may be repeated",
    )


def policies_of(arguments: argparse.Namespace) -> list[Policy]:
    """The policies of a command line, each once; a changed one is named by its content.

    Raises:
        UnknownPolicyError: There is no such policy.
        InputError: A file or a setting is wrong.
    """
    found = []
    for text, changes in arguments.policy or ():
        policy = Policy.of(text)
        found.append(policy.changed(changes).named(" ".join([policy.name, *changes])))
    return distinct(found)


def reported(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Call `run`, and return its exit code.

    An error that rlsched raises on purpose is printed in one line, and its own exit code is returned.
    """
    try:
        return run(arguments)
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
