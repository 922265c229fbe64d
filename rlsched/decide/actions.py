"""The three actions of a scheduler: `Start`, `Preempt` and `Wait`."""

from __future__ import annotations

import msgspec

from rlsched.errors import AllocationError


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a waiting job on the GPUs listed.

    Attributes:
        seq: Sequence number of the job.
        gpus: Global indices of the GPUs, one per GPU of the job, ascending.
        share_milli: Part of each GPU that the job gets, in thousandths; 1,000: the whole GPU.
        sm_clock_frac: SM clock as a fraction of the maximum.
        node: Node of a job without GPUs; -1 for a job with GPUs, because `gpus` determines its nodes.
        share_with: Sequence number of the running job whose GPUs the started job shares, all of them; -1: the
            started job gets free GPUs.
        cpu_milli_each: CPU cores for each GPU, thousandths of a core; -1: the cores that the job requested.
    """

    seq: int
    gpus: tuple[int, ...]
    share_milli: int = 1000
    sm_clock_frac: float = 1.0
    node: int = -1
    share_with: int = msgspec.field(default=-1, name="beside")
    cpu_milli_each: int = -1


class Preempt(msgspec.Struct, frozen=True, tag="preempt"):
    """Stop a running job in favour of another job, and queue the stopped job again.

    A broker sends the job a stop signal, and queues the job once its processes have exited. `Preempt` is
    illegal for a job that must not be preempted (`job.pinned`), and for a job that started at this instant.

    Attributes:
        seq: Sequence number of the job to stop.
        moved_for: For records and messages: sequence number of the waiting job that gets the GPUs, if the
            stopped job restarts immediately on other GPUs; -1: the stopped job waits in the queue.
    """

    seq: int
    moved_for: int = -1


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Do nothing until the next decision point, or until a given time if that is earlier.

    Attributes:
        until_s: Time, seconds, at which to decide again even if no event occurs; a later *wait* in the same
            partition replaces this time. None: decide only at the next decision point.
    """

    until_s: float | None = None

    def check(self, now_s: float) -> None:
        """Raise an AllocationError if `until_s` is not in the future."""
        if self.until_s is not None and not self.until_s > now_s:
            raise AllocationError(f"expected a wait with until_s after now, {now_s} s; got {self.until_s} s")


Action = Start | Preempt | Wait
