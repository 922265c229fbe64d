"""Parses the tasks of an array as users write them, such as `0-99%8`."""

from __future__ import annotations

import re
from typing import Final

from rlsched.errors import InputError
from rlsched.wire.messages import Tasks

_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_WHOLE: Final = re.compile(r"([\d,:-]+)(?:%(\d{1,9}))?")


def tasks_of(text: str) -> tuple[list[Tasks], int]:
    """Parse `0-99%8`, `1,3,7` or `0-20:5`. Return the tasks, and the maximum number that can run at once.

    The maximum is 0 if the text contains no limit.

    Raises:
        InputError: the text has another form.
    """
    whole = _WHOLE.fullmatch(text)
    found = _ranges(whole[1]) if whole else None
    if whole is None or found is None or whole[2] == "0":
        raise InputError(f"--array {text!r}: expected 0-99, 1,3,7 or 0-20:5, and %8 for at most 8 at once")
    return found, int(whole[2] or 0)


def ranges_of(text: str) -> list[Tasks]:
    """Parse `5-9`, `1,3,7` or `0-20:5` into tasks; an empty text gives no tasks.

    Raises:
        InputError: the text has another form.
    """
    found = _ranges(text) if text else []
    if found is None:
        raise InputError(f"{text!r}: expected tasks of an array, such as 3, 5-9 or 1,3,7")
    return found


def _ranges(text: str) -> list[Tasks] | None:
    parts = [_PART.fullmatch(part) for part in text.split(",")]
    found = [Tasks(int(part[1]), int(part[2] or part[1]), int(part[3] or 1)) for part in parts if part]
    is_odd = len(found) < len(parts) or any(one.first > one.last or one.step < 1 for one in found)
    return None if is_odd else found
