"""A folder that an earlier training has written to: refused, gone on with, or cleared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

import click

from rlsched.errors import InputError

_WRITTEN: Final = (
    "events.out.tfevents.*",
    "training.json",
    "last.toml",
    "last.json",
    "checkpoints/*.zip",
    "seed-*/policy.zip",
    "seed-*/events.out.tfevents.*",
    "seed-*/checkpoints/*.zip",
)
"""What trainings leave there."""

Command = TypeVar("Command", bound=Any)


def overwriting(command: Command) -> Command:
    """The option `--overwrite`."""
    option = click.option(
        "--overwrite", is_flag=True, help="Remove what an earlier training left in --logdir, and begin anew."
    )
    made: Command = option(command)
    return made


def check_logdir(logdir: Path, *, resume: bool, overwrite: bool) -> None:
    """Find out whether a training may write there.

    Raises:
        InputError: an earlier one has, and nobody says what is to become of it.
    """
    if resume and overwrite:
        raise InputError("give --resume or --overwrite, not both: one goes on with what the other removes")
    left = written_in(logdir)
    if left and not resume and not overwrite:
        raise InputError(
            f"--logdir {logdir}: an earlier training is here ({left[0].relative_to(logdir)}); --resume goes "
            "on with it, --overwrite removes it and begins anew, and another --logdir keeps both"
        )


def clear(logdir: Path) -> None:
    """Remove what trainings have left there, and nothing else.

    Raises:
        InputError: it cannot be removed.
    """
    for path in written_in(logdir):
        try:
            path.unlink()
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror}; name another --logdir") from error


def written_in(logdir: Path) -> list[Path]:
    """What trainings have left there."""
    return [path for pattern in _WRITTEN for path in sorted(logdir.glob(pattern))]
