"""What a scheduler may do: a closed union."""

from __future__ import annotations

import msgspec

from rlsched.errors import AllocationError


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a waiting job on exact GPUs.

    Attributes:
        seq: The job's sequence number.
        gpus: Global GPU numbers, one entry a GPU of the gang, ascending.
        share_milli: Share of each GPU, 1,000 = the whole of it.
        sm_clock_frac: SM clock as a fraction of the maximum.
        node: Node of a job without GPUs, -1 where the GPUs say it.
        share_with: Number of the running job that it shares all of these GPUs with, -1: nobody has them.
        cpu_milli_each: CPU cores with each GPU, thousandths; -1: those that it asked for.
    """

    seq: int
    gpus: tuple[int, ...]
    share_milli: int = 1000
    sm_clock_frac: float = 1.0
    node: int = -1
    share_with: int = msgspec.field(default=-1, name="beside")
    cpu_milli_each: int = -1


class Preempt(msgspec.Struct, frozen=True, tag="preempt"):
    """Stop a running job for another one's sake, and queue it again.

    In a broker it is told to end, and waits again when its processes are gone; whoever is started on its GPUs
    begins then. Not legal for a job that must not be preempted (`job.pinned`), nor for one that started at
    this instant.

    Attributes:
        seq: The job's sequence number.
        moved_for: Number of the waiting job that it makes room for, where it is moved: that job starts next,
            and this one before all others, on GPUs that are free elsewhere (`rules.migration`). -1: it gives
            way, and waits its turn.
    """

    seq: int
    moved_for: int = -1


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Do nothing: until the next decision point, or until a time if that comes first.

    Attributes:
        until_s: Ask again at this time, even if nothing has happened by then; a later *wait* of the same
            partition replaces it. None: ask at the next decision point.
    """

    until_s: float | None = None

    def check(self, now_s: float) -> None:
        """Raise an AllocationError if the time to ask again at is not still to come."""
        if self.until_s is not None and not self.until_s > now_s:
            raise AllocationError(f"a wait has to end after now, {now_s} s; got {self.until_s} s")


Action = Start | Preempt | Wait
