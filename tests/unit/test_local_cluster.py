"""A second `rlsched up` on one directory: it says who has it, and leaves what is there as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlsched.broker.journal.lock import lock_file, take_lock
from rlsched.client.local import LocalCluster
from rlsched.errors import InputError


def cluster(directory: Path) -> LocalCluster:
    return LocalCluster(
        directory=directory, keys=directory / "keys", address="tcp://127.0.0.1:*", nodes=1, gpus=1
    )


def test_a_second_one_starts_nothing_and_takes_no_address_away(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "address").write_text("tcp://127.0.0.1:7461\n")
    said: list[str] = []
    with lock_file(tmp_path / "up") as first:
        assert take_lock(first)
        with pytest.raises(InputError, match=rf"another `rlsched up` runs in .*\(process {os.getpid()}\)"):
            cluster(tmp_path).run(said.append)
    assert (tmp_path / "broker" / "address").read_text() == "tcp://127.0.0.1:7461\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker", "up.lock"]
    assert not said


def test_a_directory_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "up").write_text("")
    with pytest.raises(InputError, match="cannot write here"):
        cluster(tmp_path / "up").run(print)
