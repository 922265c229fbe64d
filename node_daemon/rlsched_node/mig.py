"""MIG instances that this node has created.

The daemon creates the instances of `--mig-create` before it opens its GPUs, and destroys them at its end if
no job runs. Otherwise the next daemon uses them, and destroys the instances that its `--mig-create` does not
name. Each instance is recorded on disk before it is created. Instances of other programs are never changed.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rlsched.errors import InputError
from rlsched_node import records
from rlsched_node.adopt import has_running_attempts
from rlsched_node.gpu import explained_errors
from rlsched_node.gpu.device import (
    GpuError,
    GpuFullError,
    GpuInUseError,
    GpuLostError,
    GpuNotSupportedError,
    GpuPermissionError,
    GpuUnavailableError,
)
from rlsched_node.home import NodeHome
from rlsched_node.processes import shim
from rlsched_node.processes.store import AttemptStore

if TYPE_CHECKING:
    from rlsched_node.gpu.mig import MigGpu, Place, Profile

MIG_FILE: Final = "mig.json"
OPTION: Final = "--mig-create"
_ALL: Final = "all"
_EXAMPLE: Final = "expected GPU:PROFILE,... such as 0:1g.10gb,1g.10gb,3g.40gb or all:1g.10gb"
_log = logging.getLogger("rlsched.node")
Layout = Mapping[int | None, tuple[str, ...]]
"""Profiles of the instances to create, by NVML index of the GPU. The key None means each GPU."""


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instance that this node has created, or is about to create.

    Attributes:
        gpu: UUID of the GPU.
        profile: NVIDIA's name of the profile.
        start: First memory slice.
        size: Number of memory slices.
        gpu_instance: ID of the GPU instance; None: the GPU instance may not exist yet.
        compute_instance: ID of the compute instance; None: the compute instance may not exist yet.
        uuid: UUID of the MIG device; "": the device may not exist yet.
    """

    gpu: str
    profile: str
    start: int
    size: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: str = ""


class _Created(msgspec.Struct, frozen=True):
    """Content of the file of created instances.

    Attributes:
        boot_id: ID of the boot in which the instances were created; no instance survives a reboot.
        instances: The instances, in the order of creation.
    """

    boot_id: str
    instances: list[Instance]


def parse_layout(texts: Sequence[str]) -> Layout:
    """Read the values of `--mig-create`, such as `0:1g.10gb,3g.40gb`.

    Raises:
        InputError: a value is malformed, or two values name the same GPU.
    """
    found: dict[int | None, tuple[str, ...]] = {}
    for text in texts:
        where, colon, names = text.replace(" ", "").lower().partition(":")
        profiles = tuple(names.split(","))
        if not colon or not all(profiles) or not (where == _ALL or where.isdecimal()):
            raise InputError(f"{OPTION} {text!r}: {_EXAMPLE}")
        gpu = None if where == _ALL else int(where)
        if gpu in found or (found and None in (gpu, *found)):
            raise InputError(
                f"{OPTION} {text!r}: names a GPU twice; name each GPU once, with all its profiles"
            )
        found[gpu] = profiles
    return found


@contextlib.contextmanager
def created_instances(directory: Path, name: str, layout: Layout) -> Iterator[NodeHome | None]:
    """Lock the node's directory and create the instances of the layout. Yield the directory.

    At the end of the block, all instances that this node has created are destroyed, unless a job runs.

    Args:
        directory: The node's directory.
        name: The node's name.
        layout: The instances to create.

    Yields:
        The locked directory. If there is nothing to create or destroy, yields None and locks nothing.

    Raises:
        InputError: the directory is in use, or the instances cannot be created. The message names the remedy.
    """
    if not layout and not (directory / MIG_FILE).exists():
        yield None
        return
    home = NodeHome(directory, name)
    try:
        store, instances = AttemptStore(directory), MigInstances(directory)
        try:
            with explained_errors():
                instances.arrange(layout, has_jobs=has_running_attempts(store))
            yield home
        finally:
            if not has_running_attempts(store):
                instances.destroy_all()
    finally:
        home.close()


class MigInstances:
    """The instances that this node has created.

    Args:
        directory: The node's directory, locked.

    Raises:
        InputError: the record of an earlier daemon cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / MIG_FILE
        self.created = self._read()

    def arrange(self, layout: Layout, *, has_jobs: bool) -> None:
        """Destroy the node's instances that the layout does not name, and create the missing instances.

        Args:
            layout: The instances that this node has afterwards.
            has_jobs: Jobs run on this node, so nothing is destroyed or created.

        Raises:
            InputError: the layout is impossible, NVML refuses a call, or jobs run and the layout does not
                name an instance that this node has created.
            GpuError: NVML cannot be opened.
        """
        from rlsched_node.gpu.mig import mig_gpus

        with mig_gpus() as found:
            wanted, gpus = _wanted(layout, found), _by_uuid(found)
            for one in self.created:
                if one.gpu not in gpus:
                    _log.warning("%s is not changed: its GPU %s does not answer", _named(one), one.gpu)
            for uuid, gpu in gpus.items():
                try:
                    self._arrange(gpu, wanted.get(uuid, Counter()), has_jobs=has_jobs)
                except GpuLostError as error:
                    _log.warning("GPU %d: its MIG instances are not changed: %s", gpu.number, error)

    def _arrange(self, gpu: MigGpu, wanted: Counter[str], *, has_jobs: bool) -> None:
        missing, surplus = wanted.copy(), []
        for one in [one for one in self.created if one.gpu == gpu.uuid]:
            with _explained(gpu, f"cannot look for {_named(one)}"):
                found = self._find(one, gpu)
                is_complete = found is not None and bool(one.uuid) and one.uuid in gpu.device_uuids(found)
                if found is None:
                    self._forget(one)
            if found is None:
                continue
            if missing[one.profile] and is_complete:
                missing[one.profile] -= 1
            elif not has_jobs:
                surplus.append(one)
            elif not missing[one.profile]:
                raise InputError(
                    f"{OPTION} does not name {_named(one)} of GPU {gpu.number}, which this node has created "
                    "and cannot remove while jobs run here: start with the earlier value, drain the node, "
                    "then change the value"
                )
        names = sorted(missing.elements())
        if names and has_jobs:
            _log.warning(
                "GPU %d: MIG instances are not created while jobs run here, restart the node later: %s",
                *(gpu.number, ", ".join(names)),
            )
            return
        for one in surplus:
            with _explained(gpu, f"cannot destroy {_named(one)}"):
                self._destroy(one, gpu)
        for profile, place in _choose(gpu, names):
            with _explained(gpu, f"cannot create {profile.name}"):
                self._create(gpu, profile, place)

    def destroy_all(self) -> None:
        """Destroy all instances that this node has created. After an error, the next daemon tries again."""
        if not self.created:
            return
        from rlsched_node.gpu.mig import mig_gpus

        try:
            with mig_gpus() as found:
                gpus = _by_uuid(found)
                for one in self.created.copy():
                    try:
                        if one.gpu not in gpus:
                            raise GpuLostError(f"GPU {one.gpu} does not answer")
                        self._destroy(one, gpus[one.gpu])
                    except (GpuError, OSError) as error:
                        _log.warning("%s stays until the next start of this node: %s", _named(one), error)
        except GpuError as error:
            _log.warning("MIG instances stay until the next start of this node: %s", error)

    def _create(self, gpu: MigGpu, profile: Profile, place: Place) -> None:
        """Create an instance. Each step is recorded on disk before the next step begins."""
        one = Instance(gpu.uuid, profile.name, *place)
        self.created.append(one)
        self._write()
        try:
            handle = gpu.create(profile, place)
        except (GpuFullError, GpuPermissionError, GpuNotSupportedError):
            self._forget(one)  # nothing was created, and an instance at this place would not be this node's
            raise
        instance = gpu.instance_id(handle)
        one = self._advance(one, gpu_instance=instance)
        compute = gpu.create_compute(instance, profile)
        uuids = gpu.device_uuids(instance)
        if not uuids:
            raise GpuError(f"NVML does not list the device of GPU instance {instance}")
        one = self._advance(one, compute_instance=compute, uuid=uuids[0])
        _log.info("GPU %d: created %s", gpu.number, _named(one))

    def _advance(self, one: Instance, **changes: object) -> Instance:
        changed = msgspec.structs.replace(one, **changes)
        self.created[self.created.index(one)] = changed
        self._write()
        return changed

    def _destroy(self, one: Instance, gpu: MigGpu) -> None:
        found = self._find(one, gpu)
        if found is not None:
            for compute in gpu.compute_instances(found):
                if one.compute_instance in (None, compute):
                    gpu.destroy_compute(found, compute)
            gpu.destroy(found)
            _log.info("GPU %d: destroyed %s", gpu.number, _named(one))
        self._forget(one)

    def _forget(self, one: Instance) -> None:
        self.created.remove(one)
        self._write()

    def _find(self, one: Instance, gpu: MigGpu) -> int | None:
        """Return the ID of the GPU instance that a record describes.

        None: the instance does not exist, or another program's instance is in its place. If the daemon was
        killed while it created the instance, the record has no ID. An instance with the recorded profile and
        place then matches if it has no compute instance.
        """
        if not gpu.is_in_mig_mode:
            return None
        known = {other.gpu_instance for other in self.created if other.gpu == one.gpu and other is not one}
        for found in gpu.instances():
            if (found.profile, *found.place) != (one.profile, one.start, one.size) or found.id in known:
                continue
            if one.gpu_instance is None:
                return None if gpu.compute_instances(found.id) else found.id
            if found.id == one.gpu_instance:
                uuids = gpu.device_uuids(found.id)
                is_another = bool(one.uuid and uuids) and one.uuid not in uuids
                return None if is_another else found.id
        return None

    def _read(self) -> list[Instance]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Created)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(
                f"{self._path}: not a record of MIG instances: {error}; destroy the instances that this node "
                "has created (nvidia-smi mig -dci and -dgi), and remove the file"
            ) from error
        if found.boot_id != shim.boot_id():
            self._path.unlink(missing_ok=True)
            return []
        return found.instances

    def _write(self) -> None:
        if self.created:
            data = msgspec.json.encode(_Created(shim.boot_id(), self.created)) + b"\n"
            records.replace_synced(str(self._path), data)
        else:
            self._path.unlink(missing_ok=True)


def _wanted(layout: Layout, gpus: Sequence[MigGpu]) -> dict[str, Counter[str]]:
    """Return how many instances of each profile the layout requests on each GPU that answers, by GPU UUID."""
    wanted = {}
    for number in range(len(gpus)) if None in layout else layout:
        if number is None or number >= len(gpus):
            raise InputError(f"{OPTION}: GPU {number}: this machine has GPUs 0 to {len(gpus) - 1}")
        gpu = gpus[number]
        try:
            with _explained(gpu, "cannot create MIG instances"):
                if not gpu.is_in_mig_mode:
                    raise InputError(
                        f"{OPTION}: GPU {number} is not in MIG mode, which rlsched does not change: run "
                        f"nvidia-smi -i {number} -mig 1 (it may need a reset of the GPU), and start again"
                    )
                names = layout[None if None in layout else number]
                for name in names:
                    if name not in gpu.profiles:
                        raise InputError(
                            f"{OPTION}: GPU {number} has no MIG profile {name}; it has "
                            f"{', '.join(sorted(gpu.profiles)) or 'none'}"
                        )
                wanted[gpu.uuid] = Counter(names)
        except GpuLostError as error:
            _log.warning("GPU %d: no MIG instance is created: %s", number, error)
    return wanted


def _choose(gpu: MigGpu, names: Sequence[str]) -> list[tuple[Profile, Place]]:
    """Return the profile and a free place for each new instance on a GPU. `names`: names of the profiles."""
    if not names:
        return []
    from rlsched_node.gpu.mig import find_places

    with _explained(gpu, "cannot create MIG instances"):
        profiles, existing = [gpu.profiles[name] for name in names], gpu.instances()
        places = find_places([gpu.places(one) for one in profiles], [one.place for one in existing])
    if places is None:
        there = ", ".join(f"{one.profile} (GPU instance {one.id})" for one in existing) or "none"
        raise InputError(
            f"{OPTION}: GPU {gpu.number} has no room for {', '.join(names)}; existing instances: {there}"
        )
    return list(zip(profiles, places, strict=True))


def _named(one: Instance) -> str:
    return f"MIG instance {one.profile}" + (f" ({one.uuid})" if one.uuid else "")


def _by_uuid(gpus: Sequence[MigGpu]) -> dict[str, MigGpu]:
    """Return the GPUs that answer, by UUID."""
    found = {}
    for gpu in gpus:
        with contextlib.suppress(GpuError):
            found[gpu.uuid] = gpu
    return found


@contextlib.contextmanager
def _explained(gpu: MigGpu, what: str) -> Iterator[None]:
    """Turn an error of NVML or of the disk into an InputError with the remedy. `what`: the failed action.

    Raises:
        InputError: an NVML call or a write to disk failed.
        GpuLostError, GpuUnavailableError: the GPU does not answer.
    """
    head = f"{OPTION}: GPU {gpu.number}: {what}"
    try:
        yield
    except (GpuLostError, GpuUnavailableError):
        raise
    except GpuInUseError as error:
        raise InputError(
            f"{head}: processes use it; end these processes (nvidia-smi lists them), and start again"
        ) from error
    except GpuFullError as error:
        raise InputError(
            f"{head}: no room; nvidia-smi mig -lgip lists how many instances a GPU can have"
        ) from error
    except GpuPermissionError as error:
        raise InputError(f"{head}: needs root (in a container: CAP_SYS_ADMIN)") from error
    except GpuError as error:
        raise InputError(f"{head}: {error.__cause__ or error}") from error
    except OSError as error:
        raise InputError(f"{head}: its record cannot be written: {error}") from error
