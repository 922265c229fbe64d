"""The device program of a control group: accepted by the kernel, and the devices that it allows."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rlsched_node.isolation import devices
from rlsched_node.isolation.cgroup import Cgroups

MEM_MAJOR, NULL_MINOR = 1, 3
"""Major number of /dev/null and /dev/zero, which every machine has."""


def run(code: bytes, kind: int, major: int, minor: int) -> int:
    """Result of a program, computed instruction by instruction for the few that it may contain."""
    registers, at, context = [0] * 11, 0, {0: kind, 4: major, 8: minor}
    while True:
        operation, both, offset, immediate = struct.unpack_from("=BBhi", code, 8 * at)
        to = both & 15
        at += 1
        match operation:
            case 0x61:
                assert both >> 4 == 1, "only from the context"
                registers[to] = context[offset]
            case 0x57:
                registers[to] &= immediate
            case 0x55:
                at += offset if registers[to] != immediate else 0
            case 0x15:
                at += offset if registers[to] == immediate else 0
            case 0xB7:
                registers[to] = immediate
            case 0x95:
                return registers[0]
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize("minors", [[], [0], [3, 0, 254, 255]])
def test_only_other_minors_of_the_major_are_denied(minors: list[int]) -> None:
    code = devices.program(195, minors)
    for minor in (0, 1, 3, 254, 255):
        assert run(code, 2 | 6 << 16, 195, minor) == (minor in minors)
        assert run(code, 2 | 6 << 16, 1, minor) == 1, "another device"
        assert run(code, 1 | 6 << 16, 195, minor) == 1, "a block device"


def test_group_can_open_only_its_devices(tmp_path: Path) -> None:
    cgroups = Cgroups(str(tmp_path))
    why = cgroups.note or devices.why_not()
    if why:
        pytest.skip(why)
    group = cgroups.cgroup_of("rank")
    assert group.create()
    devices.close_others(group.path, [NULL_MINOR], MEM_MAJOR)
    told, tells = os.pipe()
    pid = group.fork()
    if pid == 0:
        for name in ("null", "zero", "full"):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDONLY))
                os.write(tells, b"+")
            except PermissionError:
                os.write(tells, b"-")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(tells)
    with os.fdopen(told) as file:
        assert file.read() == "+--"
    os.close(os.open("/dev/zero", os.O_RDONLY))
    group.remove()
    assert not os.path.exists(group.path)
