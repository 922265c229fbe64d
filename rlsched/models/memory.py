"""GPU memory and fault isolation of jobs that share a GPU, by sharing mode."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import numpy as np

from rlsched.compile.jit import kernel
from rlsched.models.sharing import pair_noise

TIME_SLICED: Final = 0
"""Sharing mode without MPS: the GPU runs the processes in turn, one at a time."""
MPS: Final = 1
"""Sharing mode with one MPS server: kernels of all clients run side by side."""
MIG: Final = 2
"""Sharing mode by hardware slices, each with its own memory, caches and multiprocessors."""
SharingMode = Literal["time-sliced", "mps", "mig"]
SHARING_MODES: Final[tuple[SharingMode, ...]] = get_args(SharingMode)

MAX_SHARING: Final = 4
"""Maximum number of jobs on a GPU. Only pairs are measured: three or four jobs are an extrapolation."""

MARGIN_FRAC: Final = 0.10
"""Fraction of a shared GPU's memory that stays free. Assumed, for three reasons: the driver reserves some of
the labelled memory (a V100 of 16,384 MiB has 16,160 for programs); a job can exceed its profiled peak; and a
framework's caching allocator holds freed blocks. Without this margin, two jobs on a GPU need the sum of their
solo memory, plus 22 MiB (measured: median of Lucid's pairs, RTX 3090).
"""

FAULT_SHARED: Final = (False, True, False)
"""By sharing mode: whether a fatal fault of one tenant (an illegal address, for example) ends all tenants.

Time slicing: only the faulty context is destroyed. MPS: every client on the same GPU receives the fault, and
must exit (since Volta; NVIDIA's MPS guide, error containment). MIG: the fault stays within the slice.
"""


FAULT_FRAC: Final = 0.1
"""Fraction of job failures that are fatal faults of the GPU's context. Assumed: in two months of Philly,
invalid memory accesses and CUDA errors are about a tenth of the failures (Jeon et al., ATC'19, table of
failure reasons, unverified).
"""


@kernel
def is_device_fault(key: np.uint64, failure: int, fault_frac: float) -> bool:
    """Return whether a failure is a fault of the GPU's context. The result is the same under any policy.

    Args:
        key: 64-bit key of the job.
        failure: Number of earlier failures.
        fault_frac: Fraction of failures that are faults of the context.
    """
    deviate = pair_noise(key, np.uint64(failure))
    return 0.5 * math.erfc(deviate / math.sqrt(2.0)) < fault_frac  # uniform from 0 to 1


@kernel
def memory_limit_mib(gpu_memory_mib: float, tenants: int) -> float:
    """Return the GPU memory that `tenants` jobs can use together, MiB; two or more jobs leave a margin."""
    return gpu_memory_mib if tenants <= 1 else (1.0 - MARGIN_FRAC) * gpu_memory_mib


@kernel
def fits_memory(gpu_memory_mib: float, used_mib: float, tenants: int, job_mib: float) -> bool:
    """Return whether the memory of a GPU suffices for its tenants and one more job.

    The memory of a pair is the sum of its jobs' solo memory (measured by Lucid; see `MARGIN_FRAC`).

    Args:
        gpu_memory_mib: Memory of the GPU; nan: unknown, any job fits.
        used_mib: Sum of the peak memory of the tenants, contexts included.
        tenants: Current number of tenants.
        job_mib: Memory of the job; nan: unknown, the job does not share.
    """
    if gpu_memory_mib != gpu_memory_mib:
        return True
    if job_mib != job_mib or used_mib != used_mib:
        return tenants == 0
    return used_mib + job_mib <= memory_limit_mib(gpu_memory_mib, tenants + 1)
