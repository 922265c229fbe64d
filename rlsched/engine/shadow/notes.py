"""Notes of a shadow, in addition to journal and decisions: Slurm's starts compared with the policy's wishes.

One JSON object per line, appended to `shadow.jsonl`. A start is noted before it is journalled: after a crash
in between it is noted a second time, and the first note counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.drift import ColumnOutOfRange
from rlsched.errors import InputError

NOTES_FILE: Final = "shadow.jsonl"


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="shadow_began"):
    """Start of a shadow.

    Attributes:
        at_s: Time of the start, Unix seconds.
        cluster: Slurm's ClusterName.
        partitions: Partitions that it follows.
        policy: Name of the policy.
        toml: Settings of the policy.
        poll_s: Seconds between two queries.
    """

    at_s: float
    cluster: str
    partitions: list[str]
    policy: str
    toml: str
    poll_s: float


class StartComparison(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """A start by Slurm, and what the policy wanted at that instant, in the state before it.

    Attributes:
        at_s: Time at which Slurm started the job, Unix seconds.
        job: Slurm's number of it.
        partition: Its partition.
        num_gpus: Number of its GPUs.
        submit_s: Earliest time at which it could have started.
        nodes: Node of each GPU in Slurm.
        gpus: Number of each GPU on its node; empty if Slurm does not report it: it had ended by then.
        wanted_nodes: The same for the policy's last wish; empty: it had not wanted to start the job at all.
        wanted_gpus: Likewise.
        wanted_since_s: Time since which it had wanted that without a break; None without `wanted_nodes`.
        wanted_until_s: End of that time: Slurm takes a second or more to start a job, and a job that the
            policy prefers may have come meanwhile. None: it wanted it at that instant.
        before: Number of other jobs that it would have started before this one.
        guard: Why the guard intervened, "" if it did not.
    """

    at_s: float
    job: str
    partition: str
    num_gpus: int
    submit_s: float
    nodes: list[str]
    gpus: list[int]
    wanted_nodes: list[str] = []
    wanted_gpus: list[int] = []
    wanted_since_s: float | None = None
    wanted_until_s: float | None = None
    before: int = 0
    guard: str = ""


class Watched(msgspec.Struct, frozen=True, kw_only=True, tag="watched"):
    """Activity of a shadow since the previous line of this kind.

    Attributes:
        since_s: Start of the period, Unix seconds.
        until_s: End of the period, Unix seconds.
        looks: Queries of Slurm.
        failed: Queries that Slurm did not answer.
        ran: Number of runs of each Slurm command.
        asked: Decisions of the policy.
        guard: Decisions of the guard among them, by reason.
        outside: Features outside the trained range at the end.
        drifts: Whether the guard counted that as drift then.
        note: Why no features are watched, "" if they are.
        left: Jobs that are not compared, by reason: only Slurm can place them.
        standing: Jobs that the policy wants to start and Slurm has not started, with the time since when.
    """

    since_s: float
    until_s: float
    looks: int = 0
    failed: int = 0
    ran: dict[str, int] = {}
    asked: int = 0
    guard: dict[str, int] = {}
    outside: list[ColumnOutOfRange] = []
    drifts: bool = False
    note: str = ""
    left: dict[str, int] = {}
    standing: dict[str, float] = {}


Note = Began | StartComparison | Watched
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


class Notes:
    """Adds notes to the file of a directory.

    Raises:
        InputError: it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NOTES_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            if self._file.tell() and not self.path.read_bytes().endswith(b"\n"):
                self._file.write(b"\n")  # a crash cut the last line short
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}; give --dir") from error

    def add(self, notes: Iterable[Note]) -> None:
        """Write notes; they are in the kernel's buffers when this returns."""
        for note in notes:
            self._file.write(_encoder.encode(note) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_notes(directory: Path) -> Sequence[Note]:
    """All notes of a shadow, each start once; also of a running shadow.

    Raises:
        InputError: there are none.
    """
    path = directory / NOTES_FILE
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(
            f"{directory}: expected the --dir of `rlsched engine slurm --shadow`, with {NOTES_FILE}: "
            f"{error.strerror}"
        ) from error
    found: list[Note] = []
    starts: set[tuple[str, float]] = set()
    for line in lines:
        try:
            note = _decoder.decode(line)
        except msgspec.MsgspecError:
            continue  # it was cut short
        if isinstance(note, StartComparison):
            if (note.job, note.at_s) in starts:
                continue
            starts.add((note.job, note.at_s))
        found.append(note)
    return found
