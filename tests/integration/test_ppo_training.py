"""PPO on a toy with a known optimum: solved in seconds, resumed exactly, stopped by a signal, logged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from rlsched.board.reader import read_runs
from rlsched.errors import CheckpointError, InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.ppo.callbacks import Table
from rlsched_agents.ppo.normalize import ReturnNormalizer
from rlsched_agents.ppo.recipes import RECIPES, Recipe, load_recipe
from rlsched_agents.ppo.training import RunFiles, TrainingResult, build_model, train
from rlsched_agents.runtime.card import Card, TraceUse
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.forward import Forward
from rlsched_agents.runtime.network import NetworkConfig
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.training.curriculum import Stage
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from rlsched_envs.training.vector import RowsVecEnv
from tests.support.event_files import assert_all_are_described_and_none_is_always_0, event_values
from tests.support.sim.toy import TOY_STEPS, ToyVecEnv

FAST = Recipe(
    num_envs=32, rollout_steps=32, batch_size=256, gamma=0.9, gae_lambda=0.9, learning_rate=3e-3, entropy=0.0
)
TINY = Recipe(
    network=NetworkConfig(width=8, critic_width=8),
    num_envs=4,
    rollout_steps=16,
    batch_size=32,
    epochs=2,
    validate_every=128,
    checkpoint_every=64,
    temperatures=(0.0,),
    final_learning_rate_frac=0.5,
)


def files(folder: Path) -> RunFiles:
    return RunFiles(logdir=folder / "log", out=folder / "out.zip")


def run(
    folder: Path,
    recipe: Recipe = TINY,
    *,
    timesteps: int,
    seed: int = 3,
    validate: Callable[[PpoScheduler], Table] | None = None,
    confirm: Callable[[PpoScheduler], Table] | None = None,
    env: ToyVecEnv | None = None,
    init: Path | None = None,
    resume: bool = False,
    traces: tuple[TraceUse, ...] = (),
) -> TrainingResult:
    card = Card(
        name="toy",
        created="",
        rlsched_version="0",
        schema_hash="",
        network=recipe.network,
        timesteps=0,
        seeds=(),
        traces=traces,
    )
    return train(
        env or ToyVecEnv(recipe.num_envs, seed),
        recipe,
        timesteps=timesteps,
        files=files(folder),
        seed=seed,
        card=card,
        validate=validate,
        confirm=confirm,
        init=init,
        resume=resume,
        progress=False,
    )


def scalars(folder: Path) -> dict[str, list[float]]:
    curves = read_runs(folder / "log")["."].scalars
    return {tag: [value for _, value in points] for tag, points in curves.items()}


@pytest.mark.slow
def test_toy_is_solved_despite_a_wrong_prior_and_serves_without_torch(tmp_path: Path) -> None:
    run(tmp_path, FAST, timesteps=30_000)
    checkpoint = load_checkpoint(tmp_path / "out.zip")
    forward = Forward(checkpoint.weights, checkpoint.card.network)
    env = ToyVecEnv(16, seed=99)
    windows, total = env.reset(), 0.0
    for _ in range(TOY_STEPS):
        assert isinstance(windows, np.ndarray)
        logits = np.stack([forward.logits(window) for window in windows])
        windows, rewards, _, _ = env.step(np.where(env.action_masks(), logits, -np.inf).argmax(axis=1))
        total += float(rewards.sum())
    assert total / 16 > -3, "the best return is 0, that of the prior about -50"
    curve = scalars(tmp_path)["reward/return"]
    assert curve[0] < -40
    assert curve[-1] > -3


@pytest.mark.slow
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    constant = msgspec.structs.replace(TINY, final_learning_rate_frac=1.0)
    run(tmp_path / "a", constant, timesteps=512)
    run(tmp_path / "b", constant, timesteps=256)
    np.random.seed(1)
    torch.manual_seed(1)
    run(tmp_path / "b", constant, timesteps=512, env=ToyVecEnv(TINY.num_envs, seed=77), resume=True)
    whole, parts = load_checkpoint(tmp_path / "a" / "out.zip"), load_checkpoint(tmp_path / "b" / "out.zip")
    assert whole.card.timesteps == parts.card.timesteps == 512
    assert whole.card.weights_sha256 == parts.card.weights_sha256


def test_signal_stops_between_two_updates_and_the_run_resumes(tmp_path: Path) -> None:
    class Interrupts(ToyVecEnv):
        steps_left = 20

        def step_wait(self):  # type: ignore[no-untyped-def]
            self.steps_left -= 1
            if self.steps_left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().step_wait()

    before = signal.getsignal(signal.SIGTERM)
    stopped = run(tmp_path / "a", timesteps=512, env=Interrupts(TINY.num_envs, 3))
    assert stopped.stopped
    assert stopped.timesteps == 128
    assert signal.getsignal(signal.SIGTERM) is before
    assert load_checkpoint(tmp_path / "a" / "out.zip").card.timesteps == 128
    resumed = run(tmp_path / "a", timesteps=512, resume=True)
    assert not resumed.stopped
    run(tmp_path / "b", timesteps=512)
    assert resumed.card.weights_sha256 == load_checkpoint(tmp_path / "b" / "out.zip").card.weights_sha256


class Graded(ToyVecEnv):
    """Stages with rewards of different size; can stop the run at a step."""

    def __init__(self, num_envs: int, seed: int, stops_at: int = 0) -> None:
        super().__init__(num_envs, seed)
        self.entered: list[float | None] = []
        self._steps_left = stops_at

    def enter(self, stage: Stage | None) -> None:
        self.entered.append(stage.until_frac if stage is not None else None)

    def step_wait(self) -> VecEnvStepReturn:
        self._steps_left -= 1
        if self._steps_left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        observations, rewards, dones, infos = super().step_wait()
        return observations, rewards * (self.entered[-1] or 3.0), dones, infos


@pytest.mark.slow
def test_resumed_run_is_in_the_stage_of_an_uninterrupted_one(tmp_path: Path) -> None:
    graded = msgspec.structs.replace(TINY, curriculum=(Stage(until_frac=0.25), Stage(until_frac=0.5)))
    whole, part, rest = (Graded(TINY.num_envs, 3, stops_at) for stops_at in (0, 40, 0))
    run(tmp_path / "a", graded, timesteps=512, env=whole)
    assert whole.entered == [0.25, 0.5, 0.25, 0.5, None], "each once for the check, then in order"
    assert run(tmp_path / "b", graded, timesteps=512, env=part).stopped
    run(tmp_path / "b", graded, timesteps=512, env=rest, resume=True)
    assert part.entered == [0.25, 0.5, 0.25, 0.5]
    assert rest.entered == [0.25, 0.5, 0.5, None]
    weights = [load_checkpoint(tmp_path / one / "out.zip").card.weights_sha256 for one in ("a", "b")]
    assert weights[0] == weights[1]
    assert scalars(tmp_path / "a")["curriculum/stage_number"] == [1, 1, 2, 2, 3, 3, 3, 3]
    with pytest.raises(InputError, match=r"another recipe .*curriculum"):
        run(tmp_path / "b", TINY, timesteps=1024, resume=True)


def test_run_without_a_curriculum_has_no_field_for_it(tmp_path: Path) -> None:
    """So that runs of earlier versions can be resumed, and cards stay the same."""
    card = run(tmp_path, timesteps=64).card
    assert "curriculum" not in card.recipe
    assert not [tag for tag in scalars(tmp_path) if tag.startswith("curriculum")]


def test_run_without_gain_stops_early_and_can_be_continued(tmp_path: Path) -> None:
    scores = iter([1.0, 0.7, 0.9, 0.8, 0.6, 0.65])

    def validate(_policy: PpoScheduler) -> Table:
        return {"ppo": {"queue_mean_s": 100 * next(scores)}, "qssf-backfill": {"queue_mean_s": 100.0}}

    patient = msgspec.structs.replace(TINY, patience=2)
    result = run(tmp_path, patient, timesteps=4096, validate=validate)
    assert not result.stopped
    assert result.timesteps == 384, "best at 128, then two that are not better"
    assert result.card.timesteps == 128
    assert scalars(tmp_path)["validation/stale_count"] == [0, 0, 1, 2]
    again = run(tmp_path, patient, timesteps=512, validate=validate, resume=True)
    assert (again.timesteps, again.card.timesteps) == (512, 512)


def test_best_checkpoint_by_validation_is_written(tmp_path: Path) -> None:
    scores = iter([1.0, 0.7, 0.9, 0.8, 0.95])
    asked: list[str] = []

    def validate(policy: PpoScheduler) -> Table:
        asked.append(policy.name)
        return {"ppo": {"queue_mean_s": 100 * next(scores)}, "qssf-backfill": {"queue_mean_s": 100.0}}

    result = run(tmp_path, timesteps=512, validate=validate)
    assert asked == ["ppo"] * 5, "at the start, every 128 decisions, and at the end"
    assert result.card.timesteps == 128
    assert result.card.validation["ppo"] == {"queue_mean_s": 70.0}
    assert load_checkpoint(files(tmp_path).best).card == result.card
    assert load_checkpoint(files(tmp_path).last_snapshot).card.timesteps == 512
    curves = scalars(tmp_path)
    assert curves["validation/ppo/score_frac"] == pytest.approx([1.0, 0.7, 0.9, 0.8, 0.95])
    assert curves["validation/qssf-backfill/queue_mean_s"] == [100.0] * 5


def test_way_of_serving_is_chosen_with_the_checkpoint(tmp_path: Path) -> None:
    both = msgspec.structs.replace(TINY, temperatures=(0.0, 0.5))

    def validate(policy: PpoScheduler) -> Table:
        return {"ppo": {"queue_ratio_frac": 0.9 if policy.temperature else 1.0}}

    assert run(tmp_path, both, timesteps=128, validate=validate).card.temperature == 0.5
    assert "validation/ppo-t0.5/score_frac" in scalars(tmp_path)


def test_best_so_far_survives_a_resume(tmp_path: Path) -> None:
    def table(ratio: float) -> Callable[[PpoScheduler], Table]:
        return lambda _: {"ppo": {"queue_ratio_frac": ratio}}

    first = run(tmp_path, timesteps=128, validate=table(0.5))
    second = run(tmp_path, timesteps=256, validate=table(0.8), resume=True)
    assert second.card.weights_sha256 == first.card.weights_sha256
    assert second.card.validation == {"ppo": {"queue_ratio_frac": 0.5}}


def scored(scores: list[float]) -> Callable[[PpoScheduler], Table]:
    """A validation that returns these ratios in order, independent of the policy."""
    left = iter(scores)
    return lambda _: {"ppo": {"queue_ratio_frac": next(left)}, "fifo": {"queue_ratio_frac": 2.0}}


def test_policy_confirmed_on_other_windows_is_written(tmp_path: Path) -> None:
    validate, confirm = scored([1.0, 0.7, 0.9]), scored([0.95, 1.0])
    result = run(tmp_path, timesteps=256, validate=validate, confirm=confirm)
    assert result.verdict is not None
    assert result.verdict.better
    assert (result.verdict.score, result.verdict.start_score) == (0.95, 1.0)
    assert result.card.timesteps == 128
    found = load_checkpoint(tmp_path / "out.zip")
    best = load_checkpoint(files(tmp_path).best)
    assert found.card.weights_sha256 == best.card.weights_sha256
    assert found.card.confirmation == {
        "ppo": {"queue_ratio_frac": 0.95},
        "start": {"queue_ratio_frac": 1.0},
        "fifo": {"queue_ratio_frac": 2.0},
    }
    assert "## Confirmation" in found.card.to_markdown()


def test_unconfirmed_gain_keeps_the_start(tmp_path: Path) -> None:
    run(tmp_path / "a", timesteps=64)
    start = load_checkpoint(tmp_path / "a" / "out.zip")
    again = msgspec.structs.replace(TINY, exploring_prior_job=0.5)
    validate, confirm = scored([1.0, 0.7, 0.9, 0.99]), scored([1.0, 1.0])
    result = run(
        tmp_path / "b",
        again,
        timesteps=256,
        validate=validate,
        confirm=confirm,
        init=tmp_path / "a" / "out.zip",
    )
    assert result.verdict is not None
    assert not result.verdict.better, "as good is not better"
    found = load_checkpoint(tmp_path / "b" / "out.zip")
    assert found.card.weights_sha256 == start.card.weights_sha256
    assert found.card.timesteps == 0
    assert found.card.validation["ppo"] == {"queue_ratio_frac": 0.99}, "of the start, computed again"
    best = load_checkpoint(files(tmp_path / "b").best).card
    assert best.weights_sha256 != start.card.weights_sha256


def test_resumed_run_is_compared_with_the_start_of_its_first_part(tmp_path: Path) -> None:
    run(tmp_path, timesteps=128, validate=scored([1.0, 0.8]), confirm=scored([0.9, 1.0]))
    start = load_checkpoint(files(tmp_path).start)
    second = run(
        tmp_path,
        timesteps=256,
        validate=scored([0.9, 0.95]),
        confirm=scored([1.1, 1.0]),
        resume=True,
    )
    assert second.verdict is not None
    assert not second.verdict.better
    assert second.card.weights_sha256 == start.card.weights_sha256


def test_run_without_a_saved_start_continues_unconfirmed(tmp_path: Path) -> None:
    run(tmp_path, timesteps=128, validate=scored([1.0, 0.8]))
    assert not files(tmp_path).start.exists()
    second = run(tmp_path, timesteps=256, validate=scored([0.9]), confirm=scored([]), resume=True)
    assert second.verdict is None
    assert second.card.timesteps == 128


def test_no_confirmation_if_the_start_is_best(tmp_path: Path) -> None:
    def never(_: PpoScheduler) -> Table:
        raise AssertionError("asked")

    result = run(tmp_path, timesteps=128, validate=scored([0.5, 0.8]), confirm=never)
    assert result.verdict is None
    assert result.card.timesteps == 0


def test_init_takes_weights_and_refuses_other_sizes(tmp_path: Path) -> None:
    run(tmp_path / "a", timesteps=64)
    kept = load_checkpoint(tmp_path / "a" / "out.zip").weights
    frozen = msgspec.structs.replace(TINY, learning_rate=0.0)
    run(tmp_path / "b", frozen, timesteps=64, init=tmp_path / "a" / "out.zip")
    found = load_checkpoint(tmp_path / "b" / "out.zip").weights
    assert all((found[name] == kept[name]).all() for name in kept)
    wider = msgspec.structs.replace(TINY, network=NetworkConfig(width=16))
    with pytest.raises(InputError, match="other sizes"):
        run(tmp_path / "c", wider, timesteps=64, init=tmp_path / "a" / "out.zip")


def test_run_initialised_from_a_policy_is_of_its_kind() -> None:
    """`--init checkpoints/default` with a recipe of another order trains and compares the served kind."""
    kept = load_checkpoint().card.network
    assert (kept.order, kept.revises) != (TINY.network.order, TINY.network.revises)
    wide = msgspec.structs.replace(TINY, network=NetworkConfig(), exploring_prior_job=9.0)
    recipe = wide.going_on(kept)
    assert recipe.network == kept
    assert (recipe.episode.reserving_frac, recipe.episode.revising) == (1.0, True)
    assert recipe.exploring_prior_job == kept.prior_job
    assert recipe.going_on(kept) == recipe, "a resumed run has the same recipe"
    assert recipe.going_on(NetworkConfig()).episode.reserving_frac == 0.0


def test_resume_refuses_incompatible_runs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read this checkpoint"):
        run(tmp_path, timesteps=64, resume=True)
    run(tmp_path, timesteps=64)
    other = TraceUse(trace="a", cluster="c", jobs=1_500, train_s=(0, 1), validation_s=(1, 2), test_s=(2, 3))
    with pytest.raises(InputError, match=r"other data .*got a on c, 1,500 jobs; .*--overwrite"):
        run(tmp_path, timesteps=96, resume=True, traces=(other,))
    with pytest.raises(InputError, match="already has 64 decisions"):
        run(tmp_path, timesteps=64, resume=True)
    with pytest.raises(InputError, match=r"another recipe .*gamma"):
        run(tmp_path, msgspec.structs.replace(TINY, gamma=0.5), timesteps=128, resume=True)
    with pytest.raises(InputError, match=r"started with --seed 3, got --seed 4; .* --overwrite"):
        run(tmp_path, timesteps=128, seed=4, resume=True)
    files(tmp_path).out.replace(files(tmp_path).last_snapshot)
    with pytest.raises(CheckpointError, match=r"train/progress\.json"):
        run(tmp_path, timesteps=128, resume=True)


def test_resume_refuses_other_clusters_with_the_same_name(tmp_path: Path) -> None:
    """Arrays of another shape raised «could not broadcast»; other jobs were not noticed."""
    config = EpisodeConfig(warmup_jobs=40, agent_jobs=40, tail_jobs=20, nodes_low=2, nodes_high=3)
    trace, spec = synthesize("helios", jobs=1_500, load=1.0, gpus=32, seed=1)
    source = EpisodeSource.from_trace(trace, spec)

    def go_on(other: EpisodeSource, more: EpisodeConfig = config, *, resume: bool = True) -> None:
        env = RowsVecEnv([other], TINY.num_envs, seed=3, config=more, oracle=True)
        run(tmp_path, timesteps=128 if resume else 64, env=env, resume=resume)

    go_on(source, resume=False)
    few, wide = replace(source, gpus_per_node=4), msgspec.structs.replace(config, nodes_high=5)
    for other, more, said in (
        (few, config, "its episodes are of traces with other jobs, run times, predictions or nodes"),
        (replace(source, duration_s=source.duration_s + 1.0), config, "are of traces with other jobs"),
        (source, wide, r"its episodes have an array of shape \(4, 3\) where these have \(4, 5\)"),
    ):
        with pytest.raises(CheckpointError, match=rf"last\.zip: cannot resume .*{said}") as found:
            go_on(other, more)
        assert "\n" not in str(found.value)
    go_on(source)


def test_curves_have_units_and_the_diagnostics_of_ppo(tmp_path: Path) -> None:
    run(tmp_path, timesteps=256)
    curves = scalars(tmp_path)
    assert {
        "reward/return",
        "reward/return_std",
        "rollout/queue_mean_s",
        "rollout/reference_queue_mean_s",
        "rollout/queue_ratio_frac",
        "train/approx_kl",
        "train/explained_variance",
        "train/entropy_loss",
        "time/fps",
    } <= curves.keys()
    assert "rollout/queue_ratio" not in curves, "one definition of the ratio"
    ratio = np.array(curves["rollout/queue_mean_s"]) / np.array(curves["rollout/reference_queue_mean_s"])
    np.testing.assert_allclose(curves["rollout/queue_ratio_frac"], ratio, rtol=1e-6)
    drawn = event_values(tmp_path / "log")
    assert_all_are_described_and_none_is_always_0(drawn)
    assert '"num_envs"' in drawn["run/made_with"].values[0]
    assert drawn["run/outcome"].values[0].startswith("# ")


def test_weights_depend_only_on_the_seed(tmp_path: Path) -> None:
    hashes = [
        run(tmp_path / str(k), timesteps=128, seed=seed).card.weights_sha256
        for k, seed in enumerate([3, 3, 4])
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_rewards_are_scaled_by_the_spread_of_the_return_and_clipped() -> None:
    class Constant(ToyVecEnv):
        def step_wait(self):  # type: ignore[no-untyped-def]
            observations, rewards, dones, infos = super().step_wait()
            return observations, np.full_like(rewards, 1000.0 if self._steps[0] == 5 else 2.0), dones, infos

    env = ReturnNormalizer(Constant(4), gamma=0.5, clip=2.0)
    assert env.has_attr("action_masks")
    assert np.stack(env.env_method("action_masks")).shape == (4, 24)
    env.reset()
    actions = np.array([int(np.flatnonzero(mask)[-1]) for mask in env.env_method("action_masks")])
    for step in range(4):
        _, rewards, _, _ = env.step(actions)
        np.testing.assert_allclose(env.returns, 2.0 * (2 - 0.5**step))
        assert rewards[0] == pytest.approx(min(2.0 / env.scale, 2.0), rel=1e-6)
    assert env.step(actions)[1].tolist() == [2.0] * 4, "clipped"


def test_masked_rows_are_never_drawn() -> None:
    env = ToyVecEnv(8, seed=1)
    model = build_model(ReturnNormalizer(env, gamma=0.9), TINY, seed=0)
    windows = env.reset()
    for _ in range(20):
        masks = env.action_masks()
        actions, _ = model.predict(windows, action_masks=masks)
        assert masks[np.arange(8), actions].all()
        windows, *_ = env.step(actions)


def test_recipes_are_read_by_name_or_from_toml_and_checked(tmp_path: Path) -> None:
    assert load_recipe("default") == RECIPES["default"]
    path = tmp_path / "mine.toml"
    path.write_text("gamma = 0.99\n[network]\nprior_job = 4.0\n")
    assert load_recipe(str(path)) == Recipe(gamma=0.99, network=NetworkConfig(prior_job=4.0))
    for text, message in [
        ("gama = 1", "unknown field `gama`"),
        ("gamma = 1.5", "gamma must be above 0"),
        ("batch_size = 100000", "at most num_envs"),
        ("=", "not valid TOML"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_recipe(str(path))
    with pytest.raises(InputError, match="unknown recipe 'nope'; known: default"):
        load_recipe("nope")


def test_written_weights_are_the_average_unless_disabled(tmp_path: Path) -> None:
    last = msgspec.structs.replace(TINY, average_decay=0.0)
    run(tmp_path / "average", timesteps=256)
    run(tmp_path / "last", last, timesteps=256)
    weights = {}
    for name in ("average", "last"):
        weights[name] = load_checkpoint(tmp_path / name / "out.zip").weights
        weights[f"{name} raw"] = load_checkpoint(tmp_path / name / "log" / "checkpoints" / "last.zip").weights
    for name, raw in weights["last raw"].items():
        np.testing.assert_array_equal(raw, weights["average raw"][name], "serving does not change training")
        np.testing.assert_allclose(weights["last"][name], raw, atol=1e-7)
    moved = np.abs(weights["average"]["actor.row1.weight"] - weights["last"]["actor.row1.weight"]).max()
    assert moved > 1e-4


def test_step_size_is_not_negative_after_the_last_rollout() -> None:
    recipe = Recipe(learning_rate=1e-3, final_learning_rate_frac=0.2)
    assert [recipe.learning_rate_at(left) for left in (1.0, 0.5, 0.0, -0.3)] == pytest.approx(
        [1e-3, 6e-4, 2e-4, 2e-4]
    )
