"""What the names and keys of an access list may be."""

from __future__ import annotations

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
"""Name of a key, a pattern. It is part of a file's name."""
Z85_LENGTH = 40
"""Characters of a public or a secret key."""
MAX_PERSON_CHARACTERS = 64
