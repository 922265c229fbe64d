"""Splits of training data by time, validation windows replayed by the engine, and `rlsched train-rows`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import numpy as np
import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.decide.policies.permissions import Permissions
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.cli.train_rows import train_rows
from rlsched_agents.ppo.callbacks import Table, score_of
from rlsched_agents.ppo.recipes import Recipe
from rlsched_agents.ppo.replays import ReplayWindows, scorer
from rlsched_agents.ppo.sources import TrainingData, read_data
from rlsched_agents.ppo.validation import RULES_TO_BEAT, Validator, cut_windows
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights
from rlsched_agents.runtime.policy import PpoScheduler
from rlsched_envs.sim.engine import Engine
from rlsched_envs.training.sources import EpisodeConfig
from tests.quick import quick

pytestmark = pytest.mark.slow

SMALL = Recipe(
    validation_jobs=250,
    validation_loads=(1.0,),
    validation_nodes=(3, 5),
    validation_windows=2,
    validation_least=1,
    episode=EpisodeConfig(warmup_jobs=40),
)
TINY_RECIPE = """
num_envs = 4
rollout_steps = 32
batch_size = 64
epochs = 1
validate_every = 256
checkpoint_every = 256
validation_jobs = 150
validation_loads = [1.0]
validation_nodes = [3]
validation_least = 3
temperatures = [0.0]
[network]
width = 16
critic_width = 8
[episode]
warmup_jobs = 30
agent_jobs = 60
tail_jobs = 30
nodes_low = 2
nodes_high = 3
"""


@pytest.fixture(scope="module")
def workload() -> tuple[Trace, ClusterSpec]:
    return synthesize("helios", 3000, 1.0, 32, seed=2, predictability="informative")


@pytest.fixture(scope="module")
def data(workload: tuple[Trace, ClusterSpec]) -> TrainingData:
    return TrainingData.cut(*workload)


@pytest.fixture
def paths(workload: tuple[Trace, ClusterSpec], tmp_path: Path) -> list[str]:
    trace, spec = workload
    trace.write(tmp_path / "t.csv.gz")
    (tmp_path / "c.toml").write_text(spec.to_toml())
    (tmp_path / "r.toml").write_text(TINY_RECIPE)
    return ["--trace", str(tmp_path / "t.csv.gz"), "--cluster", str(tmp_path / "c.toml")]


def untrained() -> PpoScheduler:
    return PpoScheduler(initial_weights(NetworkConfig(), 0), NetworkConfig(), permissions=Permissions())


def test_parts_do_not_overlap_and_exclude_the_test_part(
    data: TrainingData, workload: tuple[Trace, ClusterSpec]
) -> None:
    (use,) = data.uses
    assert use.train_s[1] == use.validation_s[0]
    assert use.validation_s[1] == use.test_s[0]
    (validation,), (confirmation,) = data.validation, data.confirmation
    assert validation.submit_s.max() <= confirmation.submit_s.min(), "later jobs confirm"
    assert confirmation.submit_s.max() < use.test_s[0]
    assert abs(validation.submit_s.size - confirmation.submit_s.size) <= 1
    assert data.train.submit_s.max() < use.validation_s[0] <= validation.submit_s.min()
    assert validation.submit_s.max() < use.test_s[0]
    last = float(workload[0].submit_s[-1])
    assert use.test_s[0] == pytest.approx(0.8 * last)
    assert use.jobs == 3000


def test_untrained_replays_the_reference_rule_to_the_second(data: TrainingData) -> None:
    windows = cut_windows(data.validation, SMALL, seed=1)
    assert [window.models is None for window in windows] == [True] * 4 + [False]
    windows = windows[:4]  # two draws for each of two sizes of cluster; then one with models
    assert any((window.trace.num_gpus > 8).any() for window in windows), "gangs over several nodes among them"
    for window in windows:
        rule = Policy("qssf-backfill").rule
        expected = Engine(window.trace, window.spec, order=rule.order).run_rule(rule)
        got = Engine(window.trace, window.spec, order=rule.order).run(untrained())
        assert got.gpus == expected.gpus
        np.testing.assert_array_equal(got.start_s, expected.start_s)
        assert got.by_source.get("policy", 0) > 20


ORDERS: dict[str, Permissions] = {
    "predicted_gpu_time": Permissions(),
    "predicted_size": Permissions(reservations=True),
}
"""Permissions of a network, by the queue order in its card."""
FREE = NetworkConfig(prior_job=0.0, prior_variant=0.0)


def restless(seed: int, order: str = "predicted_gpu_time", *, revises: bool = False) -> PpoScheduler:
    """Untrained weights without a bias towards the reference: they deviate in most decisions."""
    network = msgspec.structs.replace(FREE, order=order, revises=revises)
    return PpoScheduler(initial_weights(network, seed), network, permissions=network.permissions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "revises"), [("predicted_gpu_time", False), ("predicted_size", False), ("predicted_size", True)]
)
def test_windows_replayed_in_a_batch_equal_single_replays(
    data: TrainingData, order: str, revises: bool
) -> None:
    cold = msgspec.structs.replace(
        SMALL, episode=EpisodeConfig(warmup_jobs=0), validation_weights=(), validation_jobs=200
    )
    windows, policy = cut_windows(data.validation, cold, seed=1), restless(3, order, revises=revises)
    assert policy.order == ORDERS[order].order(revised=revises)
    replays = ReplayWindows([window.drawn for window in windows], 8, 0, ORDERS[order], revises=revises)
    score = scorer(policy.weights, policy.network)
    changed = 0
    for window, played in zip(windows, replays.run(score), strict=True):
        expected = Engine(window.trace, window.spec, order=policy.order).run(policy)
        np.testing.assert_array_equal(played.start_s, expected.start_s)
        changed += int((played.start_s != played.reference_start_s).sum())
    assert changed > 100
    again = [played.ratio for played in replays.run(score)]
    assert again == [played.ratio for played in replays.run(score)], "a second run starts like the first"


@pytest.mark.slow
def test_reference_with_reservations_is_easy_by_size(data: TrainingData) -> None:
    validator = Validator(cut_windows(data.validation, SMALL, seed=1))
    network = NetworkConfig(order="predicted_size")
    table = validator(PpoScheduler(initial_weights(network, 0), network, permissions=network.permissions))
    assert list(table)[:2] == ["ppo", "easy*"]
    assert {"qssf-backfill", "fifo-backfill"} <= table.keys()
    assert table["ppo"].items() >= table["easy*"].items()
    assert table["qssf-backfill"]["queue_ratio_frac"] != 1.0
    with pytest.raises(ValueError, match="validation does not support preemption"):
        Recipe(network=NetworkConfig(order="index"))


@pytest.mark.slow
def test_reference_plays_the_warm_up_of_a_replay(data: TrainingData) -> None:
    (window, *_) = cut_windows(data.validation, SMALL, seed=1)
    assert window.shape == (163, 40, 8), "the source has no more"
    (played,) = ReplayWindows([window.drawn], 8, 40, Permissions()).run(scorer(restless(3).weights, FREE))
    np.testing.assert_array_equal(played.start_s[:20], played.reference_start_s[:20])
    assert (played.start_s[40:] != played.reference_start_s[40:]).any()
    assert played.queue_s.size == 123


@pytest.mark.parametrize(
    "order", quick(("predicted_gpu_time", "predicted_size"), lambda order: order == "predicted_gpu_time")
)
def test_window_without_decisions_ends_as_under_the_reference(data: TrainingData, order: str) -> None:
    """A window without starts after the warm-up once left a run without any validation."""
    idle = msgspec.structs.replace(
        SMALL, validation_loads=(0.01, 1.0), validation_windows=1, validation_weights=()
    )
    windows = cut_windows(data.validation, idle, seed=1)
    network = NetworkConfig(order=order)
    policy = PpoScheduler(initial_weights(network, 0), network, permissions=network.permissions)
    played = ReplayWindows([window.drawn for window in windows], 8, 40, ORDERS[order]).run(
        scorer(policy.weights, network)
    )
    for window, one in zip(windows[:2], played, strict=False):
        np.testing.assert_array_equal(one.start_s, window.drawn.submit_s)
    assert all(np.isfinite(one.start_s).all() for one in played)
    table = Validator(windows)(policy)
    assert score_of(table, 0.01) == 1.0
    assert np.isfinite(table["ppo"]["queue_mean_s"])


def test_draws_of_a_replay_depend_on_their_seed(data: TrainingData) -> None:
    (window, *_) = cut_windows(data.validation, SMALL, seed=1)
    replays, score = (
        ReplayWindows([window.drawn], 8, 40, Permissions()),
        scorer(untrained().weights, NetworkConfig()),
    )
    one, two, other = (
        replays.run(score, temperature=1.0, seed=seed)[0].start_s.tobytes() for seed in (1, 1, 2)
    )
    assert one == two != other


def test_minimum_number_of_windows_is_filled_with_resampled_blocks(data: TrainingData) -> None:
    recipe = msgspec.structs.replace(SMALL, validation_least=10, validation_weights=())
    windows = cut_windows(data.validation, recipe, seed=1)
    assert len(windows) == 10
    assert len(cut_windows(data.validation, msgspec.structs.replace(recipe, validation_least=1), seed=1)) == 4
    recorded = [window.trace.duration_s.tobytes() for window in windows]
    assert len(set(recorded[:4])) == 1, "as recorded: the source has no more jobs than these"
    assert len(set(recorded)) == 7, "each of the others is resampled"


def test_validation_table_compares_with_rules_on_the_same_windows(data: TrainingData) -> None:
    validator = Validator(cut_windows(data.validation, SMALL, seed=1))
    table = validator(untrained())
    assert list(table) == ["ppo", *RULES_TO_BEAT]
    assert table["ppo"] == table["qssf-backfill"]
    assert score_of(table, 0.01) == 1.0
    assert table["ppo"]["worst_source_ratio_frac"] == 1.0
    assert table["fifo-backfill"]["queue_ratio_frac"] > 1
    assert 0 < table["ppo"]["gpu_utilisation_frac"] <= 1
    assert table["ppo"]["queue_mean_s"] < table["ppo"]["queue_p99_s"]


def test_gain_on_one_trace_does_not_offset_a_loss_on_another() -> None:
    def table(mean: float, worst: float) -> Table:
        return {"ppo": {"queue_ratio_frac": mean, "worst_source_ratio_frac": worst}}

    assert score_of(table(0.9, 1.0), 0.01) == 0.9
    assert score_of(table(0.9, 1.005), 0.01) == 0.9
    assert score_of(table(0.7, 1.2), 0.01) == 1.2


def test_windows_are_the_same_for_the_same_seed(data: TrainingData) -> None:
    one, two, other = (cut_windows((data.train,), SMALL, seed=seed)[0].trace for seed in (1, 1, 2))
    assert (one.submit_s == two.submit_s).all()
    assert (one.duration_s != other.duration_s).any()


def test_train_validates_writes_a_card_and_resumes(
    paths: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [
        "--logdir",
        str(tmp_path / "log"),
        "--out",
        str(tmp_path / "mine"),
        "--recipe",
        str(tmp_path / "r.toml"),
    ]
    assert train_rows.main([*paths, *rest, "--timesteps", "256"], standalone_mode=False) == 0
    assert "qssf-backfill" in capsys.readouterr().out
    card = load_checkpoint(tmp_path / "mine").card
    assert (tmp_path / "mine" / "CARD.md").exists()
    assert [use.trace for use in card.traces] == ["t"]
    assert card.recipe["episode"]["agent_jobs"] == 60
    assert card.network == NetworkConfig(width=16, critic_width=8)
    assert set(card.validation) == {"ppo", *RULES_TO_BEAT}
    assert list((tmp_path / "log").glob("events.*"))
    more = [*paths, *rest, "--timesteps", "384", "--resume", "--quiet"]
    assert train_rows.main(more, standalone_mode=False) == 0
    assert load_checkpoint(tmp_path / "log" / "checkpoints" / "last.zip").card.timesteps == 384
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--cluster", "b.toml", "--cluster", "c.toml"], "got 1 of these and 3 clusters"),
        (["--recipe", "nope"], "unknown recipe 'nope'"),
        (["--init", "x.zip", "--resume"], "--init or --resume, not both"),
        (["--runs", "2", "--no-validation"], "--runs chooses by validation"),
        (["--init", "x.zip"], "cannot read this checkpoint"),
        (["--resume"], "cannot read this checkpoint"),
    ],
)
def test_bad_input_is_one_clear_line(
    extra: list[str], message: str, paths: list[str], tmp_path: Path
) -> None:
    recipe = ["--recipe", str(tmp_path / "r.toml")] if "--recipe" not in extra else []
    with pytest.raises(InputError, match=message) as caught:
        train_rows.main(
            [
                *paths,
                *recipe,
                *extra,
                "--timesteps",
                "1",
                "--logdir",
                str(tmp_path / "log"),
                "--out",
                str(tmp_path / "o.zip"),
                "--quiet",
            ],
            standalone_mode=False,
        )
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("logdir", "out"), [("file", "x.zip"), ("log", "file/x.zip"), ("log", "file")])
def test_unwritable_output_is_refused_before_the_training(
    logdir: str, out: str, paths: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    places = ["--logdir", str(tmp_path / logdir), "--out", str(tmp_path / out)]
    with pytest.raises(InputError, match="file: cannot write here"):
        train_rows.main([*paths, *places, "--timesteps", "1"], standalone_mode=False)


def test_empty_training_data_is_refused(tmp_path: Path) -> None:
    rest = ["--timesteps", "1", "--logdir", str(tmp_path), "--out", str(tmp_path / "o.zip")]
    with pytest.raises(InputError, match="expected something to train on"):
        train_rows.main(rest, standalone_mode=False)
    with pytest.raises(InputError, match="expected a --cluster"):
        train_rows.main(["--trace", "t.csv", *rest], standalone_mode=False)


def test_one_cluster_for_all_traces(paths: list[str]) -> None:
    _, trace, _, cluster = paths
    one, two = read_data([Path(trace), Path(trace)], [Path(cluster)])
    assert one.uses == two.uses


def test_help_has_an_example() -> None:
    text = train_rows.get_help(click.Context(train_rows, info_name="train-rows"))
    assert "rlsched train-rows --trace" in text
