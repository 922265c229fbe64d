"""Episodes with preemption or reservations: references, legal rows, costs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rlsched.decide.order.keys import AREA, INDEX
from rlsched.decide.rows import columns, reasons
from rlsched_envs.training.fleet import Fleet
from rlsched_envs.training.sources import EpisodeConfig, EpisodeSource
from tests.support.sim.episodes import CONFIG, REFERENCE

pytestmark = pytest.mark.slow

ALL = msgspec.structs.replace(CONFIG, preempting_frac=1.0, pinned_frac=0.5, load_low=1.1)


def play(fleet: Fleet, choose: str) -> dict[str, float]:
    """Play one episode of one cluster by the reference's rows, or by any legal ones. Returns its schedule."""
    fleet.begin(0)
    rows = np.zeros(1, np.int64)
    while True:
        if choose == "reference":
            rows[0] = fleet.reference_row(0)
        else:
            fleet.sample_rows(rows)
        info = fleet.step(rows, restart=False)[0]
        if fleet.dones[0]:
            return {**info["schedule"], **info["episode"]}


@pytest.mark.parametrize("modelled_frac", [0.0, 1.0])
@pytest.mark.parametrize("drain_frac", [0.0, 1.0])
def test_playing_the_reference_has_no_regret(
    sources: list[EpisodeSource], modelled_frac: float, drain_frac: float
) -> None:
    config = msgspec.structs.replace(ALL, modelled_frac=modelled_frac, drain_frac=drain_frac)
    fleet, preemptions, pinned = Fleet(sources, 1, config, 3), 0, 0
    for _ in range(8):
        schedule = play(fleet, "reference")
        assert schedule["regret_job_s"] == 0.0
        assert schedule["r"] == pytest.approx(0.0, abs=1e-5)
        assert schedule["queue_mean_s"] == pytest.approx(schedule["reference_queue_mean_s"], abs=1e-9)
        sim = fleet._arrays.sim
        preemptions += int(sim.progress.run.preemptions[0, 0])
        pinned += int(sim.truth.pinned[0].any())
    assert preemptions > 50
    assert 0 < pinned < 8, "half of the jobs must not be preempted in some episodes, none in others"


@pytest.mark.parametrize("restart_s", [0.0, 60.0, 600.0])
def test_queueing_integral_equals_later_job_ends(sources: list[EpisodeSource], restart_s: float) -> None:
    """With any legal rows: waiting, and every restart, whether its cost was paid to the end or not."""
    fleet = Fleet(sources, 1, msgspec.structs.replace(ALL, restart_s=restart_s, drain_frac=1.0), 5)
    preemptions = 0
    for _ in range(6):
        schedule = play(fleet, "any")
        sim = fleet._arrays.sim
        truth, end_s = sim.truth, sim.progress.outcome.end_s[0]
        delay_s = end_s - truth.submit_s[0] - truth.duration_s[0]
        assert (delay_s > -1e-6).all()
        assert sim.progress.run.queued_s[0, 0] == pytest.approx(delay_s.sum(), rel=1e-9)
        first = ALL.warmup_jobs
        assert schedule["queue_mean_s"] == pytest.approx(delay_s[first:].mean(), rel=1e-9)
        preemptions += int(sim.progress.run.preemptions[0, 0])
    assert preemptions > 50


def test_preempting_rows_are_legal_together_with_wait(sources: list[EpisodeSource]) -> None:
    fleet = Fleet(sources, 4, ALL, 7)
    for k in range(4):
        fleet.begin(k)
    rows, claims = np.zeros(4, np.int64), 0
    for _ in range(400):
        seen = fleet.observations
        by_preempting = seen[:, :, columns.BY_PREEMPTING] == 1
        feasible = seen[:, :, columns.FEASIBLE] == 1
        assert not (by_preempting & feasible).any(), "no job is preempted for a job that fits"
        assert not (by_preempting & (seen[:, :, columns.PREEMPT_MARGIN] <= 0)).any()
        assert not (fleet.masks[:, 1:] & ~(by_preempting | feasible)[:, 1:]).any()
        only = by_preempting.any(axis=1) & ~feasible.any(axis=1)
        assert fleet.masks[only, 0].all(), "not preempting is always possible"
        assert (seen[:, :, REFERENCE].sum(axis=1) == 1).all()
        assert (by_preempting.sum(axis=1) <= 4).all()
        claims += int(by_preempting.sum())
        fleet.sample_rows(rows)
        fleet.step(rows)
    assert claims > 200


def test_share_of_the_episodes_preempts(sources: list[EpisodeSource]) -> None:
    """Other episodes are unchanged: the queue by predicted GPU time, and zeros in the new columns."""
    fleet = Fleet(sources, 1, msgspec.structs.replace(ALL, preempting_frac=0.5), 11)
    seen = [0, 0]
    for _ in range(24):
        fleet.begin(0)
        preempting = int(fleet._arrays.sim.state.order.code.by[0, 0] == INDEX)
        seen[preempting] += 1
        real = fleet.observations[0][:, [columns.IS_WAIT, columns.IS_JOB, columns.IS_VARIANT]].any(axis=1)
        assert (fleet.observations[0, real, columns.PREEMPTS] == preempting).all()
        if not preempting:
            assert not fleet.observations[0, :, columns.PREEMPTS : columns.PREEMPT_MARGIN + 1].any()
            assert play_on(fleet)["regret_job_s"] == 0.0
    assert min(seen) > 4


def play_on(fleet: Fleet) -> dict[str, float]:
    """The rest of an episode by the reference's rows."""
    while True:
        info = fleet.step(np.array([fleet.reference_row(0)]), restart=False)[0]
        if fleet.dones[0]:
            schedule: dict[str, float] = info["schedule"]
            return schedule


def test_without_preemption_no_draws_are_made_for_it(sources: list[EpisodeSource]) -> None:
    """The other settings of preemption change no episode."""
    plain, other = (Fleet(sources, 1, c, 2) for c in (CONFIG, msgspec.structs.replace(CONFIG, pinned_frac=1)))
    for fleet in (plain, other):
        fleet.begin(0)
    assert plain.observations.tobytes() == other.observations.tobytes()


@pytest.mark.parametrize("name", ["preempting_frac", "pinned_frac", "reserving_frac"])
def test_shares_are_between_0_and_1(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be between 0 and 1, got 1.5"):
        EpisodeConfig(**{name: 1.5})


# ---- reservations ----------------------------------------------------------------------------------

RESERVING = msgspec.structs.replace(
    CONFIG, reserving_frac=1.0, load_low=1.6, load_high=2.0, agent_jobs=600, nodes_low=3
)


def test_with_reservations_playing_the_reference_has_no_regret(sources: list[EpisodeSource]) -> None:
    fleet, kept_back = Fleet(sources, 1, RESERVING, 4), 0
    for _ in range(10):
        fleet.begin(0)
        while True:
            kept_back += int((fleet._arrays.window.reason == reasons.RESERVED).sum())
            info = fleet.step(np.array([fleet.reference_row(0)]), restart=False)[0]
            if fleet.dones[0]:
                break
        assert info["schedule"]["regret_job_s"] == 0.0
        order = fleet._arrays.sim.state.order.code
        assert (order.by[0, 0], order.gpus_power[0, 0]) == (AREA, 0.7)
    assert kept_back > 0


@pytest.mark.parametrize("reserving_frac", [0.0, 1.0])
def test_with_revised_predictions_playing_the_reference_has_no_regret(
    sources: list[EpisodeSource], reserving_frac: float
) -> None:
    revising = msgspec.structs.replace(RESERVING, reserving_frac=reserving_frac, revising=True)
    plain = msgspec.structs.replace(revising, revising=False)
    queues = []
    for config in (revising, plain):
        fleet = Fleet(sources, 1, config, 4)
        for _ in range(4):
            schedule = play(fleet, "reference")
            assert schedule["regret_job_s"] == 0.0
            queues.append(schedule["queue_mean_s"])
    assert queues[:4] != queues[4:], "the reference's predictions are revised too"
