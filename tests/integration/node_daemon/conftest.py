"""A broker controlled by the test, and nodes that are stopped after it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlsched_node.mps.control import pipes_of
from rlsched_node.processes.leftovers import attempt_directory_of
from tests.support.online.processes import DEADLINE_S, FakeBroker, Node


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def broker(home: Path) -> Iterator[FakeBroker]:
    broker = FakeBroker(home)
    yield broker
    broker.close()


@pytest.fixture
def start_node(home: Path, broker: FakeBroker) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*options: str, libraries: Path | None = None, dies_at: tuple[object, ...] = ()) -> Node:
        nodes.append(Node(home, broker.address, *options, libraries=libraries, dies_at=dies_at))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait(DEADLINE_S)
    for name in filter(str.isdigit, os.listdir("/proc")):
        of_node = attempt_directory_of(int(name)) or pipes_of(int(name)) or ""
        if of_node.startswith(str(home)):
            os.kill(int(name), signal.SIGKILL)
