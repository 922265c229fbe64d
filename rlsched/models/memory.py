"""Which jobs may share a GPU's memory, and whose fault ends whose job, by the way the GPU is shared."""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import numpy as np

from rlsched.compile.jit import kernel
from rlsched.models.sharing import pair_noise

TIME_SLICED: Final = 0
"""Plain processes: the GPU runs one context at a time, in turns."""
MPS: Final = 1
"""One MPS server: kernels of all clients run side by side."""
MIG: Final = 2
"""Hardware slices, each with memory, caches and multiprocessors of its own."""
SharingMode = Literal["time-sliced", "mps", "mig"]
SHARING_MODES: Final[tuple[SharingMode, ...]] = get_args(SharingMode)

MAX_SHARING: Final = 4
"""Jobs that share a GPU at most. Measured are pairs: what three or four do is the formula's extrapolation."""

MARGIN_FRAC: Final = 0.10
"""Part of a shared GPU's memory that is left free. Assumed, for three reasons: a driver keeps some of what is
on the label (a V100 of 16,384 MiB has 16,160 for programs); a job's profiled peak is not its highest; and a
framework's caching allocator holds freed blocks that a neighbour cannot use. That sums of solo memory are
right otherwise is measured: a pair takes 22 MiB more than its parts (median of Lucid's pairs, RTX 3090). When
memory runs out, whichever tenant asks next fails, and that may be the neighbour: the margin is on the safe
end."""

CONTEXT_MIB: Final = 512.0
"""GPU memory of a process before its first tensor, for figures that leave it out, such as the peak that a
framework's allocator reports. What NVML reports for a process has it inside. Issues of PyTorch show 320 MiB
for a bare context on a Titan V (28394), some 300 with lazily loaded kernels (107667), 543 for a process that
holds no tensor (81257) and 1,008 before kernels were loaded lazily (28394). MPS does not take it away: since
Volta each client keeps an address space of its own, and NVIDIA's MPS guide expects little saving."""

FAULT_SHARED: Final = (False, True, False)
"""By sharing mode: whether a fatal fault of one tenant (an illegal address, say) ends all tenants of its GPU.

Time-sliced: contexts are separate and only the one at fault is torn down; NVIDIA's GPU operator all the same
promises no fault isolation for it, as what hits the whole GPU, and running out of memory, is shared. MPS:
since Volta a client's fatal fault is reported to every client on the same GPU, all of which must exit before
the server takes new ones (NVIDIA's MPS guide, error containment). MIG: it stays within the slice."""

DEVICE_FAULT_SHARED: Final = (True, True, True)
"""By sharing mode: whether the loss of the whole GPU (off the bus, an uncorrectable memory error that needs a
reset) ends all tenants of it. It does whatever the mode: the slices of MIG are parts of one device."""


FAULT_FRAC: Final = 0.1
"""Of failures of jobs, those that are fatal faults of the GPU's context. Assumed: of the failures of two
months of Philly, invalid memory accesses and CUDA errors are about a tenth (Jeon et al., ATC'19, table of
failure reasons, recalled); most are out of host memory, wrong inputs and errors of the program."""


@kernel
def is_device_fault(key: np.uint64, failure: int, fault_frac: float) -> bool:
    """Whether a failure of a job is a fault of the GPU's context: the same in every run, whoever schedules.

    Args:
        key: 64-bit key of the job.
        failure: Failures that it had before.
        fault_frac: Of failures, those that are.
    """
    deviate = pair_noise(key, np.uint64(failure))
    return 0.5 * math.erfc(deviate / math.sqrt(2.0)) < fault_frac  # uniform from 0 to 1


@kernel
def process_mib(allocated_mib: float) -> float:
    """GPU memory of a process whose framework reports this peak: the context comes on top, in MiB."""
    return allocated_mib + CONTEXT_MIB


@kernel
def memory_limit_mib(gpu_memory_mib: float, tenants: int) -> float:
    """Memory that so many tenants may use together: all for one, all but the margin for more, in MiB."""
    return gpu_memory_mib if tenants <= 1 else (1.0 - MARGIN_FRAC) * gpu_memory_mib


@kernel
def fits_memory(gpu_memory_mib: float, used_mib: float, tenants: int, job_mib: float) -> bool:
    """Whether a job may join the tenants of a GPU.

    Pair memory is the sum of what its jobs take alone (measured by Lucid; see `MARGIN_FRAC`).

    Args:
        gpu_memory_mib: Of the GPU; nan: unknown, then all fits.
        used_mib: Sum of what its tenants take at their peak, contexts inside.
        tenants: How many there are now.
        job_mib: What the job takes; nan: unknown, then it does not share.
    """
    if gpu_memory_mib != gpu_memory_mib:
        return True
    if job_mib != job_mib or used_mib != used_mib:
        return tenants == 0
    return used_mib + job_mib <= memory_limit_mib(gpu_memory_mib, tenants + 1)
