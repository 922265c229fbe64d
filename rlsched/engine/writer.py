"""Writes to Slurm. Only a `Writer` writes to Slurm; a shadow has no `Writer`.

The marks of a job are the key-value pairs that rlsched stores in the job's AdminComment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlsched.engine.facts import SlurmError, comment_of
from rlsched.engine.reader import run

_log = logging.getLogger("rlsched.engine")


CANCEL = "cancel "
"""Prefix of a line whose job `_tell_slurm` cancels with `scancel`."""
RELEASE = "release "
SIGNAL = "signal "
"""Prefix of a line with a signal and the key of the job to which `scancel` sends the signal."""


def _tell_slurm(lines: Sequence[str]) -> None:
    """Send lines to Slurm: `scontrol` for changes, `scontrol` for releases, and `scancel`.

    If a job could not be changed, it is not released, because it would start without its GPUs. It gets no
    signal either, because the change records the signal.
    """
    cancelled = [line.removeprefix(CANCEL) for line in lines if line.startswith(CANCEL)]
    released = [line for line in lines if line.startswith(RELEASE)]
    signalled = [line.removeprefix(SIGNAL).split() for line in lines if line.startswith(SIGNAL)]
    changed = [line for line in lines if not line.startswith((CANCEL, RELEASE, SIGNAL))]
    failed: set[str] = set()
    try:
        _scontrol(changed)
    except SlurmError:
        failed = {line.split()[1].removeprefix("JobId=") for line in changed if not _is_obeyed(line)}
    try:
        _scontrol([line for line in released if line.removeprefix(RELEASE) not in failed])
    finally:
        _signal([(signal, key) for signal, key in signalled if key not in failed])
        if cancelled:
            run(("scancel", *cancelled))


def _signal(signalled: Sequence[tuple[str, str]]) -> None:
    """Send signals to jobs: to all steps or, after the prefix `B:`, only to the batch shell.

    slurmctld sends them (`--ctld`), as it does before a time limit.
    """
    for signal in dict.fromkeys(signal for signal, _ in signalled):
        to = ("--batch",) if signal.startswith("B:") else ()
        keys = [key for other, key in signalled if other == signal]
        try:
            run(("scancel", "--ctld", *to, f"--signal={signal.removeprefix('B:')}", *keys))
        except SlurmError as error:
            _log.info("a signal was not sent, and is not repeated: %s", error)


def _is_obeyed(line: str) -> bool:
    try:
        _scontrol([line])
    except SlurmError as error:
        _log.info(
            "Slurm rejected a write; it is repeated if the next query shows that it is missing: %s: %s",
            line.partition(" Admin")[0],
            error,
        )
        return False
    return True


def _scontrol(lines: Sequence[str]) -> None:
    if lines:
        run(("scontrol", "-Q"), "".join(f"{line}\n" for line in lines).encode())


class Writer:
    """Collects writes; `flush` sends all of them together.

    A write can be lost. The caller then repeats the write, which is always safe.

    Args:
        send: Function that sends lines to Slurm, in order.
    """

    def __init__(self, send: Callable[[Sequence[str]], object] = _tell_slurm) -> None:
        self._send = send
        self._lines: list[str] = []
        self._keys: set[str] = set()
        self._collects = False

    def place(
        self,
        key: str,
        marks: dict[str, str],
        nodes: Sequence[str],
        gres: str,
        *,
        freq: str = "",
        again: bool,
    ) -> None:
        """Set the nodes and the `TresPerNode` of a held job, and release the job.

        Marks and placement are written in one RPC, before the release. After a crash between the two, the
        job is still held.

        Args:
            key: Slurm's ID of the job.
            marks: New marks for the job's AdminComment.
            nodes: All nodes of the job.
            gres: GPUs on each node; "": the job's request is unchanged.
            freq: SM clock of the GPUs in the form of `--gpu-freq`; "": unchanged.
            again: Whether the job was requeued. The start time is then reset, because Slurm would delay a
                requeued job for two minutes.
        """
        count = f"NumNodes={len(nodes)}-{len(nodes)}"
        said = f"AdminComment={comment_of(marks)} {count} ReqNodeList={','.join(nodes)}"
        said += f" TresPerNode={gres}" if gres else ""
        said += f" TresFreq=gpu:{freq}" if freq else ""
        said += " StartTime=now" if again else ""
        self._write(key, f"update JobId={key} {said}", f"{RELEASE}{key}")

    def clear(self, key: str) -> None:
        """Remove the GPU request of a held job, before `place` sets its GPUs.

        If the request remained, Slurm would give the job the requested GPUs and the GPUs of `place`. This
        write also holds the job, because an earlier release can reach Slurm late.
        """
        self._write(key, f"update JobId={key} Priority=0 TresPerNode=")

    def hold(self, key: str) -> None:
        """Hold a waiting job."""
        self._write(key, f"hold {key}")

    def take_back(self, key: str, marks: dict[str, str]) -> None:
        """Hold a job that waits in Slurm's own queue, and set its marks, in one write."""
        self._write(key, f"update JobId={key} Priority=0 AdminComment={comment_of(marks)}")

    def mark(self, key: str, marks: dict[str, str]) -> None:
        """Set the marks in a job's AdminComment."""
        self._write(key, f"update JobId={key} AdminComment={comment_of(marks)}")

    def order(self, key: str, nice: int, marks: dict[str, str] | None = None) -> None:
        """Set the nice of a job that is not held. This moves the job in Slurm's own queue.

        Args:
            key: Slurm's ID of the job.
            nice: The job's nice; a higher nice means a later start.
            marks: New marks for the job's AdminComment; None: unchanged; empty: remove the comment.
        """
        comment = "" if marks is None else f" AdminComment={comment_of(marks) if marks else ''}"
        self._write(key, f"update JobId={key} Nice={nice}{comment}")

    def requeue(self, key: str) -> None:
        """Stop a running job, requeue it, and hold it. A job that has ended meanwhile is not changed."""
        self._write(key, f"requeuehold Incomplete {key}")

    def requeue_ended(self, key: str) -> None:
        """Requeue a job that has ended, and hold it."""
        self._write(key, f"requeuehold {key}")

    def signal(self, key: str, signal: str, marks: dict[str, str]) -> None:
        """Set the marks of a running job, and then send it a signal.

        Args:
            key: Slurm's ID of the job.
            signal: Name or number of the signal, in the form of `sbatch --signal`: `B:` before it selects
                the batch shell instead of the steps.
            marks: New marks for the job's AdminComment, which record the signal.
        """
        self._write(key, f"update JobId={key} AdminComment={comment_of(marks)}", f"{SIGNAL}{signal} {key}")

    def cancel(self, key: str) -> None:
        """Cancel a job, which is then not requeued."""
        self._write(key, f"{CANCEL}{key}")

    def leave(self, key: str, marks: dict[str, str], gres: str, *, freq: str = "", again: bool) -> None:
        """Restore the GPU request that a held job had at its submission, and set the job's marks.

        The job stays held. The caller releases it with `release` when a query of Slurm shows the new marks.

        Args:
            key: Slurm's ID of the job.
            marks: New marks for the job's AdminComment.
            gres: Submitted GPU request for each node; "": the present request is unchanged.
            freq: SM clock of the GPUs in the form of `--gpu-freq`; "": unchanged.
            again: Whether the job was requeued. The start time is then reset, as in `place`.
        """
        said = f"AdminComment={comment_of(marks)} ReqNodeList=" + (f" TresPerNode={gres}" if gres else "")
        said += f" TresFreq=gpu:{freq}" if freq else ""
        self._write(key, f"update JobId={key} {said}{' StartTime=now' if again else ''}")

    def release(self, key: str) -> None:
        """Release a held job to Slurm's own scheduling."""
        self._write(key, f"{RELEASE}{key}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Collect the writes of the `with` block, and send them together at its end.

        If a job gets a second write, the writes collected so far are sent first.
        """
        self._collects = True
        try:
            yield
        finally:
            self._collects = False
            self.flush()

    def flush(self) -> None:
        """Send the collected writes. The next query of Slurm shows whether a write has failed."""
        if not self._collects:
            self._flush()

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._keys.clear()
        if not lines:
            return
        try:
            self._send(lines)
        except SlurmError as error:
            _log.info(
                "a write to Slurm failed; it is repeated if the next query shows that it is missing: %s",
                error,
            )

    def _write(self, key: str, *lines: str) -> None:
        if self._collects and key in self._keys:
            self._flush()
        self._keys.add(key)
        self._lines += lines
