"""Packs and unpacks the state for an exact resume of a training run: the members `train/` of a checkpoint.

`env.pkl` is a pickle: resume only from trusted files. All other members are plain data.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from sb3_contrib import MaskablePPO

from rlsched.decide.policies.files import read_members
from rlsched.errors import CheckpointError
from rlsched_agents.ppo.average import WeightAverage
from rlsched_agents.ppo.normalize import ReturnNormalizer

MAX_RUN_BYTES = 1 << 30
_MEMBERS = ("train/progress.json", "train/arrays.npz", "train/optimizer.pt", "train/env.pkl")
_AVERAGE = "average."


class RunCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a run.

    Attributes:
        timesteps: Number of decisions taken.
        updates: Number of update epochs done.
        averaged: Number of updates in the average of the weights.
        best_score: Lowest validation score so far; None before the first validation.
    """

    timesteps: int
    updates: int
    averaged: int
    best_score: float | None = None


def pack_run(
    model: MaskablePPO, normalizer: ReturnNormalizer, average: WeightAverage, best_score: float | None
) -> dict[str, bytes]:
    """Return the members of `train/`; call this between an update and the next rollout."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    assert name == "MT19937"
    arrays = normalizer.get_state() | {
        "last_observations": np.asarray(model._last_obs),
        "episode_starts": np.asarray(model._last_episode_starts),
        "torch_rng": torch.get_rng_state().numpy(),
        "numpy_rng": np.asarray(keys),
        "numpy_rng_rest": np.array([position, has_gauss, gauss], dtype=np.float64),
    }
    arrays |= {_AVERAGE + name: array for name, array in average.weights.items()}
    packed, optimizer = io.BytesIO(), io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    torch.save(model.policy.optimizer.state_dict(), optimizer)
    progress = RunCounters(
        timesteps=model.num_timesteps,
        updates=model._n_updates,
        averaged=average.updates,
        best_score=best_score,
    )
    return {
        "progress.json": msgspec.json.encode(progress),
        "arrays.npz": packed.getvalue(),
        "optimizer.pt": optimizer.getvalue(),
        "env.pkl": pickle.dumps(_env_state(normalizer)),
    }


def restore_run(
    file: Path, model: MaskablePPO, normalizer: ReturnNormalizer, average: WeightAverage
) -> RunCounters:
    """Restore model, optimiser, average, normaliser, random generators and environment from a checkpoint.

    An environment without `get_state` starts new episodes: the run then continues, but not bit for bit.

    Raises:
        CheckpointError: the file has no run, or a run with arrays of other shapes.
    """
    members = read_members(file, _MEMBERS, limit_bytes=MAX_RUN_BYTES)
    try:
        progress = msgspec.json.decode(members["train/progress.json"], type=RunCounters)
        optimizer = torch.load(io.BytesIO(members["train/optimizer.pt"]), weights_only=True)
        with np.load(io.BytesIO(members["train/arrays.npz"]), allow_pickle=False) as arrays:
            saved = {name: arrays[name] for name in arrays.files}
        model.policy.optimizer.load_state_dict(optimizer)
        env_state: Any = pickle.loads(members["train/env.pkl"])
        if saved["returns"].shape != (normalizer.num_envs,):
            raise ValueError(f"it ran {len(saved['returns'])} environments, not {normalizer.num_envs}")
        if env_state is not None:
            normalizer.venv.set_state(env_state)  # type: ignore[attr-defined]  # only where get_state exists
    except (
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        RuntimeError,
        pickle.UnpicklingError,
        msgspec.MsgspecError,
    ) as error:
        raise CheckpointError(
            f"{file}: cannot resume from this checkpoint: {error}; start a new run, with "
            "--init to keep its weights"
        ) from error
    model.num_timesteps, model._n_updates = progress.timesteps, progress.updates
    average.restore(
        {name.removeprefix(_AVERAGE): array for name, array in saved.items() if name.startswith(_AVERAGE)},
        progress.averaged,
    )
    normalizer.set_state(saved)
    if env_state is not None:
        model._last_obs = saved["last_observations"]
        model._last_episode_starts = saved["episode_starts"]
    torch.set_rng_state(torch.from_numpy(saved["torch_rng"]))
    position, has_gauss, gauss = saved["numpy_rng_rest"]
    np.random.set_state(("MT19937", saved["numpy_rng"], int(position), int(has_gauss), float(gauss)))
    return progress


def _env_state(normalizer: ReturnNormalizer) -> Any:
    get_state = getattr(normalizer.venv, "get_state", None)
    return get_state() if get_state is not None else None
