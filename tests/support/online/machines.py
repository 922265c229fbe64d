"""Two machines simulated by network namespaces, and a line between them that can delay, lose or cut packets.

The line is a TUN device in each namespace and a thread that carries packets from one to the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
RLSCHED = (sys.executable, "-c", "from rlsched.cli.main import main; main()")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_DEVICE = "line0"


def why_not() -> str:
    """Missing requirements of this machine for two of them, "" if none."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun cannot be opened"
    probe = f"rlsched-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "network namespaces cannot be made here"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


class Machines:
    """Machine 0 and machine 1, with `ADDRESSES`.

    Attributes:
        line: The line between them.
    """

    def __init__(self) -> None:
        self.spaces = [f"rlsched-{os.getpid()}-{number}" for number in range(2)]
        self.processes: list[subprocess.Popen[bytes]] = []
        for space in self.spaces:
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
        self.line = Line(self.spaces)

    def start(self, number: int, output: Path, *args: str) -> subprocess.Popen[bytes]:
        """`rlsched ARGS` on a machine, its output in a file."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.spaces[number], *RLSCHED, *args],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def run(self, number: int, *args: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
        """Run `rlsched ARGS` on a machine, to its end."""
        return subprocess.run(
            ["ip", "netns", "exec", self.spaces[number], *RLSCHED, *args],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def close(self) -> None:
        """End the processes, last first, and remove the machines."""
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.line.close()
        for space in self.spaces:
            _ip("netns", "del", space)


class Line(threading.Thread):
    """Carries packets between two namespaces.

    Attributes:
        delay_s: Added to each packet, one way.
        loss_frac: Share of packets that are lost.
        is_cut: Whether all packets are lost.
        num_carried: Number of packets that arrived.
    """

    def __init__(self, spaces: list[str]) -> None:
        super().__init__(daemon=True)
        self.delay_s, self.loss_frac, self.is_cut, self.num_carried = 0.0, 0.0, False, 0
        self._spaces, self._ready, self._over = spaces, threading.Event(), False
        self._random = random.Random(7)
        self.start()
        if not self._ready.wait(10.0):
            raise RuntimeError("the line between the namespaces did not come up")
        for space, (own, other) in zip(spaces, (ADDRESSES, ADDRESSES[::-1]), strict=True):
            _ip("-n", space, "addr", "add", own, "peer", other, "dev", _DEVICE)
            _ip("-n", space, "link", "set", _DEVICE, "up")

    def close(self) -> None:
        """Remove the line."""
        self._over = True
        self.join(10.0)

    def run(self) -> None:
        """Carry packets until closed. A namespace belongs to a thread, so this enters both in turn."""
        ends = [_device_in(space) for space in self._spaces]
        self._ready.set()
        due: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        while not self._over:
            wait_s = max(0.0, min(due[0][0] - time.monotonic(), 0.1)) if due else 0.1
            for end in select.select(ends, [], [], wait_s)[0]:
                packet = os.read(end, 65536)
                if not self.is_cut and self._random.random() >= self.loss_frac:
                    to = ends[1 - ends.index(end)]
                    heapq.heappush(due, (time.monotonic() + self.delay_s, next(order), to, packet))
            while due and due[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(due)
                with contextlib.suppress(OSError):  # its end is not up yet
                    if not self.is_cut:
                        self.num_carried += os.write(to, packet) > 0
        for end in ends:
            os.close(end)


def _device_in(space: str) -> int:
    with open(f"/run/netns/{space}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
