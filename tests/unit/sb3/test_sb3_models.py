"""`sb3:PATH`: files of models are sent, read without running code, and refused in one line."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from stable_baselines3 import PPO

import rlsched as rs
from rlsched.decide.policies.files import to_send
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import CheckpointError, InputError
from rlsched_envs.training.sources import EpisodeSource


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*rs.synthesize("helios", jobs=1_500, load=1.0, gpus=32, seed=1))


def saved(source: EpisodeSource, path: Path, **kwargs: Any) -> Path:
    """An untrained model, with its optimiser."""
    env = gymnasium.make("rlsched/Cluster-v0", sources=[source])
    PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=3, policy_kwargs=kwargs, device="cpu").save(path)
    return path


@pytest.fixture(scope="module")
def model(source: EpisodeSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(source, tmp_path_factory.mktemp("model") / "m.zip", net_arch=[16, 16])


def test_content_is_sent_without_the_optimiser_and_is_complete(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m.zip"
    copy.write_bytes(model.read_bytes())
    before = load_scheduler(Policy.of(f"sb3:{copy}"))
    sent = [to_send(Policy.of(f"sb3:{text}")) for text in (copy, copy.with_suffix(""))]
    copy.unlink()
    assert sent[0] == sent[1]
    assert str(tmp_path) not in sent[0].toml
    assert len(sent[0].toml) < model.stat().st_size * 4 / 3, "base64, and less of it"
    served = load_scheduler(Policy.parse(sent[0].toml, name=sent[0].name))
    assert (served.name, served.policy_id) == (before.name, before.policy_id)
    assert served.strategy == before.strategy
    assert before.strategy is not None
    cut = sent[0].with_settings(checkpoint=sent[0].settings.checkpoint[:-400])
    with pytest.raises(CheckpointError, match="the model that was sent: expected a zip"):
        load_scheduler(cut)


def test_name_may_lack_its_ending(model: Path) -> None:
    """As `save` and `load` of the library permit."""
    bare = Policy.of(f"sb3:{model.with_suffix('')}")
    assert load_scheduler(bare).policy_id == load_scheduler(Policy.of(f"sb3:{model}")).policy_id


class OwnLayer(torch.nn.ReLU):
    """A class that a model file may name but cannot contain."""


MASKABLE = b"\x80\x04\x8c\x24sb3_contrib.common.maskable.policies\x8c\x19MaskableActorCriticPolicy\x93."
"""Pickle of the policy's class in a model of MaskablePPO."""


def test_unsupported_models_are_refused(source: EpisodeSource, model: Path, tmp_path: Path) -> None:
    rows = {"observation_space": {"_shape": [24, 53]}, "policy_class": pickled(MASKABLE)}
    altered(model, tmp_path / "rows.zip", **rows)
    altered(model, tmp_path / "masked.zip", policy_class=pickled(MASKABLE))
    saved(source, tmp_path / "own.zip", activation_fn=OwnLayer)
    (tmp_path / "text.zip").write_text("no zip")
    for name, said in (
        ("rows.zip", r"trained on rlsched/Cluster-v0, .* \(68,\), got a model for \(24, 53\)"),
        ("masked.zip", r"its policy needs code outside .*sb3_contrib\.common.* FILE\.py:NAME"),
        ("own.zip", r"its policy_kwargs needs code .* FILE\.py:NAME"),
        ("text.zip", "File is not a zip file"),
        ("none.zip", "No such file"),
    ):
        with pytest.raises(CheckpointError, match=said) as found:
            load_scheduler(Policy.of(f"sb3:{tmp_path / name}"))
        assert "\n" not in str(found.value)
    for setting in ("order=area", "dials=default", "predictions=oracle"):
        with pytest.raises(InputError, match=f"{setting.partition('=')[0]}: 'sb3' does not read"):
            load_scheduler(Policy.of(f"sb3:{model}").changed([setting]))
    with pytest.raises(InputError, match=r"checkpoint: expected the path of a model, such as sb3:m\.zip"):
        load_scheduler(Policy(rule="sb3"))


class CommandPickle:
    """A pickle that runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_model_file_runs_no_code(model: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(model) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for key in ("policy_class", "policy_kwargs", "clip_range", "observation_space"):
        data = json.loads(members["data"])
        mark = tmp_path / key
        before = data[key] if isinstance(data[key], dict) else {}
        shot = base64.b64encode(pickle.dumps(CommandPickle(mark))).decode()
        data[key] = {**before, ":serialized:": shot, ":type:": "x"}
        with zipfile.ZipFile(tmp_path / f"{key}.zip", "w") as archive:
            for name, content in {**members, "data": json.dumps(data).encode()}.items():
                archive.writestr(name, content)
        if key.startswith("policy_"):
            with pytest.raises(CheckpointError, match=r"posix\.system"):
                load_scheduler(Policy.of(f"sb3:{tmp_path / key}.zip"))
        else:
            load_scheduler(Policy.of(f"sb3:{tmp_path / key}.zip"))
        assert not mark.exists()


def altered(model: Path, path: Path, **settings: Any) -> Path:
    """A model with other settings."""
    with zipfile.ZipFile(model) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(members["data"]) | settings
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "data": json.dumps(data).encode()}.items():
            archive.writestr(name, content)
    return path


def pickled(stream: bytes) -> dict[str, str]:
    return {":serialized:": base64.b64encode(stream).decode(), ":type:": "x"}


def test_model_file_calls_no_class_and_reaches_none_through_another_module(
    model: Path, tmp_path: Path
) -> None:
    made: list[int] = []
    hook = torch.nn.modules.module.register_module_module_registration_hook(
        lambda *_: made.append(1)  # a network that contains others
    )
    named = b"\x80\x04\x8c\x17torch.nn.modules.module\x8c\x14torch.fx.GraphModule\x93."
    called = pickle.dumps(torch.nn.Sequential(torch.nn.ReLU()), protocol=4)
    try:
        for name, stream, said in (
            ("named", named, r"torch\.fx\.GraphModule"),
            ("called", called, r"a call of torch\.nn\.modules\.container\.Sequential"),
        ):
            made.clear()
            path = altered(model, tmp_path / f"{name}.zip", policy_kwargs=pickled(stream))
            with pytest.raises(CheckpointError, match=said):
                load_scheduler(Policy.of(f"sb3:{path}"))
            assert not made
    finally:
        hook.remove()


def test_damaged_model_is_one_line(model: Path, tmp_path: Path) -> None:
    odd = {"observation_space": {"_shape": 5}}
    altered(model, tmp_path / "shape.zip", **odd)
    content = bytearray(model.read_bytes())
    for sign, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):  # as if all were encrypted
        place = content.find(sign)
        while place >= 0:
            content[place + at] |= 1
            place = content.find(sign, place + 1)
    (tmp_path / "locked.zip").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "deep.zip", "w") as archive:
        archive.writestr("data", "[" * 100_000)
        archive.writestr("policy.pth", b"")
    for name in ("shape.zip", "locked.zip", "deep.zip"):
        with pytest.raises(CheckpointError) as found:
            load_scheduler(Policy.of(f"sb3:{tmp_path / name}"))
        assert "\n" not in str(found.value)
