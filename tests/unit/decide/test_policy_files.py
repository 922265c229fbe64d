"""Contents of strategies and models are sent with `rlsched policy set`."""

from __future__ import annotations

import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

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
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, STRATEGY_FILE, Strategy
from rlsched.decide.own import INLINE_ZIP
from rlsched.decide.policies.files import MODEL_MEMBERS, missing_code, opened, read_members, to_send
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decisions.deciders import DECIDERS_FILE, decider_at
from rlsched.errors import CheckpointError, InputError
from rlsched.transport.keys import KeyHome
from rlsched.wire.messages import ClientReply, Ok, ReadJournal, Refused, SetPolicy, encode
from rlsched.wire.messages.client import MAX_POLICY_BYTES


def network(width: int) -> Strategy:
    """A network with two hidden layers of this many units."""
    draws = np.random.default_rng(0)
    sizes = [(width, NUM_COLUMNS + 1), (width, width + 1), (NUM_DIALS, width + 1)]
    return Strategy.from_layers(*(draws.normal(0.0, 0.1, size) for size in sizes))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The folder of a trained policy: the strategy, and files that do not decide."""
    folder = tmp_path / "client" / "mine"
    folder.mkdir(parents=True)
    network(NUM_DIALS).write(folder / STRATEGY_FILE)
    (folder / "policy.toml").write_text(f'base = "easy"\nreserve_after = "1s"\ndials = "{STRATEGY_FILE}"\n')
    (folder / "training.npz").write_bytes(os.urandom(1 << 20))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with the members of a model of Stable-Baselines3, and one that a broker does not read."""
    path = tmp_path / "client" / "m.zip"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*MODEL_MEMBERS, "policy.optimizer.pth"):
            archive.writestr(name, os.urandom(4_000))
    return path


def request_of(policy: Policy) -> SetPolicy:
    """Request of a client."""
    sent = to_send(policy)
    return SetPolicy(policy=sent.toml, name=sent.name)


def settings(home: Path, directory: str = "broker") -> BrokerSettings:
    return BrokerSettings(address="tcp://127.0.0.1:0", directory=home / directory, keys=home, policy="fifo")


def decides(home: Path, directory: str = "broker") -> str:
    """The id of the policy of a starting broker; it names the strategy."""
    with closing(Broker(settings(home, directory))) as broker:
        assert broker._machine.scheduler.name == broker.start_fact.policy
        return broker._machine.scheduler.policy_id


def starts(directory: Path) -> list[BrokerStarted]:
    entries = [row.entry for row in read_journal(directory / JOURNAL_FILE)]
    return [entry for entry in entries if isinstance(entry, BrokerStarted)]


def test_trained_policy_is_sent_without_training_files(mine: Path) -> None:
    here, sent = Policy.of(f"ppo:{mine}"), to_send(Policy.of(f"ppo:{mine}"))
    assert (sent.name, len(sent.toml) < 1 << 17) == (here.name, True)
    assert str(mine) not in sent.toml
    for text in (mine, mine / "policy.toml", str(mine)):
        assert sent == to_send(Policy.of(text)), "equal content, equal policy"
    before = load_scheduler(here).strategy
    assert before is not None
    shutil.rmtree(mine)
    assert load_scheduler(Policy.parse(sent.toml, name=sent.name)).strategy == before
    assert to_send(sent) == sent


def test_every_file_of_a_policy_file_and_its_settings_are_sent(mine: Path, model: Path) -> None:
    folder = mine.parent
    (folder / "rule.toml").write_text(
        f'base = "easy"\nreserve_after = "2s"\ndials = "mine/{STRATEGY_FILE}"\n'
    )
    (folder / "net.toml").write_text('rule = "sb3"\ncheckpoint = "m.zip"\n')
    rule, net = (to_send(Policy.read(folder / name)) for name in ("rule.toml", "net.toml"))
    members = read_members(model)
    shutil.rmtree(folder)
    for policy in (rule, net):
        assert str(folder) not in policy.toml
    loaded = load_scheduler(Policy.parse(rule.toml, name=rule.name))
    assert (loaded.name, loaded.strategy) == ("rule", network(NUM_DIALS))
    assert rule.settings.reserve_after == 2.0
    name, content = opened(net.settings.checkpoint)
    assert str(name) == "the model that was sent"
    assert content is not None
    with zipfile.ZipFile(content) as archive:
        assert archive.namelist() == list(MODEL_MEMBERS)
    assert read_members(name, content) == members


def test_shipped_strategy_is_sent_by_its_name() -> None:
    sent = to_send(Policy("priced", dials="default"))
    assert sent == Policy("ppo") == to_send(Policy("ppo"))
    assert 'dials = "default"' in sent.toml


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def change(path: Path) -> None:
    """Change a byte in the middle of a member."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def without_weights(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, r"m\.zip: expected a zip written by PPO\.save, got a damaged or other file"),
        (change, r"m\.zip: expected a zip written by PPO\.save, got a damaged or other file"),
        (lambda path: path.write_bytes(b"no zip"), r"m\.zip: expected a zip written by PPO\.save"),
        (without_weights, r"m\.zip: expected a model of Stable-Baselines3: .*policy\.pth"),
    ],
)
def test_damaged_model_is_refused_in_one_line_before_it_is_sent(
    damage: Callable[[Path], object], says: str, model: Path
) -> None:
    damage(model)
    with pytest.raises(CheckpointError, match=says) as found:
        to_send(Policy.of(f"sb3:{model}"))
    assert "\n" not in str(found.value)


def test_damaged_strategy_is_refused_in_one_line_before_it_is_sent(mine: Path) -> None:
    for content in (b"", b"{", (mine / STRATEGY_FILE).read_bytes()[:-200]):
        (mine / STRATEGY_FILE).write_bytes(content)
        with pytest.raises(
            InputError, match=r"policy\.json: expected a strategy file \(JSON\), got"
        ) as found:
            to_send(Policy.of(f"ppo:{mine}"))
        assert "\n" not in str(found.value)


def test_missing_file_stays_a_path_for_the_broker(tmp_path: Path, mine: Path) -> None:
    none = str(tmp_path / "none.json")
    for policy in (*map(Policy.of, ("ppo", "sb3:none.zip", "easy")), Policy("easy", dials=none)):
        assert to_send(policy) == policy
    (mine / STRATEGY_FILE).unlink()
    assert to_send(Policy.of(mine)).settings.dials == str(mine / STRATEGY_FILE)


def test_content_changed_in_transit_is_refused_by_the_broker(tmp_path: Path, mine: Path, model: Path) -> None:
    dialled, learned = to_send(Policy.of(mine)), to_send(Policy.of(f"sb3:{model}"))
    text, strategy = learned.settings.checkpoint, dialled.settings.dials
    wrong = [
        (learned.with_settings(checkpoint=one), "the model that was sent: expected")
        for one in (text[:-40], text.replace(text[500:504], "*+*+"), INLINE_ZIP, INLINE_ZIP + "AAAA")
    ]
    wrong += [
        (dialled.with_settings(dials=one), f"dials: {says}")
        for one, says in (
            (strategy[:-40], "expected a strategy file (JSON), got"),
            (strategy.replace('"waiting_jobs"', '"waiting_job"'), "columns: this version does not have"),
        )
    ]
    with closing(Broker(settings(tmp_path))) as broker:
        for policy, says in wrong:
            refused = broker._set_policy(SetPolicy(policy=policy.toml, name="mine"))
            assert isinstance(refused, Refused)
            assert refused.message.startswith(says), refused.message
            assert "\n" not in refused.message
            assert len(refused.message) < 500
        assert (broker.start_fact.policy, broker.start_fact.epoch) == ("fifo", 1)


def test_too_large_content_is_refused_on_both_sides(tmp_path: Path, mine: Path) -> None:
    policy = Policy.of(f"ppo:{mine}")
    network(256).write(mine / STRATEGY_FILE)
    KeyHome(tmp_path).broker()
    says = r"mine': 1,\d\d\d KiB with the files that it names; expected at most 960 KiB; copy the files to"
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
        trained = broker._machine.scheduler.policy_id
    assert trained.startswith(f"ppo:{mine}@")
    assert trained.endswith(f"+{network(NUM_DIALS).digest}")
    shutil.rmtree(mine)
    assert [decides(tmp_path) for _ in range(2)] == [trained, trained]
    known = [start.chosen is not None for start in starts(tmp_path / "broker")]
    assert known == [False, True, False, False]
    stored = tmp_path / "broker" / STORE_FOLDER
    assert (stored / DECIDERS_FILE).read_text().count("\n") == 2, "fifo, and the trained policy"
    assert load_scheduler(decider_at(stored, 1e12)).policy_id == trained


def test_backup_and_base_have_the_content(tmp_path: Path, mine: Path) -> None:
    with closing(Broker(settings(tmp_path))) as broker:
        broker._set_policy(request_of(Policy.of(f"ppo:{mine}")))
        trained = broker._machine.scheduler.policy_id
    shutil.rmtree(mine)
    assert decides(tmp_path) == trained
    back_up(tmp_path / "broker" / JOURNAL_FILE, tmp_path / "backup.sqlite")
    shutil.rmtree(tmp_path / "broker")
    restore(tmp_path / "backup.sqlite", tmp_path / "other")
    for _ in range(4):
        assert decides(tmp_path, "other") == trained
    path = tmp_path / "other" / JOURNAL_FILE
    base = made(path, 1e12)
    assert base is not None
    with closing(Journal(path)) as journal:
        assert put(journal, base)
        assert journal.chosen() is not None
    assert starts(tmp_path / "other") == []
    assert [decides(tmp_path, "other") for _ in range(2)] == [trained, trained]


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
