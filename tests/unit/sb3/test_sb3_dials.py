"""`sb3:PATH` of a PPO model of `rlsched/Cluster-v0`: dials equal the library's actions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from numpy.typing import NDArray
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm

import rlsched as rs
from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.dials import CLIPPED, NETWORK, PRICE_DIALS
from rlsched.cluster.spec import NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.guard import Guarded
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import permit
from rlsched.errors import CheckpointError, InputError
from rlsched.models.catalogue import load_catalogue
from rlsched_agents.sb3.dials import read_strategy
from rlsched_envs.training.actions import EARLIER_SIZES, spaces
from rlsched_envs.training.sources import EpisodeSource
from rlsched_envs.training.windows import Drawn
from tests.unit.sb3.test_sb3_models import altered, pickled

DRAWN = Drawn(jobs=120, nodes_low=2, nodes_high=3)


@pytest.fixture(scope="module")
def env() -> gymnasium.Env[Any, Any]:
    source = EpisodeSource.from_trace(*rs.synthesize("helios", jobs=1_500, load=1.0, gpus=32, seed=1))
    return gymnasium.make("rlsched/Cluster-v0", sources=[source], drawn=DRAWN)


def saved(env: Any, path: Path, **kwargs: Any) -> PPO:
    """A model with a last layer so large that many actions are clipped."""
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=3, device="cpu", **kwargs)
    with torch.no_grad():
        model.policy.action_net.weight *= 200.0  # type: ignore[operator, union-attr]
        model.policy.action_net.bias += torch.linspace(-1.0, 1.0, NUM_DIALS)  # type: ignore[operator, union-attr]
    model.save(path)
    return model


@pytest.fixture(scope="module")
def model(env: gymnasium.Env[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.zip"
    saved(env, path)
    return path


def recorded(env: gymnasium.Env[Any, Any], model: BaseAlgorithm) -> NDArray[np.float32]:
    """(N, F) observations of a model in an episode that it plays."""
    seen, _ = env.reset(seed=5)
    out, done = [seen], False
    while not done:
        seen, _, done, _, _ = env.step(model.predict(seen, deterministic=True)[0])
        out.append(seen)
    return np.array(out)


def set_by(scheduler: RuleScheduler, seen: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N, D) dials of the served policy for these observations, by its own kernel."""
    from rlsched.decide.dials import turning

    assert scheduler.strategy is not None
    dials, found = scheduler.strategy.arrays(1), []
    clips = bool(dials.controller[0] == CLIPPED)
    for one in seen.astype(np.float64):
        if dials.layer1.shape[0] == 0:
            turning._layer(dials.output, one, dials.action, clips)
        else:
            turning._layer(dials.layer1, one, dials.scratch[0], False)
            turning._layer(dials.layer2, dials.scratch[0], dials.scratch[1], False)
            turning._layer(dials.output, dials.scratch[1], dials.action, clips)
        found.append(dials.action.copy())
    return np.array(found)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"policy_kwargs": {"net_arch": []}},
        {"policy_kwargs": {"net_arch": [16, 48]}},
        {"policy_kwargs": {"net_arch": {"pi": [48, 16], "vf": [8]}}},
        {"use_sde": True},
        {"use_sde": True, "policy_kwargs": {"squash_output": True}},
    ],
    ids=["default", "linear", "widening", "narrowing", "sde", "squashed"],
)
def test_dials_equal_the_library_s_actions(
    kwargs: dict[str, Any], env: gymnasium.Env[Any, Any], tmp_path: Path
) -> None:
    theirs = saved(env, tmp_path / "m.zip", **kwargs)
    scheduler = load_scheduler(Policy.of(f"sb3:{tmp_path / 'm.zip'}"))
    assert isinstance(scheduler, RuleScheduler)
    seen = recorded(env, theirs)
    assert len(seen) > 20
    wanted, _ = theirs.predict(seen, deterministic=True)
    found = set_by(scheduler, seen)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    on_the_edge = np.abs(wanted) == 1.0
    if not kwargs.get("policy_kwargs", {}).get("squash_output"):
        assert 0.05 < on_the_edge.mean() < 0.95, "both clipped and not"
        assert (found[on_the_edge] == wanted[on_the_edge]).all()


def test_a2c_model_is_served_likewise(env: gymnasium.Env[Any, Any], tmp_path: Path) -> None:
    theirs = A2C("MlpPolicy", env, n_steps=4, seed=1, device="cpu")
    theirs.learn(8)
    theirs.save(tmp_path / "a.zip")
    scheduler = load_scheduler(Policy.of(f"sb3:{tmp_path / 'a.zip'}"))
    assert isinstance(scheduler, RuleScheduler)
    seen = recorded(env, theirs)
    np.testing.assert_allclose(
        set_by(scheduler, seen), theirs.predict(seen, deterministic=True)[0], atol=2e-6
    )


@pytest.mark.parametrize("modelled", [True, False])
def test_model_sets_the_dials_in_a_ledger(modelled: bool, model: Path) -> None:
    """As in a broker: its own observation, through the network, into the dials; some only with models."""
    scheduler = load_scheduler(Policy.of(f"sb3:{model}"))
    assert isinstance(scheduler, RuleScheduler)
    nodes = [NodeSpec(name=f"n{number}", gpus=4, gpu_type="V100") for number in range(2)]
    state = ClusterState(nodes, OrderedQueue(scheduler.order))
    if modelled:
        state.use_models(load_catalogue().arrays(state.kind_names))
    permit(state, scheduler)
    assert state.arrays.dials.controller[0] == CLIPPED
    for turn in range(40):
        state.add_job(num_gpus=1 + turn % 4, submit_s=60.0 * turn, predicted_s=600.0, spread=1.0)
        scheduler.begin_instant(state, 60.0 * turn)
    dials = state.arrays.dials
    seen = dials.seen[:1].astype(np.float32)
    assert seen.any()
    if not modelled:
        assert not any(dials.dial[name][0] for name in RANGES if name not in PRICE_DIALS)
        return
    wanted, _ = PPO.load(model, device="cpu").predict(seen, deterministic=True)
    np.testing.assert_allclose(dials.action, wanted[0], atol=2e-6)
    assert dials.dial.gpu_price[0] == pytest.approx(2.0 * dials.action[4])
    assert dials.dial.refused[0] == 0


def test_model_is_a_policy_like_any_other(model: Path) -> None:
    trace, cluster = rs.synthesize("helios", jobs=150, load=1.2, gpus=16, seed=2)
    runs = rs.simulate(trace, cluster, ["tuned", f"sb3:{model}"])
    assert runs[f"sb3:{model}"].metrics.unfinished == 0
    scheduler, fallback = load_policy(Policy.of(f"sb3:{model}"), None, 10_000.0)
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == (f"sb3:{model}", "tuned")
    assert scheduler.policy_id.startswith("sb3-")
    with pytest.raises(InputError, match="order: 'sb3' does not read this setting"):
        load_scheduler(Policy.of(f"sb3:{model}").changed(["order=area"]))


def test_strategy_can_be_combined_with_another_rule(model: Path, tmp_path: Path) -> None:
    """As a file that `dials` of any policy names."""
    strategy = read_strategy(model)
    strategy.write(tmp_path / "mine.json")
    assert Strategy.read(tmp_path / "mine.json") == strategy
    (tmp_path / "mine.toml").write_text('base = "easy"\ndials = "mine.json"\n')
    rule = Policy.read(tmp_path / "mine.toml").rule
    assert rule.strategy == strategy
    assert strategy.arrays(1).controller[0] == CLIPPED


def test_strategy_without_output_kind_is_unchanged() -> None:
    plain = Strategy.from_layers(np.zeros((9, 57)))
    assert (len(plain.columns), len(plain.dials)) == (56, 9), "as files of earlier versions"
    assert plain.arrays(1).controller[0] == NETWORK
    assert plain.digest == "407923889c07", "files without an output kind keep their digests"


def test_model_of_an_earlier_version_is_served(tmp_path: Path) -> None:
    """It was trained on fewer columns and dials; the new dials stay at 0."""

    class Earlier(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces(*EARLIER_SIZES[0])

        def reset(self, **_: Any) -> Any:
            return self.observation_space.sample(), {}

    path = tmp_path / "earlier.zip"
    model = PPO("MlpPolicy", Earlier(), device="cpu", seed=3)
    model.save(path)
    strategy = read_strategy(path)
    assert (len(strategy.columns), len(strategy.dials)) == EARLIER_SIZES[0]
    seen = np.random.default_rng(0).uniform(-1.0, 1.0, NUM_COLUMNS)
    wanted, _ = model.predict(seen[None, : len(strategy.columns)].astype(np.float32), deterministic=True)
    found = seen
    for layer in strategy.matrices[:-1]:
        found = np.tanh(layer[:, :-1] @ found + layer[:, -1])
    found = strategy.matrices[-1] @ np.append(found, 1.0)
    np.testing.assert_allclose(np.clip(found[:9], -1.0, 1.0), wanted[0], atol=1e-5)
    assert (found[9:] == 0.0).all()


def test_unsupported_models_are_refused(env: gymnasium.Env[Any, Any], model: Path, tmp_path: Path) -> None:
    def refused(path: Path, said: str) -> None:
        with pytest.raises(CheckpointError, match=said) as found:
            load_scheduler(Policy.of(f"sb3:{path}"))
        assert "\n" not in str(found.value)

    for name, wrapped, said in (
        (
            "normal",
            wrappers.NormalizeObservation(env),
            r"observation_space: expected .* \[68\] from -3 to 3, got \[68\] from -inf to inf; a broker",
        ),
        (
            "rescaled",
            wrappers.RescaleAction(env, np.float32(0.0), np.float32(2.0)),
            r"action_space: .* from -1 to 1, got \[11\] from 0 to 2; .* train without RescaleAction",
        ),
        (
            "stacked",
            wrappers.FlattenObservation(wrappers.FrameStackObservation(env, 2)),
            r"rlsched/Cluster-v0, whose observations are \(68,\), got a model for \(136,\)",
        ),
    ):
        saved(wrapped, tmp_path / f"{name}.zip")
        refused(tmp_path / f"{name}.zip", said)
    for name, kwargs in (
        ("relu", {"activation_fn": torch.nn.ReLU}),
        ("deep", {"net_arch": [8, 8, 8]}),
        ("flat", {"net_arch": [8]}),
    ):
        saved(env, tmp_path / f"{name}.zip", policy_kwargs=kwargs)
        refused(tmp_path / f"{name}.zip", r"expected a policy network with two hidden tanh .* FILE\.py:NAME")
    SAC("MlpPolicy", env, device="cpu", buffer_size=10).save(tmp_path / "sac.zip")
    refused(tmp_path / "sac.zip", r"expected a model of PPO \(stable_baselines3\), got one .* SACPolicy")
    path = altered(model, tmp_path / "code.zip", policy_kwargs=pickled(pickle.dumps(print)))
    refused(path, "its policy_kwargs needs code outside torch and Stable-Baselines3")


def test_nan_weights_are_refused(env: gymnasium.Env[Any, Any], tmp_path: Path) -> None:
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu")
    with torch.no_grad():
        model.policy.action_net.bias[0] = torch.nan  # type: ignore[index, union-attr]
    model.save(tmp_path / "nan.zip")
    with pytest.raises(InputError, match="layers: matrix 3: expected finite weights"):
        load_scheduler(Policy.of(f"sb3:{tmp_path / 'nan.zip'}"))
