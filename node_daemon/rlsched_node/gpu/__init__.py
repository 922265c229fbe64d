"""The GPUs of a node behind one small interface: real ones through NVML, or simulated ones."""

from __future__ import annotations

from rlsched.errors import InputError
from rlsched_node.gpu.device import GpuSet, GpuUnavailableError


def open_gpus(count: int | None, *, is_simulated: bool, node: str) -> GpuSet:
    """The GPUs that a node is to offer.

    Args:
        count: How many; None: all that NVML shows (simulated ones have to be counted).
        is_simulated: Make them up instead of asking NVML.
        node: The node's name.

    Raises:
        InputError: no NVIDIA GPU here, or a number that cannot be offered; says what to do instead.
    """
    if is_simulated:
        from rlsched_node.gpu.simulated import SimulatedGpus

        if count is None:
            raise InputError("--simulated needs a number of GPUs, such as `--simulated --gpus 4`")
        return SimulatedGpus(count, node)
    wanted = count or 4
    try:
        from rlsched_node.gpu.nvml import NvmlGpus

        return NvmlGpus(count)
    except GpuUnavailableError as error:
        raise InputError(
            f"no NVIDIA GPU here ({error}); for simulated ones give `--simulated --gpus {wanted}`"
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            "reading NVIDIA GPUs needs nvidia-ml-py (pip install 'rlsched[node]'); "
            f"for simulated ones give `--simulated --gpus {wanted}`"
        ) from error
