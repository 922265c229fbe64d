"""Patterns for the names and keys in an access list."""

from __future__ import annotations

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
"""Pattern of a key's name, which is part of a file's name."""
Z85_LENGTH = 40
"""Number of characters of a public or a secret key."""
MAX_PERSON_CHARACTERS = 64
