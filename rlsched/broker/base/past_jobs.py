"""Jobs that ran before a journal begins, read from the output of sacct, to train the first predictions."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from rlsched.errors import InputError
from rlsched.workload.formats.clock import TimeParser
from rlsched.workload.formats.frame import Request
from rlsched.workload.formats.registry import convert_original, no_gpus, recognise
from rlsched.workload.predict import RunningMean
from rlsched.workload.predict.at_submission import facts_of

if TYPE_CHECKING:
    from rlsched.workload.predict.predictor import Predictor
    from rlsched.workload.trace import Trace

MOST_JOBS: Final = 10_000
"""Maximum number of past jobs; the latest jobs are used. Each job delays the broker's start by some tenths of
a millisecond.
"""
_ENDS, _COMES, _STARTS, _ENDS_AT_ONCE = range(4)


@dataclass(frozen=True, eq=False)
class PastJobs:
    """Jobs that started and ended before the first entry of the broker's journal.

    Attributes:
        trace: The jobs.
        origin_s: Second 0 of the trace, Unix seconds.
        digest: Digest of the jobs.
    """

    trace: Trace
    origin_s: float
    digest: str

    @classmethod
    def read(cls, path: Path) -> PastJobs:
        """Read the output of sacct. Only the last `MOST_JOBS` jobs with GPUs are used.

        Raises:
            InputError: the file is not output of sacct.
            TraceError: the file cannot be read.
        """
        name = recognise(path)
        if name != "sacct":
            raise InputError(
                f"--history {path}: expected the output of sacct (docs/reference/traces.md), which has the "
                f"start times of jobs; got {name}"
            )
        conversion = convert_original(name, Request(path))
        origin_s = TimeParser().read(conversion.origin, "origin")
        trace = conversion.trace
        lacking = no_gpus(name, trace)
        if lacking is not None:
            raise InputError(f"--history {path}: {lacking}")
        wait_s = np.asarray(trace.extra.get("queue_s", np.full(len(trace), np.nan)), np.float64)
        rows = np.flatnonzero((trace.num_gpus > 0) & np.isfinite(wait_s))[-MOST_JOBS:]
        if not len(rows) or origin_s is None:
            raise InputError(f"--history {path}: expected jobs with GPUs that started and ended, got none")
        kept = trace.select(rows)
        columns = (kept.submit_s, kept.duration_s, kept.num_gpus, wait_s[rows], np.float64(origin_s))
        words = "\n".join((*kept.job_id.tolist(), *kept.user.tolist(), *kept.job_name.tolist()))
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns) + words.encode())
        return cls(kept, origin_s, digest.hexdigest()[:12])

    def replay_into(self, predictor: Predictor) -> None:
        """Pass the submissions, starts and ends of the past jobs to a predictor, in order of time.

        The predictor gets job IDs that the broker never uses.
        """
        facts = [one._replace(job_id=f"past {one.job_id}") for one in facts_of(self.trace)]
        for at_s, what, job in self._events():
            if what == _COMES:
                predictor.foresee([facts[job]], at_s)
            elif what == _STARTS:
                predictor.observe_start(facts[job].job_id, at_s)
            else:
                predictor.observe_end(facts[job].job_id, float(self.trace.duration_s[job]), at_s)

    def tell_mean(self, mean: RunningMean) -> None:
        """Pass the run times of the past jobs to the running mean `mean`, in order of the jobs' ends."""
        trace = self.trace
        for _, what, job in self._events():
            if what in (_ENDS, _ENDS_AT_ONCE):
                gpus = math.ceil(trace.num_gpus[job])
                mean.observe(str(trace.vc[job]), gpus, float(trace.duration_s[job]))

    def _events(self) -> list[tuple[float, int, int]]:
        """Return (Unix seconds, kind, index of the job) of each event, sorted by time and then by kind.

        The kinds are submission, start and end of a job.
        """
        trace = self.trace
        submit_s = trace.submit_s + self.origin_s
        start_s = submit_s + np.asarray(trace.extra["queue_s"], np.float64)
        end_s = start_s + trace.duration_s
        events: list[tuple[float, int, int]] = []
        rows = zip(submit_s.tolist(), start_s.tolist(), end_s.tolist(), strict=True)
        for job, (comes_s, starts_s, ends_s) in enumerate(rows):
            events += [(comes_s, _COMES, job), (starts_s, _STARTS, job)]
            events.append((ends_s, _ENDS if ends_s > starts_s else _ENDS_AT_ONCE, job))
        return sorted(events)
