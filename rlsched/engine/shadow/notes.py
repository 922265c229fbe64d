"""What a shadow notes beside journal and decisions: how Slurm's starts compare with what it wanted.

One JSON object a line, added to `shadow.jsonl`. A start is noted before it is journalled: after a crash in
between it is noted a second time, and the first one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rlsched.decide.drift import Outside
from rlsched.errors import InputError

NOTES_FILE: Final = "shadow.jsonl"


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="shadow_began"):
    """A shadow has begun to look.

    Attributes:
        at_s: When, Unix seconds.
        cluster: Slurm's ClusterName.
        partitions: Those that it follows.
        policy: Who decides.
        toml: Its settings.
        poll_s: Seconds between two looks.
    """

    at_s: float
    cluster: str
    partitions: list[str]
    policy: str
    toml: str
    poll_s: float


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """A start of Slurm's beside what the policy wanted at that instant, in the state before it.

    Attributes:
        at_s: When Slurm started the job, Unix seconds.
        job: Slurm's number of it.
        partition: Its partition.
        num_gpus: GPUs that it has.
        submit_s: Since when it could have started.
        nodes: Node of each GPU, as Slurm has it.
        gpus: That GPU's number on its node; empty where Slurm does not say: it was over by then.
        wanted_nodes: The same as the policy wanted it last; empty: it had not wanted to start it at all.
        wanted_gpus: Likewise.
        wanted_since_s: Since when it had wanted that without a break; None with no `wanted_nodes`.
        wanted_until_s: Until when: Slurm takes a second or more to start a job, and another may have come
            meanwhile that the policy puts first. None: it wanted it at this very instant.
        before: How many other jobs it would have started before this one.
        guard: Why the guard had stepped in, "" if it had not.
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
    """What a shadow did since the line of this kind before.

    Attributes:
        since_s: From when, Unix seconds ...
        until_s: ... until when.
        looks: Looks at Slurm.
        failed: Looks that Slurm did not answer.
        ran: How often each of Slurm's commands ran.
        asked: Decisions that the policy was asked for.
        guard: Of them, those of the guard, by why.
        outside: Features outside the trained range at the end.
        drifts: Whether the guard took that for drift then.
        note: Why no features are watched, "" where they are.
        left: Jobs that are not compared, by why: Slurm alone can place them.
        standing: Jobs that the policy wants to start and Slurm has not, since when.
    """

    since_s: float
    until_s: float
    looks: int = 0
    failed: int = 0
    ran: dict[str, int] = {}
    asked: int = 0
    guard: dict[str, int] = {}
    outside: list[Outside] = []
    drifts: bool = False
    note: str = ""
    left: dict[str, int] = {}
    standing: dict[str, float] = {}


Note = Began | Compared | Watched
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
        """Write them; they are in the system's hands when this returns."""
        for note in notes:
            self._file.write(_encoder.encode(note) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_notes(directory: Path) -> Sequence[Note]:
    """All notes of a shadow, each start once; also of one that runs.

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
        if isinstance(note, Compared):
            if (note.job, note.at_s) in starts:
                continue
            starts.add((note.job, note.at_s))
        found.append(note)
    return found
