"""All measurements, the most informative first, and the selection that fits a budget of time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import NamedTuple

from studies.gpu.protocol import Job, Kind, Mode, key_of
from studies.gpu.workloads import WORKLOADS, jobs_of

MAX_CORES = 8
FIRST_CORES = (1, 2, 4, 8)
FIRST_PAIRS = (
    ("cnn_large", "cnn_large"),
    ("cnn_small", "ppo"),
    ("encoder", "recommender"),
    ("lstm", "graph"),
    ("cnn_large", "decoder"),
    ("cnn_small", "lstm"),
)
"""Heavy with heavy, light with light, and pairs in between: the first pairs to be measured."""
PAIRS_BEFORE_CORES = 3
OVERHEAD_GUESS_S = 8.0
"""Initial guess of the time to start processes and warm up."""


class Step(NamedTuple):
    """One measurement to take."""

    kind: Kind
    mode: Mode
    jobs: tuple[Job, ...]
    cores: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """Key of the measurement, as in `Measurement.key`."""
        return key_of(self.kind, self.mode, self.cores, self.jobs)

    @property
    def text(self) -> str:
        """A readable name."""
        jobs = " + ".join(job.label for job in self.jobs)
        extra = f", {self.mode}" if self.mode else f" on {self.cores} cores" if self.kind == "cores" else ""
        return f"{self.kind} {jobs}{extra}".strip()


def all_steps(*, is_small: bool) -> list[Step]:
    """All measurements in order of priority, each once."""
    second, first = jobs_of(1, is_small=is_small), jobs_of(0, is_small=is_small)
    by_name = {job.workload: job for job in second}
    steps = [Step("idle", "", ()), Step("held", "", ())]
    steps += [Step("alone", "", (job,)) for job in second]
    pairs = [(by_name[a], by_name[b]) for a, b in FIRST_PAIRS]
    steps += _both_modes(pairs[:PAIRS_BEFORE_CORES])
    fed = [name for name, one in WORKLOADS.items() if one.feed]
    steps += [Step("cores", "", (by_name["cnn_large"],), count) for count in FIRST_CORES]
    steps += _both_modes(pairs[PAIRS_BEFORE_CORES:])
    steps += [Step("alone", "", (job,)) for job in first]
    steps += _both_modes(list(itertools.combinations_with_replacement(second, 2)))
    steps += [Step("cores", "", (by_name[name],), count) for name in fed for count in FIRST_CORES]
    steps += _both_modes(list(itertools.combinations_with_replacement(second + first, 2)))
    steps += [
        Step("cores", "", (job,), count)
        for job in second + first
        if job.workload in fed
        for count in range(1, MAX_CORES + 1)
    ]
    unique: dict[tuple[str, ...], Step] = {}
    for step in steps:
        pair = tuple(sorted(step.jobs, key=lambda job: job.label))
        unique.setdefault((*step.key[:3], *(job.label for job in pair)), step)
    return list(unique.values())


def _both_modes(pairs: list[tuple[Job, Job]]) -> list[Step]:
    modes: tuple[Mode, ...] = ("timeslice", "mps")
    return [Step("pair", mode, pair) for pair in pairs for mode in modes]


class Budget:
    """Decides whether a measurement still fits, from the time of similar ones so far.

    Args:
        total_s: Time for all measurements.
        measured_s: Duration of each measurement, without its overhead.
    """

    def __init__(self, total_s: float, measured_s: float) -> None:
        self._total_s = total_s
        self._measured_s = measured_s
        self._took_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def expected_s(self, step: Step) -> float:
        """Return the mean time of earlier measurements of the same kind, or a guess, seconds."""
        known = self._took_s[step.kind, step.mode]
        if known:
            return sum(known) / len(known)
        return self._measured_s + (OVERHEAD_GUESS_S if step.jobs else 0.0)

    def fits(self, step: Step, spent_s: float) -> bool:
        """Return whether a measurement would end within the budget."""
        return spent_s + self.expected_s(step) <= self._total_s

    def note(self, step: Step, took_s: float) -> None:
        """Record the time of a measurement."""
        self._took_s[step.kind, step.mode].append(took_s)
