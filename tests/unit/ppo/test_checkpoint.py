"""Checkpoints: written and read without loss, and refused with one clear line."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.decide.schema import SCHEMA
from rlsched.errors import CheckpointError
from rlsched_agents.runtime import checkpoint as module
from rlsched_agents.runtime.card import Card, TraceUse
from rlsched_agents.runtime.checkpoint import load_checkpoint, read_members, save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, Weights, initial_weights

CONFIG = NetworkConfig(width=8, critic_width=4)
CARD = Card(
    name="tiny",
    created="2026-01-02T03:04:05Z",
    rlsched_version="0.1.0",
    schema_hash="",
    network=CONFIG,
    timesteps=10,
    seeds=(3,),
    temperature=0.5,
    recipe={"gamma": 0.9},
    traces=(TraceUse(trace="t", cluster="c", jobs=9, train_s=(0, 7), validation_s=(7, 7), test_s=(8, 10)),),
    validation={"ppo": {"queue_mean_s": 12.5}, "qssf-backfill": {"queue_mean_s": 13.0}},
)


@pytest.fixture
def weights() -> Weights:
    return initial_weights(CONFIG, 0)


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Change members of a checkpoint and keep its card."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return path


def test_round_trip_keeps_weights_and_card(tmp_path: Path, weights: Weights) -> None:
    written = save_checkpoint(tmp_path / "a.zip", CARD, weights, {"note.bin": b"xyz"})
    found = load_checkpoint(tmp_path / "a.zip")
    assert found.card == written
    assert found.card.schema_hash == SCHEMA.checksum
    assert {name: array.tobytes() for name, array in found.weights.items()} == {
        name: array.tobytes() for name, array in weights.items()
    }
    assert read_members(tmp_path / "a.zip", ("train/note.bin",)) == {"train/note.bin": b"xyz"}


def test_same_content_gives_the_same_bytes(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    save_checkpoint(tmp_path / "b.zip", CARD, dict(reversed(weights.items())))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_folder_gets_the_zip_and_a_card_to_read(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "default", CARD, weights)
    text = (tmp_path / "default" / "CARD.md").read_text(encoding="utf-8")
    assert SCHEMA.checksum in text
    assert "| ppo | 12.5 |" in text
    assert "| t | c | 9 | [0, 7) | - | [8, 10) |" in text
    assert load_checkpoint(tmp_path / "default").card.name == "tiny"


def test_default_is_found_in_the_package_before_the_root(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "agents" / "rlsched_agents"
    package.mkdir(parents=True)
    monkeypatch.setattr(module, "files", lambda _: package)
    save_checkpoint(tmp_path / "checkpoints" / "default", CARD, weights)
    assert load_checkpoint().card.name == "tiny"
    packed = msgspec.structs.replace(CARD, name="packed")
    save_checkpoint(package / "_checkpoints" / "default", packed, weights)
    assert load_checkpoint("default").card.name == "packed"


def test_failed_save_leaves_no_file(
    tmp_path: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    before = (tmp_path / "a.zip").read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(tmp_path / "a.zip", CARD, initial_weights(CONFIG, 1))
    assert (tmp_path / "a.zip").read_bytes() == before


def schema_with_another_column(members: dict[str, bytes]) -> None:
    other = msgspec.structs.replace(SCHEMA, features=(*SCHEMA.features[1:], ("colour", "of the node")))
    card = msgspec.json.decode(members["card.json"], type=Card)
    members["schema.json"] = msgspec.json.encode(other)
    members["card.json"] = msgspec.json.encode(msgspec.structs.replace(card, schema_hash=other.checksum))


def schema_in_other_words(members: dict[str, bytes]) -> None:
    first, *rest = SCHEMA.features
    other = msgspec.structs.replace(SCHEMA, features=((first[0], "other words"), *rest))
    card = msgspec.json.decode(members["card.json"], type=Card)
    members["schema.json"] = msgspec.json.encode(other)
    members["card.json"] = msgspec.json.encode(msgspec.structs.replace(card, schema_hash=other.checksum))


def test_a_checkpoint_whose_columns_are_described_in_other_words_is_served(
    tmp_path: Path, weights: Weights
) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    rewrite(tmp_path / "a.zip", schema_in_other_words)
    assert load_checkpoint(tmp_path / "a.zip").card.schema_hash != SCHEMA.checksum


def test_another_schema_names_hashes_columns_and_the_remedy(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    rewrite(tmp_path / "a.zip", schema_with_another_column)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path / "a.zip")
    message = str(caught.value)
    assert SCHEMA.checksum in message
    assert "+is_wait, -colour" in message
    assert "make_rows_checkpoint" in message
    assert message.count("\n") == 0
    assert caught.value.exit_code == 2


def repacked(weights: Weights) -> Callable[[dict[str, bytes]], None]:
    """Replace the weights, with a card that matches them."""

    def change(members: dict[str, bytes]) -> None:
        import hashlib

        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **weights)
        members["weights.npz"] = packed.getvalue()
        card = msgspec.json.decode(members["card.json"], type=Card)
        members["card.json"] = msgspec.json.encode(
            msgspec.structs.replace(card, weights_sha256=hashlib.sha256(members["weights.npz"]).hexdigest())
        )

    return change


def test_weights_that_are_not_finite_or_of_other_shapes_are_refused(tmp_path: Path, weights: Weights) -> None:
    path = tmp_path / "a.zip"
    name = "actor.row1.bias"
    for bad, message in [
        (weights | {name: np.full(8, np.nan, np.float32)}, "not finite"),
        (weights | {name: np.zeros(9, np.float32)}, r"must be float32 \(8,\), got float32 \(9,\)"),
        (weights | {name: np.zeros(8)}, "must be float32"),
        ({key: array for key, array in weights.items() if key != name}, f"differ in {name}"),
    ]:
        save_checkpoint(path, CARD, weights)
        rewrite(path, repacked(bad))
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(path)


def test_pickle_among_the_weights_is_not_loaded(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)

    def change(members: dict[str, bytes]) -> None:
        array = io.BytesIO()
        np.save(array, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        inner = io.BytesIO(members["weights.npz"])
        with zipfile.ZipFile(inner, "a") as archive:
            archive.writestr("evil.npy", array.getvalue())
        import hashlib

        members["weights.npz"] = inner.getvalue()
        card = msgspec.json.decode(members["card.json"], type=Card)
        members["card.json"] = msgspec.json.encode(
            msgspec.structs.replace(card, weights_sha256=hashlib.sha256(inner.getvalue()).hexdigest())
        )

    rewrite(tmp_path / "a.zip", change)
    with pytest.raises(CheckpointError, match=r"weights\.npz is damaged"):
        load_checkpoint(tmp_path / "a.zip")


def test_missing_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with pytest.raises(CheckpointError, match=r"a\.zip: cannot read this checkpoint: No such file"):
        load_checkpoint(path)
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="expected a zip"):
        load_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "hello")
    with pytest.raises(CheckpointError, match=r"not a checkpoint of rlsched.*card\.json"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="cannot read this checkpoint"):
        load_checkpoint(tmp_path)


def test_changed_byte_is_detected_or_harmless(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    good = (tmp_path / "a.zip").read_bytes()
    refused = 0
    for at in range(0, len(good), 37):
        damaged = bytearray(good)
        damaged[at] ^= 0xFF
        (tmp_path / "b.zip").write_bytes(damaged)
        try:
            found = load_checkpoint(tmp_path / "b.zip")
        except CheckpointError:
            refused += 1
        else:
            assert all((found.weights[name] == weights[name]).all() for name in weights)
    assert refused > len(good) / 37 * 0.8


def test_swapped_weights_are_detected(tmp_path: Path, weights: Weights) -> None:
    save_checkpoint(tmp_path / "a.zip", CARD, weights)
    save_checkpoint(tmp_path / "b.zip", CARD, initial_weights(CONFIG, 1))
    other = read_members(tmp_path / "b.zip", ("weights.npz",))["weights.npz"]

    def change(members: dict[str, bytes]) -> None:
        members["weights.npz"] = other

    rewrite(tmp_path / "a.zip", change)
    with pytest.raises(CheckpointError, match="does not match the hash"):
        load_checkpoint(tmp_path / "a.zip")
