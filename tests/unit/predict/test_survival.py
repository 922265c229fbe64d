"""The survival model by hand: the product-limit estimate, censored jobs, and the pull of wider keys."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.workload.predict.distribution import BINS, bin_of, p_longer
from rlsched.workload.predict.facts import LEVELS, JobFacts, keys_of, stem
from rlsched.workload.predict.survival import Survival, hazards_to_probabilities

JOB = keys_of(JobFacts("a", 1, vc="v"))
OWN = LEVELS.index("vc_gpus")


def fed(durations_s: list[float], running_s: list[float], now_s: float = 1e6) -> Survival:
    """Jobs that ended after so long, and jobs that have run for so long at `now_s`."""
    model = Survival()
    for k, lasted_s in enumerate(durations_s):
        started = model.start(f"e{k}", JOB, 0.0)
        model.drop(f"e{k}", JOB)
        model.end(JOB, started, lasted_s)
    for k, age_s in enumerate(running_s):
        model.start(f"r{k}", JOB, now_s - age_s)
    return model


def longer(model: Survival, now_s: float = 1e6) -> list[float]:
    found: list[float] = p_longer(model.probabilities(JOB, now_s))[OWN].tolist()
    return found


def test_hazards_and_probabilities_by_hand() -> None:
    hazards = np.full((1, BINS), 0.5)
    got = hazards_to_probabilities(hazards)[0]
    assert got[:3].tolist() == [0.5, 0.25, 0.125]
    assert got.sum() == pytest.approx(1.0)


def test_probabilities_sum_to_one_at_every_level() -> None:
    got = fed([30.0, 5000.0, 1e6], [700.0]).probabilities(JOB, 1e6)
    assert got.shape == (len(LEVELS), BINS)
    assert got.sum(axis=1) == pytest.approx(np.ones(len(LEVELS)))


def test_ended_jobs_teach_their_share() -> None:
    got = longer(fed([30.0] * 60 + [5000.0] * 60, []))
    assert got[0] == pytest.approx(0.5, abs=0.12)
    assert got[2] < 0.1


def test_a_job_that_still_runs_is_no_short_job() -> None:
    """30 jobs ended in a minute, 30 still run after 5 hours: without those, all would look short."""
    without, with_them = longer(fed([30.0] * 30, [])), longer(fed([30.0] * 30, [18_000.0] * 30))
    assert without[2] < 0.05
    assert with_them[2] == pytest.approx(0.5, abs=0.1)


def test_a_running_job_counts_no_bin_that_it_has_not_outlived() -> None:
    fresh = fed([30.0] * 30, [5.0] * 30)
    assert longer(fresh) == pytest.approx(longer(fed([30.0] * 30, [])), abs=0.12)


def test_a_long_job_counts_as_a_short_one_of_its_time() -> None:
    """A job fades from its start on: one that ended long after the others of its time weighs as they do."""
    model = Survival()
    started = [model.start(f"j{k}", JOB, float(k)) for k in range(2)]
    for k in range(200):
        other = model.start(f"o{k}", JOB, 2.0)
        model.drop(f"o{k}", JOB)
        model.end(JOB, other, 30.0)
    for k in range(2):
        model.drop(f"j{k}", JOB)
        model.end(JOB, started[k], 90_000.0)
    assert longer(model)[3] < 0.03


def test_a_key_without_jobs_is_as_the_wider_one() -> None:
    model = fed([30.0] * 50, [])
    other = keys_of(JobFacts("b", 1, vc="v", user="u", name="n"))
    got = model.probabilities(other, 1e6)
    assert got[LEVELS.index("identity")].tolist() == got[OWN].tolist()


def test_a_fact_that_is_unknown_makes_no_key() -> None:
    keys = dict(zip(LEVELS, keys_of(JobFacts("a", 2)), strict=True))
    assert [name for name, key in keys.items() if key is not None] == ["all", "vc_gpus"]
    assert None not in keys_of(JobFacts("a", 2, vc="v", user="u", name="n"))


def test_numbers_in_names_do_not_matter() -> None:
    assert stem("train_12 --lr 0.5") == stem("train_7 --lr 0.25") == "train_# --lr #.#"
    assert bin_of(30.0) == 1
