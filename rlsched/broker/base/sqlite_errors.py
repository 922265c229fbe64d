"""Errors of SQLite, each as one clear line with advice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlsched.broker.base.rows import MEND
from rlsched.errors import JournalError, JournalFullError


@contextmanager
def clearly(path: Path) -> Iterator[None]:
    """Convert errors of SQLite, and invalid UTF-8 in the file, to a `JournalError` with one line of text."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise clear_error(path, error) from error


def clear_error(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> JournalError:
    """Return a `JournalError` for an error of SQLite, with advice in its text."""
    text = " ".join(str(error).split())  # the error may quote a damaged schema
    if "full" in text:
        advice = "free space, then start the broker again: acknowledged requests are kept, jobs run on"
        return JournalFullError(f"{path}: journal: {text}; {advice}")
    if "locked" in text or "busy" in text:
        advice = "another program writes to the journal; close that program, then start the broker again"
    elif "disk I/O" in text or "unable to open" in text or "readonly" in text:
        advice = "check the disk and its permissions"
    else:
        advice = MEND
    return JournalError(f"{path}: journal: {text}; {advice}")
