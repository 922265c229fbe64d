"""Stores the highest epoch of each cluster, as received by the clients of a key directory.

Each start of a cluster's broker begins a higher epoch. Clients recognise an outdated broker by its epoch.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

EPOCHS_FILE = "epochs.json"
MOST = 64
"""Maximum number of clusters in `EPOCHS_FILE`. The clusters whose epochs changed last are kept."""


class Epochs:
    """Epochs that the clients of a key directory have received.

    The epochs are stored in the directory, or in memory if the directory is not writable.

    Args:
        directory: The key directory.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._path = os.path.join(directory, EPOCHS_FILE)
        self._met: dict[str, int] = {}

    def highest(self, cluster: str, epoch: int) -> int:
        """Record an epoch of a cluster, and return the highest recorded epoch of that cluster."""
        known = self._read()
        highest = max(epoch, known.get(cluster, 0), self._met.get(cluster, 0))
        self._met[cluster] = highest
        if known.get(cluster) != highest:
            known.pop(cluster, None)
            known[cluster] = highest
            self._write(dict(list(known.items())[-MOST:]))
        return highest

    def _read(self) -> dict[str, int]:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, known: dict[str, int]) -> None:
        draft = f"{self._path}.{os.getpid()}"
        with suppress(OSError):
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(known) + b"\n")
            os.replace(draft, self._path)
