"""`sb3:PATH`: a model of MaskablePPO decides as in its own library, and its file runs no code."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO

import rlsched as rs
from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.files import to_send
from rlsched.decide.policies.policy import Policy
from rlsched.decide.record import DecisionRecord
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import permit
from rlsched.decide.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched.errors import CheckpointError, InputError
from rlsched_envs.training.sources import EpisodeSource

KWARGS = {"net_arch": [16], "activation_fn": torch.nn.ReLU}


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*rs.synthesize("helios", jobs=1_500, load=1.0, gpus=32, seed=1))


def saved(source: EpisodeSource, path: Path, *, oracle: bool = False, **kwargs: Any) -> Path:
    """An untrained model, which differs from the reference rule as much as possible."""
    env = gymnasium.make("rlsched/Rows-v0", sources=[source], oracle=oracle)
    MaskablePPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=3, policy_kwargs=kwargs, device="cpu").save(
        path
    )
    return path


@pytest.fixture(scope="module")
def model(source: EpisodeSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(source, tmp_path_factory.mktemp("model") / "m.zip", **KWARGS)


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
    cut = sent[0].with_settings(checkpoint=sent[0].settings.checkpoint[:-400])
    with pytest.raises(CheckpointError, match="the checkpoint that was sent: expected a model that"):
        load_scheduler(cut)


def crowded(policy: Policy) -> list[DecisionRecord]:
    """Records of its decisions where many jobs wait for few GPUs, and some of them end."""
    scheduler = load_scheduler(policy)
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(scheduler.order))
    permit(state, scheduler)
    rng, found = np.random.default_rng(0), []
    for turn in range(12):
        for _ in range(4):
            run_s = float(rng.lognormal(7.0, 1.0))
            gpus = int(rng.choice([1, 2, 4, 8]))
            state.add_job(num_gpus=gpus, submit_s=600.0 * turn, predicted_s=run_s, spread=1.0)
        for _, decision in decide_all(state, scheduler, 600.0 * turn, record=True):
            assert decision.record is not None
            found.append(decision.record)
        for seq in list(state.running())[::2]:
            state.release(seq, 600.0 * turn + 300.0)
    return found


def test_rows_equal_the_library_s_actions(model: Path) -> None:
    theirs, asked, unlike = MaskablePPO.load(model, device="cpu"), 0, 0
    for record in crowded(Policy.of(f"sb3:{model}")):
        for half in record.halves:
            rows = np.frombuffer(half.features, np.float32).reshape(-1, NUM_FEATURES)
            window = np.zeros((WINDOW_ROWS, NUM_FEATURES), np.float32)
            window[: len(rows)] = rows
            mask = np.zeros(WINDOW_ROWS, np.bool_)
            mask[: len(rows)] = half.legal
            row, _ = theirs.predict(window, action_masks=mask, deterministic=True)
            assert half.choice == int(row)
            asked += 1
            unlike += half.choice != half.reference
        assert record.policy_id.startswith("sb3-")
    assert asked > 10
    assert unlike, "it is no copy of the rule"


def test_model_is_a_policy_like_any_other(model: Path) -> None:
    trace, cluster = rs.synthesize("helios", jobs=120, load=1.2, gpus=16, seed=2)
    runs = rs.simulate(trace, cluster, ["qssf-backfill", f"sb3:{model}"])
    assert runs[f"sb3:{model}"].metrics.unfinished == 0
    assert runs[f"sb3:{model}"].metrics.by_source["policy"] > 0
    scheduler, fallback = load_policy(Policy.of(f"sb3:{model}"), None, 10_000.0)
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == (f"sb3:{model}", "qssf-backfill")
    bare = Policy.of(f"sb3:{model.with_suffix('')}")  # as `save` and `load` allow
    assert load_scheduler(bare).policy_id == load_scheduler(Policy.of(f"sb3:{model}")).policy_id


class OwnLayer(torch.nn.ReLU):
    """A class that a model file may name but cannot contain."""


def test_unsupported_models_are_refused(source: EpisodeSource, tmp_path: Path) -> None:
    saved(source, tmp_path / "oracle.zip", oracle=True)
    saved(source, tmp_path / "own.zip", activation_fn=OwnLayer)
    (tmp_path / "text.zip").write_text("no zip")
    for name, said in (
        ("oracle.zip", r"got one for \(24, 58\): it uses true run times, .* train without oracle=True"),
        ("own.zip", r"its policy_kwargs needs code .* FILE\.py:NAME"),
        ("text.zip", "File is not a zip file"),
        ("none.zip", "No such file"),
    ):
        with pytest.raises(CheckpointError, match=said) as found:
            load_scheduler(Policy.of(f"sb3:{tmp_path / name}"))
        assert "\n" not in str(found.value)
    for setting in ("order=area", "search.samples=4", "predictions=oracle"):
        with pytest.raises(InputError, match=setting.partition("=")[0].partition(".")[0]):
            load_scheduler(Policy.of(f"sb3:{tmp_path / 'none.zip'}").changed([setting]))


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
