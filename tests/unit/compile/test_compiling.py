"""Progress messages while kernels are compiled, on a terminal and in logs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlsched.client.local import LocalCluster, Restarts, _LocalProcess
from rlsched.compile.compiling import COMPILING, FIRST_S, LINES_EVERY_S, SAYS, Compiling
from rlsched.compile.kernel_cache import folder
from rlsched.logs import set_up
from tests.support.online.cluster import RLSCHED


class FakeStream(io.StringIO):
    """A stream that is a terminal, or is not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def begun(*, terminal: bool, told: bool = True) -> tuple[Compiling, Clock, FakeStream]:
    clock, stream = Clock(), FakeStream(terminal=terminal)
    one = Compiling(clock, stream)
    one.told = told
    return one, clock, stream


def test_log_gets_a_line_from_time_to_time() -> None:
    one, clock, stream = begun(terminal=False)
    one.begins("entry", {"a", "b", "c"})
    assert stream.getvalue() == "", "it may end in a moment"
    clock.now_s = FIRST_S
    one.begins("a", set())
    one.report_available("a", compiled=True)
    one.begins("b", set())
    assert stream.getvalue() == f"{SAYS}: 0 of 4\n"
    one.report_available("b", compiled=False)
    clock.now_s += LINES_EVERY_S
    one.begins("c", set())
    assert stream.getvalue().splitlines() == [f"{SAYS}: 0 of 4", f"{SAYS}: 2 of 4"]
    one.report_available("entry", compiled=True)
    one.ends({"a", "b", "c"})
    clock.now_s += LINES_EVERY_S
    one.begins("another", {"a", "d"})
    assert stream.getvalue().splitlines()[2:] == [f"{SAYS}: 4 of 6"], "known kernels are not compiled again"
    assert (one.compiled, one.found) == (2, 1)


def test_activity_is_printed_if_it_takes_long_and_after_a_compilation_in_it() -> None:
    one, clock, stream = begun(terminal=True)
    with one.during("loading scikit-learn"):
        clock.now_s += 0.1
    assert "loading" not in stream.getvalue(), "it was short"
    with one.during("replaying the trace"):
        one.tick()
        clock.now_s += 1.0
        one.begins("entry", set())
        clock.now_s += 2.0
        one.ends({"entry"})
        one.tick()
        clock.now_s += 3.0
        one.tick()
    clock.now_s += 4.0
    one.tick()
    assert [said for said in stream.getvalue().split("\r\x1b[K") if said] == [
        f"{SAYS}: 0 of 1",
        "replaying the trace",
        "replaying the trace, 3 s",
    ]
    assert one.took_s == 2.0, "only compilation counts"


def test_forked_process_needs_no_thread_of_its_parent() -> None:
    is_held, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with COMPILING._lock:
            is_held.set()
            ends.wait(60.0)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(60.0)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        COMPILING.ends(())
        os._exit(0)
    ends.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_activity_is_no_line_of_a_log() -> None:
    one, clock, stream = begun(terminal=False)
    with one.during("loading scikit-learn"):
        for _ in range(3):
            clock.now_s += 1.0
            one.tick()
    assert stream.getvalue() == ""


def test_terminal_line_is_rewritten_and_removed_at_the_end() -> None:
    one, clock, stream = begun(terminal=True)
    one.begins("entry", {"a"})
    for _ in range(3):
        clock.now_s += 1.0
        one.begins("a", set())
    one.waits()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().split("\r\x1b[K") == ["", *[f"{SAYS}: 0 of 2"] * 3]
    one.ends({"a"})
    assert stream.getvalue().endswith(f"{SAYS}: 0 of 2\r\x1b[K")


def test_compilation_by_another_process_is_reported() -> None:
    one, clock, stream = begun(terminal=False)
    one.waits()
    clock.now_s = 1.0
    one.waits()
    assert stream.getvalue() == f"{SAYS}: another process is at it\n"


def test_callers_without_progress_get_no_messages() -> None:
    one, clock, stream = begun(terminal=False, told=False)
    for clock.now_s in (0.0, 10.0, 20.0):
        one.begins("a", {"b"})
    one.ends({"b"})
    assert stream.getvalue() == ""


def test_json_log_has_no_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlsched.logs.COMPILING", one := begun(terminal=False)[0])
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(logging, "captureWarnings", lambda _: None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", None)
    set_up("json")
    assert not one.told


def test_up_repeats_messages_of_its_broker(tmp_path: Path) -> None:
    cluster = LocalCluster(directory=tmp_path, keys=tmp_path, address="", nodes=1, gpus=1)
    log, announced = tmp_path / "broker.log", list[str]()
    log.write_text(f"{SAYS}: 9 of 9\n")
    steps = iter((f"{SAYS}: 1 of 4\n", "a line\n", f"{SAYS}: 3 of 4\n", ""))

    def look() -> str:
        said = next(steps)
        with log.open("a") as file:
            file.write(said)
        return "" if said else "there"

    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as broker:
        cluster._children.append(
            _LocalProcess("broker", (), broker, log, log.stat().st_size, 0.0, Restarts())
        )
        assert cluster._until("it is there", look, announced.append) == "there"
    assert announced == [f"broker: {SAYS}: 1 of 4", f"broker: {SAYS}: 3 of 4"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a kernel cache without kernels that Python calls; the kernels inside them may be there."""
    place = tmp_path_factory.mktemp("cache")
    for part in ("inside", "shared"):
        if (found := folder(part)).is_dir():
            shutil.copytree(found, place / "rlsched" / found.parent.name / part, copy_function=os.link)
    return place


@pytest.mark.slow
def test_warm_compiles_ahead_and_reports_progress(cache: Path) -> None:
    words = [*RLSCHED, "warm", "--policy", "fifo", "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    said = []
    for _ in range(2):
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        said.append((json.loads(done.stdout), done.stderr.splitlines()))
    (first, lines), (second, none) = said
    assert first["policies"][0]["compiled"] >= 3
    assert all(line.startswith(f"{SAYS}: ") for line in lines)
    said_of = [line.removeprefix(f"{SAYS}: ").partition(", ")[0] for line in lines]
    counts = [tuple(map(int, one.split(" of "))) for one in said_of]
    assert counts == sorted(counts)
    assert all(done <= needed for done, needed in counts)
    assert (second["policies"][0]["compiled"], none) == (0, [])
    assert first["folder"] == second["folder"]
    assert Path(first["folder"]).is_relative_to(cache)


def test_slow_kernel_is_reported_again() -> None:
    one, clock, stream = begun(terminal=False)
    one.begins("entry", {"a"})
    clock.now_s = FIRST_S / 2
    one.tick()
    assert stream.getvalue() == ""
    for clock.now_s in (1.0, 1.5, 2.6, 3.0):
        one.tick()
    assert stream.getvalue().splitlines() == [f"{SAYS}: 0 of 2, 1 s", f"{SAYS}: 0 of 2, 3 s"]
    one.ends({"a"})
    clock.now_s = 30.0
    one.tick()
    assert stream.getvalue().count("\n") == 2, "no kernel is being compiled"
    one.begins("b", set())
    clock.now_s = 32.0
    one.ends(())
    assert one.took_s == 5.0


def test_busy_process_reports_from_a_thread() -> None:
    one, stream = Compiling(stream=(said := FakeStream(terminal=True)), ticks=True), said
    one.told = True
    one.begins("entry", {"a"})
    deadline_s = time.monotonic() + 60.0
    while " s" not in stream.getvalue() and time.monotonic() < deadline_s:
        pass  # as a compiler
    assert re.search(rf"{SAYS}: 0 of 2, \d+ s", stream.getvalue())
    one.ends(())


@pytest.mark.slow
def test_policies_compiled_together_equal_separate_compilation(tmp_path: Path, cache: Path) -> None:
    trace, cluster = tmp_path / "t.csv.gz", tmp_path / "c.toml"
    synth = ("trace", "synth", "--like", "helios", "--jobs", "50", "--gpus", "16", "--seed", "1")
    words = [*synth, "-o", str(trace), "--cluster-out", str(cluster)]
    subprocess.run([*RLSCHED, *words], check=True, capture_output=True)
    policies = [word for name in ("easy", "tiresias") for word in ("--policy", name)]
    reports, missing = [], []
    for workers in ("2", "1"):
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        words = ["evaluate", "--trace", str(trace), "--cluster", str(cluster), "--workers", workers]
        report = tmp_path / f"{workers}.json"
        code = (
            "import sys; from rlsched_agents.evaluate import task; together = task.compile_together\n"
            "def told(*args):\n    print('missing', together(*args), file=sys.stderr)\n"
            "import rlsched_agents.evaluate.run as run; run.compile_together = told\n"
            "if __name__ == '__main__':\n    from rlsched.cli.main import main; main()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--json", str(report), *policies],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        reports.append(json.loads(report.read_text())["policies"])
        missing.append(int(done.stderr.split("missing ")[1][0]))
    assert missing[0] >= 2, "`fifo` was compiled before; another kernel may be, for predictions"
    assert missing[1] == 0
    for found in reports:
        for policy in found.values():
            for name in [name for name in policy if name.startswith(("wall", "decision_us", "latency"))]:
                del policy[name]
    assert reports[0] == reports[1]
