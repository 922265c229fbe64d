"""Files written at the start of a broker: private, and complete before it reports ready."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rlsched.broker.base.pauses import EVERY_S, ShortPauses
from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.journal.journal import Journal
from rlsched.broker.journal.mark import ADDRESS_FILE
from rlsched.broker.server.running import run_broker
from rlsched.broker.server.serve import Broker, nobody_waits
from rlsched.broker.server.settings import BrokerSettings
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.files.private import make_private
from rlsched.transport.keys import KeyHome
from rlsched.transport.roles import Peer
from rlsched.transport.router import Heard
from rlsched.wire.messages import (
    PROTOCOL_VERSION,
    Envelope,
    Heartbeat,
    Leaving,
    ListNodes,
    Message,
    Ok,
    Refused,
    SetPolicy,
)


def settings(home: Path) -> BrokerSettings:
    return BrokerSettings(address="tcp://127.0.0.1:0", directory=home / "broker", keys=home, policy="fifo")


def modes(*paths: Path) -> list[str]:
    return [f"{path.stat().st_mode & 0o777:04o}" for path in paths]


def test_new_home_directory_is_private(tmp_path: Path) -> None:
    home = tmp_path / "config" / "rlsched"
    journal = Journal(home / "broker" / "journal.sqlite")
    assert modes(tmp_path / "config", home, home / "broker") == ["0700"] * 3
    assert set(modes(*(home / "broker").iterdir())) == {"0600"}
    journal.close()
    KeyHome(home).broker()
    assert modes(home, home / "authorised") == ["0700"] * 2


def test_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "a" / "b")
    make_private(tmp_path)
    assert modes(tmp_path, tmp_path / "a", tmp_path / "a" / "b") == ["0755", "0700", "0700"]


def test_address_is_on_disk_before_the_broker_reports_ready(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def announce(line: str) -> None:
        if " ready at " not in line:  # still starting, on a slow machine
            return
        seen.append((line.split()[4], (tmp_path / "broker" / ADDRESS_FILE).read_text()))
        os.kill(os.getpid(), signal.SIGTERM)

    run_broker(settings(tmp_path), announce)
    ((said, written),) = seen
    assert written == said + "\n"


def test_unwritable_address_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "broker" / ADDRESS_FILE).mkdir(parents=True)
    with pytest.raises(InputError, match="cannot write the broker's address: Is a directory"):
        Broker(settings(tmp_path))
    (tmp_path / "broker" / ADDRESS_FILE).rmdir()
    Broker(settings(tmp_path)).close()


def test_long_lived_objects_are_frozen_for_the_garbage_collector() -> None:
    now_s = [100.0]
    pauses = ShortPauses(lambda: now_s[0])

    class Cyclic:
        """References itself."""

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
        assert gc.get_freeze_count() == frozen, "not due yet"
        now_s[0] += EVERY_S
        pauses.step()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_turn_with_only_heartbeats_counts_as_idle() -> None:
    def batch_of(*messages: Message) -> list[Heard]:
        node = Peer("node", "n0")
        return [Heard(node, b"route", Envelope(PROTOCOL_VERSION, 1, message)) for message in messages]

    assert nobody_waits(batch_of(Heartbeat(name="n0"), Heartbeat(name="n1")))
    assert not nobody_waits(batch_of(Heartbeat(name="n0"), Leaving(name="n0")))
    assert not nobody_waits(batch_of(ListNodes()))
    assert not nobody_waits([]), "nothing received: the poll has waited already"


def test_stop_while_loading_the_policy_ends_the_broker_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on: list[bool] = []

    def load(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        went_on.append(True)

    monkeypatch.setattr("rlsched.broker.server.running.Broker", load)
    said: list[str] = []
    run_broker(settings(tmp_path), said.append)
    assert not went_on
    assert not said


# ---- a policy set at run time ---------------------------------------------------------------------------


def decides(home: Path, policy: str = "fifo", *, compacts: bool = False) -> tuple[str, list[str]]:
    """Start and stop a broker; return its policy and its log lines."""
    said: list[str] = []
    with closing(Broker(msgspec.structs.replace(settings(home), policy=policy), say=said.append)) as broker:
        found = broker.start_fact.policy
    if compacts:
        path = home / "broker" / "journal.sqlite"
        cut = made(path, 1e12)
        assert cut is not None
        with closing(Journal(path)) as journal:
            assert put(journal, cut)
    return found, said


def test_policy_set_at_run_time_survives_restarts_and_compaction(tmp_path: Path) -> None:
    chosen = Policy("fifo", blocks=False, own=(1.0,)).named("mine")
    with closing(Broker(settings(tmp_path))) as broker:
        assert broker._set_policy(SetPolicy(policy=chosen.toml, name="mine")) == Ok()
        assert broker.start_fact.policy == "mine"
    for _ in range(4):
        assert decides(tmp_path)[0] == "mine"
    assert decides(tmp_path, compacts=True)[0] == "mine"
    assert decides(tmp_path)[0] == "mine"
    assert decides(tmp_path, "fifo-backfill")[0] == "fifo-backfill", "its --policy was changed"
    assert decides(tmp_path)[0] == "fifo", "which ended the choice"


def test_repeated_request_for_a_policy_changes_nothing(tmp_path: Path) -> None:
    """A client without an answer retries, for example while the policy is compiled."""
    with closing(Broker(settings(tmp_path))) as broker:
        asked = SetPolicy(policy=Policy("fifo-backfill").toml, name="mine")
        for _ in range(3):
            assert broker._set_policy(asked) == Ok()
            assert (broker.start_fact.policy, broker.start_fact.epoch) == ("mine", 2)
        assert broker._set_policy(SetPolicy(policy=asked.policy, name="other")) == Ok()
        assert (broker.start_fact.policy, broker.start_fact.epoch) == ("other", 3)


OWN = """
from rlsched.decide.actions import Wait
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Scheduler


class Mine(Scheduler):
    def decide(self, state, partition, now_s, *, record=False):
        return Recording(state, partition, now_s, wanted=record).decision(Wait(), "rule", self.policy_id)
"""


def test_repeated_request_for_python_code_starts_an_epoch_only_if_the_file_changed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    with closing(Broker(settings(tmp_path))) as broker:
        for content, epoch in ((OWN, 2), (f"{OWN}# changed", 3), ("broken(", 3), (OWN, 4)):
            file.write_text(OWN)
            asked = SetPolicy(policy=Policy.of(f"{file}:Mine").toml, name="mine")
            file.write_text(content)
            for _ in range(2):
                assert isinstance(broker._set_policy(asked), Refused if content == "broken(" else Ok)
                assert broker.start_fact.epoch == epoch


def test_setting_the_policy_of_the_command_line_ends_the_choice(tmp_path: Path) -> None:
    with closing(Broker(settings(tmp_path))) as broker:
        for policy in (Policy("fifo-backfill"), Policy("fifo")):
            assert broker._set_policy(SetPolicy(policy=policy.toml, name=policy.name)) == Ok()
        assert broker.start_fact.chosen is None


def test_broker_starts_even_if_the_policy_set_at_run_time_cannot_be_loaded(tmp_path: Path) -> None:
    with closing(Broker(settings(tmp_path))) as broker:
        broker._set_policy(SetPolicy(policy=Policy("fifo-backfill").toml, name="mine"))
        started = broker.start_fact
    assert started.chosen is not None
    odd = msgspec.structs.replace(started.chosen, policy="of_another_version = 1")
    with closing(Journal(tmp_path / "broker" / "journal.sqlite")) as journal:
        again = msgspec.structs.replace(started, epoch=3, chosen=odd)
        journal.commit([again], time.time())
    policy, said = decides(tmp_path)
    assert policy == "fifo"
    [line] = [one for one in said if "cannot be served any more" in one]
    assert "of_another_version" in line
