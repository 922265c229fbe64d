"""What a broker puts on disk as it starts: for its owner alone, and before it says that it is ready."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from pathlib import Path

import pytest

from rlsched.broker.access.keys import KeyHome
from rlsched.broker.access.private import make_private
from rlsched.broker.access.roles import Peer
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import ADDRESS_FILE
from rlsched.broker.pauses import EVERY_S, ShortPauses
from rlsched.broker.running import run_broker
from rlsched.broker.serve import Broker, nobody_waits
from rlsched.broker.settings import Settings
from rlsched.broker.transport import Heard
from rlsched.errors import InputError
from rlsched.wire.messages import PROTOCOL_VERSION, Envelope, Heartbeat, Leaving, ListNodes, Message


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

    run_broker(settings(tmp_path), announce)
    ((said, written),) = seen
    assert written == said + "\n"


def test_an_address_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "broker" / ADDRESS_FILE).mkdir(parents=True)
    with pytest.raises(InputError, match="cannot write the broker's address: Is a directory"):
        Broker(settings(tmp_path))
    (tmp_path / "broker" / ADDRESS_FILE).rmdir()
    Broker(settings(tmp_path)).close()


def test_what_has_been_there_for_long_is_not_collected_again() -> None:
    now_s = [100.0]
    pauses = ShortPauses(lambda: now_s[0])

    class Cyclic:
        """Refers to itself."""

        def __init__(self) -> None:
            self.itself = self

    gone = weakref.ref(Cyclic())
    old, there = [[] for _ in range(1_000)], gc.get_freeze_count()
    try:
        pauses.step()
        assert gone() is None
        frozen = gc.get_freeze_count()
        assert frozen >= there + len(old)
        old += [[] for _ in range(1_000)]
        now_s[0] += EVERY_S / 2
        pauses.step()
        assert gc.get_freeze_count() == frozen, "it is not time yet"
        now_s[0] += EVERY_S
        pauses.step()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_a_turn_of_heartbeats_alone_is_one_that_nobody_waits_for() -> None:
    def said(*messages: Message) -> list[Heard]:
        node = Peer("node", "n0")
        return [Heard(node, b"route", Envelope(PROTOCOL_VERSION, 1, message)) for message in messages]

    assert nobody_waits(said(Heartbeat(name="n0"), Heartbeat(name="n1")))
    assert not nobody_waits(said(Heartbeat(name="n0"), Leaving(name="n0")))
    assert not nobody_waits(said(ListNodes()))
    assert not nobody_waits([]), "nothing was heard: the poll has waited already"


def test_a_broker_that_is_told_to_stop_while_it_loads_its_policy_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def load(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        went_on.append(True)

    monkeypatch.setattr("rlsched.broker.running.Broker", load)
    said: list[str] = []
    run_broker(settings(tmp_path), said.append)
    assert not went_on
    assert not said
