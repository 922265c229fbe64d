"""What the command lines of tuning and comparing have in common."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from rlsched.errors import RlschedError


def add_common(parser: argparse.ArgumentParser, *, out: Path) -> None:
    """Where to read and write, how much at once, and for how long."""
    add_folders(parser, out=out)
    add_trace(parser)
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes; default: one a core"
    )


def add_folders(parser: argparse.ArgumentParser, *, out: Path) -> None:
    """Where to read and write, and for how long."""
    add_traces(parser)
    parser.add_argument("--out", type=Path, default=out, help="folder of the results, one file each")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="start nothing after this long")


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Where to read."""
    data = Path(os.environ.get("RLSCHED_DATA", "../shared"))
    parser.add_argument("--traces", type=Path, default=data / "traces", help="folder of traces and clusters")


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Which traces."""
    parser.add_argument("--trace", action="append", metavar="NAME[/VC]", help="default: all four")


def reported(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run; an error that rlsched raises on purpose is one line, and its exit code."""
    try:
        return run(arguments)
    except RlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
