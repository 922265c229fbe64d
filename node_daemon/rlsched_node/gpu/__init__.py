"""The GPUs of a node behind one interface: real GPUs through NVML, simulated GPUs, or recorded readings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rlsched.errors import InputError
from rlsched.installing import install_command
from rlsched.models.gpu_types import GENERIC
from rlsched.models.slice_name import slice_name
from rlsched_node.gpu.device import GpuError, GpuSet, GpuUnavailableError


def open_gpus(
    count: int | None,
    *,
    is_simulated: bool,
    node: str,
    gpu_type: str = "generic",
    replayed: Path | None = None,
    gpm: bool = True,
    truth: Path | None = None,
) -> GpuSet:
    """Open the GPUs that a node offers.

    Args:
        count: Number of GPUs; None: all GPUs that NVML lists. Required for simulated GPUs.
        is_simulated: Simulate the GPUs instead of using NVML.
        node: The node's name.
        gpu_type: Model of the GPUs; simulated GPUs behave like this model. With a MIG profile
            (`H100-80GB/1g.10gb`) the node offers the instances of this profile.
        replayed: Recording to replay instead of using NVML (`ReplayedGpus`); None: no replay.
        gpm: Read GPU performance monitoring if the GPUs have it.
        truth: File with figures that replace the catalogue's figures for simulated GPUs (`SimulatedTruth`);
            None: the catalogue's figures.

    Raises:
        InputError: the GPUs cannot be opened, for example because this machine has no NVIDIA GPU, or the
            machine does not have `count` GPUs. The message names the remedy.
    """
    if replayed is not None:
        from rlsched_node.gpu.replayed import ReplayedGpus

        return ReplayedGpus(replayed)
    if is_simulated:
        from rlsched_node.gpu.simulated import SimulatedGpus
        from rlsched_node.gpu.truth import SimulatedTruth

        if count is None:
            raise InputError("--simulated needs a number of GPUs, such as `--simulated --gpus 4`")
        known = None if truth is None else SimulatedTruth.read(truth)
        return SimulatedGpus(count, node, gpu_type=gpu_type, truth=known)
    with explained_errors(count or 4):
        from rlsched_node.gpu.nvml import NvmlGpus

        cut = slice_name(gpu_type)
        return NvmlGpus(count, gpm=gpm, profile=cut.profile if cut is not None else "")


@contextlib.contextmanager
def explained_errors(wanted: int = 4) -> Iterator[None]:
    """If opening NVML in the `with` block fails, raise an InputError that names the remedy.

    Args:
        wanted: Number of simulated GPUs that the remedy suggests.
    """
    try:
        yield
    except GpuUnavailableError as error:
        raise InputError(
            f"no NVIDIA GPU here ({error}); for simulated GPUs give `--simulated --gpus {wanted}`"
        ) from error
    except GpuError as error:
        raise InputError(
            f"the NVIDIA driver does not list its GPUs ({error}): see whether `nvidia-smi` does; for "
            f"simulated GPUs give `--simulated --gpus {wanted}`"
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"reading NVIDIA GPUs needs nvidia-ml-py ({install_command('node')}); "
            f"for simulated GPUs give `--simulated --gpus {wanted}`"
        ) from error


def type_of(gpus: GpuSet, named: str = "") -> str:
    """Return the GPU type of a node: `named`, or the models that the driver reports, joined by `+`.

    The type is `generic` if `named` is "", and the GPUs are simulated or no GPU answers. For MIG instances,
    the profile follows the model, such as `H100-80GB/1g.10gb`.
    """
    if gpus.kind == "simulated":
        return named or GENERIC
    found = set()
    for gpu in range(gpus.count):
        with contextlib.suppress(GpuError):  # a lost GPU has no name
            found.add(gpus.name(gpu).removesuffix(" (recorded)"))
    profiles = {cut.profile for cut in map(slice_name, found) if cut is not None}
    if named and slice_name(named) is None and len(profiles) == 1:
        return f"{named}/{profiles.pop()}"
    return named or "+".join(sorted(found)) or GENERIC
