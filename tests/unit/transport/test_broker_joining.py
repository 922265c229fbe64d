"""Join tokens: one use, one machine, the role set by the broker; over real sockets."""

from __future__ import annotations

import io
import json
import os
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlsched.cli.main import run
from rlsched.client.client import Client
from rlsched.client.join import join
from rlsched.errors import BrokerUnavailableError, InputError
from rlsched.transport import router as transport_module
from rlsched.transport.connection import Connection
from rlsched.transport.joining import PREFIX, Token, invite, revoke
from rlsched.transport.keys import KeyHome, login_name
from rlsched.transport.roles import Peer
from rlsched.transport.router import Transport
from rlsched.wire.messages import Join, Joined, Nodes, Refused, Stats
from rlsched_node.cli import node as node_command
from rlsched_node.isolation.user import JobUsers


class Serving:
    """A transport in a thread that answers every client with an empty list of nodes."""

    def __init__(self, home: KeyHome) -> None:
        self.home = home
        self._transport = Transport("tcp://127.0.0.1:0", home)
        self.address = self._transport.address
        self.peers: list[Peer] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            for heard in self._transport.receive(10, 10)[0]:
                self.peers.append(heard.peer)
                self._transport.reply(heard.route, heard.envelope.request, Nodes(nodes=[]))

    def token(self, name: str = "ada", role: str = "user", valid_s: float = 60.0) -> Token:
        return invite(self.home, name, role, self.address, valid_s=valid_s)  # type: ignore[arg-type]

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._transport.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(KeyHome(tmp_path / "broker"))
    yield serving
    serving.close()


@pytest.fixture
def machine(tmp_path: Path) -> KeyHome:
    """The key directory of another machine."""
    return KeyHome(tmp_path / "machine")


def test_machine_joins_with_its_own_key(serving: Serving, machine: KeyHome) -> None:
    token = Token.read(serving.token().text())
    assert join(token, machine) == Joined(role="user", name="ada", person="ada")
    members = serving.home.access.members()
    assert [member.peer for member in members.values()] == [Peer("user", "ada", "ada")]
    assert set(members) == {machine.client().public}, "the one-time key was removed"
    with Client(serving.address, home=machine.directory) as client:
        assert client.nodes() == []
    assert serving.peers == [Peer("user", "ada", "ada")]


def test_node_joins_under_its_name(serving: Serving, machine: KeyHome) -> None:
    assert join(serving.token("gpu-a", "node"), machine) == Joined(role="node", name="gpu-a", person="")
    assert serving.home.access.peers()[machine.node("gpu-a").public] == Peer("node", "gpu-a")


def test_token_is_valid_for_one_machine(serving: Serving, machine: KeyHome, tmp_path: Path) -> None:
    token = serving.token()
    join(token, machine)
    assert join(token, machine) is None, "the same machine may retry: the answer may have been lost"
    with pytest.raises(InputError, match="does not know this join token: it was used, or revoked"):
        join(token, KeyHome(tmp_path / "another"), timeout_s=1.0)
    assert not (tmp_path / "another" / "broker.public").exists()
    assert len(serving.home.access.members()) == 1


def test_token_used_on_two_connections_admits_one(serving: Serving, tmp_path: Path) -> None:
    token = serving.token()
    pairs = [KeyHome(tmp_path / name).client() for name in "ab"]
    connections = [Connection(serving.address, token.pair(), token.broker_public, "") for _ in pairs]
    try:
        assert all(connection.is_let_in(5.0) for connection in connections)
        first = connections[0].ask(Join(public=pairs[0].public.decode()), Joined, 5.0)
        assert isinstance(first, Joined)
        said = refusal(connections[1], Join(public=pairs[1].public.decode()))
    finally:
        for connection in connections:
            connection.close()
    assert "not, or no longer, authorised" in said or "was used or revoked" in said  # the first one
    assert set(serving.home.access.peers()) == {pairs[0].public}


def refusal(connection: Connection, message: Join) -> str:
    """Reason of a refusal: sent by the broker, or the end of the connection."""
    try:
        answer = connection.ask(message, Joined, 5.0)
    except InputError as error:
        return str(error)
    assert isinstance(answer, Refused)
    return answer.message


def test_expired_token_is_refused_by_name(serving: Serving, machine: KeyHome) -> None:
    with pytest.raises(InputError, match="this join token for 'ada' has expired; make another with"):
        join(serving.token(valid_s=-1.0), machine)
    assert machine.client().public not in serving.home.access.peers()


def test_revoked_token_is_refused(serving: Serving, machine: KeyHome) -> None:
    token = serving.token()
    revoke(serving.home, "ada")
    with pytest.raises(InputError, match="it was used, or revoked"):
        join(token, machine, timeout_s=1.0)


def test_one_time_key_may_only_send_join(serving: Serving) -> None:
    token = serving.token(role="admin")
    connection = Connection(serving.address, token.pair(), token.broker_public, "")
    try:
        answer = connection.ask(Stats(), Joined, 5.0)
        assert answer == Refused(message="a key of role 'joining' may not send 'stats'")
        answer = connection.ask(Join(public="short"), Joined, 5.0)
        assert answer == Refused(message="expected a z85 key of 40 characters, got 5")
    finally:
        connection.close()
    assert serving.peers == []


def test_machine_joins_only_one_broker(serving: Serving, machine: KeyHome) -> None:
    machine.trust(b"x" * 40)
    with pytest.raises(InputError, match="is another broker's key; give another directory with --keys"):
        join(serving.token(), machine)


def test_join_without_a_broker_is_one_clear_line(serving: Serving, machine: KeyHome) -> None:
    token = Token("tcp://127.0.0.1:9", serving.home.broker_public(), serving.token().secret, "user", "ada")
    with pytest.raises(BrokerUnavailableError, match=r"no broker answers at tcp://127\.0\.0\.1:9"):
        join(token, machine, timeout_s=0.3)
    assert not (machine.directory / "broker.public").exists()


@pytest.mark.parametrize("text", ["", "nonsense", PREFIX, PREFIX + "AAAA", "ä", PREFIX + "lgEC"])
def test_invalid_token_is_one_clear_line(text: str) -> None:
    with pytest.raises(InputError, match="this is no join token: expected rlsched-join-"):
        Token.read(text)


def test_full_disk_does_not_end_the_broker(
    serving: Serving, machine: KeyHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise InputError("no space left")

    monkeypatch.setattr(transport_module, "admit", full)
    with pytest.raises(InputError, match="no space left"):
        join(serving.token(), machine)


# ---- the command line -------------------------------------------------------------------------------------


def test_verbs_from_token_to_revocation(
    serving: Serving, machine: KeyHome, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--keys", str(serving.home.directory))
    new = ["keys", "new", "ada", "--role", "user", "--person", "Ada L", "--broker", serving.address, *keys]
    assert run(new) == 0
    token, told = capsys.readouterr()
    assert "works only on this machine" in told
    assert run(["keys", "list", *keys]) == 0
    assert "expires in 15 min" in capsys.readouterr().out
    assert run(["keys", "join", token.strip(), "--keys", str(machine.directory)]) == 0
    assert f"joined the broker at {serving.address} as user ada" in capsys.readouterr().out
    assert run(new) == 2
    assert "there is already a key 'ada'" in capsys.readouterr().err
    assert run(["keys", "list", "--json", *keys]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["role"], row["name"], row["person"]) == ("user", "ada", "Ada L")
    assert run(["keys", "revoke", "ada", *keys]) == 0
    assert capsys.readouterr().out == "revoked user ada\n"
    assert run(["keys", "revoke", "ada", *keys]) == 2
    assert "there is no key 'ada'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["new", "a/b", "--role", "user"], "key name 'a/b': expected 1 to 63 letters"),
        (
            ["new", "a", "--role", "user", "--expires", "soon"],
            "--expires 'soon': expected a time up to 7d",
        ),
        (
            ["new", "a", "--role", "user", "--expires", "8d"],
            "--expires '8d': expected a time up to 7d",
        ),
        (["new", "a", "--role", "user", "--person", "a\nb"], r"--person 'a\nb': expected at most 64"),
        (
            ["new", "a", "--role", "user", "--broker", "tcp://0.0.0.0:1"],
            "other machines cannot connect to this",
        ),
        (["new", "a", "--role", "user"], "is not a broker's key directory; run this where the broker runs"),
        (["join", "nonsense"], "this is no join token"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], said: str, machine: KeyHome, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["keys", *args, "--keys", str(machine.directory)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_token_can_be_read_from_standard_input(
    serving: Serving,
    machine: KeyHome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(serving.token("gpu-a", "node").text().encode() + b"\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert run(["keys", "join", "-", "--keys", str(machine.directory)]) == 0
    assert f"next: rlsched node --broker {serving.address} --name gpu-a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("euid", "environment", "options", "words"),
    [
        (1000, {}, [], ""),
        (0, {"RLSCHED_ALLOW_ROOT": "1"}, [], ""),
        (0, {}, ["--run-as-owner", "--dir", "/var/lib/rlsched-jobs"], "--run-as USER: all as one user"),
        (
            0,
            {"SUDO_USER": "ada"},
            ["--run-as", "ada", "--dir", "/var/lib/rlsched-jobs"],
            "all jobs run as ada",
        ),
    ],
)
def test_printed_command_for_a_node_starts_it(
    euid: int,
    environment: dict[str, str],
    options: list[str],
    words: str,
    serving: Serving,
    machine: KeyHome,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("RLSCHED_ALLOW_ROOT", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("rlsched.cli.operators.keys.os.geteuid", lambda: euid)
    token = serving.token("gpu-a", "node").text()
    assert run(["keys", "join", token, "--keys", str(machine.directory)]) == 0
    told = capsys.readouterr().out
    (line,) = [line for line in told.splitlines() if line.startswith("next: ")]
    where = ["--broker", serving.address, "--name", "gpu-a", "--keys", str(machine.directory.absolute())]
    assert shlex.split(line.removeprefix("next: ")) == ["rlsched", "node", *where, *options]
    assert words in told
    monkeypatch.undo()
    with node_command.make_context("node", [*where, *options], allow_interspersed_args=True) as context:
        given = context.params
    if os.geteuid() == 0 and options[:1] == ["--run-as-owner"]:
        JobUsers(as_owner=given["run_as_owner"]).check_reachable(given["directory"])


# ---- homes of earlier versions ----------------------------------------------------------------------------


def test_owner_of_an_old_home_becomes_admin_and_others_users(tmp_path: Path) -> None:
    home = KeyHome(tmp_path)
    own = home.client()
    authorised = home.access.directory
    (authorised / "user-default.public").rename(authorised / "client-default.public")
    other = KeyHome(tmp_path / "other").client()
    (authorised / "client-bob.public").write_bytes(other.public + b"\n")
    Transport("tcp://127.0.0.1:0", home).close()
    assert home.access.members()[own.public].peer == Peer("admin", "default", login_name())
    assert home.access.members()[other.public].peer == Peer("user", "bob", "bob")


def test_revoked_key_stays_revoked_after_a_restart(tmp_path: Path) -> None:
    home = KeyHome(tmp_path)
    home.broker()
    home.client()
    revoke(home, "default")
    Transport("tcp://127.0.0.1:0", home).close()
    assert home.access.members() == {}


def test_expired_tokens_are_removed(serving: Serving) -> None:
    serving.token("old", valid_s=-2 * 86400.0)
    serving.token("late", valid_s=-60.0)
    serving.token("new")
    names = sorted(member.peer.name for member in serving.home.access.members().values())
    assert names == ["late", "new"]
