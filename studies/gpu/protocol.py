"""Messages between a measuring process and its children, and the record of a run: JSON lines.

A child writes one message a line on its standard output (`Warm`, then `Window` after `Window`, then `Ended`,
or `Failed` at any time) and reads single words (`GO`, `STOP`) from its standard input. A record file begins
with a `Host`, and has one `Measurement` a line after it. Times come from `time.monotonic`, which all
processes of a machine share.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from rlsched.errors import InputError

GO = "go"
STOP = "stop"

Kind = Literal["idle", "held", "alone", "pair", "cores"]
Mode = Literal["", "timeslice", "mps"]


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """The child has warmed up and waits for `GO`.

    Attributes:
        samples_per_step: Samples of a step: images, sequences, table rows, graphs, environment steps.
        step_s: Mean time of a step during the warm-up, seconds.
        precision: Arithmetic of the forward pass: `float32`, or the type of autocast.
    """

    pid: int
    samples_per_step: int
    step_s: float
    precision: str


class Window(msgspec.Struct, frozen=True, tag="window"):
    """Whole steps between two synchronisations with the device."""

    start_s: float
    end_s: float
    steps: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The child has stopped on request.

    Attributes:
        steps: Training steps in all, including the warm-up.
        reserved_mib: Peak that torch's allocator held on the device, without the CUDA context; None on a CPU.
        first_loss, last_loss: Losses of the first and the last step, which show that the workload trains.
    """

    steps: int
    reserved_mib: float | None
    first_loss: float
    last_loss: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The child failed, in one line."""

    reason: str


Message = Warm | Window | Ended | Failed
_MESSAGES: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Job(msgspec.Struct, frozen=True):
    """A workload at a batch size."""

    workload: str
    batch: int

    @property
    def label(self) -> str:
        """Name in the rows, such as `cnn_small-b256`."""
        return f"{self.workload}-b{self.batch}"


class JobRun(msgspec.Struct, frozen=True):
    """The reports of one child."""

    job: Job
    warm: Warm
    windows: tuple[Window, ...]
    ended: Ended


class Sample(msgspec.Struct, frozen=True):
    """One sample of the GPU; None marks unknown figures.

    Attributes:
        at_s: Time.
        utilisation_frac: Share of NVML's last sampling period (1/6 s to 1 s) in which a kernel ran.
        energy_j: Energy of the whole board since the driver was loaded.
        used_mib: Memory in use on the device, by all processes.
        process_mib: Memory by process id, if the driver reports it.
    """

    at_s: float
    utilisation_frac: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    used_mib: int | None = None
    process_mib: dict[int, int] = {}


class Measurement(msgspec.Struct, frozen=True, tag="measurement"):
    """One measurement as taken, before any arithmetic.

    Attributes:
        kind: `idle` (nothing on the GPU), `held` (a context that runs nothing), `alone` (unshared), `pair`,
            or `cores` (unshared, with an input pipeline on `cores` CPU cores).
        mode: The way in which a pair shares the GPU.
        cores: CPU cores to which each job was pinned; 0: not pinned.
        settle_s: Seconds after the start of the last job from which windows and samples count.
        used_before_mib: Memory in use on the device before the jobs began.
        measured_on: Date, ISO 8601.
    """

    kind: Kind
    mode: Mode
    cores: int
    runs: tuple[JobRun, ...]
    samples: tuple[Sample, ...]
    settle_s: float
    used_before_mib: int | None
    measured_on: str

    @property
    def key(self) -> tuple[str, ...]:
        """Key by which a resumed run recognises a measurement."""
        return key_of(self.kind, self.mode, self.cores, [run.job for run in self.runs])


class Host(msgspec.Struct, frozen=True, tag="host"):
    """The machine of a run.

    Attributes:
        gpu_type: The GPU's name in NVML; `rehearsal on a CPU` without a GPU.
        driver: Version of the driver; empty if unknown.
        is_rehearsal: Shrunken workloads on a CPU: the figures are meaningless for any GPU.
    """

    gpu_type: str
    driver: str
    torch: str
    cpu_cores: int
    memory_total_mib: int | None
    is_rehearsal: bool


def key_of(kind: Kind, mode: Mode, cores: int, jobs: Iterable[Job]) -> tuple[str, ...]:
    """The identity of a measurement; cores count only in measurements of cores."""
    return (kind, mode, str(cores if kind == "cores" else 0), *(job.label for job in jobs))


def decode_message(line: str) -> Message:
    """Read a line of a child.

    Raises:
        ValueError: The line is not a message.
    """
    try:
        return _MESSAGES.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a message of a child: {line[:200]!r}: {error}") from error


def encode(message: msgspec.Struct) -> str:
    """One line, without its end."""
    return msgspec.json.encode(message).decode()


def read_record(path: Path) -> tuple[Host, list[Measurement]]:
    """Read the record of an earlier run; a truncated last line is left out.

    Raises:
        InputError: There is no such file, or a line is not part of a record.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as the record of a run: {error}") from error
    try:
        host = msgspec.json.decode(lines[0] if lines else "", type=Host)
    except msgspec.DecodeError as error:
        raise InputError(f"{path}, line 1: expected the host of a recorded run: {error}") from error
    measurements = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            measurements.append(msgspec.json.decode(line, type=Measurement))
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: expected a measurement: {error}") from error
    return host, measurements
