"""Several seeds, clusters left out: training data, resuming, the tables of given results."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import training_data
from rlsched.errors import InputError
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_agents.evaluate.metrics import Metrics
from rlsched_agents.ppo.recipes import Recipe, load_recipe
from rlsched_agents.runtime.checkpoint import load_checkpoint
from rlsched_envs.training.sources import EpisodeConfig
from studies.policy import cases, generalise, runs, tables, trainings
from studies.policy.generalise_tables import Line, left_out_section, seeds_section
from studies.policy.trainings import Run, Trained

RECIPE = Recipe(
    network=msgspec.structs.replace(
        load_recipe("reserving").network, width=8, critic_width=8, order="predicted_size"
    ),
    num_envs=4,
    rollout_steps=32,
    batch_size=64,
    epochs=1,
    validate_every=128,
    checkpoint_every=128,
    validation_jobs=60,
    validation_loads=(1.0,),
    validation_nodes=(3,),
    validation_least=2,
    validation_weights=(),
    episode=EpisodeConfig(
        warmup_jobs=20,
        agent_jobs=40,
        tail_jobs=20,
        nodes_low=2,
        nodes_high=3,
        reserving_frac=1.0,
        revising=True,
    ),
)
UNSEEN = ("ms_itp_x", "t/b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces: `t` with the VCs a and b, and two clusters of ITP with one VC each."""
    path = tmp_path_factory.mktemp("traces")
    for seed, name in enumerate(("t", "ms_itp_x", "ms_itp_y")):
        trace, _ = synthesize("helios", 1600, 0.9, 32, seed=seed, predictability="informative")
        vcs = ["a", "b"] if name == "t" else ["v"]
        drawn = np.random.default_rng(seed).choice(vcs, len(trace))
        Trace.from_columns(
            name=name,
            submit_s=trace.submit_s,
            duration_s=trace.duration_s,
            num_gpus=np.minimum(trace.num_gpus, 8.0),
            vc=drawn,
        ).write(path / f"{name}.csv.gz")
        nodes = "".join(f'[[nodes]]\ncount = 2\ngpus = 8\nvc = "{vc}"\n\n' for vc in vcs)
        (path / f"{name}.cluster.toml").write_text(f'name = "{name}"\n\n{nodes}')
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few clusters, few jobs, a small network."""
    real = {"t": 1.0, "ms_itp_y": 0.5}
    for module, names in (
        (training_data, {"REAL": real, "SYNTHETIC": {}}),
        (trainings, {"REAL": real, "UNSEEN": UNSEEN, "SHORT_JOBS": 60, "SHORT_EVERY": 128}),
        (generalise, {"UNSEEN": UNSEEN, "TRACES": ("t/a", "t/b"), "load_recipe": lambda _: RECIPE}),
    ):
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)


def names_and_weights(folder: Path, cluster: str) -> dict[str, float]:
    data = trainings.data_without(folder, cluster)
    return {one.uses[0].trace: one.train.weight for one in data}


def test_left_out_cluster_is_in_none_of_the_data(folder: Path) -> None:
    assert names_and_weights(folder, "ms_itp_x") == {"t": 1.0, "ms_itp_y": 0.5}
    assert names_and_weights(folder, "t/b") == {"t without b": 1.0, "ms_itp_x": 0.25, "ms_itp_y": 0.25}
    trace = Trace.read(folder / "t.csv.gz")
    theirs = set(trace.submit_s[trace.vc == "a"])
    without = trainings.data_without(folder, "t/b")[0]
    for source in (without.train, *without.validation, *without.confirmation):
        assert source.submit_s.size > 0
        assert set(source.submit_s) <= theirs
    with pytest.raises(InputError, match=r"t: cannot leave out VC 'z'; expected one of several: a, b"):
        trainings.data_without(folder, "t/z")
    with pytest.raises(InputError, match="cannot leave out VC 'v'"):
        trainings.data_without(folder, "ms_itp_x/v")


def test_runs_are_trained_and_replayed_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *("--traces", str(folder), "--out", str(tmp_path / "out")),
        *("--seeds", "1", "--left-out-seeds", "1", "--timesteps", "256", "--left-out-timesteps", "128"),
    ]
    assert generalise.main(words) == 0
    first = capsys.readouterr()
    page = (tmp_path / "out" / "tables.md").read_text()
    assert page == first.out
    assert "1 of 1 runs ended, 256 decisions each" in page
    assert "2 of 2 runs ended, 128 decisions each" in page
    for name, used in (("without-ms_itp_x-0", {"t", "ms_itp_y"}), ("without-t-b-0", {"t without b"})):
        card = load_checkpoint(tmp_path / "out" / "trained" / name / "policy.zip").card
        traces = {use.trace for use in card.traces}
        assert used <= traces
        assert not traces & {"ms_itp_x" if "itp" in name else "t"}
    assert first.err.count("training on") == 3
    replays = len(list((tmp_path / "out" / "replays").glob("*.json")))
    assert replays == 4 * 4 + 4 * 5 - 3  # the rules on t/b, with causal predictions, are requested twice

    def fail(*_: object) -> None:
        raise AssertionError("run again")

    with monkeypatch.context() as patch:
        patch.setattr(generalise, "run_job", fail)
        patch.setattr(generalise, "train_run", fail)
        assert generalise.main(words) == 0
        again = capsys.readouterr()
        assert (again.out, again.err) == (first.out, "")
        assert generalise.main([*words, "--only", "seeds"]) == 0
    assert "left out" not in capsys.readouterr().out
    assert (tmp_path / "out" / "tables.md").read_text() == page, "all parts, whatever was requested"
    assert generalise.main([*words, "--timesteps", "384", "--only", "seeds"]) == 2
    assert "with this recipe, start and number of decisions" in capsys.readouterr().err


def test_stopped_training_resumes_and_one_without_checkpoint_restarts(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(cluster="t/b", seed=3, timesteps=256, recipe=RECIPE)
    lesson = trainings.lesson_of(folder, run.cluster, run.recipe)
    whole = trainings.train_run(tmp_path / "whole", folder, run)
    assert whole is not None
    assert (whole.timesteps, whole.rule) == (256, "easy area^0.7 1h revised")
    asked: list[bool] = []
    to_its_end = type(lesson).train

    def stops(self: training_data.Lesson, **named: object) -> object:
        asked.append(bool(named["resume"]))
        if len(asked) > 1:
            return to_its_end(self, **named)  # type: ignore[arg-type]
        result = to_its_end(self, **{**named, "timesteps": 128})  # type: ignore[arg-type]
        return training_data.TrainingResult(timesteps=128, stopped=True, steps_per_s=1.0, card=result.card)

    monkeypatch.setattr(training_data.Lesson, "train", stops)
    out = tmp_path / "out"
    assert trainings.train_run(out, folder, run) is None
    assert trainings.read_trained(out, run) is None
    assert not trainings.policy_file(out, run).exists()
    second = trainings.train_run(out, folder, run)
    assert second is not None
    assert (second.timesteps, second == trainings.read_trained(out, run)) == (256, True)
    (out / f"{run.name}.json").unlink()  # as if it had been killed after its last decision
    third = trainings.train_run(out, folder, run)
    assert third is not None
    assert third.policy_id == whole.policy_id
    assert asked == [False, True, False]


def test_no_run_starts_after_the_budget(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--traces", str(folder), "--out", str(tmp_path / "out"), "--budget-s", "0"]
    assert generalise.main(words) == 0
    found = capsys.readouterr()
    assert found.err == ""
    assert "None of 5 runs has ended yet." in found.out
    assert "None of 4 runs has ended yet." in found.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--timesteps", "0"], "expected --timesteps of 1 or more, got 0"),
        (["--left-out-seeds", "-1"], "expected --left-out-seeds of 0 or more, got -1"),
    ],
)
def test_bad_numbers_are_refused(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generalise.main(more) == 2
    assert said in capsys.readouterr().err


def test_the_test_split_is_not_offered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generalise.main(["--split", "test"])
    assert "unrecognized arguments: --split" in capsys.readouterr().err
    found = generalise.cases_of(Run(cluster="", seed=0, timesteps=1, recipe=RECIPE))
    found += generalise.cases_of(Run(cluster="t/b", seed=0, timesteps=1, recipe=RECIPE))
    assert {case.part for case in found} == {"validation"}


def trained(cluster: str, seed: int, kept_at: int, scores: tuple[float, float] | None) -> Trained:
    return Trained(
        cluster=cluster,
        seed=seed,
        made_by="",
        timesteps=1000,
        kept_at=kept_at,
        score=scores[0] if scores else None,
        start_score=scores[1] if scores else None,
        rule="easy",
        rule_settings="",
        policy_id="",
        traces=[],
        steps_per_s=2000.0,
        wall_s=1.0,
    )


def results_of(case: cases.Case, jobs: int, queue_s: dict[str, float]) -> tables.Results:
    metrics = Metrics(**dict.fromkeys(Metrics.__struct_fields__) | {"jobs": jobs})
    return {
        (case.name, policy, False): runs.Result(
            case=case,
            policy=policy,
            policy_id=policy,
            models=False,
            nodes=1,
            gpus=8,
            load_frac=case.load,
            stretch=1.0,
            days=1.0,
            metrics=msgspec.structs.replace(metrics, queue_mean_s=value),
            against={},
        )
        for policy, value in queue_s.items()
    }


def one_case(trace: str, load: float, predictions: cases.Foresight = "causal") -> cases.Case:
    return cases.Case(trace=trace, part="validation", load=load, predictions=predictions)


def test_table_of_seeds() -> None:
    known, blind = one_case("t", 0.95, "good"), one_case("t", 0.95)
    rules = {"qssf": 200.0, "qssf-backfill": 100.0, "easy": 80.0}
    results = results_of(known, 9, rules | {"p0": 40.0, "p1": 80.0})
    results |= results_of(blind, 9, rules | {"p0": 160.0, "p1": 80.0})
    lines = [
        Line(trained=trained("", 0, 500, (0.45, 0.5)), policy="p0", cases=[known, blind]),
        Line(trained=trained("", 1, 0, None), policy="p1", cases=[known, blind]),
    ]
    text = seeds_section(lines, results, 5)
    assert "2 of 5 runs ended, 1,000 decisions each" in text
    assert text.splitlines()[-3:] == [
        "| 0 | 2,000 | 0.900 | policy of 500 | 0.500 (1 : 0) | 0.400 (1 : 0) | 2.000 (0 : 1) "
        "| 1.600 (0 : 1) |",
        "| 1 | 2,000 | none better in validation | start | 1.000 (0 : 0) | 0.800 (1 : 0) | 1.000 (0 : 0) "
        "| 0.800 (1 : 0) |",
        "| all |  |  | 1 of 2 policies | 0.707 (1 : 0) | 0.566 (2 : 0) | 1.414 (0 : 1) | 1.131 (1 : 1) |",
    ]


def test_table_of_clusters_left_out() -> None:
    rules = {"qssf": 100.0, "qssf-backfill": 200.0, "easy": 50.0}
    low, high, other = one_case("t/b", 0.85), one_case("t/b", 0.95), one_case("ms_itp_x", 0.95)
    results = results_of(low, 77, rules | {"ppo": 25.0, "p0": 25.0, "p1": 50.0})
    results |= results_of(high, 77, rules | {"ppo": 25.0, "p0": 100.0, "p1": 50.0})
    results |= results_of(other, 12, rules | {"ppo": 100.0, "p2": 200.0})
    lines = [
        Line(trained=trained("t/b", 0, 500, (0.9, 1.0)), policy="p0", cases=[low, high]),
        Line(trained=trained("t/b", 1, 0, (1.1, 1.0)), policy="p1", cases=[low, high]),
        Line(trained=trained("ms_itp_x", 0, 400, (0.5, 1.0)), policy="p2", cases=[other]),
    ]
    text = left_out_section(lines, results, 4, {"t/b"})
    assert "at load 0.85, 0.95" in text
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| t/b * | 77 | 0 | 0.900 | policy of 500 | 1.000 | 0.500 | 1.000 | 2.000 |",
        "| t/b * | 77 | 1 | 1.100 | start | 1.000 | 0.500 | 0.500 | 2.000 |",
        "| ms_itp_x | 12 | 0 | 0.500 | policy of 400 | 4.000 | 2.000 | 2.000 | 2.000 |",
        "| all |  |  |  | 2 of 3 policies | 2.000 | 1.000 | 2.000 | 2.000 |",
        "| better : worse |  |  |  |  | 1 : 2 | 3 : 1 |  | 0 : 4 |",
    ]
