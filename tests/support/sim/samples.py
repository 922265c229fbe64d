"""Samples of publishers' formats: hand-made, in the shape of the originals, complete and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rlsched.workload.formats.account import Account
from rlsched.workload.formats.frame import Conversion, Request
from rlsched.workload.formats.registry import convert_original

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"


class Sample(NamedTuple):
    """One main file: its format, its path below `SAMPLES`, its number of rows, and the number of jobs among
    them.
    """

    name: str
    file: str
    rows: int
    jobs: int

    @property
    def path(self) -> Path:
        return SAMPLES / self.name / self.file


WHOLE = (
    Sample("helios", "cluster_log.csv", rows=7, jobs=6),
    Sample("philly", "cluster_job_log", rows=8, jobs=5),
    Sample("pai", "pai_job_table.csv", rows=8, jobs=3),
    Sample("openb", "openb_pod_list_sample.csv", rows=6, jobs=5),
    Sample("acme", "trace_kalos.csv", rows=4, jobs=3),
    Sample("acme", "trace_seren.csv", rows=3, jobs=3),
    Sample("sacct", "jobs.txt", rows=13, jobs=6),
    Sample("swf", "log.swf", rows=9, jobs=4),
)
DAMAGED = (
    Sample("helios", "damaged/cluster_log.csv", rows=7, jobs=2),
    Sample("philly", "damaged/cluster_job_log", rows=6, jobs=1),
    Sample("pai", "damaged/pai_job_table.csv", rows=5, jobs=2),
    Sample("openb", "damaged/openb_pod_list_sample.csv", rows=7, jobs=1),
    Sample("acme", "damaged/trace_seren.csv", rows=4, jobs=1),
    Sample("sacct", "damaged/jobs.txt", rows=6, jobs=1),
    Sample("swf", "damaged/log.swf", rows=6, jobs=2),
)


def convert(sample: Sample, **options: object) -> Conversion:
    """Convert a sample as the command does."""
    return convert_original(sample.name, Request(sample.path, **options))  # type: ignore[arg-type]


def convert_text(name: str, file: Path, text: str, **options: object) -> Conversion:
    """Convert this text, written to this file."""
    file.write_text(text, encoding="utf-8")
    return convert_original(name, Request(file, **options))  # type: ignore[arg-type]


def skipped(account: Account) -> dict[str, list[int]]:
    """Lines by reason."""
    return {reason: tally.lines for reason, tally in account.skipped.items()}


def noted(account: Account) -> dict[str, list[int]]:
    """Lines by remark."""
    return {remark: tally.lines for remark, tally in account.noted.items()}
