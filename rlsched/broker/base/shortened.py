"""Shortens texts so that they fit the rows of a list."""

from __future__ import annotations

MAX_NAME_CHARS = 200
"""Maximum length of names of jobs, users, virtual clusters and GPU types in lists."""
MAX_REASON_CHARS = 500


def shortened(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return the text, shortened to `max_chars` characters, with `...` in place of the omitted end."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
