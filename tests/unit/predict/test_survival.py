"""The survival model by hand: the product-limit estimate, censored jobs, and the pull of wider keys."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.workload.predict import survival
from rlsched.workload.predict.distribution import BINS, bin_of, p_longer
from rlsched.workload.predict.facts import LEVELS, JobFacts, Key, keys_of, stem, words
from rlsched.workload.predict.survival import Survival

JOB = keys_of(JobFacts("a", 1, vc="v"))
OWN = LEVELS.index("vc_gpus")


def fed(durations_s: list[float], running_s: list[float], now_s: float = 1e6) -> Survival:
    """Jobs that ended after these times, and jobs that have run for these times at `now_s`."""
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


def test_probabilities_sum_to_one_at_every_level() -> None:
    got = fed([30.0, 5000.0, 1e6], [700.0]).probabilities(JOB, 1e6)
    assert got.shape == (len(LEVELS), BINS)
    assert got.sum(axis=1) == pytest.approx(np.ones(len(LEVELS)))


def test_ended_jobs_count_with_their_share() -> None:
    got = longer(fed([30.0] * 60 + [5000.0] * 60, []))
    assert got[0] == pytest.approx(0.5, abs=0.12)
    assert got[2] < 0.1


def test_running_job_is_no_short_job() -> None:
    """30 jobs ended in a minute, 30 still run after 5 hours: without the latter, all would look short."""
    without, with_them = longer(fed([30.0] * 30, [])), longer(fed([30.0] * 30, [18_000.0] * 30))
    assert without[2] < 0.05
    assert with_them[2] == pytest.approx(0.5, abs=0.1)


def test_running_job_counts_no_bin_that_it_has_not_outlived() -> None:
    fresh = fed([30.0] * 30, [5.0] * 30)
    assert longer(fresh) == pytest.approx(longer(fed([30.0] * 30, [])), abs=0.12)


def test_long_job_weighs_as_a_short_one_of_its_time() -> None:
    """A job fades from its start on: a job that ended long after others of its time weighs as they do."""
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


def test_key_without_jobs_equals_the_wider_one() -> None:
    model = fed([30.0] * 50, [])
    other = keys_of(JobFacts("b", 1, vc="v", user="u", name="n"))
    got = model.probabilities(other, 1e6)
    assert got[LEVELS.index("name")].tolist() == got[OWN].tolist()


def test_unknown_fact_makes_no_key() -> None:
    keys = dict(zip(LEVELS, keys_of(JobFacts("a", 2)), strict=True))
    assert [name for name, key in keys.items() if key is not None] == ["all", "vc_gpus"]
    assert None not in keys_of(JobFacts("a", 2, vc="v", user="u", name="n5_1", command="true"))


@pytest.mark.parametrize(
    ("name", "command", "narrow"),
    [
        ("train", "", ["name"]),
        ("train_12", "", ["name", "exact"]),
        ("resnet50", "", ["name", "words"]),
        ("resnet50_12", "", ["name", "words", "exact"]),
        ("train", "train.py", ["name", "command"]),
        ("train", "train.py --seed 12", ["name", "command", "exact"]),
        ("resnet50", "train.py", ["name", "command", "words", "exact"]),
    ],
)
def test_key_equal_to_a_wider_one_is_dropped(name: str, command: str, narrow: list[str]) -> None:
    keys = dict(zip(LEVELS, keys_of(JobFacts("a", 2, user="u", name=name, command=command)), strict=True))
    assert [level for level, key in keys.items() if key is not None][3:] == narrow


def test_habit_of_a_name_is_learned_for_any_run_numbers() -> None:
    """`net5` runs for hours and `net7` for a minute; each run has a number, in the name or in the command."""
    for name, command in (("net{}", ""), ("net{}_{run}", ""), ("python", "net{}.py --seed {run}")):

        def keys_for(net: int, run: int, name: str = name, command: str = command) -> tuple[Key | None, ...]:
            told = name.format(net, run=run), command.format(net, run=run)
            return keys_of(JobFacts("j", 1, user="u", name=told[0], command=told[1]))

        model = Survival()
        for run in range(20):
            keys = keys_for((5, 7)[run % 2], run)
            started = model.start("j", keys, float(run))
            model.drop("j", keys)
            model.end(keys, started, (20_000.0, 60.0)[run % 2])
        long, short = (p_longer(model.probabilities(keys_for(net, 99), 1e6))[-1] for net in (5, 7))
        assert long[1] > 0.75
        assert short[1] < 0.25


def test_oldest_keys_are_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "MAX_KEYS", 10)
    model = Survival()
    first = keys_of(JobFacts("first", 1, name="n0_x"))
    number = model.start("first", first, 0.0)
    for k in range(1, 30):
        keys = keys_of(JobFacts(str(k), 1, name=f"n{k}_x"))
        started = model.start(str(k), keys, float(k))
        model.drop(str(k), keys)
        model.end(keys, started, 30.0)
    assert len(model._index) == 10
    assert len(model._starts) == 10
    model.drop("first", first)
    model.end(first, number, 90_000.0)  # its own key was forgotten; the wider ones count it
    assert p_longer(model.probabilities(first, 1e6))[OWN][3] > 0.0
    assert model.start("first", first, 40.0)[LEVELS.index("words")] == 1


def test_job_that_resumes_after_its_key_was_forgotten_counts_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number is from the key's earlier life, and higher than any of the new one."""
    monkeypatch.setattr(survival, "MAX_KEYS", 10)
    model = Survival()
    keys = keys_of(JobFacts("long", 1, name="n0_x"))
    for k in range(400):
        started = model.start(f"s{k}", keys, 0.0)
        model.drop(f"s{k}", keys)
    for k in range(1, 30):
        other = keys_of(JobFacts(str(k), 1, name=f"n{k}_x"))
        model.start(str(k), other, 1.0)
        model.drop(str(k), other)
    model.resume("s399", keys, started, 1.0)
    model.start("new", keys, 2.0)
    model.drop("new", keys)
    before = p_longer(model.probabilities(keys, 2.0))[-1]
    after = p_longer(model.probabilities(keys, 90_000.0))[-1]
    assert before[3] < after[3] < 0.7


def test_numbers_in_names_do_not_matter() -> None:
    assert words("resnet50_12 --lr 0.5") == words("resnet50_7 --lr 0.25") == "resnet50_# --lr #.#"
    assert stem("train_12 --lr 0.5") == stem("train_7 --lr 0.25") == "train_# --lr #.#"
    assert bin_of(30.0) == 1
