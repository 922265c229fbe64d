"""Keys created on first use, and the broker's socket, which fails closed. Real sockets on ephemeral ports."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from rlsched.errors import InputError
from rlsched.transport.dealer import broker_address, dial_address, is_loopback
from rlsched.transport.keys import KeyHome, KeyPair, default_home, login_name
from rlsched.transport.roles import Peer
from rlsched.transport.router import ZAP_ADDRESS, Transport
from rlsched.wire.messages import (
    Cancel,
    Envelope,
    Heartbeat,
    Hello,
    ListJobs,
    Ok,
    Refused,
    SayHello,
    Stats,
    Welcome,
    encode,
)
from tests.support.broker.peers import Peers, answer, receive_messages, send_frames

ANY_PORT = "tcp://127.0.0.1:0"


@pytest.fixture
def home(tmp_path: Path) -> KeyHome:
    return KeyHome(tmp_path / "home")


@pytest.fixture
def transport(home: KeyHome) -> Iterator[Transport]:
    transport = Transport(ANY_PORT, home)
    yield transport
    transport.close()


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    peers.close()


# ---- keys -----------------------------------------------------------------------------------------------


def test_keys_are_created_once_and_private(home: KeyHome) -> None:
    pairs = [home.broker(), home.client(), home.node("n0"), home.node("n1")]
    assert len({pair.public for pair in pairs}) == 4
    assert pairs == [home.broker(), home.client(), home.node("n0"), home.node("n1")]
    assert stat.S_IMODE(home.directory.stat().st_mode) == 0o700
    for path in home.directory.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert home.access.peers() == {
        pairs[1].public: Peer("admin", "default", login_name()),
        pairs[2].public: Peer("node", "n0"),
        pairs[3].public: Peer("node", "n1"),
    }
    assert home.broker_public() == pairs[0].public


def test_secret_key_readable_by_others_is_refused(home: KeyHome) -> None:
    home.client()
    path = home.directory / "client-default.key"
    path.chmod(0o644)
    with pytest.raises(InputError, match=r"mode 0644, expected 0600; run `chmod 600"):
        home.client()


@pytest.mark.parametrize("name", ["", "../n0", "a/b", ".hidden", "x" * 64, "a b"])
def test_node_name_that_is_no_file_name_is_refused(home: KeyHome, name: str) -> None:
    with pytest.raises(InputError, match="node name"):
        home.node(name)


def test_without_a_broker_there_is_no_public_key(home: KeyHome) -> None:
    with pytest.raises(InputError, match="start `rlsched broker`"):
        home.broker_public()
    assert not home.directory.exists()


def test_damaged_key_is_named(home: KeyHome) -> None:
    home.client()
    (home.directory / "client-default.key").write_bytes(b"public abc\nsecret def\n")
    with pytest.raises(InputError, match=r"client-default\.key: expected a z85 key of 40 characters, got 3"):
        home.client()


def test_home_can_be_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLSCHED_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.delenv("RLSCHED_HOME")
    assert default_home().parts[-2:] == (".config", "rlsched")


def test_user_without_a_home_directory_must_configure_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLSCHED_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(InputError, match="set RLSCHED_HOME"):
        KeyHome()


def test_home_may_end_with_a_slash(tmp_path: Path) -> None:
    pair = KeyHome(f"{tmp_path}/new/keys/").client()
    assert KeyHome(tmp_path / "new" / "keys").client() == pair
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


# ---- addresses ------------------------------------------------------------------------------------------


def test_foreign_address_is_one_clear_line(home: KeyHome) -> None:
    with pytest.raises(InputError, match=r"cannot listen here: .*; give an address of") as caught:
        Transport("tcp://203.0.113.1:7461", home)
    assert "\n" not in str(caught.value)


def test_unknown_keys_are_refused_on_every_interface(home: KeyHome, peers: Peers) -> None:
    transport = Transport("tcp://0.0.0.0:0", home)
    try:
        assert transport.address.startswith("tcp://0.0.0.0:")
        transport.address = dial_address(transport.address)
        assert peers.is_refused(transport, None, b"")
        assert peers.is_refused(transport, KeyPair(*zmq.curve_keypair()), home.broker_public())
        assert not peers.is_refused(transport, home.client(), home.broker_public())
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("listens", "dialled"),
    [
        ("tcp://0.0.0.0:7", "tcp://127.0.0.1:7"),
        ("tcp://*:7", "tcp://127.0.0.1:7"),
        ("tcp://[::]:7", "tcp://[::1]:7"),
        ("tcp://10.0.0.1:7", "tcp://10.0.0.1:7"),
    ],
)
def test_wildcard_address_is_connected_on_loopback(listens: str, dialled: str) -> None:
    assert dial_address(listens) == dialled


def test_loopback_addresses() -> None:
    assert is_loopback("tcp://127.0.0.1:5")
    assert is_loopback("tcp://localhost:5")
    assert is_loopback("tcp://[::1]:5")
    assert not is_loopback("tcp://127.0.0.1.example.org:5")
    assert not is_loopback("ipc:///tmp/x")


def test_address_in_use_is_one_clear_line(home: KeyHome, transport: Transport) -> None:
    with pytest.raises(InputError, match="is another broker running"):
        Transport(transport.address, home)


def test_address_is_that_of_the_option_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLSCHED_BROKER", "tcp://127.0.0.1:9")
    assert broker_address("tcp://127.0.0.1:8") == "tcp://127.0.0.1:8"
    assert broker_address() == "tcp://127.0.0.1:9"
    monkeypatch.delenv("RLSCHED_BROKER")
    assert broker_address() == "tcp://127.0.0.1:7461"
    for wrong in ("127.0.0.1:7461", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "http://x:1"):
        with pytest.raises(InputError, match="expected tcp://HOST:PORT"):
            broker_address(wrong)


# ---- authentication -------------------------------------------------------------------------------------


def test_client_and_node_connect_under_their_own_names(
    home: KeyHome, transport: Transport, peers: Peers
) -> None:
    client = peers.connect(transport, home, home.client())
    send_frames(transport, client, encode(Stats(), 7))
    (heard,) = receive_messages(transport)
    assert (heard.peer, heard.envelope.request) == (Peer("admin", "default", login_name()), 7)
    transport.reply(heard.route, 7, Ok())
    assert answer(transport, client) == Envelope(1, 7, Ok())
    node = peers.connect(transport, home, home.node("n3"))
    send_frames(transport, node, encode(Hello(name="n3", gpus=1)))
    (heard,) = receive_messages(transport)
    assert heard.peer == Peer("node", "n3")
    transport.send_node("n3", Welcome(epoch=1, cluster="c", heartbeat_s=1.0))
    assert isinstance(answer(transport, node).message, Welcome)


def test_unknown_key_is_refused(home: KeyHome, transport: Transport, peers: Peers) -> None:
    stranger = KeyPair(*zmq.curve_keypair())
    assert peers.is_refused(transport, stranger, home.broker_public())
    assert transport.counts["refused_handshakes"] >= 1


def test_client_without_curve_is_refused(transport: Transport, peers: Peers) -> None:
    assert peers.is_refused(transport, None, b"")


def test_known_key_with_another_brokers_public_key_is_refused(
    home: KeyHome, transport: Transport, peers: Peers
) -> None:
    other, _ = zmq.curve_keypair()
    assert peers.is_refused(transport, home.client(), other)


def test_known_key_is_accepted(home: KeyHome, transport: Transport, peers: Peers) -> None:
    assert not peers.is_refused(transport, home.client(), home.broker_public())


def test_without_its_zap_handler_all_are_refused(home: KeyHome, transport: Transport, peers: Peers) -> None:
    transport._poller.unregister(transport._zap)
    transport._zap.unbind(ZAP_ADDRESS)
    transport._zap.close(linger=0)
    assert peers.is_refused(transport, home.client(), home.broker_public())


def test_revoked_key_is_refused_at_its_next_message(
    home: KeyHome, transport: Transport, peers: Peers
) -> None:
    client = peers.connect(transport, home, home.client())
    send_frames(transport, client, encode(Stats(), 1))
    assert len(receive_messages(transport)) == 1
    (home.directory / "authorised" / "admin-default.public").unlink()
    send_frames(transport, client, encode(Stats(), 2))
    reply = answer(transport, client)
    assert isinstance(reply.message, Refused)
    assert "no longer" in reply.message.message
    assert transport.counts["unauthorised"] == 1


# ---- permissions ----------------------------------------------------------------------------------------


@pytest.fixture
def client(home: KeyHome, transport: Transport, peers: Peers) -> zmq.Socket[bytes]:
    return peers.connect(transport, home, home.client())


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([b""], "malformed message of 0 bytes"),
        ([b"\xc1\xff\x00"], "malformed message"),
        ([b"\x93\x01\x00\x81\xa4type\xa3bad"], "malformed message"),
        ([b"\x93\x01\x00\x81\xa4type\xd9\x02\xff\xff"], "malformed message"),
        ([b"\x91" * 3000], "malformed message"),
        ([encode(Stats(), 1), b"more"], "malformed message of 2 frames"),
        ([encode(Cancel(job=1), 1).replace(b"\xa3job\x01", b"\xa3job\xa1x")], "Expected `int`, got `str`"),
        ([b"\x93\x63" + encode(Stats(), 1)[2:]], "protocol version 99, expected 1"),
    ],
)
def test_malformed_message_gets_one_clear_line_and_is_harmless(
    transport: Transport, client: zmq.Socket[bytes], frames: list[bytes], said: str
) -> None:
    send_frames(transport, client, *frames)
    reply = answer(transport, client)
    assert isinstance(reply.message, Refused)
    assert said in reply.message.message
    assert "\n" not in reply.message.message
    assert transport.counts["malformed"] == 1
    send_frames(transport, client, encode(ListJobs(), 2))
    assert [heard.envelope.request for heard in receive_messages(transport)] == [2]


def test_client_may_not_send_node_messages(transport: Transport, client: zmq.Socket[bytes]) -> None:
    send_frames(transport, client, encode(Hello(name="n0", gpus=8), 4))
    reply = answer(transport, client)
    assert reply.request == 4
    assert reply.message == Refused(message="a key of role 'admin' may not send 'hello'")


def test_node_may_not_send_client_messages(home: KeyHome, transport: Transport, peers: Peers) -> None:
    node = peers.connect(transport, home, home.node("n0"))
    send_frames(transport, node, encode(Cancel(job=1), 4))
    assert answer(transport, node).message == Refused(message="a key of role 'node' may not send 'cancel'")


def test_peer_may_not_send_broker_messages(transport: Transport, client: zmq.Socket[bytes]) -> None:
    send_frames(transport, client, encode(Ok(), 4))
    assert answer(transport, client).message == Refused(message="a key of role 'admin' may not send 'ok'")


def test_node_must_send_hello_on_every_connection(home: KeyHome, transport: Transport, peers: Peers) -> None:
    node = peers.connect(transport, home, home.node("n0"))
    send_frames(transport, node, encode(Heartbeat(name="n0")))
    assert answer(transport, node).message == SayHello()
    send_frames(transport, node, encode(Hello(name="n0", gpus=1)))
    send_frames(transport, node, encode(Heartbeat(name="n0")))
    assert [type(heard.envelope.message) for heard in receive_messages(transport, 2)] == [Hello, Heartbeat]
    transport.drop_node("n0")
    send_frames(transport, node, encode(Heartbeat(name="n0")))
    assert answer(transport, node).message == SayHello()


def test_undeliverable_messages_are_dropped_and_counted(transport: Transport) -> None:
    transport.send_node("n9", SayHello())
    transport.reply(b"\x00gone", 1, Ok())
    assert transport.counts["undeliverable"] == 2
