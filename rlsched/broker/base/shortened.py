"""Texts cut to what fits a list."""

from __future__ import annotations

MAX_NAME_CHARS = 200
"""Of names of jobs, users, virtual clusters and GPU types in lists."""
MAX_REASON_CHARS = 500


def shortened(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """A text that fits a list; what is left out stands as `...`."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
