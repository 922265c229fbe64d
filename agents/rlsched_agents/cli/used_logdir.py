"""Checks whether a log folder has files of an earlier training, which can be continued or overwritten."""

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
    "ppo.npz",
)
"""Patterns of the names of files that a training run writes to its log folder."""

Command = TypeVar("Command", bound=Any)


def overwriting(command: Command) -> Command:
    """Add the option `--overwrite` to a command."""
    option = click.option(
        "--overwrite",
        is_flag=True,
        help="Remove the files of an earlier training from --logdir, and start again.",
    )
    made: Command = option(command)
    return made


def check_logdir(logdir: Path, *, resume: bool, overwrite: bool) -> None:
    """Check that a training run can write to the folder.

    Raises:
        InputError: both `resume` and `overwrite` are set, or the folder has files of an earlier training run
            and neither of them is set.
    """
    if resume and overwrite:
        raise InputError(
            "give --resume or --overwrite, not both: --resume continues the training that --overwrite removes"
        )
    left = written_in(logdir)
    if left and not resume and not overwrite:
        raise InputError(
            f"--logdir {logdir}: an earlier training is here ({left[0].relative_to(logdir)}); --resume "
            "continues it, --overwrite removes it and starts again, another --logdir keeps both"
        )


def clear(logdir: Path) -> None:
    """Remove the files of earlier training runs from the folder, and no other files.

    Raises:
        InputError: a file cannot be removed.
    """
    for path in written_in(logdir):
        try:
            path.unlink()
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror}; name another --logdir") from error


def written_in(logdir: Path) -> list[Path]:
    """Return the files of earlier training runs in the folder."""
    return [path for pattern in _WRITTEN for path in sorted(logdir.glob(pattern))]
