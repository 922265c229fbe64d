"""A file in a broker's directory, which records that a later broker serves the cluster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rlsched.errors import SupersededError
from rlsched.files.private import touch_private

SUPERSEDED_FILE = "superseded"


class Superseded:
    """The file in a broker's directory that records the highest epoch of a later broker of the cluster."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SUPERSEDED_FILE

    def check(self, epoch: int) -> None:
        """Check that the file records no higher epoch than `epoch` (the journal's), and remove the file.

        Raises:
            SupersededError: the file records a higher epoch, and is not removed.
        """
        later = self.epoch()
        if later > epoch:
            raise SupersededError(self._line(later, "as recorded here"))
        self._path.unlink(missing_ok=True)  # the journal already has the recorded epoch or a higher one

    def stop_for(self, epoch: int, how: str) -> None:
        """Record the epoch of a later broker, and raise an error. Do nothing if `epoch` is 0.

        `how`: how the later broker became known, for the error message.

        Raises:
            SupersededError: the epoch is above 0.
        """
        if epoch:
            with suppress(OSError):  # if the disk is full: a later message causes another attempt
                touch_private(self._path)
                self._path.write_text(f"{epoch}\n", encoding="ascii")
            raise SupersededError(self._line(epoch, how))

    def epoch(self) -> int:
        """Return the recorded epoch; 0 if no epoch is recorded."""
        try:
            return int(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _line(self, epoch: int, how: str) -> str:
        return (
            f"a later broker of this cluster serves, at epoch {epoch} ({how}); this broker stops, its "
            f"journal in {self._path.parent} is kept. Start it as a standby with `--standby --of ADDRESS`; "
            f"if the later broker is lost, use `rlsched journal restore`. {self._path} records the epoch"
        )
