"""A shadow's notes: comparisons of Slurm's starts with the starts that the policy wanted.

Each note is a JSON object in a line of `shadow.jsonl`. After a crash, a start can be noted a second time;
readers use the first note.
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
    """A note that a shadow has started.

    Attributes:
        at_s: Time of the start, Unix seconds.
        cluster: Slurm's ClusterName.
        partitions: Partitions that the shadow follows.
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
    """A start by Slurm, compared with the start that the policy wanted immediately before.

    Attributes:
        at_s: Time at which Slurm started the job, Unix seconds.
        job: Slurm's job ID.
        partition: Partition of the job.
        num_gpus: Number of GPUs of the job.
        submit_s: Earliest time at which the job could have started, Unix seconds.
        nodes: Node of each GPU in Slurm.
        gpus: Index of each GPU on its node; empty if the job had ended before Slurm reported its GPUs.
        wanted_nodes: Node of each GPU in the policy's last wish to start this job; empty if there was none.
        wanted_gpus: Index of each GPU on its node, in the policy's last wish.
        wanted_since_s: Time since which the policy had that wish without interruption; None if
            `wanted_nodes` is empty.
        wanted_until_s: Time at which the wish ended before Slurm's start, for example because of a newly
            submitted job; None: the policy still had the wish.
        before: Number of other jobs that the policy wanted to start before this job.
        guard: Reason why the guard (fallback for invalid or late decisions) decided; "": the policy decided.
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
    """A note of a shadow's activity since the previous `Watched` note.

    Attributes:
        since_s: Start of the period, Unix seconds.
        until_s: End of the period, Unix seconds.
        looks: Number of queries to Slurm.
        failed: Number of queries that failed.
        ran: Number of runs of each Slurm command.
        asked: Number of decisions of the policy.
        guard: Number of these decisions that the guard made instead of the policy, by reason.
        outside: Features outside the range of the policy's training at the end of the period.
        drifts: Whether the guard counted `outside` as drift.
        note: Reason why no features are watched; "" if features are watched.
        left: Number of jobs that are not compared because only Slurm can place them, by reason.
        standing: Time since which the policy wants to start a job that Slurm has not started, Unix seconds,
            by Slurm's job ID.
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
    """Appends notes to the notes file of a directory.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NOTES_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            if self._file.tell() and not self.path.read_bytes().endswith(b"\n"):
                self._file.write(b"\n")  # after a crash, the last line can be incomplete
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; choose another directory with --dir"
            ) from error

    def add(self, notes: Iterable[Note]) -> None:
        """Write notes. When the call returns, the operating system has them in its buffers."""
        for note in notes:
            self._file.write(_encoder.encode(note) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_notes(directory: Path) -> Sequence[Note]:
    """Return all notes of a shadow, with each start only once. The shadow can be running.

    Raises:
        InputError: there is no notes file.
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
            continue  # an incomplete line
        if isinstance(note, StartComparison):
            if (note.job, note.at_s) in starts:
                continue
            starts.add((note.job, note.at_s))
        found.append(note)
    return found
