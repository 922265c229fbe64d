"""Contents of strategies and checkpoints are sent with `rlsched policy set`."""

from __future__ import annotations

import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.broker.base.entries import BrokerStarted, ChosenPolicy
from rlsched.broker.compaction.compaction import made, put
from rlsched.broker.journal.backup import back_up, restore
from rlsched.broker.journal.journal import JOURNAL_FILE, Journal
from rlsched.broker.journal.reading import read_journal
from rlsched.broker.journal.records import STORE_FOLDER
from rlsched.broker.server.serve import Broker
from rlsched.broker.server.settings import BrokerSettings
from rlsched.broker.standby.shipping import MOST_ACCESS_BYTES, Shipping, access_digest
from rlsched.client.client import Client
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.own import INLINE_ZIP
from rlsched.decide.policies.files import missing_code, to_send
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.deciders import DECIDERS_FILE, decider_at
from rlsched.errors import CheckpointError, InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import ClientReply, Ok, ReadJournal, Refused, SetPolicy, encode
from rlsched.wire.messages.client import MAX_POLICY_BYTES
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights

NETWORK = NetworkConfig(width=8, critic_width=4)
CARD = Card(
    name="tiny",
    created="2026-01-02T03:04:05Z",
    rlsched_version="0.1.0",
    schema_hash="",
    network=NETWORK,
    timesteps=0,
    seeds=(3,),
    temperature=0.0,
    recipe={},
    traces=(),
    validation={},
)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder as training leaves it: the network, and the files for resuming."""
    folder = tmp_path / "client" / "mine"
    save_checkpoint(folder, CARD, initial_weights(NETWORK, 0), {"state.bin": os.urandom(1 << 20)})
    return folder


def request_of(policy: Policy) -> SetPolicy:
    """Request of a client."""
    sent = to_send(policy)
    return SetPolicy(policy=sent.toml, name=sent.name)


def settings(home: Path, directory: str = "broker") -> BrokerSettings:
    return BrokerSettings(address="tcp://127.0.0.1:0", directory=home / directory, keys=home, policy="fifo")


def decides(home: Path, directory: str = "broker") -> str:
    """The policy of a starting broker; its id, which names the weights."""
    with closing(Broker(settings(home, directory))) as broker:
        assert broker._machine.scheduler.name == broker.start_fact.policy
        return broker._machine.scheduler.policy_id


def starts(directory: Path) -> list[BrokerStarted]:
    entries = [row.entry for row in read_journal(directory / JOURNAL_FILE)]
    return [entry for entry in entries if isinstance(entry, BrokerStarted)]


def test_checkpoint_is_sent_without_training_files(mine: Path) -> None:
    here, sent = Policy.of(f"ppo:{mine}"), to_send(Policy.of(f"ppo:{mine}"))
    assert (sent.name, len(sent.toml) < 1 << 17) == (here.name, True)
    assert sent == to_send(Policy.of(f"ppo:{mine / 'policy.zip'}")), "equal content, equal policy"
    before = load_scheduler(here).policy_id
    shutil.rmtree(mine)
    assert load_scheduler(Policy.parse(sent.toml, name=sent.name)).policy_id == before
    assert to_send(sent) == sent


def test_every_file_of_a_policy_file_and_its_settings_are_sent(mine: Path) -> None:
    weights = np.random.default_rng(2).normal(0.0, 0.5, (NUM_DIALS, NUM_COLUMNS + 1))
    Strategy.from_layers(weights).write(mine.parent / "dials.json")
    (mine.parent / "rule.toml").write_text('base = "easy"\nreserve_after = "1s"\ndials = "dials.json"\n')
    (mine.parent / "net.toml").write_text('rule = "ppo"\ncheckpoint = "mine"\npredictions = "revised"\n')
    sent = [to_send(Policy.read(mine.parent / name)) for name in ("rule.toml", "net.toml")]
    shutil.rmtree(mine.parent)
    for policy in sent:
        assert str(mine.parent) not in policy.toml
        assert load_scheduler(Policy.parse(policy.toml, name=policy.name)).name == policy.name
    assert sent[0].settings.reserve_after == 1.0
    assert sent[1].settings.predictions == "revised"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def change(path: Path) -> None:
    """Change a byte in the middle of a member."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def without_weights(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("card.json", "{}")
        archive.writestr("schema.json", "{}")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, r"policy\.zip: cannot read this checkpoint: No such file"),
        (cut, r"policy\.zip: expected a zip written by `rlsched train-rows --out`, got a damaged or other"),
        (lambda path: path.write_bytes(b"no zip"), r"policy\.zip: expected a zip written by"),
        (without_weights, r"policy\.zip: not a checkpoint of rlsched: .*weights\.npz"),
    ],
)
def test_damaged_file_is_refused_in_one_line_before_it_is_sent(
    damage: Callable[[Path], object], says: str, mine: Path
) -> None:
    damage(mine / "policy.zip")
    with pytest.raises(CheckpointError, match=says) as found:
        to_send(Policy.of(f"ppo:{mine}"))
    assert "\n" not in str(found.value)


def test_missing_file_stays_a_path_for_the_broker(tmp_path: Path) -> None:
    for text in ("ppo", "ppo:default", f"ppo:{tmp_path / 'none'}", "sb3:none.zip", "easy"):
        assert to_send(Policy.of(text)) == Policy.of(text)


def test_content_changed_in_transit_is_refused_by_the_broker(tmp_path: Path, mine: Path) -> None:
    sent = to_send(Policy.of(f"ppo:{mine}"))
    text = sent.settings.checkpoint
    with closing(Broker(settings(tmp_path))) as broker:
        for wrong in (text[:-40], text.replace(text[500:504], "*+*+"), INLINE_ZIP, INLINE_ZIP + "AAAA"):
            policy = sent.with_settings(checkpoint=wrong)
            refused = broker._set_policy(SetPolicy(policy=policy.toml, name="mine"))
            assert isinstance(refused, Refused)
            assert refused.message.startswith("the checkpoint that was sent: expected"), refused.message
            assert "\n" not in refused.message
            assert len(refused.message) < 500
        assert (broker.start_fact.policy, broker.start_fact.epoch) == ("fifo", 1)


def test_too_large_content_is_refused_on_both_sides(tmp_path: Path, mine: Path) -> None:
    policy = Policy.of(f"ppo:{mine}")
    large = NetworkConfig(width=256, critic_width=256)
    save_checkpoint(mine, msgspec.structs.replace(CARD, network=large), initial_weights(large, 0))
    KeyHome(tmp_path).broker()
    says = r"mine': 2,\d\d\d KiB with the files that it names; expected at most 960 KiB; copy the files to"
    with Client("tcp://127.0.0.1:9", home=tmp_path) as client, pytest.raises(InputError, match=says):
        client.set_policy(policy)
    with closing(Broker(settings(tmp_path))) as broker:
        refused = broker._set_policy(request_of(policy))
    assert isinstance(refused, Refused)
    assert "expected at most 960 KiB" in refused.message


def test_broker_keeps_the_content_in_its_journal_once(tmp_path: Path, mine: Path) -> None:
    policy = Policy.of(f"ppo:{mine}")
    with closing(Broker(settings(tmp_path))) as broker:
        assert broker._set_policy(request_of(policy)) == Ok()
        network = broker._machine.scheduler.policy_id
    assert network.startswith("tiny@")
    shutil.rmtree(mine)
    assert [decides(tmp_path) for _ in range(2)] == [network, network]
    known = [start.chosen is not None for start in starts(tmp_path / "broker")]
    assert known == [False, True, False, False]
    stored = tmp_path / "broker" / STORE_FOLDER
    assert (stored / DECIDERS_FILE).read_text().count("\n") == 2, "fifo, and the network"
    assert load_scheduler(decider_at(stored, 1e12)).policy_id == network


def test_backup_and_base_have_the_content(tmp_path: Path, mine: Path) -> None:
    with closing(Broker(settings(tmp_path))) as broker:
        broker._set_policy(request_of(Policy.of(f"ppo:{mine}")))
        network = broker._machine.scheduler.policy_id
    shutil.rmtree(mine)
    assert decides(tmp_path) == network
    back_up(tmp_path / "broker" / JOURNAL_FILE, tmp_path / "backup.sqlite")
    shutil.rmtree(tmp_path / "broker")
    restore(tmp_path / "backup.sqlite", tmp_path / "other")
    for _ in range(4):
        assert decides(tmp_path, "other") == network
    path = tmp_path / "other" / JOURNAL_FILE
    base = made(path, 1e12)
    assert base is not None
    with closing(Journal(path)) as journal:
        assert put(journal, base)
        assert journal.chosen() is not None
    assert starts(tmp_path / "other") == []
    assert [decides(tmp_path, "other") for _ in range(2)] == [network, network]


def test_largest_policy_and_access_list_fit_messages_to_a_standby(tmp_path: Path) -> None:
    rule = Policy("easy").toml
    policy = rule + "#" * (MAX_POLICY_BYTES - len(rule))
    assert not SetPolicy(policy=policy, name="mine").too_large()
    assert SetPolicy(policy=policy + "#", name="mine").too_large()
    encode(SetPolicy(policy=policy, name="m" * 200), 1 << 60)
    answers: list[ClientReply] = []
    home = KeyHome(tmp_path)
    with closing(Journal(tmp_path / JOURNAL_FILE)) as journal:
        chosen = ChosenPolicy(policy=policy, name="m" * 200, instead_of="0" * 25)
        started = BrokerStarted(
            epoch=1, cluster="c1", version="1", policy="m" * 200, fallback="", order="submit", chosen=chosen
        )
        journal.commit([started], 1.0)
        shipping = Shipping(journal, home.access, lambda _, __, reply: answers.append(reply), lambda _: None)
        shipping.began("c1", 1)
        files = {"node-n.public": "x" * (MOST_ACCESS_BYTES - 100)}
        shipping._look()
        shipping._files, shipping._digest = files, access_digest(files)
        for after in (0, 1):
            checksum = journal.checksum_of(after) or 0
            shipping.ask(b"standby", 1, ReadJournal(after=after, checksum=checksum))
            shipping.step()
    for answer in answers:
        encode(answer, 1)
    [row] = answers[0].rows  # type: ignore[union-attr]
    assert row[0] == 1
    assert [answer.access == files for answer in answers] == [False, True]  # type: ignore[union-attr]


def test_python_code_is_not_sent_and_the_refusal_names_its_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from rlsched.decide.rules.parts import next_move\n")
    request = request_of(Policy.of(f"{file}"))
    assert "import" not in request.policy
    assert missing_code(Policy.of(str(file))) == ""
    file.unlink()
    assert missing_code(Policy.of("mine.py:Rule")) == str(Path.cwd() / "mine.py")
    with closing(Broker(settings(tmp_path))) as broker:
        for message in (request, SetPolicy(policy="", name="fifo", fallback=request.policy)):
            refused = broker._set_policy(message)
            assert isinstance(refused, Refused)
            assert refused.message.endswith(
                f"is Python code, which is not sent: put its file on the broker's machine, "
                f"{socket.gethostname()}, as {file}"
            )
