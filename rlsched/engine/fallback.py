"""Fallback if no broker decides: returns held jobs to Slurm's own scheduling.

- The gateway writes the time of the broker's last message to a file. If that time is too long ago,
  job_submit.lua holds no new job.
- The gateway releases held jobs if it receives no message from a broker for `--release-after`.
- If the gateway is down too, the command `rlsched engine slurm --release`, run from cron or a timer, releases
  the held jobs.
"""

from __future__ import annotations

import os
import time
from importlib.resources import files
from pathlib import Path

from rlsched.engine.orders import (
    RELEASED,
    asked_gres,
    is_held_for_us,
    is_left,
    is_ordered,
    lacks_gpus,
    marks_of_left,
)
from rlsched.engine.reader import Reader
from rlsched.engine.writer import Writer
from rlsched.errors import InputError

ALIVE_FILE, OVER_FILE = "alive", "removed"
TRIES, APART_S = 10, 1.0
_BATCH = 500


class Alive:
    """The file with the time of the broker's last message.

    Args:
        directory: The gateway's directory.

    Raises:
        InputError: the directory cannot be created.
    """

    def __init__(self, directory: Path) -> None:
        self.path, self._over = directory / ALIVE_FILE, directory / OVER_FILE
        self._said_s = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{directory}: cannot create the gateway's directory: {error.strerror}"
            ) from error

    def write_time(self, now_s: float) -> None:
        """Write the time of the broker's last message to the file, atomically, at most once a second."""
        if int(now_s) == self._said_s:
            return
        self._said_s = int(now_s)
        draft = self.path.with_name(ALIVE_FILE + ".new")
        draft.write_text(f"{int(now_s)}\n", encoding="ascii")
        draft.chmod(0o644)
        draft.replace(self.path)

    def begin(self) -> None:
        """Record the start of a gateway. This reverses an earlier `mark_removed`."""
        self._over.unlink(missing_ok=True)

    def mark_removed(self) -> None:
        """Record that rlsched is removed: from now on no new job is held, and a running gateway exits."""
        self._over.touch()
        self.path.unlink(missing_ok=True)
        self._said_s = 0

    @property
    def is_over(self) -> bool:
        """Return whether rlsched was removed."""
        return self._over.exists()

    def age_s(self, now_s: float) -> float:
        """Return the time since the broker's last message, seconds."""
        try:
            return now_s - float(self.path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return float("inf")


def plugin(
    partitions: tuple[str, ...], directory: Path, release_after_s: float, uid: int, *, exact: bool
) -> str:
    """Return the text of job_submit.lua with the settings of one Slurm cluster."""
    text = files("rlsched.engine").joinpath("job_submit.lua").read_text(encoding="utf-8")
    said = {
        "PARTITIONS": ", ".join(f'["{name}"] = true' for name in partitions),
        "UID": str(uid),
        "ALIVE": str(directory.absolute() / ALIVE_FILE),
        "RELEASE_AFTER_S": f"{release_after_s:g}",
        "EXACT": "true" if exact else "false",
    }
    for name, value in said.items():
        text = text.replace(f"@{name}@", value)
    return text


def release(reader: Reader, writer: Writer, wait_s: float = APART_S, *, why: str = RELEASED) -> int:
    """Give all jobs that the broker controls back to Slurm's own scheduling. Return how many.

    The broker controls the held jobs, and the jobs in Slurm's queue with a nice of the broker (`is_ordered`).

    Args:
        reader: Queries Slurm.
        writer: Writes to Slurm.
        wait_s: Pause before each further try, seconds.
        why: Reason to write to the AdminComment. A gateway holds jobs again only if `why` is `RELEASED`.

    Raises:
        SlurmError: Slurm does not answer.
        InputError: some jobs are still held after several tries.
    """
    released: set[str] = set()
    for attempt in range(TRIES):
        jobs = list(reader.facts().jobs.values())
        held = [job for job in jobs if is_held_for_us(job, reader.partitions)]
        left = [job for job in jobs if is_left(job, reader.partitions)]
        held += [job for job in left if lacks_gpus(job)]
        ready = [job.key for job in left if not lacks_gpus(job)]
        ordered = [job for job in jobs if is_ordered(job, reader.partitions)]
        if not held and not ready and not ordered:
            return len(released)
        for job in ordered:
            released.add(job.key)
            writer.order(job.key, job.mark("v"), {})
        for key in ready:
            writer.release(key)
        writer.flush()
        if attempt:
            time.sleep(wait_s)
        for start in range(0, len(held), _BATCH):
            for job in held[start : start + _BATCH]:
                released.add(job.key)
                writer.leave(job.key, marks_of_left(job, why), asked_gres(job), again=job.restarts > 0)
            writer.flush()
    raise InputError(
        f"{len(held) + len(ready) + len(ordered)} jobs are still held or ordered (by nice values) by "
        "rlsched: run as root, SlurmUser or a user with Slurm's admin level Operator, who can change jobs"
    )


def own_uid() -> int:
    """Return the user ID of this process. job_submit.lua lets this user change any job."""
    return os.getuid()
