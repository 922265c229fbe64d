"""A job's directory is removed with all its contents, and nothing else is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import rlsched_node.processes.store
from rlsched.wire.messages import AttemptKey
from rlsched_node.processes.removal import remove_tree
from rlsched_node.processes.store import AttemptStore, LaunchRecord

KEY = AttemptKey(1, 1, 0, "c1")
UNPRIVILEGED = 65534
root_alone = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_links_are_not_followed(tmp_path: Path) -> None:
    other, top = tmp_path / "other", tmp_path / "top"
    (other / "kept").mkdir(parents=True)
    (other / "kept" / "file").write_text("kept")
    (top / "below").mkdir(parents=True)
    (top / "link").symlink_to(other)
    (top / "below" / "link").symlink_to(other / "kept")
    (top / "below" / "file-link").symlink_to(other / "kept" / "file")
    assert remove_tree(top)
    assert not top.exists()
    link = tmp_path / "the-top-itself"
    link.symlink_to(other)
    assert remove_tree(link)
    assert (other / "kept" / "file").read_text() == "kept"
    assert remove_tree(tmp_path / "nothing")


def test_any_depth_is_removed_without_leaking_descriptors(tmp_path: Path) -> None:
    """Deeper than the interpreter's stack, the longest path, and the number of descriptors."""
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d", dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    assert remove_tree(top)
    assert len(os.listdir("/proc/self/fd")) == before


def test_slow_removal_continues_in_the_next_round(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    assert not remove_tree(top, time.monotonic())
    assert (top / "below").exists()
    assert remove_tree(top)


@root_alone
def test_root_removes_only_files_that_the_owner_could(tmp_path: Path) -> None:
    """A directory of another user was moved here, for example from a shared directory."""
    top = tmp_path / "top"
    (top / "shut" / "below").mkdir(parents=True)
    (top / "shut" / "below" / "file").touch()
    (top / "other").mkdir()
    (top / "other" / "file").write_text("root's")
    for path in (top, top / "shut", top / "shut" / "below", top / "shut" / "below" / "file"):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
    for path in (top / "shut" / "below", top / "shut", top):
        path.chmod(0)
    assert not remove_tree(top)
    assert os.listdir(top) == ["other"]
    assert (top / "other" / "file").read_text() == "root's"
    assert os.access(tmp_path, os.W_OK), "this process has its rights again"
    (top / "other" / "file").unlink()


@root_alone
def test_records_written_by_a_job_are_not_taken_for_the_daemons(tmp_path: Path) -> None:
    """The daemon would adopt them: it would kill a foreign process and overwrite a file as root."""
    store = AttemptStore(tmp_path)
    planted = store.directories_of(KEY)
    planted.create(LaunchRecord(gpus=[0], command=["true"], env={}, cwd="/"))
    (planted.job_path / "pid").write_text('{"pid": 1, "start_ticks": 1, "boot_id": "x"}')
    (planted.job_path / "exit.tmp").symlink_to("/etc/hostname")
    os.chown(planted.job_path, UNPRIVILEGED, UNPRIVILEGED)
    assert remove_tree(planted.path)
    assert list(AttemptStore(tmp_path).scan()) == []
    os.chown(planted.job_path, 0, 0)
    assert list(AttemptStore(tmp_path).scan()) == [KEY], "an earlier daemon's"


def test_removal_is_retried(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    directory = store.directories_of(KEY)
    directory.create(LaunchRecord(gpus=[0], command=["true"], env={}, cwd="/"))
    directory.acknowledge()
    later_s = time.time() + 60.0
    assert store.clean(later_s, 30.0, time.monotonic()) == (0, False)
    assert store.clean(later_s, 30.0, time.monotonic()) == (0, False)
    assert list(store.scan()) == [KEY]
    assert store.clean(later_s, 30.0) == (1, True)
    assert not directory.job_path.exists()


@root_alone
def test_failed_removal_does_not_block_others(tmp_path: Path) -> None:
    store = AttemptStore(tmp_path)
    first, second = store.directories_of(KEY), store.directories_of(AttemptKey(2, 1, 0, "c1"))
    for directory in (first, second):
        directory.create(LaunchRecord(gpus=[0], command=["true"], env={}, cwd="/"))
        directory.acknowledge()
    (first.job_path / "other").mkdir()
    (first.job_path / "other" / "file").touch()
    os.chown(first.job_path, UNPRIVILEGED, UNPRIVILEGED)
    assert store.clean(time.time() + 60.0, 30.0) == (1, True)
    assert (first.path.exists(), second.path.exists()) == (True, False)
    (first.job_path / "other" / "file").unlink()
    assert store.clean(time.time() + 60.0, 30.0) == (1, True), "in the next round"


def test_slow_removal_is_last_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = AttemptStore(tmp_path)
    tried: list[str] = []

    def slow(path: Path, until_s: float = 0.0) -> bool:  # noqa: ARG001
        tried.append(path.name)
        return path.name != "1.1.0"

    for job in (1, 2, 3):
        directory = store.directories_of(AttemptKey(job, 1, 0, "c1"))
        directory.create(LaunchRecord(gpus=[0], command=["true"], env={}, cwd="/"))
        directory.acknowledge()
    monkeypatch.setattr(rlsched_node.processes.store, "remove_tree", slow)
    later_s = time.time() + 60.0
    for _ in range(4):
        store.clean(later_s, 30.0, time.monotonic())
    assert list(dict.fromkeys(tried)) == ["1.1.0", "2.1.0", "3.1.0"]
    assert tried.count("1.1.0") == 2
