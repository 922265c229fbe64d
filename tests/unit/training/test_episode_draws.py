"""Windows made of blocks of jobs, and predictions of a drawn quality: counted and correlated."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rlsched.workload.describe import spearman
from rlsched.workload.synth import synthesize
from rlsched_envs.training import sources
from rlsched_envs.training.sources import Drawn, EpisodeJobs, EpisodeSource, draw_window

BLOCK = 64
BLOCKS = Drawn(jobs=400, nodes_low=4, nodes_high=4, block_jobs=BLOCK)
AS_RECORDED = msgspec.structs.replace(BLOCKS, block_jobs=0)


@pytest.fixture(scope="module")
def source() -> EpisodeSource:
    return EpisodeSource.from_trace(*synthesize("helios", 4000, 0.9, 64, seed=4, predictability="causal"))


def numbered(source: EpisodeSource) -> EpisodeSource:
    """The same submissions; each job's run time, prediction and spread identify the job."""
    number = np.arange(source.submit_s.size, dtype=np.float64) + 1.0
    predictions = source.predictions._replace(predicted_s=number, spread=number / 1e6)
    return replace(source, duration_s=number, predictions=predictions)


def test_recorded_window_is_consecutive_jobs(source: EpisodeSource) -> None:
    window = draw_window(numbered(source), AS_RECORDED, np.random.default_rng(0))
    assert (np.diff(window.duration_s) == 1).all()


def test_blocks_are_consecutive_jobs_with_their_stamps_and_gaps(source: EpisodeSource) -> None:
    jobs = numbered(source)
    window = draw_window(jobs, BLOCKS, np.random.default_rng(0))
    assert window.submit_s.size == BLOCKS.jobs
    steps = np.diff(window.duration_s)
    joints = np.flatnonzero(steps != 1)
    assert set((joints + 1) % BLOCK) == {0}, "jobs are consecutive except where two blocks meet"
    assert joints.size == BLOCKS.jobs // BLOCK
    np.testing.assert_array_equal(window.predicted_s, window.duration_s)
    np.testing.assert_allclose(window.spread, window.duration_s / 1e6)
    rows = window.duration_s.astype(int) - 1
    own = np.diff(jobs.submit_s, prepend=jobs.submit_s[0])[rows]
    gaps = np.diff(window.submit_s)
    stretch = window.submit_s[-1] / own[1:].sum()
    assert (window.submit_s >= 0).all()
    assert (gaps >= 0).all()
    np.testing.assert_allclose(gaps, own[1:] * stretch, atol=1.0)


def test_no_two_draws_are_equal_even_from_a_trace_as_short_as_a_window(source: EpisodeSource) -> None:
    short, rng = source.rows(slice(0, BLOCKS.jobs)), np.random.default_rng(1)
    recorded = {draw_window(short, AS_RECORDED, rng).duration_s.tobytes() for _ in range(20)}
    blocks = {draw_window(short, BLOCKS, rng).duration_s.tobytes() for _ in range(20)}
    assert (len(recorded), len(blocks)) == (1, 20)


def test_load_is_exact_with_blocks_too(source: EpisodeSource) -> None:
    drawn = msgspec.structs.replace(BLOCKS, load_low=0.9, load_high=0.9)
    window = draw_window(source, drawn, np.random.default_rng(2))
    offered = (window.duration_s * window.gpus).sum() / (window.submit_s[-1] * window.nodes * 8)
    assert offered == pytest.approx(0.9, rel=1e-3)


def ranks(source: EpisodeSource, known: float) -> tuple[float, float, float]:
    """Means over windows: rank correlation, median spread, spread of the errors."""
    drawn = msgspec.structs.replace(BLOCKS, known_low=known, known_high=known)
    rng = np.random.default_rng(3)
    windows = [draw_window(source, drawn, rng) for _ in range(20)]

    def rank(window: EpisodeJobs) -> float:
        found = spearman(window.predicted_s, window.duration_s)
        assert found is not None
        return found

    errors = [np.log(window.duration_s / window.predicted_s).std() for window in windows]
    return (
        float(np.mean([rank(window) for window in windows])),
        float(np.mean([np.sqrt(np.mean(window.spread**2)) for window in windows])),
        float(np.mean(errors)),
    )


def test_drawn_predictions_have_the_requested_quality_and_spread(
    source: EpisodeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "AS_MADE_FRAC", 0.0)
    poor, good = ranks(source, 0.3), ranks(source, 0.9)
    assert poor[0] == pytest.approx(0.3, abs=0.12)
    assert good[0] == pytest.approx(0.9, abs=0.08)
    for _, spread, error in (poor, good):
        assert spread == pytest.approx(error, rel=0.15)
    assert good[1] < 0.7 * poor[1], "the policy's observation of their quality"


def test_some_windows_keep_the_predictions_unchanged(source: EpisodeSource) -> None:
    drawn = msgspec.structs.replace(AS_RECORDED, known_low=0.9, known_high=0.9)
    rng, kept = np.random.default_rng(5), 0
    for _ in range(200):
        window = draw_window(numbered(source), drawn, rng)
        kept += bool((window.predicted_s == window.duration_s).all())
    assert 200 * sources.AS_MADE_FRAC == 60
    assert 40 < kept < 80


def test_without_the_options_the_draws_are_unchanged(source: EpisodeSource) -> None:
    """The two options draw nothing where they are off: one more field must not change a run."""
    rng, same = np.random.default_rng(7), np.random.default_rng(7)
    draw_window(source, AS_RECORDED, rng)
    same.integers(0, source.submit_s.size - AS_RECORDED.jobs + 1)
    same.integers(4, 5)
    same.uniform(AS_RECORDED.load_low, AS_RECORDED.load_high)
    assert rng.random() == same.random()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_jobs", -1, "block_jobs must be 0 or more"),
        ("known_high", 1.5, "known_low and known_high must be between 0 and 1, .*, got 0.0 and 1.5"),
        ("known_low", 0.5, "known_low at most known_high, got 0.5 and 0.0"),
        ("known_low", -0.1, "must be between 0 and 1, .*, got -0.1 and 0.0"),
    ],
)
def test_bad_fields_are_refused(field: str, value: float, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({field: value}, Drawn)
