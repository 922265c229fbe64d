"""Checks of the machine before any measurement."""

from __future__ import annotations

import importlib.util
import os

from rlsched.errors import InputError
from rlsched_node.gpu.device import GpuSet, GpuUnavailableError
from studies.gpu.protocol import Host

BUSY_FRAC = 0.05
"""Utilisation before the start above which a GPU counts as in use by another process."""
REHEARSAL_GPU = "rehearsal on a CPU"


def open_machine(gpu: int, *, is_rehearsal: bool, may_be_busy: bool) -> tuple[Host, GpuSet | None]:
    """Find the GPU, torch and other processes on the GPU.

    Args:
        gpu: Number of the GPU, as NVML counts.
        is_rehearsal: Require no GPU.
        may_be_busy: Measure on a GPU in use.

    Returns:
        The host, and the node's GPUs; None in a rehearsal.

    Raises:
        InputError: No GPU, no torch, a torch without CUDA, no such GPU, or a GPU in use.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "the workloads are written in torch, which is not installed: pip install 'rlsched[profile]'"
        )
    if is_rehearsal:
        return _host(REHEARSAL_GPU, "", None, is_rehearsal=True), None
    gpus = _open_gpus()
    try:
        if not 0 <= gpu < gpus.count:
            raise InputError(f"--gpu {gpu}: this machine has GPUs 0 to {gpus.count - 1}")
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks the driver, opens no context here
        import torch

        if torch.version.cuda is None or not torch.cuda.is_available():
            raise InputError(
                f"NVML shows {gpus.name(gpu)}, but torch {torch.__version__} cannot use it: "
                "install a torch built for CUDA"
            )
        if not may_be_busy:
            _refuse_if_busy(gpus, gpu)
        return _host(gpus.name(gpu), _driver(), gpus.memory_total_mib(gpu), is_rehearsal=False), gpus
    except BaseException:
        gpus.close()
        raise


def _open_gpus() -> GpuSet:
    try:
        from rlsched_node.gpu.nvml import NvmlGpus

        return NvmlGpus()
    except GpuUnavailableError as error:
        raise InputError(
            f"no NVIDIA GPU here ({error}): nothing can be measured; --rehearse tests it all on the CPU"
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            "reading the GPU needs nvidia-ml-py, which is not installed: pip install 'rlsched[profile]'"
        ) from error


def _refuse_if_busy(gpus: GpuSet, gpu: int) -> None:
    others = gpus.foreign_processes(gpu, lambda pid: pid == os.getpid()) or []
    used_frac = gpus.utilisation_frac(gpu) or 0.0
    if others or used_frac > BUSY_FRAC:
        raise InputError(
            f"GPU {gpu} is in use ({len(others)} processes, {used_frac:.0%} busy), which would spoil speeds: "
            "choose another with --gpu, or measure all the same with --busy"
        )


def _driver() -> str:
    import pynvml

    return str(pynvml.nvmlSystemGetDriverVersion())


def _host(name: str, driver: str, memory_mib: int | None, *, is_rehearsal: bool) -> Host:
    from importlib.metadata import version

    return Host(
        gpu_type=name,
        driver=driver,
        torch=version("torch"),
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_total_mib=memory_mib,
        is_rehearsal=is_rehearsal,
    )
