"""Continued `rlsched train-rows`: the parts adopted by `--init`, and the start of resumed runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched_agents.cli.train_rows import train_rows
from rlsched_agents.ppo.confirming import Verdict
from rlsched_agents.ppo.recipes import RECIPES, Recipe
from rlsched_agents.ppo.training import RunFiles, TrainingResult
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import load_checkpoint, save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights

NARROW = NetworkConfig(width=8, critic_width=8)
FIGURES = ("queue_ratio_frac", "queue_mean_s", "queue_p99_s", "jct_mean_s", "gpu_utilisation_frac")
TABLE = {"ppo": dict.fromkeys(FIGURES, 1.0)}
RECIPE = """
validation_jobs = 100
validation_loads = [1.0]
validation_least = 1
[network]
width = 8
critic_width = 8
"""


def a_card(network: NetworkConfig = NARROW) -> Card:
    return Card(
        name="t", created="", rlsched_version="0", schema_hash="", network=network, timesteps=9, seeds=()
    )


@dataclass
class Trainer:
    """Replaces `training.train`: records its arguments and trains nothing."""

    stops_at: int = -1
    better: bool | None = None
    began_with: dict[int, str | None] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)

    def __call__(
        self, _venv: object, recipe: Recipe, *, seed: int, files: RunFiles, init: Path | None, resume: bool,
        card: Card, **_: object,
    ) -> TrainingResult:  # fmt: skip
        if resume:
            self.resumed.append(seed)
        self.began_with[seed] = None if init is None else load_checkpoint(init).card.weights_sha256
        self.recipes.append(recipe)
        card = msgspec.structs.replace(card, seeds=(seed,), validation=TABLE)
        card = save_checkpoint(files.out, card, initial_weights(recipe.network, seed))
        save_checkpoint(files.last_snapshot, card, initial_weights(recipe.network, seed))
        verdict = None if self.better is None else Verdict(card, {}, 0.9 if self.better else 1.1, 1.0)
        return TrainingResult(
            timesteps=9, stopped=seed == self.stops_at, steps_per_s=1.0, card=card, verdict=verdict
        )


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    trace, spec = synthesize("helios", 1500, 1.0, 32, seed=2)
    trace.write(tmp_path / "t.csv.gz")
    (tmp_path / "c.toml").write_text(spec.to_toml())
    (tmp_path / "r.toml").write_text(RECIPE)
    places = {"trace": "t.csv.gz", "cluster": "c.toml", "recipe": "r.toml", "logdir": "log", "out": "o.zip"}
    words = [word for name, place in places.items() for word in (f"--{name}", str(tmp_path / place))]
    return [*words, "--timesteps", "9", "--quiet"]


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "origin.zip", a_card(), initial_weights(NARROW, 77))
    return tmp_path / "origin.zip"


def run(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("rlsched_agents.ppo.training.train", trainer)
    code: int = train_rows.main(list(words), standalone_mode=False)
    return code


@pytest.mark.slow
def test_seeds_started_after_a_stop_have_the_same_initial_weights(
    command: list[str], origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Trainer(stops_at=4), Trainer()
    assert run(first, monkeypatch, *command, "--init", str(origin), "--runs", "3", "--seed", "3") == 130
    kept = load_checkpoint(origin).card.weights_sha256
    assert first.began_with == {3: kept, 4: kept}
    origin.unlink()
    assert run(second, monkeypatch, *command, "--resume", "--runs", "3", "--seed", "3") == 0
    assert second.resumed == [4]
    assert second.began_with == {4: kept, 5: kept}


@pytest.mark.slow
def test_runs_of_an_earlier_command_are_not_overwritten(
    command: list[str], origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are finished work of a user: neither removed nor taken for runs of this command."""
    run(Trainer(), monkeypatch, *command, "--init", str(origin), "--runs", "3")
    ended = [tmp_path / "log" / f"seed-{k}" / "policy.zip" for k in range(3)]
    before, trainer = [path.read_bytes() for path in ended], Trainer()
    for more in ((), ("--init", str(ended[1]))):
        with pytest.raises(InputError, match=r"an earlier training is here .* --overwrite removes it"):
            run(trainer, monkeypatch, *command, "--runs", "2", *more)
    assert (trainer.began_with, [path.read_bytes() for path in ended]) == ({}, before)
    run(trainer, monkeypatch, *command, "--runs", "2", "--overwrite")
    assert trainer.began_with == {0: None, 1: None}, "with the rule, not with the existing run"
    assert [path.exists() for path in ended] == [True, True, False]


def test_incompatible_policy_removes_nothing(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Trainer(), monkeypatch, *command, "--runs", "2")
    wide = NetworkConfig(width=16, critic_width=8)
    save_checkpoint(tmp_path / "wide.zip", a_card(wide), initial_weights(wide, 0))
    with pytest.raises(InputError, match="other sizes than the recipe's"):
        run(
            *(Trainer(), monkeypatch, *command, "--runs", "2", "--overwrite"),
            *("--init", str(tmp_path / "wide.zip")),
        )
    assert all((tmp_path / "log" / f"seed-{k}" / "policy.zip").exists() for k in (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("more", "reserves"), [(("--seed", "7"), False), (("--runs", "2"), True)])
def test_kind_of_a_resumed_run_is_that_of_its_own_seeds(
    more: tuple[str, ...], reserves: bool, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder holds a run of another kind, and two runs continued from `ppo`."""
    reserving = msgspec.structs.replace(NARROW, order="predicted_size", revises=True)
    files = RunFiles(logdir=tmp_path / "log", out=tmp_path / "o.zip")
    for seed, network in (("seed-0", reserving), ("seed-1", reserving), ("", NARROW), ("seed-9", reserving)):
        last = files.logdir / seed / "checkpoints" / "last.zip"
        save_checkpoint(last, a_card(network), initial_weights(network, 0))
    trainer = Trainer()
    run(trainer, monkeypatch, *command, *more, "--resume")
    assert {recipe.network.order == "predicted_size" for recipe in trainer.recipes} == {reserves}


def test_continued_training_of_a_reserving_policy_reserves() -> None:
    kept = load_checkpoint().card.network
    assert kept.order == "predicted_size"
    default = RECIPES["default"]
    assert default.episode.modelled_frac > 0
    recipe = default.going_on(kept)
    assert recipe.episode.modelled_frac == default.episode.modelled_frac
    assert recipe.validation_weights == default.validation_weights
    assert (recipe.episode.reserving_frac, recipe.episode.revising) == (1.0, True)
    head_start = ("prior_job", "prior_variant", "prior_modelled", "prior_rows")
    assert all(getattr(recipe.network, name) == getattr(kept, name) for name in head_start)
    revising = msgspec.structs.replace(default.network, revises=True)
    other = default.going_on(revising)
    assert (other.episode.modelled_frac, other.episode.revising) == (0.5, True)
    assert other.validation_weights == default.validation_weights


def test_runs_that_never_started_cannot_be_resumed(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Trainer(), monkeypatch, *command)
    trainer = Trainer()
    with pytest.raises(InputError, match=r"expected a training of --runs 2 from --seed 0 on .* seed-K"):
        run(trainer, monkeypatch, *command, "--resume", "--runs", "2")
    assert trainer.began_with == {}


def test_invalid_start_is_one_clear_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempting = msgspec.structs.replace(NARROW, order="index")
    save_checkpoint(tmp_path / "p.zip", a_card(preempting), initial_weights(preempting, 0))
    with pytest.raises(InputError, match=r"p\.zip: its queue is ordered by the index.*expected") as caught:
        run(Trainer(), monkeypatch, *command, "--init", str(tmp_path / "p.zip"))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_last_lines_state_the_result(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the last weights, what to try, and whether any policy beat the rule."""
    telling = [word for word in command if word != "--quiet"]
    for better, verdict in (
        (None, "is not known"),
        (True, "better than the reference"),
        (False, "not better"),
    ):
        trainer = Trainer(better=better)
        monkeypatch.setattr("rlsched_agents.ppo.training.train", trainer)
        done = CliRunner().invoke(train_rows, [*telling, "--overwrite"], standalone_mode=False)
        assert done.exception is None
        *_, where, advice, last = done.stdout.strip().splitlines()
        assert where.startswith(f"last weights: {tmp_path / 'log' / 'checkpoints' / 'last.zip'} (")
        assert advice.startswith("to try: ")
        assert ("rlsched policy set ppo:" in advice) == bool(better)
        assert verdict in last
