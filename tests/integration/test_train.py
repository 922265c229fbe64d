"""`rlsched train` from end to end: a strategy is written where it is confirmed, and only there."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policy import Policy
from rlsched.errors import InputError
from rlsched_agents.cli.train import train
from rlsched_agents.dials.card import card_text
from rlsched_agents.dials.judging import ALL_ZERO
from rlsched_agents.dials.recipes import SMOKE, load_recipe
from rlsched_agents.dials.training import CONSTANTS, FOLLOWING, Lesson, Training
from rlsched_agents.ppo.sources import TrainingData, synthetic_data

SHUT = Policy("tuned", share={"min_gain": 0.8})
"""A rule that lets nobody share: dials that open its gate are an easy find."""


@pytest.fixture(scope="module")
def data() -> list[TrainingData]:
    return [synthetic_data("helios", 0, "causal")]


def smoke(*words: str) -> tuple[int, str]:
    """Exit code and standard output of a training that is too short to learn anything."""
    done = CliRunner().invoke(
        train, ["--synthetic", "helios", "--recipe", "smoke", "--workers", "1", *words], standalone_mode=False
    )
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.stdout


def test_the_last_line_says_what_came_out(tmp_path: Path) -> None:
    code, said = smoke("--out", str(tmp_path / "mine.json"), "--logdir", str(tmp_path / "log"))
    assert code == 0
    last = said.strip().splitlines()[-1]
    written = (tmp_path / "mine.json").exists()
    assert last.startswith("better by" if written else "keep what you have")
    assert list((tmp_path / "log").glob("events*"))
    code, said = smoke(
        "--out", str(tmp_path / "mine.json"), "--logdir", str(tmp_path / "log"), "--json", "--resume"
    )
    report = json.loads(said)
    assert report["better"] == written
    assert set(report["chosen"]) == {CONSTANTS, FOLLOWING}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "mine.zip"], r"expected a name that ends in \.json"),
        (["--out", "mine.json", "--resume"], "give that, too"),
        (["--out", "mine.json", "--logdir", "nothing", "--resume"], "nothing to go on from"),
        (["--out", "mine.json", "--policy", "ppo"], "is no rule"),
        (["--out", "mine.json", "--recipe", "large"], "expected one of default, quick, smoke"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        smoke(*words)
    assert not (tmp_path / "mine.json").exists()


def test_a_gate_that_should_be_open_is_opened(data: list[TrainingData], tmp_path: Path) -> None:
    """Where a setting is plainly wrong, training finds it, confirms it, and its card says so."""
    replace = msgspec.structs.replace
    recipe = replace(
        SMOKE,
        drawn=replace(SMOKE.drawn, jobs=400, load_low=1.0, preemptible_fracs=(0.0,), energy_weights=(0.0,)),
        windows=24,
        choosing=16,
        confirming=32,
        constants=replace(
            SMOKE.constants, generations=12, pairs=24, spread=0.5, step=0.2, patience=99, dials=("gate_pair",)
        ),
        following=replace(SMOKE.following, patience=99),
    )
    training = Training(Lesson.of(data, recipe, SHUT, 0), recipe, 0, tmp_path / "state.json", workers=1)
    seen: list[str] = []
    found = training.run(lambda stage, _: seen.append(stage))
    assert seen == [CONSTANTS] * 12 + [FOLLOWING]
    assert found.is_better, found.verdict
    assert found.verdict.startswith("better by")
    weights = np.array(found.strategy.layers[0])
    assert weights[list(RANGES).index("gate_pair"), -1] < -0.3, "less gain is asked for"
    assert found.frozen["gate_pair"].ratio > 1.0
    card = card_text(found, recipe, SHUT, data[0].uses, 0)
    assert "| `gate_pair` | ±0.5 | -" in card
    assert "Better by" in card


def test_a_training_goes_on_where_it_stopped(data: list[TrainingData], tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(
        SMOKE,
        constants=msgspec.structs.replace(SMOKE.constants, generations=3),
        following=msgspec.structs.replace(SMOKE.following, generations=2),
    )
    lesson = Lesson.of(data, recipe, Policy("tuned"), 4)

    class Stop(Exception):  # noqa: N818 - a request, not an error
        pass

    def stop_at_two(stage: str, _: object) -> None:
        seen.append(stage)
        if len(seen) == 2:
            raise Stop

    seen: list[str] = []
    with pytest.raises(Stop):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(stop_at_two)
    more: list[str] = []
    rest = Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(
        lambda stage, _: more.append(stage), resume=True
    )
    assert more == [CONSTANTS, FOLLOWING, FOLLOWING]
    whole = Training(lesson, recipe, 4, workers=1).run(lambda *_: None)
    assert rest.strategy == whole.strategy
    with pytest.raises(InputError, match="begun with --seed 4, got --seed 5"):
        Training(lesson, recipe, 5, tmp_path / "state.json", workers=1).run(lambda *_: None, resume=True)


def test_recipes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("windows = 7\n[drawn]\njobs = 99\n")
    found = load_recipe(str(tmp_path / "mine.toml"))
    assert (found.windows, found.drawn.jobs, found.choosing) == (7, 99, 240)
    (tmp_path / "mine.toml").write_text("windowz = 7\n")
    with pytest.raises(InputError, match="windowz"):
        load_recipe(str(tmp_path / "mine.toml"))
    assert Strategy.of(*ALL_ZERO).arrays(1).last.shape == (NUM_DIALS, NUM_COLUMNS + 1)
