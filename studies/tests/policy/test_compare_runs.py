"""Tuning and comparing from end to end on a synthetic trace: resumed, stopped, logged, written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, STRATEGY_FILE, Strategy
from rlsched.decide.policies.policy import POLICY_FILE, Policy
from rlsched.workload.synth import synthesize
from studies.policy import bar, compare, journal, opponents, runs, tune
from studies.policy.cases import Case

RULE = "reserve"
"""The tuned rule."""
OWN_RULE = Path(__file__).resolve().parents[3] / "examples" / "own_rule.py"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    trace, _ = synthesize("helios", 1500, 0.9, 32, seed=5)
    trace.write(folder / "toy.csv.gz")
    (folder / "toy.cluster.toml").write_text('name = "toy"\n\n[[nodes]]\ncount = 4\ngpus = 8\n')
    return folder


@pytest.fixture(scope="module")
def tuned(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuning")
    words = ["--traces", str(traces), "--trace", "toy", "--out", str(out), "--workers", "1"]
    words += ["--rule", RULE, "--least-jobs", "10", "--tuned", str(out / "tuned.json")]
    assert tune.main([*words, "--log", str(out / "log.jsonl")]) == 0
    return out / "tuned.json"


def words_of(traces: Path, tuned: Path, out: Path, *more: str) -> list[str]:
    words = ["--traces", str(traces), "--trace", "toy", "--tuned", str(tuned), "--out", str(out)]
    return [*words, "--log", str(out / "log.jsonl"), "--quick", "--workers", "1", *more]


def write_trained(folder: Path, weight: float) -> Path:
    """A trained policy over `qssf-backfill`; its dials are 0 if its weights are."""
    folder.mkdir()
    weights = np.full((NUM_DIALS, NUM_COLUMNS + 1), weight)
    Strategy.from_layers(weights).write(folder / STRATEGY_FILE)
    (folder / POLICY_FILE).write_text(f'base = "qssf-backfill"\ndials = "{STRATEGY_FILE}"\n')
    return folder


def count_runs(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[str]:
    ran: list[str] = []
    run_job = runs.run_job

    def counted(job: runs.Job, traces: Path, folder: Path) -> Path:
        if len(ran) == stop_at:
            raise KeyboardInterrupt
        ran.append(f"{job.policy.name} under models" if job.models else job.policy.name)
        return run_job(job, traces, folder)

    monkeypatch.setattr(runs, "run_job", counted)
    return ran


def test_complete_grid_is_written(tuned: Path) -> None:
    found = opponents.read_tuned(tuned)
    assert list(found.rules) == [RULE]
    tried = msgspec.json.decode(tuned.with_name("tried.json").read_bytes(), type=tune.TriedFile)
    one = tried.settings[opponents.BASE][RULE]
    assert one.choice == found.rules[RULE]
    assert set(one.scores) == set(opponents.GRIDS[RULE].names)
    assert len(tried.cases) == 9
    assert all(ratio is None or ratio > 0 for ratio in one.ratios[opponents.GRIDS[RULE].names[0]].values())


def test_quick_run_is_resumed_and_its_tables_are_written(
    traces: Path,
    tuned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = words_of(traces, tuned, tmp_path, "--policy", "ppo")
    ran = count_runs(monkeypatch)
    assert compare.main(words) == 0
    printed = capsys.readouterr().out
    assert {"ppo", "qssf", "qssf-backfill", "easy", "fifo-backfill", "true gittins", "sjf-backfill"} <= set(
        ran
    )
    assert {"tiresias", "easy", "pack under models", "lucid under models"} <= set(ran)  # not tuned here
    assert any(name.startswith(f"{RULE} ") for name in ran)
    assert len(set(ran)) == len(ran)
    assert "Validation split, 1 of 1 cases there; under test: ppo@" in printed
    assert "**toy, load 0.95**" in printed
    assert (tmp_path / "validation.md").read_text() == printed
    assert not (tmp_path / "log.jsonl").exists()

    ran.clear()
    assert compare.main(words) == 0
    assert ran == []
    assert capsys.readouterr().out == printed
    [path] = (tmp_path / "validation").glob("*-easy.json")
    path.unlink()
    assert compare.main(words) == 0
    assert ran == ["easy"]
    assert capsys.readouterr().out == printed


def test_a_policy_is_identified_by_its_content(tmp_path: Path) -> None:
    one, other = Policy("easy", name="a", reserve_after="3h"), Policy("easy", name="b", reserve_after="3h")
    assert opponents.policy_id(one) == opponents.policy_id(other) != "easy"
    assert opponents.policy_id(Policy("easy").named("c")) == "easy"
    zero, same, half = (
        opponents.policy_id(Policy.of(f"ppo:{write_trained(tmp_path / name, weight)}"))
        for name, weight in (("zero", 0.0), ("same", 0.0), ("half", 0.5))
    )
    assert zero == same != half
    assert opponents.policy_id(Policy("ppo")).startswith("ppo@")
    for name, text in (("a", "# 1\n"), ("b", "# 1\n"), ("c", "# 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rule.py").write_text(OWN_RULE.read_text() + text)
    ids = [opponents.policy_id(Policy.of(str(tmp_path / name / "rule.py"))) for name in "abc"]
    assert ids[0] == ids[1] != ids[2]


def test_replaying_the_reference_has_ratio_one(traces: Path, tuned: Path, tmp_path: Path) -> None:
    policy = f"ppo:{write_trained(tmp_path / 'zero', 0.0)}"
    assert compare.main(words_of(traces, tuned, tmp_path, "--policy", policy)) == 0
    found = [runs.read_result(path) for path in (tmp_path / "validation").glob("*.json")]
    [zero] = [one for one in found if one.policy == policy]
    [reference] = [one for one in found if one.policy == "qssf-backfill" and not one.models]
    ratio = zero.against["qssf-backfill"].queue_mean_ratio
    assert ratio is not None
    assert ratio.ratio == 1.0
    assert zero.policy_id != reference.policy_id
    assert zero.metrics.queue_mean_s == reference.metrics.queue_mean_s
    assert reference.metrics.queue_mean_s
    assert reference.metrics.energy_kwh is None


def test_test_split_is_logged_once_and_ends_tuning(
    traces: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    more = ("--split", "test", "--policy", "easy", "--set", "reserve_after=3h")
    assert compare.main(words_of(traces, tuned, tmp_path, *more)) == 2
    assert (
        "no values for tiresias, easy, easy-revised, pack, lucid from their grids" in capsys.readouterr().err
    )
    assert not log.exists()

    found = opponents.read_tuned(tuned)
    chosen = found.rules[RULE]
    for rule, grid in opponents.GRIDS.items():
        first = grid.names[0]
        found.rules.setdefault(
            rule,
            msgspec.structs.replace(chosen, grid=grid.settings, chosen=first, chosen_by_trace={}),
        )
    complete = tmp_path / "complete.json"
    complete.write_bytes(msgspec.json.encode(found))
    words = words_of(traces, complete, tmp_path, *more)
    assert compare.main(words) == 0
    assert compare.main(words) == 0  # no case is left to run
    [run] = journal.read_log(log)
    assert run.cases == ["toy-test-0.95"]
    mine = Policy("easy", name="easy reserve_after=3h", reserve_after="3h")
    assert run.checkpoints == {mine.name: opponents.policy_id(mine)}
    assert run.tuned == opponents.digest(complete)
    assert set(run.policies) >= {
        "qssf",
        mine.name,
        "true gittins",
        opponents.GRIDS["pack"].names[0],
        "lucid 80",
    }
    assert compare.main([*words, "--preemptible", "0.5", "--budget-s", "0"]) == 0
    assert [one.cases for one in journal.read_log(log)] == [
        ["toy-test-0.95"],
        ["toy-test-0.95-preemptible0.5"],
    ]

    before = complete.read_bytes()
    capsys.readouterr()
    assert tune.main(["--traces", str(traces), "--tuned", str(complete), "--log", str(log)]) == 2
    assert "the test split has been read" in capsys.readouterr().err
    assert complete.read_bytes() == before
    log.unlink()
    opponents.write_tuned(complete, msgspec.structs.replace(found, test_split_read="2026-11-22"))
    assert tune.main(["--traces", str(traces), "--tuned", str(complete), "--log", str(log)]) == 2
    assert "the test split has been read" in capsys.readouterr().err


def test_rows_of_the_bar_are_resumed_and_their_tables_are_written(
    traces: Path,
    tuned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = ("--study", "preempt50", "--study", "good")
    words = words_of(traces, tuned, tmp_path, "--policy", "sjf", *chosen)
    ran = count_runs(monkeypatch)
    assert bar.main(words) == 0
    printed = capsys.readouterr().out
    assert {"gittins", "tiresias", "tiresias-clear 18000", "true gittins", "sjf", "easy"} <= set(ran)
    assert "### Preemption, half of the jobs preemptible" in printed
    assert "or their defaults: `tiresias`, `tiresias-clear`, `gittins`" in printed
    assert printed.count("| toy, 0.95 |") == 2
    assert (tmp_path / "bar" / "validation.md").read_text() == printed
    assert (tmp_path / "bar" / "validation-cases.md").read_text().count("**toy, load 0.95**") == 2
    files = {path.name for path in (tmp_path / "bar" / "validation").glob("*-qssf.json")}
    assert files == {
        "toy-validation-0.95-preemptible0.5-qssf.json",
        "toy-validation-0.95-good-qssf.json",
    }
    ran.clear()
    assert bar.main(words) == 0
    assert ran == []
    assert capsys.readouterr().out == printed


def test_untuned_rows_of_the_bar_are_not_run_on_the_test_split(
    traces: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(traces, tuned, tmp_path, "--split", "test", "--study", "preempt50")
    assert bar.main(words) == 2
    assert "tiresias (preempt50), tiresias-clear (preempt50), gittins (preempt50)" in capsys.readouterr().err
    assert not (tmp_path / "log.jsonl").exists()


def test_setting_is_tuned_separately(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--traces", str(traces), "--trace", "toy", "--out", str(tmp_path), "--workers", "1"]
    words += ["--setting", "preemptible0.5", "--rule", "tiresias-clear", "--least-jobs", "10"]
    ran = count_runs(monkeypatch)
    words += ["--tuned", str(tmp_path / "tuned.json"), "--log", str(tmp_path / "log.jsonl")]
    assert tune.main(words) == 0
    found = opponents.read_tuned(tmp_path / "tuned.json")
    assert found.rules == {}
    assert {setting: list(rules) for setting, rules in found.settings.items()} == {
        "preemptible0.5": ["tiresias-clear"]
    }
    one = found.settings["preemptible0.5"]["tiresias-clear"]
    tried = msgspec.json.decode((tmp_path / "tried.json").read_bytes(), type=tune.TriedFile)
    scored = tried.settings["preemptible0.5"]["tiresias-clear"]
    assert set(ran) == set(one.grid) == set(scored.scores)
    assert all(name.endswith("-preemptible0.5") for name in scored.ratios[one.chosen])


def test_finished_cases_stay_after_ctrl_c(
    traces: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(traces, tuned, tmp_path, "--policy", "fifo")
    ran = count_runs(monkeypatch, stop_at=3)
    assert compare.main(words) == 130
    assert len(list((tmp_path / "validation").glob("*.json"))) == len(ran) == 3
    assert not (tmp_path / "validation.md").exists()


def test_no_case_starts_after_the_budget(
    traces: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(words_of(traces, tuned, tmp_path, "--budget-s", "0", "--policy", "fifo")) == 0
    assert "0 of 1 cases there" in capsys.readouterr().out
    assert list((tmp_path / "validation").iterdir()) == []


def test_missing_input_is_one_line(
    traces: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(words_of(tmp_path, tuned, tmp_path, "--policy", "fifo")) == 2
    assert "set RLSCHED_DATA" in capsys.readouterr().err
    assert compare.main(words_of(traces, tuned, tmp_path, "--preemptible", "2")) == 2
    assert "expected --preemptible from 0 to 1, got 2" in capsys.readouterr().err


def test_results_do_not_depend_on_the_number_of_processes(traces: Path, tmp_path: Path) -> None:
    jobs = [
        runs.Job(case=Case(trace="toy", part="validation", load=load), policy=policy)
        for load in (0.85, 1.05)
        for policy in (Policy("easy"), Policy("easy", order="area"))
    ]
    assert runs.run_all(jobs, traces, tmp_path / "two", workers=2) == (4, False)
    assert runs.run_all(jobs, traces, tmp_path / "one", workers=1) == (4, False)
    assert runs.missing(jobs, tmp_path / "two") == []
    for job in jobs:
        one, two = (runs.read_result(job.path(tmp_path / name)) for name in ("one", "two"))
        same = msgspec.structs.replace(two.metrics, wall_s=one.metrics.wall_s)
        assert msgspec.structs.replace(two, metrics=same) == one
