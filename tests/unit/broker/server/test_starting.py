"""The file that reports a starting broker until it listens or has ended; a failed start leaves no files."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from rlsched.broker.server import serve
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.cli.main import run
from rlsched.cli.shared import options
from rlsched.client.client import Client
from rlsched.compile.compiling import Compiling
from rlsched.errors import BrokerUnavailableError, InputError, RlschedError
from rlsched.transport.keys import KeyHome
from rlsched.transport.starting import Starting, starting_at

ADDRESS = "tcp://127.0.0.1:7999"


def test_start_up_steps_are_reported_until_it_listens(tmp_path: Path) -> None:
    assert starting_at(tmp_path, [ADDRESS]) == ""
    with Starting(tmp_path, "tcp://0.0.0.0:7999") as word, Starting(tmp_path, ADDRESS) as other:
        word.report_step("it loads policy tuned")
        assert starting_at(tmp_path, [ADDRESS]) == f"{ADDRESS}: it loads policy tuned"
        assert starting_at(tmp_path, ["tcp://127.0.0.1:1", ADDRESS]).startswith(ADDRESS)
        assert starting_at(tmp_path, ["tcp://localhost:7999"]).startswith("tcp://localhost:7999")
        assert starting_at(tmp_path, ["tcp://elsewhere:7999"]) == ""
        other.report_step("short")
        assert starting_at(tmp_path, [ADDRESS]) == f"{ADDRESS}: short"
    assert starting_at(tmp_path, [ADDRESS]) == ""
    assert list(tmp_path.iterdir()) == []


def test_broker_reports_before_its_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rlsched.transport.keys", None)
    with pytest.raises(ModuleNotFoundError):
        run(["broker", "--dir", str(tmp_path), "--policy", "fifo"])
    assert capsys.readouterr().out.startswith("rlsched broker is starting: it loads policy fifo")


def test_report_of_a_killed_broker_is_ignored(tmp_path: Path) -> None:
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        Starting(tmp_path, ADDRESS).report_step("compiling")
        os.write(tells, b".")
        signal.pause()
    assert os.read(told, 1) == b"."
    assert starting_at(tmp_path, [ADDRESS]) == f"{ADDRESS}: compiling"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert starting_at(tmp_path, [ADDRESS]) == ""
    assert len(list(tmp_path.iterdir())) == 1, "the file is still there"
    for end in (told, tells):
        os.close(end)


def test_unwritable_folder_and_unknown_port_do_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home, address in ((tmp_path / "file", ADDRESS), (tmp_path, "tcp://127.0.0.1:0")):
        with Starting(home, address) as word:
            word.report_step("x")
            assert starting_at(home, [address]) == ""


def test_client_is_told_that_the_broker_is_starting(tmp_path: Path) -> None:
    with Starting(tmp_path, ADDRESS) as word:
        word.report_step("compiling, once for this version: 12 of 40")
        expected = rf"a broker is starting at {ADDRESS}: compiling, .*: 12 of 40; try again in a moment"
        with pytest.raises(BrokerUnavailableError, match=expected):
            Client(ADDRESS, home=tmp_path)  # the broker has no key yet
        KeyHome(tmp_path).broker()
        with Client(ADDRESS, home=tmp_path, timeout_s=0.3) as client:
            with pytest.raises(BrokerUnavailableError, match=expected):
                client.jobs()
            word.remove_report()
            with pytest.raises(BrokerUnavailableError, match="no broker answers"):
                client.jobs()


def test_client_can_wait_until_it_listens_or_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word, times = Starting(tmp_path, ADDRESS), list[float]()
    word.report_step("it loads policy tuned")

    def waits(address: str, waited_s: float, most_s: float) -> None:
        assert address == ADDRESS
        times.append(waited_s)
        options._WaitingLine(tmp_path, is_seen=False)(address, waited_s and options.SILENT_S, most_s)
        if waited_s > 3 * most_s:
            word.remove_report()

    keys = KeyHome(tmp_path)
    threading.Timer(0.3, keys.broker).start()
    with (
        Client(ADDRESS, home=tmp_path, timeout_s=0.2, waits=waits, is_patient=True) as client,
        pytest.raises(BrokerUnavailableError, match="no broker answers"),
    ):
        client.jobs()
    assert max(times) > 0.6
    assert (
        f"a broker is starting at {ADDRESS}: it loads policy tuned; waiting for it" in capsys.readouterr().err
    )


def test_compilation_is_reported_at_once() -> None:
    compiling, told = Compiling(clock=lambda: 0.0), list[str]()
    compiling.tells = told.append
    compiling.begins("a", ["b"])
    compiling.report_available("b", compiled=True)
    compiling.begins("c", [])
    assert told == [f"compiling, once for this version: {done}" for done in ("0 of 2", "1 of 3")]


def settings(home: Path, **changed: object) -> BrokerSettings:
    facts = {"address": "tcp://127.0.0.1:0", "directory": home / "broker", "keys": home, "policy": "fifo"}
    return BrokerSettings(**(facts | changed))  # type: ignore[arg-type]


def test_failed_start_leaves_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="is another broker running"):
            Broker(settings(tmp_path, address=address))
    with pytest.raises(InputError, match="give an address of this machine"):
        Broker(settings(tmp_path, address="tcp://192.0.2.1:7999"))
    (tmp_path / "other").mkdir()
    KeyHome(tmp_path / "other").broker()
    (tmp_path / "other" / "broker.key").chmod(0o644)
    with pytest.raises(InputError, match="expected 0600"):
        Broker(settings(tmp_path, keys=tmp_path / "other"))
    with pytest.raises(RlschedError, match="no_such"):
        Broker(settings(tmp_path, policy=f"ppo:{tmp_path}/no_such"))
    assert not (tmp_path / "broker").exists()

    def said(_: BrokerSettings) -> None:
        raise InputError(starting_at(tmp_path, ["tcp://127.0.0.1:7998"]))

    monkeypatch.setattr(serve, "warmed_up", said)
    with (
        Starting(tmp_path, "tcp://127.0.0.1:7998") as word,
        pytest.raises(InputError, match="loads policy fifo"),
    ):
        Broker(settings(tmp_path), doing=word.report_step)
