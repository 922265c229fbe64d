"""Reads a Stable-Baselines3 model without running code from the file: weights, and only names from pickles.

A model file is a zip with weights and with settings in JSON. Some settings are pickles. A pickle can run any
code, so most pickles are not read. The two pickles that describe the network can contain plain values and
names of networks and optimisers of torch and of Stable-Baselines3; a pickle that calls anything is rejected.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import gymnasium as gym
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from rlsched.decide.policies.files import SERVED, opened
from rlsched.errors import CheckpointError
from rlsched_envs.training.dial_env import spaces
from rlsched_envs.training.vector import row_spaces

MAX_BYTES: Final = 1 << 28
_DATA, _WEIGHTS = SERVED["sb3"].members
_TRUSTED: Final = ("sb3_contrib.", "stable_baselines3.", "torch.nn.", "torch.optim.")
_NETWORKS: Final = (torch.nn.Module, torch.optim.Optimizer)
_CALLS: Final = frozenset(
    ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
)
"""Pickle instructions that run code. Plain values and class names need none of these instructions."""


class _Trained(NamedTuple):
    """An environment on which a supported model was trained, with its algorithm."""

    environment: str
    observations: gym.spaces.Box
    actions: gym.spaces.Space[Any]
    policy: type[BasePolicy]
    algorithm: str


_ROWS: Final = _Trained(
    "rlsched/Rows-v0",
    row_spaces()[0],
    row_spaces()[1],
    MaskableActorCriticPolicy,
    "MaskablePPO (sb3_contrib)",
)
_DIALS: Final = _Trained("rlsched/Cluster-v0", *spaces(), ActorCriticPolicy, "PPO (stable_baselines3)")


def read_model(model: str | Path) -> tuple[MaskableActorCriticPolicy | ActorCriticPolicy, str]:
    """Return the network of a model, and the first digits of the hash of its weights.

    The network is a `MaskableActorCriticPolicy` if the model was trained on `rlsched/Rows-v0`, and an
    `ActorCriticPolicy` if it was trained on `rlsched/Cluster-v0`.

    Args:
        model: Path of a model, or its content (`rlsched.decide.policies.files.to_send`).

    Raises:
        CheckpointError: the file cannot be read, has another algorithm or environment, or contains its own
            code.
    """
    path, content = opened(model)
    members = _members(path, content)
    data = _settings(members[_DATA], path)
    on = _environment(data, path)
    kind = _unpickled(data.get("policy_class"), path, "its policy")
    if not (isinstance(kind, type) and issubclass(kind, on.policy)):
        raise CheckpointError(
            f"{path}: expected a model of {on.algorithm}, got one whose policy is "
            f"{getattr(kind, '__name__', kind)}"
        )
    kwargs = _unpickled(data.get("policy_kwargs") or {}, path, "its policy_kwargs")
    if data.get("use_sde") is True:
        kwargs = {**kwargs, "use_sde": True}
    try:
        policy = kind(on.observations, on.actions, lambda _: 0.0, **kwargs)
        weights = torch.load(io.BytesIO(members[_WEIGHTS]), map_location="cpu", weights_only=True)
        policy.load_state_dict(weights)
    except Exception as error:  # the file can contain anything
        raise CheckpointError(
            f"{path}: this model cannot be served: {' '.join(str(error).split())[:200]}"
        ) from error
    policy.set_training_mode(False)
    return cast("MaskableActorCriticPolicy | ActorCriticPolicy", policy), _digest(members[_WEIGHTS])


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()[:12]


def _members(path: Path, content: io.BytesIO | None) -> dict[str, bytes]:
    """Return the settings and the weights in a model file, by file name in the zip."""
    try:
        with zipfile.ZipFile(path if content is None else content) as archive:
            sizes = [archive.getinfo(name).file_size for name in (_DATA, _WEIGHTS)]
            if sum(sizes) > MAX_BYTES:
                raise CheckpointError(f"{path}: expected a model of at most {MAX_BYTES:,} bytes")
            return {name: archive.read(name) for name in (_DATA, _WEIGHTS)}
    except (OSError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{path}: expected a model that MaskablePPO.save or PPO.save wrote, cannot read it: {reason}"
        ) from error


def _settings(text: bytes, path: str | Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its settings are not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected settings by name, got {type(data).__name__}")
    return data


def _environment(data: Mapping[str, Any], path: str | Path) -> _Trained:
    """Return the environment of the training; fail if a broker cannot provide the same observations."""
    space = data.get("observation_space")
    saved = space.get("_shape") if isinstance(space, dict) else None
    if saved is None or saved == list(_ROWS.observations.shape):
        return _ROWS
    if saved == list(_DIALS.observations.shape):
        _check_ranges(data, path)
        return _DIALS
    sizes = saved if isinstance(saved, list) and all(isinstance(one, int) for one in saved) else []
    rows = _ROWS.observations.shape
    more = len(sizes) == 2 and sizes[0] == rows[0] and sizes[1] > rows[1]
    why = ": it uses true run times, which a broker does not have; train without oracle=True" if more else ""
    raise CheckpointError(
        f"{path}: expected a model trained on rlsched/Rows-v0, whose observations are {rows}, or on "
        f"rlsched/Cluster-v0, {_DIALS.observations.shape}, got one for "
        f"{tuple(sizes) or 'something else'}{why}"
    )


def _check_ranges(data: Mapping[str, Any], path: str | Path) -> None:
    """Check that a model for dials was trained with the environment's own observations and actions."""
    for key, own, wrapped in (
        ("observation_space", _DIALS.observations, "NormalizeObservation"),
        ("action_space", _DIALS.actions, "RescaleAction"),
    ):
        assert isinstance(own, gym.spaces.Box)
        space = data.get(key)
        saved = space if isinstance(space, dict) else {}
        ranges = {name: _numbers(saved.get(name)) for name in ("low", "high")}
        if saved.get("_shape") != list(own.shape) or any(
            numbers != {float(getattr(own, name).flat[0])} for name, numbers in ranges.items()
        ):
            low, high = (", ".join(f"{one:g}" for one in sorted(ranges[name])) for name in ("low", "high"))
            raise CheckpointError(
                f"{path}: {key}: expected the one of rlsched/Cluster-v0, {list(own.shape)} from "
                f"{own.low.flat[0]:g} to {own.high.flat[0]:g}, got {saved.get('_shape')} from {low or '?'} "
                f"to {high or '?'}; a broker uses the ranges of the environment: train without {wrapped}"
            )


def _numbers(text: object) -> set[float]:
    """Return the distinct numbers in an array that numpy has printed, at most three."""
    try:
        found = {float(word) for word in str(text).strip("[]").split()}
    except ValueError:
        return set()
    return set(sorted(found)[:3])


class _NamesOnly(pickle.Unpickler):
    """Unpickler that returns only networks and optimisers of torch and Stable-Baselines3; runs no code."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(io.BytesIO(stream))
        self._calls = not _CALLS.isdisjoint(code.name for code, _, _ in pickletools.genops(stream))

    def find_class(self, module: str, name: str) -> Any:
        """Return the class that a pickle names, or raise an error if the class is not allowed."""
        if not module.startswith(_TRUSTED) or "." in name:
            raise pickle.UnpicklingError(f"{module}.{name}")
        found = super().find_class(module, name)
        is_known = isinstance(found, type) and issubclass(found, _NETWORKS)
        if not is_known or not found.__module__.startswith(_TRUSTED):
            raise pickle.UnpicklingError(f"{module}.{name}")
        if self._calls:
            raise pickle.UnpicklingError(f"a call of {module}.{name}")
        return found


def _unpickled(value: Any, path: str | Path, what: str) -> Any:
    """Return the value of a setting, from JSON or from its pickle."""
    if not (isinstance(value, dict) and ":serialized:" in value):
        return value
    try:
        return _NamesOnly(base64.b64decode(value[":serialized:"])).load()
    except Exception as error:  # the file can contain anything
        raise CheckpointError(
            f"{path}: {what} needs code outside torch and Stable-Baselines3 ({error}), and code from a file "
            "is not trusted; serve such a network with a class of your own: FILE.py:NAME"
        ) from error
