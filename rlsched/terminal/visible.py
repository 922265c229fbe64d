"""Makes text from users, jobs and nodes safe to print on a terminal."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, end a line, or change the writing direction."""


def visible(text: str) -> str:
    r"""Escape each control character of a text, such as `\x1b`. The result is one line."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
