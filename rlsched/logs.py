"""Configures the logs of long-running processes: lines of text, or one JSON object per line.

A JSON record is always one line in ASCII. A text record has its message on one line; a traceback follows,
indented. Therefore no text from a job or a user can imitate a log record.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal

import click

from rlsched.compile.compiling import COMPILING
from rlsched.terminal.visible import visible

LogFormat = Literal["text", "json"]
FORMATS: Final = ("text", "json")
FIELDS: Final = ("node", "job", "attempt", "rank", "notice")
"""Optional fields of a JSON record. Their values are passed as `extra=`, or are attributes of an object that
is passed for a placeholder of the message."""
_INDENT: Final = "    "
_ROOT: Final = logging.getLogger("rlsched")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON.

    The fields are `time` (RFC 3339, UTC), `level`, `logger`, `message`, each of `FIELDS` that the record has,
    and `exception` with the whole traceback, if there is one.

    Args:
        fields: Fields that every record of this process has, such as the node.
    """

    def __init__(self, **fields: str) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        arguments = record.args if isinstance(record.args, tuple) else ()
        for field in FIELDS:
            for source in (record, *arguments):
                value = getattr(source, field, None)
                if isinstance(value, int | str):
                    line[field] = value
                    break
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Formats a record as text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, followed by an indented traceback if there is one."""
        traceback = self.formatException(record.exc_info) if record.exc_info else ""
        record.message = visible(record.getMessage())
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        lines = [self.formatMessage(record)]
        return "\n".join([*lines, *(_INDENT + visible(line) for line in traceback.splitlines())])


def set_up(
    form: LogFormat, *, level: int = logging.INFO, timed: bool = True, **fields: str
) -> Callable[[str], None]:
    """Configure logging to standard error, and return a function that prints or logs a line.

    The format `text` leaves an existing logging configuration unchanged; `json` replaces it.

    Args:
        form: Format of the log. With `json`, every line is JSON, even Python's warnings and an uncaught
            exception.
        level: Lowest level in a text log. A JSON log always has the levels from INFO on.
        timed: Whether lines of text begin with the time of day.
        fields: Fields that every JSON record of this process has, such as the node.
    """
    handler = logging.StreamHandler()
    if form == "text":
        handler.setFormatter(TextLines("%(asctime)s %(message)s" if timed else "%(message)s", "%H:%M:%S"))
        logging.basicConfig(level=level, handlers=[handler])
        return click.echo
    handler.setFormatter(JsonLines(**fields))
    COMPILING.told = False  # it prints lines that are not JSON
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(
        args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback
    )
    return _ROOT.info


def is_json() -> bool:
    """Return whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def fail(message: str) -> None:
    """Report the reason why this process exits, as JSON or text on standard error."""
    if is_json():
        _ROOT.critical("%s", message)
    else:
        click.echo(f"error: {visible(message)}", err=True)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _ROOT.critical("uncaught %s", kind.__name__, exc_info=(kind, error, trace))
