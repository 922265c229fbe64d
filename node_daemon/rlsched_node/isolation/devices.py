"""Denies a control group the GPUs and MIG instances that its rank does not hold, with BPF programs (bpf(2)).

GPUs have files /dev/nvidiaN. A MIG instance has two files /dev/nvidia-caps/nvidia-capM: one for the GPU
instance, and one for the compute instance. The driver lists the minor numbers M in
/proc/driver/nvidia/capabilities (NVIDIA's MIG guide, device nodes and capabilities). Processes with
CAP_SYS_ADMIN do not need them.

For devices, the kernel runs a program of type BPF_PROG_TYPE_CGROUP_DEVICE (Linux 4.15; kernel, cgroup-v2.rst,
«Device controller»). Numbers and structures below are from linux/bpf.h. A program stays loaded as long as its
group exists. To load a program, a process needs root, or CAP_BPF with CAP_NET_ADMIN.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

NVIDIA_MAJOR: Final = 195
"""Major number of /dev/nvidiaN, /dev/nvidiactl and /dev/nvidia-modeset (kernel, devices.txt)."""
FOR_ALL: Final = (254, 255)
"""Minor numbers of devices that every CUDA program opens: nvidia-modeset, nvidiactl."""
CAPABILITIES: Final = "nvidia-caps"
"""Name in /proc/devices for the files in /dev/nvidia-caps, whose major number the kernel chooses."""
DEVICES_FILE: Final = "/proc/devices"
CAPABILITIES_DIRECTORY: Final = "/proc/driver/nvidia/capabilities"
_MINOR_FIELD: Final = "DeviceFileMinor"
_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2
_TYPE, _MAJOR, _MINOR, _CHAR = 0, 4, 8, 2
"""Offsets of the fields of `struct bpf_cgroup_dev_ctx`, and the value of the type for character devices."""
_LOAD_W, _AND, _NOT_EQUAL, _EQUAL, _MOVE, _EXIT = 0x61, 0x57, 0x55, 0x15, 0xB7, 0x95
_ATTR_BYTES: Final = 128


def program(major: int, minors: Sequence[int]) -> bytes:
    """Return instructions that deny all character devices of a major number, except these minor numbers."""
    allow = 8 + len(minors)  # position of `return 1`; a jump counts from the next instruction
    code = [
        _instruction(_LOAD_W, 2, 1, _TYPE),
        _instruction(_AND, 2, immediate=0xFFFF),
        _instruction(_NOT_EQUAL, 2, offset=allow - 3, immediate=_CHAR),
        _instruction(_LOAD_W, 2, 1, _MAJOR),
        _instruction(_NOT_EQUAL, 2, offset=allow - 5, immediate=major),
        _instruction(_LOAD_W, 2, 1, _MINOR),
    ]
    code += [_instruction(_EQUAL, 2, offset=allow - 7 - at, immediate=m) for at, m in enumerate(minors)]
    for answer in (0, 1):
        code += [_instruction(_MOVE, immediate=answer), _instruction(_EXIT)]
    return b"".join(code)


def why_not() -> str:
    """Return why this process cannot deny devices to a group; "" if it can. Changes no group."""
    try:
        os.close(_load(program(NVIDIA_MAJOR, FOR_ALL)))
    except OSError as error:
        return f"bpf(2): {error.strerror}"
    return ""


def close_others(group: str, minors: Collection[int], major: int = NVIDIA_MAJOR) -> None:
    """Deny a group all devices with this major number, except these minor numbers.

    Raises:
        OSError: the kernel does not permit it.
    """
    loaded = _load(program(major, sorted(minors)))
    try:
        directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=4I", directory, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(directory)
    finally:
        os.close(loaded)


def capability_major(devices_file: str | Path = DEVICES_FILE) -> int | None:
    """Return the major number of the files in /dev/nvidia-caps; None: this driver has no such files."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(devices_file).read_text("ascii").splitlines():
            number, _, name = line.strip().partition(" ")
            if name == CAPABILITIES:
                return int(number)
    return None


def instance_minors(
    gpu_minor: int, gpu_instance: int, compute_instance: int, directory: str | Path = CAPABILITIES_DIRECTORY
) -> list[int]:
    """Return the minor numbers of the two files in /dev/nvidia-caps that a MIG instance needs.

    Args:
        gpu_minor: N of the GPU's /dev/nvidiaN.
        gpu_instance: ID of the GPU instance.
        compute_instance: ID of the compute instance.
        directory: Directory in which the driver lists capabilities.

    Raises:
        OSError: the driver lists no such instance.
        ValueError: the driver lists it without a minor number.
    """
    instance = Path(directory, f"gpu{gpu_minor}", "mig", f"gi{gpu_instance}")
    return [_listed_minor(path / "access") for path in (instance, instance / f"ci{compute_instance}")]


def _listed_minor(path: Path) -> int:
    for line in path.read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == _MINOR_FIELD:
            return int(value)
    raise ValueError(f"{path}: expected a line {_MINOR_FIELD}, found none")


def _load(code: bytes) -> int:
    """Load a program into the kernel. Return its descriptor."""
    instructions, license_ = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"MIT")
    places = ctypes.addressof(instructions), ctypes.addressof(license_)
    return _bpf(_PROG_LOAD, struct.pack("=2I2Q", _TYPE_CGROUP_DEVICE, len(code) // 8, *places))


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, *, immediate: int = 0) -> bytes:
    """Return a `struct bpf_insn`: operation, registers, offset, immediate value."""
    return struct.pack("=BBhi", code, source << 4 | to, offset, immediate)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, f"the number of this system call is not known on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, _ATTR_BYTES)
    found = int(
        libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(_ATTR_BYTES))
    )
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
