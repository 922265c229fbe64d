"""The options that say what is learned from: the same for every verb that trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path)


def learned_from(predictability: str) -> Callable[[Any], Any]:
    """`--trace`, `--cluster`, `--synthetic` and `--predictability`, which is this by default."""
    options = (
        click.option(
            "--trace",
            "traces",
            multiple=True,
            type=FILE,
            metavar="T",
            help="Trace to learn from; may be repeated, each with its --cluster.",
        ),
        click.option(
            "--cluster",
            "clusters",
            multiple=True,
            type=FILE,
            metavar="C",
            help="Cluster (TOML) of each trace; one alone serves all.",
        ),
        click.option(
            "--synthetic",
            multiple=True,
            type=click.Choice(["helios", "philly", "itp"]),
            metavar="LIKE",
            help="Learn from a synthetic trace as well: helios, philly or itp; may be repeated.",
        ),
        click.option(
            "--predictability",
            default=predictability,
            show_default=True,
            metavar="LEVEL",
            help="How well durations of synthetic jobs are predicted (see: rlsched trace synth --help).",
        ),
    )

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def check_given(traces: tuple[Path, ...], clusters: tuple[Path, ...], synthetic: tuple[str, ...]) -> None:
    """Find out whether there is anything to learn from.

    Raises:
        InputError: there is not, or a trace has no cluster.
    """
    from rlsched.errors import InputError

    if not traces and not synthetic:
        raise InputError("expected something to train on: --trace T --cluster C, or --synthetic LIKE")
    if traces and not clusters:
        raise InputError("expected a --cluster for the --trace")


def make_writable(folder: Path) -> None:
    """Make a folder and try it now, because a long run must not end on one that cannot be written.

    Raises:
        InputError: it cannot.
    """
    from tempfile import TemporaryFile

    from rlsched.errors import InputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{folder}: cannot write here: {error.strerror}; name another folder") from error
