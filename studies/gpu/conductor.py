"""Takes one measurement: starts the children together, samples the GPU while they train, ends them."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rlsched_node.gpu.device import GpuSet
from studies.gpu.children import Children, MeasurementError
from studies.gpu.meter import Meter
from studies.gpu.mps import MpsDaemon
from studies.gpu.plan import Step
from studies.gpu.protocol import GO, Job, JobRun, Measurement, Sample, Warm, Window
from studies.gpu.workloads import HELD


class Settings(NamedTuple):
    """Settings of all measurements.

    Attributes:
        seconds: Counted training time of each measurement.
        window_s: Shortest window.
        settle_s: Seconds after the start of the last job that are not counted.
        gpus: The node's GPUs; None: a rehearsal on a CPU.
        gpu: Number of the GPU.
    """

    seconds: float
    window_s: float
    warmup_s: float
    settle_s: float
    gpus: GpuSet | None
    gpu: int
    say: Callable[[str], None]

    @property
    def is_rehearsal(self) -> bool:
        """Whether small variants of the workloads run on a CPU."""
        return self.gpus is None


def measure(step: Step, settings: Settings) -> Measurement:
    """Take one measurement.

    Raises:
        MeasurementError: A child failed, with its message, or did not answer in time.
        MpsError: MPS cannot be used here.
        GpuError: The driver refuses, or the GPU is lost.
    """
    jobs = step.jobs or ((Job(HELD, 1),) if step.kind == "held" else ())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rlsched-profile-")))
        (folder / "no-mps").mkdir()
        meter = None if settings.gpus is None else Meter(settings.gpus, settings.gpu)
        before = None if meter is None else meter.look()
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "no-mps")}  # never under another's MPS
        if settings.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = settings.gpus.visible_as(settings.gpu)
        daemon = None
        if step.mode == "mps":
            daemon = stack.enter_context(MpsDaemon(environment["CUDA_VISIBLE_DEVICES"], say=settings.say))
            environment |= daemon.environment
        commands = [command(job, step, place, settings) for place, job in enumerate(jobs)]
        children = stack.enter_context(Children(commands, environment, folder))
        warm = children.wait_until_warm()
        if daemon is not None:
            check_clients(daemon, len(warm))
        runs, samples = _train(children, warm, jobs, settings, meter)
    return Measurement(
        kind=step.kind,
        mode=step.mode,
        cores=len(cores_of(0, step)) if jobs else 0,
        runs=tuple(runs),
        samples=tuple(samples),
        settle_s=settings.settle_s,
        used_before_mib=None if before is None else before.used_mib,
        measured_on=datetime.now(UTC).date().isoformat(),
    )


def check_clients(daemon: MpsDaemon, expected: int) -> None:
    """Check that all children run under MPS: the daemon is private, so its clients are the children.

    Raises:
        MeasurementError: Some children do not run under MPS.
    """
    found = len(daemon.clients())
    if found < expected:
        raise MeasurementError(
            f"{found} of {expected} processes are clients of MPS: the others run without it"
        )


def cores_of(place: int, step: Step) -> list[int]:
    """Return the numbers of the CPU cores of the job with index `place`.

    A job has the same half of this machine's cores whether it runs unshared or in a pair, so that a pair
    shares only the GPU. If there is only one core, each job has it.
    """
    available = sorted(os.sched_getaffinity(0))
    if step.kind == "cores":
        return available[: step.cores]
    half = len(available) // 2
    return available[place * half : (place + 1) * half] if half else available


def command(job: Job, step: Step, place: int, settings: Settings) -> list[str]:
    """The command line of a child."""
    words = [sys.executable, "-m", "studies.gpu.child", "--workload", job.workload]
    words += ["--batch", str(job.batch), "--device", "cpu" if settings.is_rehearsal else "cuda"]
    words += ["--warmup-s", str(settings.warmup_s), "--window-s", str(settings.window_s)]
    words += ["--small"] if settings.is_rehearsal else []
    words += ["--cpu-cores", *map(str, cores_of(place, step))]
    return words + (["--feed"] if step.kind == "cores" else [])


def _train(
    children: Children, warm: list[Warm], jobs: Sequence[Job], settings: Settings, meter: Meter | None
) -> tuple[list[JobRun], list[Sample]]:
    """Train all jobs at once, until the slowest has trained for the settling time and `seconds`."""
    with ExitStack() as watching:
        if meter is not None:
            watching.enter_context(meter)
        if not jobs:
            time.sleep(settings.seconds)
            windows: list[list[Window]] = []
        else:
            children.say(GO)
            windows = children.collect(settings.settle_s + settings.seconds)
    ended = children.end(windows)
    runs = [
        JobRun(job=job, warm=one, windows=tuple(seen), ended=end)
        for job, one, seen, end in zip(jobs, warm, windows, ended, strict=True)
    ]
    return runs, [] if meter is None else meter.samples
