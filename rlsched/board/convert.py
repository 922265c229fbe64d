"""Turns record files into folders that TensorBoard reads."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rlsched.board.writer import DecisionWriter
from rlsched.decide.record import read_records
from rlsched.errors import InputError

RECORD_SUFFIX = ".msgpack"


def record_files(path: str | Path) -> list[Path]:
    """The record files that a path means: itself, or every `*.msgpack` in it.

    Raises:
        InputError: there is none.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"*{RECORD_SUFFIX}")) if path.is_dir() else []
    if not found:
        raise InputError(
            f"{path}: expected a record file or a folder with *{RECORD_SUFFIX} files, found "
            "neither; `rlsched evaluate --records DIR` writes them"
        )
    return found


def records_to_run(file: Path, folder: Path) -> int:
    """Write the records of one file as the TensorBoard run `folder`; older event files there go.

    Returns:
        The number of decisions.

    Raises:
        InputError: the file holds something else, or the folder cannot be written.
    """
    try:
        records = read_records(file)
    except (msgspec.DecodeError, OSError) as error:
        raise InputError(
            f"{file}: expected decision records, as `rlsched evaluate --records` writes them: {error}"
        ) from error
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with DecisionWriter(folder) as writer:
        for record in records:
            writer.add(record)
    return len(records)


def records_to_events(path: str | Path, logdir: str | Path) -> dict[str, int]:
    """Write `logdir`/NAME for every record file NAME.msgpack of `path`.

    Returns:
        The number of decisions of each NAME.

    Raises:
        InputError: no record file, a file that holds something else, or a folder that cannot be written.
    """
    return {file.stem: records_to_run(file, Path(logdir) / file.stem) for file in record_files(path)}
