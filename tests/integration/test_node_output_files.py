"""Files of `--output` and `--error`: copied by a process that is not part of the job."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.wire.messages import AttemptKey
from rlsched_node.isolation.user import JobUser
from rlsched_node.processes import ranks as ranks_module
from rlsched_node.processes import shim
from rlsched_node.processes.ranks import LiveRanks
from rlsched_node.processes.shims import Shims
from rlsched_node.processes.steps import CopyFailed, Exited, Started
from rlsched_node.processes.store import AttemptDir, AttemptStore
from tests.support.online.ranks import KEY, collect, output, start, until

UNPRIVILEGED = pwd.getpwnam("nobody")
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of the jobs."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def copiers_of(store: AttemptStore) -> list[int]:
    """Process IDs of the copiers of a node."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            is_copier = b"copier.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
            if is_copier and Path(os.readlink(f"/proc/{pid}/fd/3")).is_relative_to(store.records):
                found.append(pid)
    return found


def test_file_has_what_the_job_wrote_when_its_end_is_reported(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    (folder / "out.txt").write_text("of an earlier job\n")
    directory = start(
        ranks, store, "sh", "-c", "seq 100000; printf unfinished >&2", cwd=str(folder), output="out.txt"
    )
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    assert (folder / "out.txt").read_bytes() == (directory.path / "output.log").read_bytes()
    assert (folder / "out.txt").read_text().startswith("1\n2\n")
    assert (folder / "out.txt").read_text().endswith("\n100000\nunfinished")


def test_later_attempt_continues_the_file(ranks: LiveRanks, store: AttemptStore, folder: Path) -> None:
    for attempt in (1, 2):
        key = AttemptKey(1, attempt, 0, "c1")
        start(ranks, store, "echo", str(attempt), key=key, output=f"{folder}/o", appends=attempt > 1)
        collect(ranks, Exited)
    assert (folder / "o").read_text() == "1\n2\n"


def test_standard_error_has_a_file_of_its_own_and_the_log_has_both(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    directory = start(
        *(ranks, store, "sh", "-c", "echo one; echo two >&2; printf three; printf four >&2; exit 3"),
        cwd=str(folder),
        output="o",
        error="e",
    )
    assert collect(ranks, Exited)[-1] == Exited(KEY, 3)
    assert (folder / "o").read_text() == "one\nthree"
    assert (folder / "e").read_text() == "two\nfour"
    assert sorted(output(directory).replace("three", "three\n").split()) == ["four", "one", "three", "two"]


def test_only_standard_error_may_have_a_file(ranks: LiveRanks, store: AttemptStore, folder: Path) -> None:
    directory = start(ranks, store, "sh", "-c", "echo one; echo two >&2", error=f"{folder}/e")
    collect(ranks, Exited)
    assert (folder / "e").read_text() == "two\n"
    assert sorted(output(directory).split()) == ["one", "two"]


def test_both_options_may_name_one_file(ranks: LiveRanks, store: AttemptStore, folder: Path) -> None:
    start(ranks, store, "sh", "-c", "echo 1; echo 2 >&2", cwd=str(folder), output="o", error="./o")
    collect(ranks, Exited)
    assert (folder / "o").read_text() == "1\n2\n"


def test_gpu_out_of_memory_is_found_in_standard_error(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    start(ranks, store, "sh", "-c", "echo CUDA out of memory >&2; exit 1", cwd=str(folder), error="e")
    assert collect(ranks, Exited)[-1] == Exited(KEY, 1, shim.GPU_OUT_OF_MEMORY)


def test_lines_of_the_shim_are_in_the_file_of_standard_error(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    directory = start(ranks, store, "sleep", "60", cwd=str(folder), error="e", limit_s=0.2)
    collect(ranks, Exited)
    assert (folder / "e").read_text() == "rlsched: time limit of 0.2 s reached: ending the job\n"
    assert output(directory) == (folder / "e").read_text()


@pytest.mark.parametrize("target", ["missing/out.txt", "/proc/self/none", "."])
def test_file_that_cannot_be_opened_is_named_and_the_job_runs(
    ranks: LiveRanks, store: AttemptStore, folder: Path, target: str
) -> None:
    directory = start(ranks, store, "echo", "on", cwd=str(folder), output=target)
    events = collect(ranks, Exited)
    assert events[-1] == Exited(KEY, 0)
    (failed,) = (event for event in events if isinstance(event, CopyFailed))
    assert failed.note.startswith(f"--output {target}: ")
    lines = output(directory).splitlines()
    lines.remove("on")
    (line,) = lines
    assert re.fullmatch(
        rf"rlsched: --output {re.escape(target)}: (No such file or directory|Is a directory): the output is "
        "only in `rlsched logs`",
        line,
    )


def test_the_output_itself_is_not_a_target(ranks: LiveRanks, store: AttemptStore) -> None:
    target = store.directories_of(KEY).job_path / "output.log"
    directory = start(ranks, store, "sh", "-c", "echo on; sleep 0.2", output=str(target))
    collect(ranks, Exited)
    assert sorted(output(directory).splitlines()) == [
        "on",
        f"rlsched: --output {target}: this file is the source of the copy: the output is only in "
        "`rlsched logs`",
    ]


def test_nothing_is_missing_in_the_copy_of_more_output_than_the_node_keeps(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    directory = start(ranks, store, "seq", "1000000", cwd=str(folder), output="o", max_output_mib=2)
    collect(ranks, Exited)
    assert (directory.path / "output.log").stat().st_blocks * 512 <= 8 << 20
    expected = subprocess.run(["seq", "1000000"], capture_output=True, check=True).stdout
    assert (folder / "o").read_bytes() == expected


def test_nothing_is_missing_in_copies_of_separate_streams(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    words = "seq 300000; seq 300000 >&2"
    start(ranks, store, "sh", "-c", words, cwd=str(folder), output="o", error="e", max_output_mib=4)
    collect(ranks, Exited)
    expected = subprocess.run(["seq", "300000"], capture_output=True, check=True).stdout
    assert (folder / "o").read_bytes() == expected
    assert (folder / "e").read_bytes() == expected


def test_ranks_append_whole_lines_to_a_file_that_they_share(
    ranks: LiveRanks, store: AttemptStore, folder: Path
) -> None:
    keys = [AttemptKey(1, 1, rank, "c1") for rank in (0, 1)]
    program = (
        "import sys,time\nfor n in range(300):\n w=sys.argv[1]\n print(w*20,end='',flush=True)\n print(w*20)"
    )
    for key, word in zip(keys, "ab", strict=True):
        start(
            *(ranks, store, sys.executable, "-c", program, word),
            key=key,
            output=f"{folder}/o",
            appends=True,
            whole_lines=True,
        )
    ended = set()
    until(
        lambda: ended.update(one.key for one in ranks.collect() if isinstance(one, Exited)) or len(ended) > 1
    )
    lines = (folder / "o").read_text().splitlines()
    assert sorted(lines) == ["a" * 40] * 300 + ["b" * 40] * 300


def test_file_system_that_hangs_delays_neither_the_time_limit_nor_the_end(
    ranks: LiveRanks, store: AttemptStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO without a reader blocks its copier in open(2)."""
    monkeypatch.setattr(ranks_module, "COPY_WAIT_S", 0.3)
    os.mkfifo(folder / "o")
    start(ranks, store, "sleep", "60", cwd=str(folder), output="o", limit_s=0.2)
    assert collect(ranks, Exited)[-1] == Exited(KEY, shim.EXIT_TIME_LIMIT, "time_limit")
    (stuck,) = copiers_of(store)
    with (folder / "o").open("rb") as reader:
        assert reader.read() == b"rlsched: time limit of 0.2 s reached: ending the job\n"
    until(lambda: shim.start_ticks(stuck) is None)


def start_and_copy_one_line(ranks: LiveRanks, store: AttemptStore, folder: Path) -> AttemptDir:
    """Start a job whose first line is copied, and that writes the second once there is a file `go`."""
    directory = start(
        *(ranks, store, "sh", "-c", "echo one; until [ -e go ]; do sleep 0.01; done; echo two"),
        cwd=str(folder),
        output="o",
    )
    collect(ranks, Started)
    until(lambda: (folder / "o").exists() and (folder / "o").read_text() == "one\n")
    return directory


def test_copier_outlives_its_daemon_and_is_not_started_twice(store: AttemptStore, folder: Path) -> None:
    first = LiveRanks(store, shims=Shims())
    directory = start_and_copy_one_line(first, store, folder)
    first.close()
    process = directory.process()
    assert process is not None
    second = LiveRanks(store, shims=Shims())
    second.adopt(KEY, process)
    assert len(copiers_of(store)) == 1
    (folder / "go").touch()
    assert collect(second, Exited)[-1] == Exited(KEY, 0)
    assert (folder / "o").read_text() == "one\ntwo\n"
    second.close()


def test_next_daemon_continues_the_copy_of_a_killed_copier(store: AttemptStore, folder: Path) -> None:
    first = LiveRanks(store, shims=Shims())
    directory = start_and_copy_one_line(first, store, folder)
    (copier,) = copiers_of(store)
    until(lambda: (directory.path / "output.log.copied").read_bytes()[:20] == b"%020d" % 4)
    os.kill(copier, signal.SIGKILL)
    until(lambda: shim.start_ticks(copier) is None)
    first.close()
    process = directory.process()
    assert process is not None
    second = LiveRanks(store, shims=Shims())
    second.adopt(KEY, process)
    (folder / "go").touch()
    assert collect(second, Exited)[-1] == Exited(KEY, 0)
    assert (folder / "o").read_text() == "one\ntwo\n"
    second.close()


def test_killed_copier_is_replaced(ranks: LiveRanks, store: AttemptStore, folder: Path) -> None:
    start(
        *(ranks, store, "sh", "-c", "echo one; until [ -e go ]; do sleep 0.01; done; echo two"),
        cwd=str(folder),
        output="o",
    )
    collect(ranks, Started)
    until(lambda: (folder / "o").exists() and (folder / "o").read_text() == "one\n")
    (first,) = copiers_of(store)
    os.kill(first, signal.SIGKILL)
    (folder / "go").touch()
    assert collect(ranks, Exited)[-1] == Exited(KEY, 0)
    assert (folder / "o").read_text().endswith("one\ntwo\n")


def test_process_that_a_job_leaves_and_that_writes_without_end_is_killed(
    ranks: LiveRanks, store: AttemptStore
) -> None:
    start(ranks, store, "sh", "-c", "yes & exit 3", output="/dev/null", error="/dev/zero", max_output_mib=1)
    assert collect(ranks, Exited)[-1] == Exited(KEY, 3)


@pytest.fixture
def open_store() -> Iterator[AttemptStore]:
    """A store whose directory other users may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield AttemptStore(Path(directory) / "node")


@root_alone
def test_files_are_written_with_the_rights_and_the_umask_of_the_user(open_store: AttemptStore) -> None:
    user = JobUser(UNPRIVILEGED.pw_name, UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid, "/", "/bin/sh")
    above = open_store.records.parent.parent
    mine, theirs = above / "mine", above / "theirs"
    mine.mkdir(mode=0o700)
    theirs.mkdir()
    os.chown(theirs, UNPRIVILEGED.pw_uid, UNPRIVILEGED.pw_gid)
    ranks = LiveRanks(open_store, shims=Shims())
    start(ranks, open_store, "echo", "on", output=f"{theirs}/o", env={"RLSCHED_UMASK": "0027"}, user=user)
    collect(ranks, Exited)
    found = (theirs / "o").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (UNPRIVILEGED.pw_uid, 0o640)
    assert (theirs / "o").read_text() == "on\n"
    key = AttemptKey(2, 1, 0, "c1")
    directory = start(ranks, open_store, "echo", "on", output=f"{mine}/o", user=user, key=key)
    collect(ranks, Exited)
    assert not list(mine.iterdir())
    assert f"rlsched: --output {mine}/o: Permission denied: " in output(directory)
    ranks.close()
