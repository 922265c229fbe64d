"""Several runs with different seeds: the best by validation is written, ended ones are not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlsched_agents.ppo.seeds import train_seeds
from rlsched_agents.ppo.training import RunFiles, TrainingResult
from rlsched_agents.runtime.card import Card
from rlsched_agents.runtime.checkpoint import load_checkpoint, save_checkpoint
from rlsched_agents.runtime.network import NetworkConfig, initial_weights

NETWORK = NetworkConfig(width=8, critic_width=8)
RATIOS = {5: (0.9, 0.95), 6: (0.8, 1.3), 7: (0.85, 0.99)}
"""By seed: queueing relative to the reference's, and the same on the worst trace."""


class Trainer:
    def __init__(self, stops_at: int = -1) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.stops_at = stops_at

    def __call__(self, seed: int, files: RunFiles, resume: bool) -> TrainingResult:
        self.asked.append((seed, resume))
        ratio, worst = RATIOS[seed]
        table = {"ppo": {"queue_ratio_frac": ratio, "worst_source_ratio_frac": worst}}
        card = Card(
            name="t",
            created="",
            rlsched_version="0",
            schema_hash="",
            network=NETWORK,
            timesteps=100,
            seeds=(seed,),
            traces=(),
            validation=table,
        )
        card = save_checkpoint(files.out, card, initial_weights(NETWORK, seed))
        save_checkpoint(files.last_snapshot, card, initial_weights(NETWORK, seed))
        return TrainingResult(timesteps=100, stopped=seed == self.stops_at, steps_per_s=1.0, card=card)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(logdir=tmp_path / "log", out=tmp_path / "out.zip")


def test_best_run_without_a_loss_on_any_trace_is_written(files: RunFiles) -> None:
    trainer = Trainer()
    result = train_seeds(trainer, 5, 3, files, 0.02, resume=False)
    assert trainer.asked == [(5, False), (6, False), (7, False)]
    assert result.card.seeds == load_checkpoint(files.out).card.seeds == (7,)
    own = load_checkpoint(files.logdir / "seed-7" / "policy.zip").card
    assert result.card.weights_sha256 == own.weights_sha256


def test_stopped_run_resumes_and_ended_ones_are_not_repeated(files: RunFiles) -> None:
    result = train_seeds(Trainer(stops_at=6), 5, 3, files, 0.02, resume=False)
    assert result.stopped
    assert not files.out.exists()
    again = Trainer()
    result = train_seeds(again, 5, 3, files, 0.02, resume=True)
    assert again.asked == [(6, True), (7, False)]
    assert result.card.seeds == (7,)


def test_single_run_has_the_usual_folder(files: RunFiles) -> None:
    train_seeds(Trainer(), 5, 1, files, 0.02, resume=False)
    assert files.last_snapshot.exists()
    assert load_checkpoint(files.out).card.seeds == (5,)
