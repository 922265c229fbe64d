"""The default broker of `explain` and `board`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlsched.broker.journal.journal import JOURNAL_FILE
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.cli.users.explain import own_broker
from rlsched.files.lock import lock_file, take_lock
from rlsched.transport.keys import default_home


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories of `rlsched broker` and of `up`; the second was written last."""
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    folders = [default_home() / "broker", default_home() / "up" / "broker"]
    for wrote_s, folder in enumerate(folders, 1):
        (folder / STORE_FOLDER).mkdir(parents=True)
        file = folder / STORE_FOLDER / "store.json"
        file.write_text("{}")
        os.utime(file, (wrote_s, wrote_s))
    return folders


def test_last_written_one_is_used_if_none_runs(
    brokers: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_broker() == brokers[1]
    assert f"{brokers[1]}, which wrote last" in capsys.readouterr().err


def test_running_one_is_used_before_the_last_written_one(
    brokers: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_file(brokers[0] / JOURNAL_FILE) as lock:
        assert take_lock(lock)
        assert own_broker() == brokers[0]
    assert f"{brokers[0]}, which runs" in capsys.readouterr().err


def test_crashed_one_does_not_count_as_running(brokers: list[Path]) -> None:
    lock = brokers[0] / (JOURNAL_FILE + ".lock")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lock.write_text(f"{boot} {2**22 + 1}\n")  # beyond the largest process number
    assert own_broker() == brokers[1]


def test_empty_journal_does_not_hide_a_running_broker(
    brokers: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for wrote_s, folder in zip((2, 1), brokers, strict=True):
        (folder / JOURNAL_FILE).touch()
        os.utime(folder / JOURNAL_FILE, (wrote_s, wrote_s))
    with lock_file(brokers[1] / JOURNAL_FILE) as lock:
        assert take_lock(lock)
        assert own_broker(JOURNAL_FILE) == brokers[1]
    assert f"{brokers[1]}, which runs" in capsys.readouterr().err
    (brokers[1] / JOURNAL_FILE).unlink()
    assert own_broker(JOURNAL_FILE) == brokers[0]
    assert not capsys.readouterr().err
