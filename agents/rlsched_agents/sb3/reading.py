"""A model that `MaskablePPO.save` wrote, read as data: weights, and of its pickles names of classes.

Such a file is a zip with settings in JSON, some of which are pickles, and weights. A pickle can run whatever
it likes, so most of them are left alone. The two that say what the network is may name networks and
optimisers of torch and of Stable-Baselines3 beside plain values; one that calls anything is refused.
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
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy

from rlsched.decide.rows.schema import NUM_FEATURES, WINDOW_ROWS
from rlsched.errors import CheckpointError

MAX_BYTES: Final = 1 << 28
_DATA, _WEIGHTS = "data", "policy.pth"
_TRUSTED: Final = ("sb3_contrib.", "stable_baselines3.", "torch.nn.", "torch.optim.")
_NETWORKS: Final = (torch.nn.Module, torch.optim.Optimizer)
_CALLS: Final = frozenset(
    ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID")
)
"""Instructions of a pickle that run something; plain values and names of classes need none of them."""


def read_model(path: str | Path) -> tuple[MaskableActorCriticPolicy, str]:
    """The network of a model, and the first digits of the hash of its weights.

    Raises:
        CheckpointError: it cannot be read, is of another algorithm or environment, or has code of its own.
    """
    members = _members(Path(path))
    data = _settings(members[_DATA], path)
    shape = (WINDOW_ROWS, NUM_FEATURES)
    _check_space(data, shape, path)
    kind = _unpickled(data.get("policy_class"), path, "its policy")
    if not (isinstance(kind, type) and issubclass(kind, MaskableActorCriticPolicy)):
        raise CheckpointError(
            f"{path}: expected a model of MaskablePPO (sb3_contrib), got one whose policy is "
            f"{getattr(kind, '__name__', kind)}"
        )
    kwargs = _unpickled(data.get("policy_kwargs") or {}, path, "its policy_kwargs")
    box = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    try:
        policy = kind(box, gym.spaces.Discrete(WINDOW_ROWS), lambda _: 0.0, **kwargs)
        weights = torch.load(io.BytesIO(members[_WEIGHTS]), map_location="cpu", weights_only=True)
        policy.load_state_dict(weights)
    except Exception as error:  # whatever such a file may hold
        raise CheckpointError(
            f"{path}: this model cannot be served: {' '.join(str(error).split())[:200]}"
        ) from error
    policy.set_training_mode(False)
    return policy, hashlib.sha256(members[_WEIGHTS]).hexdigest()[:12]


def _members(path: Path) -> dict[str, bytes]:
    """The two parts of the file that count."""
    if not path.is_file() and path.suffix != ".zip":
        path = path.with_name(f"{path.name}.zip")  # as `save` names it
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = [archive.getinfo(name).file_size for name in (_DATA, _WEIGHTS)]
            if sum(sizes) > MAX_BYTES:
                raise CheckpointError(f"{path}: expected a model of at most {MAX_BYTES:,} bytes")
            return {name: archive.read(name) for name in (_DATA, _WEIGHTS)}
    except (OSError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"{path}: expected a model that MaskablePPO.save wrote, cannot read it: {reason}"
        ) from error


def _settings(text: bytes, path: str | Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its settings are no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected settings by name, got {type(data).__name__}")
    return data


def _check_space(data: Mapping[str, Any], shape: tuple[int, int], path: str | Path) -> None:
    """Find out whether it was trained on what a broker can fill."""
    space = data.get("observation_space")
    saved = space.get("_shape") if isinstance(space, dict) else None
    if saved is None or saved == list(shape):
        return
    sizes = saved if isinstance(saved, list) and all(isinstance(one, int) for one in saved) else []
    more = len(sizes) == 2 and sizes[0] == shape[0] and sizes[1] > shape[1]
    why = ": it sees the truth, which no broker can; train without oracle=True" if more else ""
    raise CheckpointError(
        f"{path}: expected a model trained on rlsched/Rows-v0, whose observations are {shape}, got one for "
        f"{tuple(sizes) or 'something else'}{why}"
    )


class _NamesOnly(pickle.Unpickler):
    """Lets in names of networks and optimisers of torch and of Stable-Baselines3, where nothing is called."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(io.BytesIO(stream))
        self._calls = not _CALLS.isdisjoint(code.name for code, _, _ in pickletools.genops(stream))

    def find_class(self, module: str, name: str) -> Any:
        """A class that a pickle names; nothing can be called before one is."""
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
    """A setting: as JSON has it, or out of its pickle."""
    if not (isinstance(value, dict) and ":serialized:" in value):
        return value
    try:
        return _NamesOnly(base64.b64decode(value[":serialized:"])).load()
    except Exception as error:  # whatever such a file may hold
        raise CheckpointError(
            f"{path}: {what} needs code that is no part of torch or Stable-Baselines3 ({error}), and a file "
            "is not trusted to bring any; serve such a network by a class of your own: FILE.py:NAME"
        ) from error
