"""The device program of a control group: accepted by the kernel, and the devices that it allows."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rlsched.wire.messages import AttemptKey, Launch
from rlsched_node.isolation import devices
from rlsched_node.isolation.cgroup import Cgroups
from rlsched_node.isolation.limits import RankLimits
from rlsched_node.processes import launch
from rlsched_node.processes.bounds import RankBounds
from rlsched_node.processes.cores import Cores

MEM_MAJOR, NULL_MINOR = 1, 3
"""Major number of /dev/null and /dev/zero, which every machine has."""
TTY_MAJOR = 5
"""Major number of /dev/ptmx."""


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


def test_major_of_capabilities_is_not_that_of_other_names(tmp_path: Path) -> None:
    file = tmp_path / "devices"
    assert devices.capability_major(file) is None
    file.write_text("Character devices:\n  1 mem\n195 nvidia\n236 nvidia-caps-imex-channels\n")
    assert devices.capability_major(file) is None
    file.write_text(file.read_text() + "234 nvidia-caps\n\nBlock devices:\n259 blkext\n")
    assert devices.capability_major(file) == 234


def test_listed_instance_without_a_minor_number_is_refused(tmp_path: Path) -> None:
    access = tmp_path / "gpu0" / "mig" / "gi1" / "access"
    access.parent.mkdir(parents=True)
    access.write_text("DeviceFileMode: 292\n")
    with pytest.raises(ValueError, match="expected a line DeviceFileMinor"):
        devices.instance_minors(0, 1, 0, tmp_path)
    access.unlink()
    with pytest.raises(FileNotFoundError):
        devices.instance_minors(0, 1, 0, tmp_path)


class Groups(Cgroups):
    """Control groups of a machine, which this test never creates."""

    def __init__(self) -> None:
        self.root, self.note, self.missing = "/groups", "", ""
        self.controllers, self._memory_bytes = frozenset(), 0


def limits(bounds: RankBounds, gpus: list[int]) -> tuple[list[int] | None, list[int] | None]:
    """(GPUs, capabilities) that a rank on these GPUs may open."""
    key = AttemptKey(1, 1, 0, "c1")
    order = Launch(
        epoch=1, job=1, attempt=1, rank=0, num_ranks=1, nodes=["n0"], gpus=gpus, command=[], env={}, cwd="/"
    )
    found = bounds.allocate_limits(key, order)
    bounds.release_limits(key)
    return found.devices, found.capabilities


def test_rank_may_open_the_capabilities_of_its_own_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown numbers are looked up again at each start; until they are known, the rank may open all."""
    monkeypatch.setattr(devices, "why_not", lambda: "")
    known: list[list[int] | None] = [[66, 67], None, []]

    def bounds(minors: list[int]) -> RankBounds:
        return RankBounds(
            Cores(range(4), [frozenset()] * 3), Groups(), 3, 1000, 0, lambda: minors, lambda: known
        )

    node = bounds([7, 7, 14])
    assert limits(node, [0]) == ([7], [66, 67])
    assert limits(node, [1]) == ([7], None)
    assert limits(node, [2]) == ([14], [])
    known = [[66, 67], [75, 76], []]
    assert limits(node, [1]) == ([7], [75, 76])
    assert limits(bounds([]), [0]) == (None, None), "GPUs without device files"
    monkeypatch.setattr(devices, "why_not", lambda: "bpf(2): Operation not permitted")
    assert limits(bounds([7, 7, 14]), [0]) == (None, None)


@pytest.mark.parametrize("major", [234, None])
def test_group_is_denied_other_gpus_and_other_instances(
    monkeypatch: pytest.MonkeyPatch, major: int | None
) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(launch, "close_others", lambda *words: calls.append(words))
    monkeypatch.setattr(launch, "capability_major", lambda: major)
    launch.deny_other_gpus("/group", RankLimits())
    assert not calls
    launch.deny_other_gpus("/group", RankLimits(devices=[7], capabilities=[66, 67]))
    own = [("/group", [7, 254, 255])]
    assert calls == (own if major is None else [*own, ("/group", [66, 67], 234)])


def test_group_can_open_only_its_devices(tmp_path: Path) -> None:
    cgroups = Cgroups(str(tmp_path))
    why = cgroups.note or devices.why_not()
    if why:
        pytest.skip(why)
    group = cgroups.cgroup_of("rank")
    assert group.create()
    devices.close_others(group.path, [NULL_MINOR], MEM_MAJOR)
    devices.close_others(group.path, [], TTY_MAJOR)
    told, tells = os.pipe()
    pid = group.fork()
    if pid == 0:
        for name in ("null", "zero", "full", "ptmx"):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDONLY))
                os.write(tells, b"+")
            except PermissionError:
                os.write(tells, b"-")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(tells)
    with os.fdopen(told) as file:
        assert file.read() == "+---", "both programs apply"
    os.close(os.open("/dev/zero", os.O_RDONLY))
    group.remove()
    assert not os.path.exists(group.path)
