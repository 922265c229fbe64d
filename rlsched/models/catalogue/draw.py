"""Draws workloads for jobs that name none in the trace, by a hash of the job's columns."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rlsched.models.catalogue.table import FAMILIES, FAMILY_OF

SHORT_S: Final = 600.0
LONG_S: Final = 4 * 3600.0
BURST_SHARE: Final = 0.8
"""Probability that a job has the workload of its burst (assumed). A burst consists of jobs of one user, VC
and number of GPUs, within one hour, or within ten minutes if the user is unknown.
"""
BURST_S: Final = 3600.0
ANONYMOUS_BURST_S: Final = 600.0

LEAN: Final = {
    "share": -4.0,  # less than a GPU
    "one short": -2.5,  # one GPU, under SHORT_S
    "one": -1.5,
    "one long": -0.5,  # one GPU, over LONG_S
    "gang": -1.5,  # 2 to 7 GPUs
    "large gang": -1.0,  # 8 and more
}
"""Preference of a job class for busy workloads: weights are multiplied by exp(lean * (util - 0.5)).

Assumed: large and long jobs are busier than small and short ones. In Philly, GPUs in use were busy 52 % of
the time (Jeon et al., ATC'19; unverified). With drawn workloads, GPUs in use are busy 67 % of the time in
Philly's trace, because the catalogue has only training loops.
"""
CLASSES: Final = tuple(LEAN)
NOT_USUAL: Final = 0.05
"""Relative weight of families that are rarely trained on several GPUs, in draws for gangs (assumed)."""


class JobColumns(Protocol):
    """Columns of J jobs that a draw reads; `rlsched.workload.trace.Trace` has these columns."""

    @property
    def name(self) -> str:
        """Name of the set of jobs, for error messages."""
        ...

    @property
    def job_id(self) -> NDArray[np.str_]:
        """Unique id of each job."""
        ...

    @property
    def user(self) -> NDArray[np.str_]:
        """User who submitted each job; "": unknown."""
        ...

    @property
    def vc(self) -> NDArray[np.str_]:
        """Virtual cluster of each job; "": unknown."""
        ...

    @property
    def submit_s(self) -> NDArray[np.float64]:
        """Submission time of each job, seconds."""
        ...

    @property
    def duration_s(self) -> NDArray[np.float64]:
        """True run time of each job, seconds."""
        ...

    @property
    def num_gpus(self) -> NDArray[np.float64]:
        """GPUs of each job; below 1: a share of one GPU."""
        ...

    @property
    def extra(self) -> dict[str, NDArray[Any]]:
        """Other columns by header; draws read only `workload`."""
        ...

    def __len__(self) -> int: ...


def class_weights(util_frac: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cumulative probabilities of W workloads for each of C classes of jobs, (C, W).

    Args:
        util_frac: (W,) solo utilisation of each workload on the reference GPU type.
    """
    family = [FAMILIES[name] for name in FAMILY_OF.values()]
    base = np.array([one.weight / max(1, len(one.batches)) for one in family])
    gang = np.array([1.0 if one.gang else NOT_USUAL for one in family])
    rows = []
    for name, lean in LEAN.items():
        weight = base * np.exp(lean * (util_frac - 0.5)) * (gang if name.endswith("gang") else 1.0)
        rows.append(np.cumsum(weight) / weight.sum())
    return np.array(rows)


def job_classes(num_gpus: NDArray[np.float64], duration_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the (J,) position of each job's class in `CLASSES`; -1 for jobs without GPUs."""
    one = (num_gpus >= 1) & (num_gpus < 2)
    conditions = [
        num_gpus <= 0,
        num_gpus < 1,
        one & (duration_s < SHORT_S),
        one & (duration_s <= LONG_S),
        one,
        num_gpus < 8,
    ]
    return np.select(conditions, [-1, 0, 1, 2, 3, 4], 5)


def draw_workloads(trace: JobColumns, seed: int, util_frac: NDArray[np.float64]) -> NDArray[np.int32]:
    """Draw the (J,) number of a workload for every job, 0 for jobs without GPUs.

    Each draw is a hash of the seed and the job's id, or of the seed and the job's burst.

    Args:
        trace: J jobs.
        seed: Seed of the draws, 0 or more.
        util_frac: (W,) solo utilisation of each workload, see `class_weights`.
    """
    classes = job_classes(trace.num_gpus, trace.duration_s)
    cumulative = class_weights(util_frac)
    out = np.zeros(len(trace), np.int32)
    uniform = np.zeros(len(trace))
    bursts: dict[tuple[str, str, float, int], float] = {}
    columns = (trace.job_id, trace.user, trace.vc, trace.num_gpus, trace.submit_s)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for position, (job_id, user, vc, gpus, submit_s) in enumerate(rows):
        joins, uniform[position] = _uniform(seed, "job", job_id)
        if joins < BURST_SHARE:
            burst = (user, vc, gpus, int(submit_s // (BURST_S if user else ANONYMOUS_BURST_S)))
            if burst not in bursts:
                bursts[burst] = _uniform(seed, "burst", user, vc, f"{gpus:g}", str(burst[-1]))[0]
            uniform[position] = bursts[burst]
    for number in range(len(CLASSES)):
        mine = classes == number
        out[mine] = 1 + np.searchsorted(cumulative[number], uniform[mine], side="right")
    return np.minimum(out, len(util_frac)).astype(np.int32)


def _uniform(seed: int, *key: str) -> tuple[float, float]:
    """Return two independent numbers in [0, 1) that depend only on the seed and the key."""
    digest = blake2b("\x1f".join((str(seed), *key)).encode(), digest_size=16).digest()
    return tuple(int.from_bytes(half, "little") / 2**64 for half in (digest[:8], digest[8:]))  # type: ignore[return-value]
