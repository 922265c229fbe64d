"""What a broker puts on disk as it starts: for its owner alone, and before it says that it is ready."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rlsched.broker.journal import Journal
from rlsched.broker.keys import KeyHome
from rlsched.broker.private import make_private
from rlsched.broker.serve import ADDRESS_FILE, Broker, Settings, run_broker
from rlsched.errors import InputError


def settings(home: Path) -> Settings:
    return Settings(address="tcp://127.0.0.1:0", directory=home / "broker", keys=home, policy="fifo")


def modes(*paths: Path) -> list[str]:
    return [f"{path.stat().st_mode & 0o777:04o}" for path in paths]


def test_whoever_makes_the_home_first_makes_it_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "config" / "rlsched"
    journal = Journal(home / "broker" / "journal.sqlite")
    assert modes(tmp_path / "config", home, home / "broker") == ["0700"] * 3
    assert set(modes(*(home / "broker").iterdir())) == {"0600"}
    journal.close()
    KeyHome(home).broker()
    assert modes(home, home / "authorised") == ["0700"] * 2


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "a" / "b")
    make_private(tmp_path)
    assert modes(tmp_path, tmp_path / "a", tmp_path / "a" / "b") == ["0755", "0700", "0700"]


def test_the_address_is_on_disk_before_the_broker_says_that_it_is_ready(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def announce(line: str) -> None:
        seen.append((line.split()[4], (tmp_path / "broker" / ADDRESS_FILE).read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        run_broker(settings(tmp_path), announce)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    ((said, written),) = seen
    assert written == said + "\n"


def test_an_address_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "broker" / ADDRESS_FILE).mkdir(parents=True)
    with pytest.raises(InputError, match="cannot write the broker's address: Is a directory"):
        Broker(settings(tmp_path))
    (tmp_path / "broker" / ADDRESS_FILE).rmdir()
    Broker(settings(tmp_path)).close()
