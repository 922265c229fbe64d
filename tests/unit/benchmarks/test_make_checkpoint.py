"""`make checkpoint`: the seeds keep their states, and only a confirmed policy is written."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import make_checkpoint
from rlsched.decide.dials.observing import NAMES
from rlsched.decide.dials.strategy import Strategy
from rlsched.decide.policies.policy import Policy
from rlsched.workload.synth import synthesize
from rlsched_agents.dials import imitation, training_ranges, verdict
from rlsched_agents.dials.training_data import TrainingData

STATES = {"evolved.npz"} | {
    f"seed-{seed}-{stage}.npz" for seed in (1, 2) for stage in ("without", "imitation", "with")
}
TOO_FEW = "keep what you have: 6 windows are too few to confirm it, 200 are needed"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a short training, without real traces."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("RLSCHED_DATA", str(tmp_path / "data"))
    return ["--recipe", "smoke", "--out", str(tmp_path / "out"), "--state", str(tmp_path / "state")]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, on one short trace, with a short imitation, and ranges from few windows."""
    data = [TrainingData.cut(*synthesize("helios", 8_000, 0.95, 64, seed=1), own=True)]
    monkeypatch.setattr(imitation, "STEPS", 16)
    monkeypatch.setattr(imitation, "CLUSTERS", 8)
    monkeypatch.setattr(imitation, "EPOCHS", 4)
    monkeypatch.setattr(training_ranges, "CLUSTERS", 8)
    monkeypatch.setattr(make_checkpoint, "synthetic", lambda _: data)
    monkeypatch.setattr(make_checkpoint, "SEEDS", (1, 2))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All seeds in this process."""
    pool = nullcontext(SimpleNamespace(map=map))
    monkeypatch.setattr(make_checkpoint, "ProcessPoolExecutor", lambda *_, **__: pool)


def states(folder: Path) -> dict[str, int]:
    """States in the folder, and the times of their last change."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npz")}


@pytest.mark.slow
@pytest.mark.usefixtures("short", "in_process")
def test_too_few_windows_write_nothing_and_states_are_reused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_checkpoint.main(words) == 1
    first = capsys.readouterr()
    assert "no traces here; training on synthetic ones" in first.err
    assert "evolution: 1 of 1, " in first.out
    for seed in (1, 2):
        assert f"seed {seed}, without prices: rollout 2 of 2, " in first.out
        assert f"seed {seed}: imitation, error 0." in first.out
        assert f"seed {seed}, with prices: rollout 1 of 1, " in first.out
    assert TOO_FEW in first.out
    assert "nothing was written: expected a cost of at most 1.005 of `priced`" in first.out
    assert not (tmp_path / "out").exists()
    kept = states(tmp_path / "state")
    assert set(kept) == STATES

    assert make_checkpoint.main([*words, "--resume"]) == 1
    again = capsys.readouterr().out
    assert "rollout" not in again
    assert again == first.out[first.out.index("keep what you have") :], "the same seeds, the same costs"
    assert states(tmp_path / "state") == kept

    for stage in ("imitation", "with"):
        (tmp_path / "state" / f"seed-2-{stage}.npz").unlink()
    assert make_checkpoint.main([*words, "--resume"]) == 1
    third = capsys.readouterr().out
    assert "seed 1" not in third.partition("keep what you have")[0]
    assert "seed 2, without" not in third
    assert "seed 2, with prices: rollout 1 of 1, " in third
    assert third.endswith(again)

    assert make_checkpoint.main(words) == 1
    assert capsys.readouterr().out == first.out, "without --resume, all seeds begin again"


@pytest.mark.slow
@pytest.mark.usefixtures("short", "in_process")
def test_confirmed_policy_is_written_with_its_card(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "LEAST_WINDOWS", 6)
    monkeypatch.setattr(make_checkpoint, "MARGIN", 1.0)
    assert make_checkpoint.main(words) == 0
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {"policy.toml", "policy.json", "CARD.md"}
    networks = [Strategy.read(tmp_path / "state" / f"seed-{seed}.json").layers for seed in (1, 2)]
    policy = Policy.of(out)
    assert policy == Policy("priced", dials=str(out / "policy.json"))
    strategy = policy.rule.strategy
    assert strategy == Strategy.read(out / "policy.json")
    assert strategy.familiar is not None
    assert set(strategy.familiar.columns) == set(NAMES)
    low, high = strategy.familiar.columns["price"]
    assert low < 0.0 < high, "windows with prices are among the known ones"
    assert len(strategy.layers) == 3
    assert strategy.layers in networks
    card = (out / "CARD.md").read_text()
    assert card.count("helios") > 0
    for row in ("evolution", "imitation, seed 1", "ppo, seed 2, prices"):
        assert f"| {row} | choosing | " in card
    assert "| ppo, prices | confirming | " in card


@pytest.mark.soak
@pytest.mark.usefixtures("short")
def test_command_trains_all_seeds_in_processes(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_checkpoint.main(words) == 1
    assert TOO_FEW in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert set(states(tmp_path / "state")) == STATES
