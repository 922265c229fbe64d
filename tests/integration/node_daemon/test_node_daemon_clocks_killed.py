"""`rlsched node` as a process on the fake NVML, killed at each step at which it changes clocks.

The daemon dies at a file operation of its own (`die_at`), or at a call of NVML, before the call has an effect
or after it. The next daemon leaves no clock lowered that no job requested, and reports the
clocks that are set.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rlsched.wire.messages import HoldClock, Launched
from rlsched_node.clocks import CLOCKS_FILE
from tests.support.online.fake_nvml import FakeNvml, needs_gcc
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node, gated, until

pytestmark = [pytest.mark.slow, needs_gcc]
LOCK, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
DRAFT, FILE = f"*/{CLOCKS_FILE}.tmp", f"*/{CLOCKS_FILE}"
GPUS = [0, 1]
MHZ = 1200
Step = tuple[object, ...]
"""A call of NVML as in `FAKE_NVML_KILL`, or arguments of `die_at`."""
WRITE: list[tuple[Step, str]] = [(("open", DRAFT), "draft"), (("os.rename", DRAFT), "rename")]


def calls(function: str) -> list[tuple[Step, str]]:
    """Steps before, between and after the calls for both GPUs."""
    return [
        ((f"{function} 1",), "no GPU"),
        ((f"{function} 2",), "one GPU"),
        ((f"{function}+ 2",), "both GPUs"),
    ]


def steps(*found: tuple[Step, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("step", [pytest.param(step, id=name) for step, name in found])


class Nodes:
    """A node with two GPUs, one daemon after the other.

    Args:
        broker: A broker controlled by the test.
        start_node: Starts a daemon.
        directory: Folder of the fake NVML and of the job.
        monkeypatch: Sets variables of the daemons.
    """

    def __init__(
        self,
        broker: FakeBroker,
        start_node: Callable[..., Node],
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._broker, self._start_node, self._patch = broker, start_node, monkeypatch
        self._directory, self._nvml = directory, FakeNvml(directory)
        for name, value in self._nvml.environment.items():
            if name != "LD_LIBRARY_PATH":
                monkeypatch.setenv(name, value)
        self._node: Node | None = None

    def start(self, step: Step = ()) -> list[int]:
        """Start the next daemon, which dies at this step. Returns the reported clock of each running job."""
        if self._node is not None and self._node.process.poll() is None:
            self._node.signal(signal.SIGTERM)
        is_call = len(step) == 1
        self._patch.setenv("FAKE_NVML_KILL", str(step[0]) if is_call else "")
        self._node = self._start_node(
            "--gpus", "2", "--no-gpm", libraries=self._directory, dies_at=() if is_call else step
        )
        attempts = self._broker.greet().attempts
        return [one.sm_clock_mhz for one in attempts if one.state == "running"]

    def begin(self, mhz: int = MHZ) -> None:
        """Order a job on both GPUs, with this clock."""
        self._broker.launch(*gated(self._directory), gpus=GPUS, sm_clock_mhz=mhz)

    def hold(self, mhz: int) -> None:
        """Order another clock for the running job."""
        self._broker.send(HoldClock(epoch=1, job=1, attempt=1, rank=0, sm_clock_mhz=mhz))

    def has_died(self) -> None:
        assert self._node is not None
        assert self._node.process.wait(DEADLINE_S) == -signal.SIGKILL, self._node.log

    def open_gate(self) -> None:
        (self._directory / "gate").write_text("go\n")

    def end(self) -> None:
        """Let the job end."""
        self.open_gate()
        self.has_ended()

    def has_ended(self) -> None:
        """Wait for the end of the job, which ran once. No clock stays locked."""
        assert self._node is not None
        file = self._node.directory / CLOCKS_FILE
        assert self._broker.end_of(1).exit_code == 0
        until(lambda: self.locked == [0, 0])
        until(lambda: not file.exists())
        assert (self._directory / "runs").read_text() == "ran\n"

    @property
    def locked(self) -> list[int]:
        """Clock to which each GPU is locked, MHz; 0: it is not locked."""
        found = [0, 0]
        text = self._nvml.clocks.read_text() if self._nvml.clocks.exists() else ""
        for line in text.splitlines():
            what, gpu, _, high = line.split()
            found[int(gpu)] = int(high) if what == "lock" else 0
        return found


@pytest.fixture
def nodes(
    broker: FakeBroker, start_node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Nodes:
    return Nodes(broker, start_node, tmp_path, monkeypatch)


@steps(
    *WRITE,
    *calls(LOCK),
    (("os.mkdir", "*/records/*/*.*.*"), "attempt"),
    (("open", "*/launch.json"), "launch"),
    (("open", "*/exit.tmp"), "launch record"),
)
def test_kill_9_at_a_step_of_a_start(nodes: Nodes, broker: FakeBroker, step: Step) -> None:
    """If the job has not started, its clock is unlocked at once."""
    nodes.start(step)
    nodes.begin()
    nodes.has_died()
    running = nodes.start()
    if not running:
        assert nodes.locked == [0, 0]
        nodes.begin()
        running = [broker.receive(Launched).sm_clock_mhz]
    assert running == [MHZ]
    assert nodes.locked == [MHZ, MHZ]
    nodes.end()


@steps(*calls(RESET), (("os.remove", FILE), "file"))
def test_kill_9_at_a_step_of_an_end(nodes: Nodes, broker: FakeBroker, step: Step) -> None:
    nodes.start(step)
    nodes.begin()
    broker.receive(Launched)
    nodes.open_gate()
    nodes.has_died()
    assert nodes.start() == []
    nodes.has_ended()


@steps((("open", DRAFT, 2), "draft"), (("os.rename", DRAFT, 2), "rename"), *calls(LOCK))
def test_kill_9_at_a_step_of_a_change(nodes: Nodes, broker: FakeBroker, step: Step) -> None:
    """The job keeps one of both clocks on both GPUs, and the node reports which one."""
    mhz, is_call = 1560, len(step) == 1
    if is_call:  # the start has two calls of its own
        function, number = str(step[0]).split()
        step = (f"{function} {int(number) + len(GPUS)}",)
    nodes.start(step)
    nodes.begin()
    assert broker.receive(Launched).sm_clock_mhz == MHZ
    nodes.hold(mhz)
    nodes.has_died()
    (reported,) = nodes.start()
    assert reported == (mhz if is_call else MHZ), "the order that is on disk"
    assert nodes.locked == [reported, reported]
    nodes.hold(mhz)
    until(lambda: nodes.locked == [mhz, mhz])
    nodes.end()


@steps(*calls(RESET), (("os.remove", FILE), "file"))
def test_kill_9_at_a_step_of_the_return_to_full_clock(nodes: Nodes, broker: FakeBroker, step: Step) -> None:
    nodes.start(step)
    nodes.begin()
    assert broker.receive(Launched).sm_clock_mhz == MHZ
    nodes.hold(0)
    nodes.has_died()
    assert nodes.start() == [MHZ]
    assert nodes.locked == [MHZ, MHZ], "as reported"
    nodes.hold(0)
    until(lambda: nodes.locked == [0, 0])
    nodes.end()
