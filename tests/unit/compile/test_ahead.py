"""Kernels are compiled in several processes, and no result depends on these."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlsched.broker.server.ahead import entries_of
from rlsched.broker.server.broker_policy import load_policy
from rlsched.compile.ahead import compile_pieces
from rlsched.compile.compiling import COMPILING, SAYS, Compiling
from rlsched.compile.jit import Kernel, widened
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from tests.quick import quick
from tests.support.exited import has_exited


@pytest.fixture
def by_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILING, "by_verb", True)


@pytest.mark.usefixtures("by_verb")
def test_every_part_is_compiled_though_processes_die(tmp_path: Path) -> None:
    last = [tmp_path / str(number) for number in range(3)]
    fails = partial(int, "no number")
    compile_pieces([partial(os._exit, 3), fails, *(partial(path.touch) for path in last)], 2)
    assert all(path.exists() for path in last)


@pytest.mark.usefixtures("by_verb")
def test_all_processes_may_die() -> None:
    compile_pieces([partial(os._exit, 3)] * 4, 2)


def test_without_a_running_verb_no_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COMPILING, "by_verb", False)
    compile_pieces([partial((tmp_path / "a").touch), partial((tmp_path / "b").touch)], 2)
    monkeypatch.setattr(COMPILING, "by_verb", True)
    compile_pieces([partial((tmp_path / "a").touch)], 2)
    compile_pieces([partial((tmp_path / "a").touch), partial((tmp_path / "b").touch)], 1)
    assert not list(tmp_path.iterdir())


def test_kernels_compiled_by_processes_are_counted() -> None:
    here, beside, said = Compiling(), Compiling(), list[tuple[Any, ...]]()
    beside.hand_on = said.append
    beside.begins(b"entry", {b"inside"})
    beside.report_available(b"inside", compiled=True)
    beside.report_available(b"other", compiled=False)
    beside.waits()
    beside.report_available(b"entry", compiled=True)
    beside.ends({b"inside"})
    for method, *arguments in said:
        getattr(here, method)(*arguments)
    assert (here.compiled, here.found, beside.compiled) == (2, 0, 0), (
        "kernels that it finds are found here later, too"
    )
    here.begins(b"next", {b"inside", b"entry"})
    assert here._now == f"{SAYS}: 2 of 3"


SLEEPS = """
import time, sys
from functools import partial
from rlsched.compile import ahead
from rlsched.compile.compiling import COMPILING

class Child(ahead._CompilerProcess):
    def takes_next(self, left):
        given = super().takes_next(left)
        print(self._process.pid, flush=True)
        return given

if __name__ == "__main__":
    ahead._CompilerProcess, COMPILING.by_verb = Child, True
    ahead.compile_pieces([partial(time.sleep, 600)] * 2, 2)
"""


@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(ends_by: int, tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(ends_by)
    parent.communicate(timeout=60.0)
    deadline_s = time.monotonic() + 60.0
    while not all(map(has_exited, pids)):
        assert time.monotonic() < deadline_s


@pytest.mark.parametrize(
    "name", quick(["tuned", "fifo", "price-window", "priced"], lambda name: name != "priced")
)
def test_kernels_of_a_broker_are_known_ahead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called, call = set[Any](), Kernel._find_and_call

    def note(kernel: Kernel, args: tuple[Any, ...]) -> Any:
        found = call(kernel, args)
        called.add((kernel, tuple(widened(kernel._entry.typeof_pyval(one)) for one in args)))
        return found

    policy = Policy(name)
    monkeypatch.setattr(Kernel, "_find_and_call", note)
    load_policy(policy, None, 60_000.0)
    known = {
        (kernel, tuple(widened(kernel._made_entry().typeof_pyval(one)) for one in args))
        for kernel, args in entries_of(load_scheduler(policy))
    }
    assert called == known
