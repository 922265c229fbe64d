"""Text that comes from others, made harmless for a terminal."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What moves a cursor, ends a line, or turns the direction of writing."""


def visible(text: str) -> str:
    r"""The text with every control character written out, such as `\x1b`; a line stays one line."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
