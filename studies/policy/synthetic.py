"""Synthetic sequences from 16 to 10,000 GPUs: value of one policy and one rule at any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rlsched.errors import InputError
from rlsched.workload.load import offered_load
from rlsched.workload.synth import synthesize
from rlsched_agents.evaluate.windows import MeasuredWindow
from studies.policy.cases import SYNTHETIC, Case, Workload, with_flags

SEED: Final = 0
GPUS_PER_NODE: Final = 8
JOBS_AT: Final = {
    "helios": {16: 4_000, 128: 6_000, 1_024: 31_000, 10_000: 60_000},
    "philly": {16: 4_000, 128: 6_000, 1_024: 31_000},
}
"""Number of jobs by kind and GPUs of the cluster: 250, 47, 30 and 6 a GPU. At 10,000 GPUs, the jobs arrive in
four and a half days; helios-like jobs first queue after half a day. Philly-like jobs hardly queue there:
150,000 of them, over a week, wait 14 s on average."""
TESTED_JOBS_AT: Final = {1_024: 8_000, 10_000: 30_000}
"""A policy under test may be a Python scheduler, which is slow: on the largest clusters such policies have
separate helios-like sequences, which all others run too."""
MEASURED: Final = (0.3, 0.9)
"""Jobs submitted in this part of the time are measured. Earlier jobs fill the empty cluster; later jobs keep
it full while measured jobs still wait."""

LONG: Final = {
    f"{kind}-like/{gpus}": (kind, gpus, jobs) for kind, at in JOBS_AT.items() for gpus, jobs in at.items()
}
SHORT: Final = {f"helios-like/{gpus}/{jobs}": ("helios", gpus, jobs) for gpus, jobs in TESTED_JOBS_AT.items()}
SEQUENCES: Final = LONG | SHORT
"""(kind, GPUs, jobs) by name of the sequence."""


def for_tested(name: str) -> bool:
    """Whether policies under test run on a sequence."""
    return name not in SEQUENCES or name in SHORT or SEQUENCES[name][1] not in TESTED_JOBS_AT


def synthetic_workload(case: Case) -> Workload:
    """Return a synthetic sequence. Its measured jobs have exactly the load of the case.

    Submission times are stretched for this, as for a trace (`cases.workload_of`).

    Raises:
        InputError: No such sequence.
    """
    if case.trace not in SEQUENCES or case.part != SYNTHETIC:
        raise InputError(
            f"expected a sequence of {', '.join(SEQUENCES)} in the part {SYNTHETIC!r}, "
            f"got {case.trace!r} in {case.part!r}"
        )
    kind, gpus, jobs = SEQUENCES[case.trace]
    trace, spec = synthesize(kind, jobs, case.load, gpus, GPUS_PER_NODE, seed=SEED)
    since_s, until_s = (part * float(trace.submit_s[-1]) for part in MEASURED)
    measured = MeasuredWindow(since_s, until_s).measured(trace)
    stretch = offered_load(trace.select(measured), spec) / case.load
    trace = replace(trace, submit_s=trace.submit_s * stretch)
    return Workload(
        with_flags(trace, case), spec, MeasuredWindow(since_s * stretch, until_s * stretch), stretch
    )
