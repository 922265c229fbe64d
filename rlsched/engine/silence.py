"""Whether somebody decides; where nobody does for too long, what is held goes to Slurm's own order."""

from __future__ import annotations

import logging

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts
from rlsched.engine.orders import is_held_for_us, is_ordered

_log = logging.getLogger("rlsched.engine")


class Silence:
    """Listens whether a broker is there (see `fallback` for when no gateway is).

    Args:
        desk: The gateway's.

    Attributes:
        has_released: Nobody decided for too long: new jobs are not to be held.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.has_released = False
        self._decided_s: float | None = None

    def heard(self, now_s: float) -> None:
        """The broker has said something."""
        self._decided_s = now_s

    @property
    def decided_s(self) -> float:
        """When the broker was heard of last, Unix seconds; before it was, when this began to listen."""
        return self._decided_s or 0.0

    def is_deciding(self, now_s: float) -> bool:
        """Whether somebody has lately been heard of who decides."""
        if self._decided_s is None:
            self._decided_s = now_s
        return now_s - self._decided_s < self._desk.times.release_after_s

    def look(self, facts: Facts) -> None:
        """Release what is held where nobody decides."""
        if self.is_deciding(facts.now_s):
            return
        if not self.has_released:
            after_s = self._desk.times.release_after_s
            _log.warning("no broker for %g s: held jobs go to Slurm's own order", after_s)
        self.has_released = True
        running = {one.key for one in self._desk.attempts.values() if one.has_run and one.end is None}
        for job in facts.jobs.values():
            if is_ordered(job, self._desk.partitions):
                self._desk.writer.order(job.key, job.mark("v"), {})
            if is_held_for_us(job, self._desk.partitions) and job.key not in running:
                self._desk.leave(job, "released")

    def look_up(self, facts: Facts) -> None:
        """Take new jobs again where somebody decides again."""
        if self.has_released and self.is_deciding(facts.now_s):
            self.has_released = False
            _log.info("a broker decides again: new jobs are held")
