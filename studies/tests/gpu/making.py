"""Made-up records for the tests of the GPU profile: round numbers, not measured."""

from __future__ import annotations

from collections.abc import Sequence

from studies.gpu.protocol import Ended, Host, Job, JobRun, Kind, Measurement, Mode, Sample, Warm, Window

MADE_UP = Host(
    gpu_type="NVIDIA H200",
    driver="1.2",
    torch="9.9",
    cpu_cores=8,
    memory_total_mib=1000,
    is_rehearsal=False,
)
"""An invented machine, with figures that are easy to add by hand."""


def windows_of(
    workload: str, *, start_s: float, steps: Sequence[int], pid: int = 1, window_s: float = 2.0
) -> JobRun:
    """Consecutive windows with these numbers of steps, ten samples a step."""
    windows = tuple(
        Window(start_s + place * window_s, start_s + (place + 1) * window_s, count)
        for place, count in enumerate(steps)
    )
    return JobRun(
        job=Job(workload, 10),
        warm=Warm(pid=pid, samples_per_step=10, step_s=0.1, precision="bfloat16"),
        windows=windows,
        ended=Ended(steps=sum(steps), reserved_mib=None, first_loss=2.0, last_loss=1.0),
    )


def make_measurement(
    kind: Kind,
    *runs: JobRun,
    mode: Mode = "",
    cores: int = 4,
    samples: Sequence[Sample] = (),
    settle_s: float = 1.0,
    used_before_mib: int | None = 100,
) -> Measurement:
    """A measurement of one invented day."""
    return Measurement(
        kind=kind,
        mode=mode,
        cores=cores,
        runs=runs,
        samples=tuple(samples),
        settle_s=settle_s,
        used_before_mib=used_before_mib,
        measured_on="2026-01-02",
    )


def power_readings(power_w: float, *, until_s: int = 12, **readings: object) -> list[Sample]:
    """One sample a second; the energy counter rises by `power_w` joules each."""
    return [
        Sample(at_s=float(at_s), energy_j=1000.0 + power_w * at_s, **readings)  # type: ignore[arg-type]
        for at_s in range(until_s + 1)
    ]
