"""The GPUs of a node behind one small interface: real ones through NVML, or simulated ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rlsched.errors import InputError
from rlsched.models.gpu_types import GENERIC
from rlsched_node.gpu.device import GpuError, GpuSet, GpuUnavailableError


def open_gpus(
    count: int | None,
    *,
    is_simulated: bool,
    node: str,
    gpu_type: str = "generic",
    replayed: Path | None = None,
    gpm: bool = True,
) -> GpuSet:
    """The GPUs that a node is to offer.

    Args:
        count: How many; None: all that NVML shows (simulated ones have to be counted).
        is_simulated: Make them up instead of asking NVML.
        node: The node's name.
        gpu_type: Model of the GPUs; simulated ones behave like it.
        replayed: Play what was recorded in this file (`ReplayedGpus`) instead.
        gpm: Read GPU performance monitoring where there is any.

    Raises:
        InputError: no NVIDIA GPU here, or a number that cannot be offered; says what to do instead.
    """
    if replayed is not None:
        from rlsched_node.gpu.replayed import ReplayedGpus

        return ReplayedGpus(replayed)
    if is_simulated:
        from rlsched_node.gpu.simulated import SimulatedGpus

        if count is None:
            raise InputError("--simulated needs a number of GPUs, such as `--simulated --gpus 4`")
        return SimulatedGpus(count, node, gpu_type=gpu_type)
    wanted = count or 4
    try:
        from rlsched_node.gpu.nvml import NvmlGpus

        return NvmlGpus(count, gpm=gpm)
    except GpuUnavailableError as error:
        raise InputError(
            f"no NVIDIA GPU here ({error}); for simulated ones give `--simulated --gpus {wanted}`"
        ) from error
    except GpuError as error:
        raise InputError(
            f"the NVIDIA driver does not list its GPUs ({error}): see whether `nvidia-smi` does; for "
            f"simulated ones give `--simulated --gpus {wanted}`"
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            "reading NVIDIA GPUs needs nvidia-ml-py (pip install 'rlsched[node]'); "
            f"for simulated ones give `--simulated --gpus {wanted}`"
        ) from error


def type_of(gpus: GpuSet) -> str:
    """What GPUs are called that the operator has not named: as their driver does, several with `+` between.

    `generic` where there are none, and of simulated ones.
    """
    if gpus.kind == "simulated":
        return GENERIC
    found = set()
    for gpu in range(gpus.count):
        with contextlib.suppress(GpuError):  # a lost one has no name
            found.add(gpus.name(gpu).removesuffix(" (recorded)"))
    return "+".join(sorted(found)) or GENERIC
