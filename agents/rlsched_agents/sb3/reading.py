"""Reads the network of a Stable-Baselines3 model without running code from the file.

A model file is a zip archive with weights, and with settings in JSON. Some settings are pickles. Only the two
pickles that describe the network are read. They may contain only plain values, and names of networks and
optimisers of torch and of Stable-Baselines3. A pickle that calls a function is rejected.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import torch
from stable_baselines3.common.policies import ActorCriticPolicy

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS
from rlsched.decide.policies.files import MODEL_MEMBERS, opened, read_members
from rlsched.errors import CheckpointError
from rlsched_envs.training.actions import EARLIER_SIZES, spaces

_DATA, _WEIGHTS = MODEL_MEMBERS
_TRUSTED: Final = ("stable_baselines3.", "torch.nn.", "torch.optim.")
_NETWORKS: Final = (torch.nn.Module, torch.optim.Optimizer)
_CALLS: Final = frozenset(
    ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
)
"""Pickle instructions that run code."""


def read_model(model: str | Path) -> tuple[ActorCriticPolicy, str]:
    """Return the network of a model, and the first 12 hexadecimal digits of the SHA-256 of its weights.

    Args:
        model: Path of a model, or its content (`rlsched.decide.policies.files.to_send`).

    Raises:
        CheckpointError: the file cannot be read, contains code, or has a model of another algorithm or
            environment.
    """
    path, content = opened(model)
    members = read_members(path, content)
    data = _settings(members[_DATA], path)
    observations, actions = _check_environment(data, path)
    kind = _unpickled(data.get("policy_class"), path, "its policy")
    if not (isinstance(kind, type) and issubclass(kind, ActorCriticPolicy)):
        raise CheckpointError(
            f"{path}: expected a model of PPO (stable_baselines3), got one whose policy is "
            f"{getattr(kind, '__name__', kind)}"
        )
    kwargs = _unpickled(data.get("policy_kwargs") or {}, path, "its policy_kwargs")
    if data.get("use_sde") is True:
        kwargs = {**kwargs, "use_sde": True}
    try:
        policy = kind(observations, actions, lambda _: 0.0, **kwargs)
        weights = torch.load(io.BytesIO(members[_WEIGHTS]), map_location="cpu", weights_only=True)
        policy.load_state_dict(weights)
    except Exception as error:  # the file can contain anything
        raise CheckpointError(
            f"{path}: this model cannot be served: {' '.join(str(error).split())[:200]}"
        ) from error
    policy.set_training_mode(False)
    return policy, _digest(members[_WEIGHTS])


def _digest(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()[:12]


def _settings(text: bytes, path: str | Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: expected the settings of the model as JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected the settings as a JSON object, got {type(data).__name__}")
    return data


def _check_environment(data: Mapping[str, Any], path: str | Path) -> tuple[gym.spaces.Box, gym.spaces.Box]:
    """Return the observation space and the action space of a model.

    Models trained on an earlier version of `rlsched/Cluster-v0` have smaller spaces (`EARLIER_SIZES`).

    Raises:
        CheckpointError: the model was trained on another environment, or with a wrapper that changes the
            ranges of its spaces.
    """
    space = data.get("observation_space")
    saved = space.get("_shape") if isinstance(space, dict) else None
    for columns, dials in ((NUM_COLUMNS, NUM_DIALS), *EARLIER_SIZES):
        if saved == [columns]:
            observations, actions = spaces(columns, dials)
            _check_ranges(data, path, observations, actions)
            return observations, actions
    sizes = saved if isinstance(saved, list) and all(isinstance(one, int) for one in saved) else []
    raise CheckpointError(
        f"{path}: expected a model trained on rlsched/Cluster-v0, whose observations are "
        f"{(NUM_COLUMNS,)}, got a model for {tuple(sizes) or 'something else'}"
    )


def _check_ranges(
    data: Mapping[str, Any], path: str | Path, observations: gym.spaces.Box, actions: gym.spaces.Box
) -> None:
    """Check that a model's observations and actions have the same ranges as in the environment."""
    for key, own, wrapped in (
        ("observation_space", observations, "NormalizeObservation"),
        ("action_space", actions, "RescaleAction"),
    ):
        space = data.get(key)
        saved = space if isinstance(space, dict) else {}
        ranges = {name: _numbers(saved.get(name)) for name in ("low", "high")}
        if saved.get("_shape") != list(own.shape) or any(
            numbers != {float(getattr(own, name).flat[0])} for name, numbers in ranges.items()
        ):
            low, high = (", ".join(f"{one:g}" for one in sorted(ranges[name])) for name in ("low", "high"))
            raise CheckpointError(
                f"{path}: {key}: expected the space of rlsched/Cluster-v0, {list(own.shape)} from "
                f"{own.low.flat[0]:g} to {own.high.flat[0]:g}, got {saved.get('_shape')} from {low or '?'} "
                f"to {high or '?'}; a broker uses the ranges of the environment: train without {wrapped}"
            )


def _numbers(text: object) -> set[float]:
    """Return the distinct numbers in `text`, a printed numpy array; of more than three, the three lowest."""
    try:
        found = {float(word) for word in str(text).strip("[]").split()}
    except ValueError:
        return set()
    return set(sorted(found)[:3])


class _NamesOnly(pickle.Unpickler):
    """Unpickler that runs no code, and finds only networks and optimisers of torch and Stable-Baselines3."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(io.BytesIO(stream))
        self._calls = not _CALLS.isdisjoint(code.name for code, _, _ in pickletools.genops(stream))

    def find_class(self, module: str, name: str) -> Any:
        """Return the class that a pickle names. Raises UnpicklingError if the class is not allowed."""
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
    """Return the value of a setting in a model file. It is plain JSON, or a pickle inside JSON."""
    if not (isinstance(value, dict) and ":serialized:" in value):
        return value
    try:
        return _NamesOnly(base64.b64decode(value[":serialized:"])).load()
    except Exception as error:  # the file can contain anything
        raise CheckpointError(
            f"{path}: {what} needs code outside torch and Stable-Baselines3 ({error}), and code from a file "
            "is not trusted; serve such a network with a class of your own: FILE.py:NAME"
        ) from error
