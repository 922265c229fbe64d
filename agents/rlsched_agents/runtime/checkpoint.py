"""Checkpoints: a zip of `card.json`, `schema.json` and `weights.npz`, loaded without pickle or torch.

Members below `train/` are for resuming a training run, and only the trainer reads them. Resume only from
checkpoints of a trusted source.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np

from rlsched.decide.policies.files import POLICY_FILE, SERVED, opened, read_members, zip_of
from rlsched.decide.schema import SCHEMA, FeatureSchema
from rlsched.errors import CheckpointError
from rlsched_agents.runtime.card import CARD_FORMAT, Card
from rlsched_agents.runtime.network import Weights

CARD_FILE = "CARD.md"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint: checked against this version's feature schema, finite, with correct shapes."""

    path: Path
    card: Card
    weights: Weights

    @property
    def policy_id(self) -> str:
        """Policy name and start of the weights' hash, for records."""
        return f"{self.card.name}@{self.card.weights_sha256[:12]}"


def default_checkpoint() -> Path:
    """Return the folder of the default policy: inside the package in a wheel, at the root if editable."""
    packed = Path(str(files("rlsched_agents"))) / "_checkpoints" / "default"
    if packed.is_dir():
        return packed
    return Path(str(files("rlsched_agents"))).parents[1] / "checkpoints" / "default"


def checkpoint_file(path: str | Path) -> Path:
    """Return the zip file of a path: `default`, a zip, or a folder with `policy.zip`."""
    return zip_of(default_checkpoint() if str(path) == "default" else path)


def save_checkpoint(
    path: str | Path, card: Card, weights: Weights, train: Mapping[str, bytes] | None = None
) -> Card:
    """Write a checkpoint atomically; equal content gives equal bytes.

    Args:
        path: A name that ends in `.zip`, or a folder, which gets `policy.zip` and a readable `CARD.md`.
        card: Card of the checkpoint; this function fills in `schema_hash` and `weights_sha256`.
        weights: Parameters by name.
        train: Data for resuming a training run, by name below `train/`.

    Returns:
        The card as written.
    """
    path = Path(path)
    packed = _pack_weights(weights)
    card = msgspec.structs.replace(
        card, schema_hash=SCHEMA.checksum, weights_sha256=hashlib.sha256(packed).hexdigest()
    )
    members = {
        "card.json": msgspec.json.format(msgspec.json.encode(card), indent=1),
        "schema.json": msgspec.json.format(msgspec.json.encode(SCHEMA), indent=1),
        "weights.npz": packed,
    }
    members |= {f"train/{name}": body for name, body in (train or {}).items()}
    is_folder = path.is_dir() or path.suffix != ".zip"
    target = path / POLICY_FILE if is_folder else path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED, 6)
    os.replace(partial, target)
    if is_folder:
        (path / CARD_FILE).write_text(card.to_markdown(), encoding="utf-8")
    return card


def load_checkpoint(path: str | Path = "default") -> Checkpoint:
    """Load a checkpoint, without the members that require trust.

    Args:
        path: `default`, a zip, a folder with `policy.zip`, or the content of a zip
            (`rlsched.decide.policies.files.to_send`).

    Raises:
        CheckpointError: the file is missing, damaged, made for another feature schema, or has wrong shapes or
            non-finite values.
    """
    file, content = opened(default_checkpoint() if str(path) == "default" else path)
    members = read_members(file, SERVED["ppo"].members, content=content)
    try:
        card = msgspec.json.decode(members["card.json"], type=Card)
    except msgspec.MsgspecError as error:
        raise CheckpointError(
            f"{file}: card.json is not a card of format {CARD_FORMAT}: {error}; "
            "train the policy again with this version"
        ) from error
    _check_schema(file, card, members["schema.json"])
    if card.familiar is not None and (wrong := card.familiar.wrong()):
        raise CheckpointError(f"{file}: card.json: familiar: {wrong}")
    if hashlib.sha256(members["weights.npz"]).hexdigest() != card.weights_sha256:
        raise CheckpointError(
            f"{file}: weights.npz does not match the hash in card.json: the file was "
            "damaged or changed; copy it again"
        )
    return Checkpoint(file, card, _unpack_weights(file, card, members["weights.npz"]))


def _check_schema(file: Path, card: Card, schema_json: bytes) -> None:
    try:
        schema = msgspec.json.decode(schema_json, type=FeatureSchema)
        found, columns = schema.checksum, {name for name, _ in schema.features}
    except msgspec.MsgspecError:
        schema, found, columns = SCHEMA, "unknown", set()
    if found == card.schema_hash and SCHEMA.begins_with(schema):
        return
    known = {name for name, _ in SCHEMA.features}
    difference = [f"+{name}" for name in sorted(known - columns)] + [
        f"-{name}" for name in sorted(columns - known)
    ]
    detail = f" (columns {', '.join(difference)})" if columns and difference else ""
    raise CheckpointError(
        f"{file}: made for feature schema {card.schema_hash if found == SCHEMA.checksum else found}, this "
        f"version of rlsched has {SCHEMA.checksum}{detail}; train it again with "
        "`rlsched train-rows` (benchmarks/make_rows_checkpoint.py for the default policy)"
    )


def _pack_weights(weights: Weights) -> bytes:
    """Return a `.npz` whose bytes depend only on the arrays: no time stamps, sorted names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(weights):
            array = io.BytesIO()
            np.lib.format.write_array(
                array, np.ascontiguousarray(weights[name], dtype=np.float32), allow_pickle=False
            )
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), array.getvalue())
    return buffer.getvalue()


def _unpack_weights(file: Path, card: Card, packed: bytes) -> Weights:
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            weights = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"{file}: weights.npz is damaged: {error}") from error
    expected = card.network.shapes()
    if weights.keys() != expected.keys():
        odd = sorted(weights.keys() ^ expected.keys())
        raise CheckpointError(f"{file}: weights.npz and the network of card.json differ in {', '.join(odd)}")
    for name, shape in expected.items():
        array = weights[name]
        if array.shape != shape or array.dtype != np.float32:
            raise CheckpointError(f"{file}: {name} must be float32 {shape}, got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{file}: {name} has values that are not finite; the training run that wrote it diverged"
            )
    return weights
