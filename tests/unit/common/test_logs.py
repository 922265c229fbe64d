"""Logs: a record is one line for any content, as text or as JSON, and names its job, node or user."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from rlsched.logs import JsonLines, TextLines

EVIL = 'x\n{"level": "critical"}\r\x1b[2J\u2028\x85"\\ \udcff caf\u00e9'


class Key(NamedTuple):
    job: int
    attempt: int
    rank: int
    cluster: str


def record(
    message: str, *args: object, extra: dict[str, object] | None = None, **more: Any
) -> logging.LogRecord:
    return logging.getLogger("rlsched.test").makeRecord(
        "rlsched.test", logging.WARNING, __file__, 1, message, args, more.get("exc_info"), extra=extra
    )


def failed(text: str) -> Any:
    try:
        raise ValueError(text)
    except ValueError as error:
        return (type(error), error, error.__traceback__)


def test_json_has_time_level_logger_and_message() -> None:
    line = json.loads(JsonLines(node="n0").format(record("attempt %s of %d", "a", 3)))
    assert {key: line[key] for key in ("level", "logger", "message", "node")} == {
        "level": "warning", "logger": "rlsched.test", "message": "attempt a of 3", "node": "n0",
    }  # fmt: skip
    assert line["time"].endswith("Z")
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert "exception" not in line


@pytest.mark.parametrize("fields", [{}, {"node": EVIL}])
def test_no_text_ends_a_line_of_json(fields: dict[str, str]) -> None:
    text = JsonLines(**fields).format(record("%s", EVIL, exc_info=failed(EVIL), extra={"notice": EVIL}))
    assert text.isascii()
    assert text.isprintable()
    line = json.loads(text)
    assert line["message"] == line["notice"] == EVIL
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith(f"ValueError: {EVIL}")


def test_no_text_looks_like_a_separate_line() -> None:
    text = TextLines("%(message)s").format(
        record("set aside: %s", EVIL, exc_info=failed("y\nbroker: all is well"))
    )
    first, *rest = text.split("\n")
    assert first.startswith("set aside: x\\n{")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert not any(mark in text for mark in "\r\x1b\u2028\x85")


def test_context_of_a_record_is_found_in_its_arguments() -> None:
    line = json.loads(JsonLines().format(record("attempt %s cannot be started", Key(7, 2, 1, "c"))))
    assert (line["job"], line["attempt"], line["rank"]) == (7, 2, 1)
    line = json.loads(JsonLines().format(record("%s", "n1", extra={"node": "n1", "job": 4})))
    assert (line["node"], line["job"]) == ("n1", 4)
    assert "rank" not in line
