"""`rlsched train` from end to end: a policy is written only if it is confirmed to be better."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from rlsched.cli.main import run
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.dials.turning import RANGES
from rlsched.decide.policies.policy import Policy
from rlsched.errors import InputError
from rlsched.objective import Objective
from rlsched.workload.synth import synthesize
from rlsched_agents.cli.train import train
from rlsched_agents.dials.card import card_text
from rlsched_agents.dials.judging import ALL_ZERO
from rlsched_agents.dials.lesson import DialRecipe, Lesson
from rlsched_agents.dials.recipes import SMOKE, load_recipe
from rlsched_agents.dials.training import CONSTANTS, FOLLOWING, PPO_FILE, SETTINGS, Training
from rlsched_agents.dials.training_data import TrainingData, synthetic_data
from rlsched_agents.dials.verdict import PPO
from rlsched_agents.evaluate.simulate import simulate
from tests.support.event_files import assert_all_are_described_and_none_is_always_0, event_values

SHUT = Policy("tuned", share={"min_gain": 0.8})
"""A rule that lets no job share: dials that open its gate are easy to find."""


@pytest.fixture(scope="module")
def data() -> list[TrainingData]:
    return [synthetic_data("helios", 0, "causal")]


def smoke(*words: str, source: tuple[str, ...] = ("--synthetic", "helios")) -> tuple[int, str]:
    """Exit code and standard output of a training too short to learn anything."""
    done = CliRunner().invoke(
        train, [*source, "--recipe", "smoke", "--workers", "1", *words], standalone_mode=False
    )
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.stdout


@pytest.mark.slow
def test_last_line_states_the_result(tmp_path: Path) -> None:
    code, said = smoke("--out", str(tmp_path / "mine.toml"), "--logdir", str(tmp_path / "log"))
    assert code == 0
    *_, where, advice, last = said.strip().splitlines()
    assert where == f"last weights: {tmp_path / 'log' / 'last.toml'}, a policy as any other"
    assert advice.startswith("to try: ")
    ended = Policy.read(tmp_path / "log" / "last.toml").rule.strategy
    assert ended is not None, "smoke trains a little"
    assert len(ended.layers) == 3, "the last stage is PPO's network"
    written = (tmp_path / "mine.toml").exists()
    assert last.startswith("better by" if written else "keep what you have")
    run = event_values(tmp_path / "log")
    assert_all_are_described_and_none_is_always_0(run)
    assert {f"{stage}/cost_frac" for stage in (SETTINGS, CONSTANTS, FOLLOWING, PPO)} <= set(run)
    assert {"ppo/approx_kl", "ppo/explained_variance", "ppo/value_loss", "ppo/std"} <= set(run)
    assert last.partition("; ")[0].split(",")[0] in run["run/outcome"].values[-1]
    assert '"pairs"' in run["run/made_with"].values[0]
    assert "helios" in run["run/data"].values[0]
    compared = {f"chosen/{stage}/cost_frac" for stage in (CONSTANTS, FOLLOWING, PPO)}
    assert run["chosen/best_cost_frac"].values[0] <= min(run[tag].values[0] for tag in compared)
    code, said = smoke(
        "--out", str(tmp_path / "mine.toml"), "--logdir", str(tmp_path / "log"), "--json", "--resume"
    )
    report = json.loads(said)
    assert report["better"] == written
    assert report["last"] == [str(tmp_path / "log" / name) for name in ("last.toml", "last.json")]
    assert Policy.read(tmp_path / "log" / "last.toml").rule.strategy == ended
    assert advice == f"to try: {report['advice']}".replace("FILE", str(tmp_path / "mine.toml"))
    assert {CONSTANTS, FOLLOWING, PPO} <= set(report["chosen"])
    assert set(report["tried"]) == set(SMOKE.settings)


@pytest.mark.slow
def test_prices_are_followed_by_a_policy_that_was_trained_with_them(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    code, said = smoke("--out", str(tmp_path / "mine"), "--logdir", log, "--json", "--signal", "solar")
    report = json.loads(said)
    assert code == 0
    for stage in (CONSTANTS, FOLLOWING, PPO):
        assert report["chosen"][stage]["money"]["ratio"] > 0.0
        assert len(report["chosen"][stage]["late_frac"]) == 2
    last = Policy.read(tmp_path / "log" / "last.toml").rule
    assert last.strategy is not None
    assert last.strategy.follows_price
    assert last.steps.priced
    with pytest.raises(InputError, match="this training was started on other data"):
        smoke("--out", str(tmp_path / "mine"), "--logdir", log, "--resume", "--signal", "wind")
    smoke("--out", str(tmp_path / "mine"), "--logdir", log, "--overwrite")
    blind = Policy.read(tmp_path / "log" / "last.toml").rule
    assert blind.strategy is not None
    assert not blind.strategy.follows_price
    for words, said in (
        (("--signal", "sollar"), "--signal sollar: expected a CSV file or one of solar, wind, spiky, flat"),
        (("--signal", "solar", "--known-ahead", "25"), "--known-ahead 25: expected hours from 0 to 24"),
    ):
        with pytest.raises(InputError, match=said):
            smoke("--out", str(tmp_path / "mine"), *words)


@pytest.mark.slow
def test_slurms_history_is_used_unchanged(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('name = "c"\n[[nodes]]\ncount = 4\ngpus = 8\n')
    rng, lines = np.random.default_rng(0), ["JobID|User|State|Submit|Start|End|AllocTRES"]
    begun = datetime(2024, 1, 1, tzinfo=UTC)
    for number, run_s in enumerate(rng.lognormal(7.0, 1.5, 4_000).tolist()):
        start = begun + timedelta(seconds=300 * number)
        times = [f"{at:%Y-%m-%dT%H:%M:%S}" for at in (start, start, start + timedelta(seconds=run_s))]
        gpus = 1 << number % 4
        lines.append("|".join((str(number), f"u{number % 5}", "COMPLETED", *times, f"gres/gpu={gpus}")))
    (tmp_path / "sacct.csv").write_text("\n".join(lines) + "\n")
    source = ("--history", str(tmp_path / "sacct.csv"), "--cluster", str(tmp_path / "c.toml"))
    code, said = smoke("--out", str(tmp_path / "mine.toml"), "--json", source=source)
    report = json.loads(said)
    assert (code, report["better"], report["written"]) == (0, False, []), "6 windows confirm nothing"
    assert list(report["chosen"]["constants"]["by_source"]) == ["sacct"]
    (tmp_path / "sacct.csv").write_text("\n".join(lines[:1_000]) + "\n")
    with pytest.raises(InputError, match=r"too few jobs: .* must have 720 or more"):
        smoke("--out", str(tmp_path / "mine.toml"), source=source)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "mine.json"], r"expected a folder, or a name that ends in \.toml"),
        (["--out", "mine.toml", "--resume"], "give --logdir too"),
        (["--out", "mine.toml", "--overwrite"], "give --logdir too"),
        (["--out", "mine.toml", "--logdir", "used"], r"an earlier training is here \(training\.json\)"),
        (["--out", "mine.toml", "--logdir", "used", "--resume", "--overwrite"], "not both"),
        (["--out", "mine.toml", "--logdir", "nothing", "--resume"], "no training to continue"),
        (["--out", "mine.toml", "--policy", "random"], "is not a rule"),
        (["--out", "mine.toml", "--recipe", "large"], "expected one of default, quick, smoke"),
        (["--out", "mine.toml", "--from", "sacct"], "expected a --history"),
        (["--out", "mine.toml", "--recipe", "narrow.toml"], r"narrow\.toml: .*ppo"),
    ],
)
def test_errors_are_reported(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "training.json").write_text("{}")
    (tmp_path / "narrow.toml").write_text("[ppo]\nwidth = 4\n")
    with pytest.raises(InputError, match=said):
        smoke(*words)
    assert (tmp_path / "used" / "training.json").read_text() == "{}"
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.slow
def test_training_opens_a_gate_that_should_be_open(data: list[TrainingData], tmp_path: Path) -> None:
    """Where a setting is plainly wrong, training finds it, confirms it, and its card has it."""
    change = msgspec.structs.replace
    recipe = change(
        SMOKE,
        drawn=change(SMOKE.drawn, jobs=400, load_low=1.0, preemptible_fracs=(0.0,), energy_weights=(0.0,)),
        windows=24,
        choosing=16,
        confirming=200,
        settings=(),
        constants=change(
            SMOKE.constants, generations=12, pairs=24, spread=0.5, step=0.2, patience=99, dials=("gate_pair",)
        ),
        following=change(SMOKE.following, patience=99),
    )
    training = Training(
        Lesson.from_traces(data, recipe, SHUT, 0),
        recipe,
        0,
        tmp_path / "state.json",
        workers=1,
        algorithm="es",
    )
    seen: list[str] = []
    found = training.run(lambda stage, _: seen.append(stage))
    assert seen == [CONSTANTS] * 12 + [FOLLOWING]
    assert found.is_better, found.verdict
    assert found.verdict.startswith("better by")
    weights = np.array(found.strategy.layers[0])
    assert weights[list(RANGES).index("gate_pair"), -1] < -0.3, "less gain is required"
    assert found.frozen["gate_pair"].ratio > 1.0
    card = card_text(found, recipe, data[0].uses, 0)
    assert "| `gate_pair` | ±0.5 | -" in card
    assert "Better by" in card
    assert found.write(tmp_path / "mine.toml") == [tmp_path / "mine.toml", tmp_path / "mine.json"]
    (tmp_path / "there").mkdir()
    for name in ("mine.toml", "mine.json"):
        (tmp_path / name).rename(tmp_path / "there" / name)
    served = Policy.read(tmp_path / "there" / "mine.toml")
    assert served.rule.strategy == found.strategy, "a policy finds its strategy in its own folder"
    assert served.with_settings(dials="") == SHUT


@pytest.mark.slow
def test_training_changes_a_plainly_wrong_setting(data: list[TrainingData], tmp_path: Path) -> None:
    """Without dials only a policy is written: one file that any verb accepts."""
    change = msgspec.structs.replace
    recipe = change(
        SMOKE,
        drawn=change(SMOKE.drawn, jobs=300, load_low=1.0, preemptible_fracs=(0.0,), energy_weights=(0.0,)),
        choosing=24,
        confirming=200,
        settings=("share.min_gain=0.3", "share.min_gain=0.9", "leave_free.share=0.3", "types.price=0.5"),
        constants=change(SMOKE.constants, generations=0),
        following=change(SMOKE.following, generations=0),
    )
    assert list(recipe.others(SHUT)) == ["share.min_gain=0.3", "share.min_gain=0.9"], "no dial is changed"
    seen: list[str] = []
    training = Training(Lesson.from_traces(data, recipe, SHUT, 0), recipe, 0, workers=1, algorithm="es")
    found = training.run(lambda stage, _: seen.append(stage))
    assert seen == [SETTINGS] * 2
    assert (found.stage, found.setting) == (SETTINGS, "share.min_gain=0.3")
    assert found.tried["share.min_gain=0.3"].cost.high < 1.0 < found.tried["share.min_gain=0.9"].cost.ratio
    assert found.is_better, found.verdict
    assert "`rlsched policy set FILE`" in found.advice
    assert found.write(tmp_path / "mine.toml") == [tmp_path / "mine.toml"]
    assert Policy.read(tmp_path / "mine.toml") == SHUT.changed(["share.min_gain=0.3"])
    few = change(found, confirmed=change(found.confirmed, cost=change(found.confirmed.cost, windows=199)))
    assert not few.is_better
    assert "199 windows are too few to confirm it, 200 are needed" in few.verdict
    assert "more windows (`--recipe default`)" in few.advice
    unlucky = change(found.confirmed, cost=change(found.confirmed.cost, high=1.1))
    assert "may have been lucky" in change(found, confirmed=unlucky).advice
    assert "settings of your own in a recipe" in change(found, confirmed=None).advice
    lost = change(found, confirmed=None, stopped=tuple(found.chosen))
    assert "evolution found no direction" in lost.advice
    assert "evolution found no direction" in change(lost, chosen={**found.chosen, PPO: unlucky}).advice


@pytest.mark.slow
def test_folder_that_training_writes_is_served_and_evaluated(tmp_path: Path) -> None:
    (tmp_path / "shut.toml").write_text(SHUT.toml, encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(
        'windows = 6\nchoosing = 24\nconfirming = 200\nsettings = ["share.min_gain=0.3"]\nscales = [1.0]\n'
        "[drawn]\njobs = 300\nload_low = 1.0\nnodes_low = 2\nnodes_high = 2\npreemptible_fracs = [0.0]\n"
        "energy_weights = [0.0]\n"
        "[constants]\ngenerations = 0\npairs = 4\ncolumns = []\n[following]\ngenerations = 0\npairs = 4\n",
        encoding="utf-8",
    )
    words = ("train", "--synthetic", "helios", "--policy", str(tmp_path / "shut.toml"), "--algorithm", "es")
    words += ("--recipe", str(tmp_path / "recipe.toml"), "--out", str(tmp_path / "mine"))
    assert run([*words, "--workers", "1", "--quiet"]) == 0
    assert sorted(one.name for one in (tmp_path / "mine").iterdir()) == ["CARD.md", "policy.toml"]
    mine = Policy.of(str(tmp_path / "mine"))
    assert (mine.name, mine) == ("mine", SHUT.changed(["share.min_gain=0.3"]))
    assert Policy.of(f"ppo:{tmp_path / 'mine'}") == mine
    trace, spec = synthesize("helios", jobs=60, load=1.0, gpus=16, seed=2)
    assert list(simulate(trace, spec, [tmp_path / "mine", "easy"])) == ["mine", "easy"]


def test_short_traces_get_short_windows(data: list[TrainingData]) -> None:
    def with_last(jobs: int) -> list[TrainingData]:
        last = data[0].confirmation[0].rows(slice(0, jobs))
        return [TrainingData(data[0].train, (), (last,), data[0].uses)]

    recipe = DialRecipe()
    assert recipe.fitted(data).drawn.jobs == recipe.drawn.jobs
    assert recipe.fitted(with_last(3_000)).drawn.jobs == 500, "six stretches, each a window long"
    assert not any(name.startswith("types") for name in recipe.others(Policy("tuned")))
    mixed = recipe.fitted([replace(data[0], mixed=True)])
    assert mixed.drawn.mixed_frac == 0.5
    assert list(mixed.others(Policy("tuned"))) == list(mixed.settings), "several types have prices"
    short = with_last(700)
    with pytest.raises(
        InputError, match=r"must have 1,500 or more .* got 700 of 70,000 jobs in all; give a longer"
    ):
        recipe.fitted(short)


def test_training_resumes_where_it_stopped(data: list[TrainingData], tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(
        SMOKE,
        constants=msgspec.structs.replace(SMOKE.constants, generations=3),
        following=msgspec.structs.replace(SMOKE.following, generations=2),
    )
    lesson = Lesson.from_traces(data, recipe, Policy("tuned"), 4)

    class Stop(Exception):  # noqa: N818 - a request, not an error
        pass

    def stop_at_two(stage: str, _: object) -> None:
        seen.append(stage)
        if len(seen) == 3:
            raise Stop

    seen: list[str] = []
    with pytest.raises(Stop):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1, algorithm="es").run(stop_at_two)
    more: list[str] = []
    rest = Training(lesson, recipe, 4, tmp_path / "state.json", workers=1, algorithm="es").run(
        lambda stage, _: more.append(stage), resume=True
    )
    assert more == [CONSTANTS, FOLLOWING, FOLLOWING]
    whole = Training(lesson, recipe, 4, workers=1, algorithm="es").run(lambda *_: None)
    assert rest.strategy == whole.strategy
    with pytest.raises(InputError, match="started with --seed 4, got --seed 5"):
        Training(lesson, recipe, 5, tmp_path / "state.json", workers=1, algorithm="es").run(
            lambda *_: None, resume=True
        )
    with pytest.raises(InputError, match="started on other data, or with another recipe"):
        Training(lesson, SMOKE, 4, tmp_path / "state.json", workers=1, algorithm="es").run(
            lambda *_: None, resume=True
        )
    others = [synthetic_data("helios", 0, "informative")]  # the same jobs with other predictions
    lesson = Lesson.from_traces(others, recipe, Policy("tuned"), 4)
    with pytest.raises(InputError, match=r"started on other data, .* --overwrite"):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1, algorithm="es").run(
            lambda *_: None, resume=True
        )


@pytest.mark.slow
def test_ppo_resumes_where_it_stopped(data: list[TrainingData], tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(
        SMOKE,
        settings=(),
        constants=msgspec.structs.replace(SMOKE.constants, generations=0),
        following=msgspec.structs.replace(SMOKE.following, generations=1),
        ppo=msgspec.structs.replace(SMOKE.ppo, rollouts=3),
    )
    lesson = Lesson.from_traces(data, recipe, Policy("tuned"), 4)

    class Stop(Exception):  # noqa: N818 - a request, not an error
        pass

    def stop_at_one(stage: str, _: object) -> None:
        if stage == PPO:
            raise Stop

    with pytest.raises(Stop):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(stop_at_one)
    more: list[tuple[str, int]] = []
    rest = Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(
        lambda stage, one: more.append((stage, one.number)), resume=True
    )
    assert more == [(PPO, 2), (PPO, 3)]
    whole = Training(lesson, recipe, 4, workers=1).run(lambda *_: None)
    assert rest.last == whole.last, "bit for bit"
    assert len(rest.last.layers) == 3
    with pytest.raises(InputError, match="started on other data, or with another recipe"):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1, algorithm="es").run(
            lambda *_: None, resume=True
        )
    for spoil in (b"", b"PK\x03\x04 cut"):
        (tmp_path / PPO_FILE).write_bytes(spoil)
        with pytest.raises(InputError, match=r"expected the state of a training .*ppo\.npz.* --overwrite$"):
            Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(lambda *_: None, resume=True)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ({CONSTANTS: {"number": 1, "count": 4, "rng": {}, "arrays": [[1.0]] * 6}}, "stage constants: "),
        ({CONSTANTS: {"number": 1}}, "stage constants: 'count'"),
        ({SETTINGS: {"share.min_gain=0.4": {"cost": 1}}}, "stage settings: "),
        ({SETTINGS: [1]}, "stage settings: "),
        ([1], ""),
    ],
)
def test_saved_training_of_another_shape_is_one_line(
    stages: object, said: str, data: list[TrainingData], tmp_path: Path
) -> None:
    lesson = Lesson.from_traces(data, SMOKE, Policy("tuned"), 4)
    state = tmp_path / "state.json"
    of = Training(lesson, SMOKE, 4, state, workers=1, algorithm="es")._of
    state.write_text(json.dumps({"seed": 4, "of": of, "stages": stages}))
    with pytest.raises(
        InputError, match=rf"state\.json: expected the state of a training .*{said}.* --overwrite$"
    ) as found:
        Training(lesson, SMOKE, 4, state, workers=1, algorithm="es").run(lambda *_: None, resume=True)
    assert "\n" not in str(found.value)


def test_recipes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("windows = 7\n[drawn]\njobs = 99\n")
    found = load_recipe(str(tmp_path / "mine.toml"))
    assert (found.windows, found.drawn.jobs, found.choosing) == (7, 99, 240)
    wrong = msgspec.structs.replace(SMOKE, settings=("share.colour=1",))
    with pytest.raises(InputError, match=r"recipe: settings: .*colour"):
        wrong.others(Policy("tuned"))
    (tmp_path / "mine.toml").write_text("windowz = 7\n")
    with pytest.raises(InputError, match="windowz"):
        load_recipe(str(tmp_path / "mine.toml"))
    assert Strategy.from_layers(*ALL_ZERO).arrays(1).output.shape == (NUM_DIALS, NUM_COLUMNS + 1)


@pytest.mark.slow
def test_bounds_of_an_objective_resume_too(data: list[TrainingData], tmp_path: Path) -> None:
    """The prices of bounds are part of PPO's state; another objective is another training."""
    recipe = msgspec.structs.replace(
        SMOKE,
        settings=(),
        constants=msgspec.structs.replace(SMOKE.constants, generations=0),
        following=msgspec.structs.replace(SMOKE.following, generations=0),
        ppo=msgspec.structs.replace(SMOKE.ppo, rollouts=3),
    )
    objective = Objective(energy=1.0, bounds={"time": 1.0, "tail": 1.05})
    lesson = Lesson.from_traces(data, recipe, Policy("tuned"), 4, objective)

    class Stop(Exception):  # noqa: N818 - a request, not an error
        pass

    def stop(*_: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(stop)
    rest = Training(lesson, recipe, 4, tmp_path / "state.json", workers=1).run(lambda *_: None, resume=True)
    whole = Training(lesson, recipe, 4, workers=1).run(lambda *_: None)
    assert rest.last == whole.last, "bit for bit"
    assert set(whole.chosen[PPO].terms) == {"time", "tail", "energy"}
    assert whole.chosen[PPO].bounds == {"time": 1.0, "tail": 1.05}
    other = Lesson.from_traces(data, recipe, Policy("tuned"), 4, Objective(energy=1.0))
    with pytest.raises(InputError, match="another recipe, policy or objective"):
        Training(other, recipe, 4, tmp_path / "state.json", workers=1).run(lambda *_: None, resume=True)


@pytest.mark.slow
def test_curves_have_the_bounds_of_the_objective(tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text("[objective]\nenergy = 1.0\n[objective.bounds]\ntail = 1.1\n", "utf-8")
    code, _ = smoke(
        "--objective",
        str(tmp_path / "o.toml"),
        "--out",
        str(tmp_path / "mine"),
        "--logdir",
        str(tmp_path / "log"),
    )
    assert code == 0
    run = event_values(tmp_path / "log")
    assert_all_are_described_and_none_is_always_0(run)
    assert "ppo/tail_ratio" in run
    assert "ppo/time_ratio" not in run
    assert "tail = 1.1" in run["run/made_with"].values[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--objective", "bill"),
            "--objective bill: needs prices or carbon intensities of electricity for money",
        ),
        (("--objective", "cheap"), "objective 'cheap': expected one of balanced"),
    ],
)
def test_objectives_that_cannot_be_used_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        smoke(*words, "--out", str(tmp_path / "mine"))
