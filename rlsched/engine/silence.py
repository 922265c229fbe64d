"""Detects that no broker sends messages, and then returns held jobs to Slurm's own scheduling."""

from __future__ import annotations

import logging

from rlsched.engine.desk import Desk
from rlsched.engine.facts import Facts
from rlsched.engine.orders import RELEASED, is_held_for_us, is_ordered

_log = logging.getLogger("rlsched.engine")


class Silence:
    """Detects that no broker sends messages. `rlsched.engine.fallback` covers a gateway that is down.

    Args:
        desk: State that the parts of the gateway share.

    Attributes:
        has_released: Whether held jobs were released because no broker decides.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.has_released = False
        self._decided_s: float | None = None

    def note_message(self, now_s: float) -> None:
        """Record the time of a message from the broker."""
        self._decided_s = now_s

    @property
    def decided_s(self) -> float:
        """Time of the broker's last message, Unix seconds.

        Before the first message: time of the first call of `is_deciding`; before that call: 0.
        """
        return self._decided_s or 0.0

    def is_deciding(self, now_s: float) -> bool:
        """Return whether a broker has sent a message recently."""
        if self._decided_s is None:
            self._decided_s = now_s
        return now_s - self._decided_s < self._desk.times.release_after_s

    def release_if_silent(self, facts: Facts) -> None:
        """Release held jobs to Slurm's own scheduling if no broker has sent a message recently."""
        if self.is_deciding(facts.now_s):
            return
        if not self.has_released:
            after_s = self._desk.times.release_after_s
            _log.warning(
                "no message from a broker for %g s: releasing the held jobs to Slurm's own scheduling",
                after_s,
            )
        self.has_released = True
        running = {one.key for one in self._desk.attempts.values() if one.has_run and one.end is None}
        for job in facts.jobs.values():
            if is_ordered(job, self._desk.partitions):
                self._desk.writer.order(job.key, job.mark("v"), {})
            if is_held_for_us(job, self._desk.partitions) and job.key not in running:
                self._desk.leave(job, RELEASED)

    def look_up(self, facts: Facts) -> None:
        """Clear `has_released` if a broker decides again, so that new jobs are held."""
        if self.has_released and self.is_deciding(facts.now_s):
            self.has_released = False
            _log.info("a broker decides again: new jobs are held")
