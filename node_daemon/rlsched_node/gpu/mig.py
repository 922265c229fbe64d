"""Profiles of a GPU in MIG mode, and creation and destruction of its instances, through NVML.

A GPU instance has memory slices and compute slices. rlsched creates one compute instance in it, with all of
its compute slices. Together, they are a MIG device, which a job can use. NVML lists GPU instances for root
only.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pynvml

from rlsched_node.gpu.device import GpuError, GpuLostError, GpuNotSupportedError, GpuUnavailableError
from rlsched_node.gpu.nvml import by_index, count_gpus, gpu_instance_id, mig_devices, mig_mode, typed_errors

_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
"""NVML's errors for a profile that a GPU does not have."""


class Place(NamedTuple):
    """Position of a GPU instance on its GPU: index of the first memory slice, and count of memory slices."""

    start: int
    size: int

    def overlaps(self, other: Place) -> bool:
        """Return whether the two places have a memory slice in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class Profile(NamedTuple):
    """A kind of GPU instance.

    Attributes:
        name: NVIDIA's name with attributes, such as `1g.10gb+me`.
        id: NVML's ID.
        compute: Number of compute slices.
        most: Maximum number of instances of this profile on a GPU.
    """

    name: str
    id: int
    compute: int
    most: int


class GpuInstance(NamedTuple):
    """An existing GPU instance: NVML's ID, the name of its profile, and its memory slices."""

    id: int
    profile: str
    place: Place


def find_places(wanted: Sequence[Sequence[Place]], taken: Sequence[Place]) -> list[Place] | None:
    """Choose a place for each instance, so that no places overlap; return None if that is impossible.

    Args:
        wanted: For each instance, the places that its profile permits.
        taken: Places of existing instances.
    """
    if not wanted:
        return []
    for place in wanted[0]:
        if not any(place.overlaps(one) for one in taken):
            others = find_places(wanted[1:], [*taken, place])
            if others is not None:
                return [place, *others]
    return None


class MigGpu:
    """One GPU of the machine. Properties and methods raise GpuError if an NVML call fails.

    Args:
        number: NVML index of the GPU.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @cached_property
    def _board(self) -> Any:
        try:
            return by_index(self.number)
        except GpuUnavailableError:
            raise
        except GpuError as error:
            raise GpuLostError(str(error)) from error

    @cached_property
    @typed_errors
    def uuid(self) -> str:
        """UUID of the GPU."""
        return str(pynvml.nvmlDeviceGetUUID(self._board))

    @property
    def is_in_mig_mode(self) -> bool:
        """Whether the GPU is in MIG mode now, so that it can have instances."""
        try:
            return mig_mode(self._board)
        except GpuNotSupportedError:
            return False

    @cached_property
    @typed_errors
    def profiles(self) -> dict[str, Profile]:
        """The GPU's profiles by name, including profiles for which the GPU has no free space."""
        found = {}
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(self._board, number)
            except pynvml.NVMLError as error:
                if error.value in _ABSENT:
                    continue
                raise
            text = info.name.decode("ascii", "replace") if isinstance(info.name, bytes) else str(info.name)
            name = text.removeprefix("MIG ")
            found[name] = Profile(name, info.id, info.sliceCount, info.instanceCount)
        return found

    @typed_errors
    def places(self, profile: Profile) -> list[Place]:
        """Return all places (ranges of memory slices) that a profile permits, including places in use."""
        count = ctypes.c_uint()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(self._board, profile.id, None, ctypes.byref(count))
        found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(self._board, profile.id, found, ctypes.byref(count))
        return [Place(one.start, one.size) for one in found[: count.value]]

    @typed_errors
    def instances(self) -> list[GpuInstance]:
        """Return the existing GPU instances, with or without compute instances."""
        found = []
        for profile in self.profiles.values():
            count, handles = ctypes.c_uint(), (pynvml.c_nvmlGpuInstance_t * profile.most)()
            pynvml.nvmlDeviceGetGpuInstances(self._board, profile.id, handles, ctypes.byref(count))
            for handle in handles[: count.value]:
                info = pynvml.nvmlGpuInstanceGetInfo(handle)
                place = Place(info.placement.start, info.placement.size)
                found.append(GpuInstance(info.id, profile.name, place))
        return found

    @typed_errors
    def create(self, profile: Profile, place: Place) -> Any:
        """Create a GPU instance without a compute instance, and return NVML's handle of it."""
        wanted = pynvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(self._board, profile.id, ctypes.byref(wanted))

    @typed_errors
    def instance_id(self, handle: Any) -> int:
        """Return the ID of the GPU instance with this handle."""
        return int(pynvml.nvmlGpuInstanceGetInfo(handle).id)

    @typed_errors
    def create_compute(self, instance: int, profile: Profile) -> int:
        """Create a compute instance that has all compute slices of a GPU instance. Return its ID."""
        handle = self._instance(instance)
        kinds = [info.id for info in _compute_profiles(handle) if info.sliceCount == profile.compute]
        if not kinds:
            raise GpuNotSupportedError(f"NVML has no compute instance of {profile.compute} slices")
        created = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, kinds[0])
        return int(pynvml.nvmlComputeInstanceGetInfo(created).id)

    @typed_errors
    def compute_instances(self, instance: int) -> list[int]:
        """Return the IDs of the compute instances in a GPU instance."""
        handle, found = self._instance(instance), []
        for info in _compute_profiles(handle):
            count, handles = ctypes.c_uint(), (pynvml.c_nvmlComputeInstance_t * info.instanceCount)()
            pynvml.nvmlGpuInstanceGetComputeInstances(handle, info.id, handles, ctypes.byref(count))
            found += [int(pynvml.nvmlComputeInstanceGetInfo(one).id) for one in handles[: count.value]]
        return found

    def device_uuids(self, instance: int) -> list[str]:
        """Return the UUIDs of the MIG devices in a GPU instance."""
        return [uuid for uuid, handle in mig_devices(self._board) if gpu_instance_id(handle) == instance]

    @typed_errors
    def destroy_compute(self, instance: int, compute: int) -> None:
        """Destroy a compute instance.

        Raises:
            GpuInUseError: a process uses the compute instance.
        """
        handle = pynvml.nvmlGpuInstanceGetComputeInstanceById(self._instance(instance), compute)
        pynvml.nvmlComputeInstanceDestroy(handle)

    @typed_errors
    def destroy(self, instance: int) -> None:
        """Destroy a GPU instance.

        Raises:
            GpuInUseError: the GPU instance has a compute instance, or a process uses it.
        """
        pynvml.nvmlGpuInstanceDestroy(self._instance(instance))

    def _instance(self, instance: int) -> Any:
        return pynvml.nvmlDeviceGetGpuInstanceById(self._board, instance)


def _compute_profiles(handle: Any) -> Iterator[Any]:
    """Yield NVML's profiles of the compute instances that a GPU instance can have."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                handle, number, pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except pynvml.NVMLError as error:
            if error.value not in _ABSENT:
                raise


@contextlib.contextmanager
def mig_gpus() -> Iterator[list[MigGpu]]:
    """Open NVML, and yield all GPUs of the machine. NVML is closed at the end of the block.

    Raises:
        GpuUnavailableError: there is no driver or library.
        GpuError: NVML cannot be opened, or does not report the number of GPUs.
    """
    typed_errors(pynvml.nvmlInit)()
    try:
        yield [MigGpu(number) for number in range(count_gpus())]
    finally:
        with contextlib.suppress(GpuError):
            typed_errors(pynvml.nvmlShutdown)()
