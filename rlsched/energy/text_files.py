"""Reads and writes the text of CSV files, with gzip if the name ends in `.gz`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from rlsched.errors import InputError
from rlsched.files.atomic import replace_file


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file without its byte order mark. Line ends are unchanged.

    Raises:
        InputError: the file cannot be read, is damaged, or is not text.
    """
    try:
        data = Path(path).read_bytes()
        return (gzip.decompress(data) if Path(path).suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: expected UTF-8 text (CSV), got other bytes") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path}: expected a gzip file, and it is damaged: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read this series: {error.strerror or error}") from None


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file atomically. Equal texts give equal bytes, also with gzip.

    Raises:
        InputError: the file cannot be written.
    """
    target, data = Path(path), text.encode("utf-8")
    if target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=6, mtime=0)
    try:
        replace_file(target, data)
    except OSError as error:
        raise InputError(f"{path}: cannot write this series: {error.strerror or error}") from None
