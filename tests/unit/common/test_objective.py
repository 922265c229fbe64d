"""Objectives: files, weights, classes of jobs, bounds and costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.errors import InputError
from rlsched.objective import (
    DEFAULT,
    NUM_TERMS,
    PENALTY,
    PRESETS,
    TERMS,
    JobClass,
    Jobs,
    Objective,
    Term,
    cost,
    mean_ratios,
    ratios,
)

HOUR_S = 3600.0


def jobs() -> Jobs:
    """A small job, a long job with slack, a gang of production, and a preemptible job."""
    return Jobs(
        gpus=np.array([1, 1, 8, 2]),
        run_s=np.array([600.0, 9000.0, 3000.0, 100.0]),
        predicted_s=np.array([700.0, 8000.0, 3500.0, 90.0]),
        slack_s=np.array([0.0, 7200.0, 0.0, 3600.0]),
        preemptible=np.array([False, True, False, True]),
        vc=np.array(["", "", "prod", "dev"]),
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_files_too(name: str, tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text(PRESETS[name].toml, encoding="utf-8")
    assert Objective.of(file) == Objective.of(name) == PRESETS[name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objective", "not valid TOML"),
        ("[goal]\ntime = 1", r"expected one table \[objective\], got goal"),
        ("", r"expected one table \[objective\], got nothing"),
        ("[objective]\ntme = 1.0", "unknown setting 'tme'; did you mean 'time'"),
        ("[objective]\ntime = -1.0", "objective.time: expected 0 or more, got -1"),
        ("[objective]\ntime = nan", "objective.time: expected 0 or more, got nan"),
        ("[objective]\ntime = 'a'", "time: expected `float`, got `str`"),
        ("[objective]\nmoney = 1.0\ncarbon = 1.0", "expected money or carbon, got both"),
        ("[objective.bounds]\nwaiting = 1.0", "expected some of time, urgent, .*; got waiting"),
        ("[objective.bounds]\ntime = 0.0", "bounds.time: expected more than 0, got 0"),
        ("[[objective.classes]]\nmax_gpus = 1", "classes.*missing required field `weight`"),
        ("[[objective.classes]]\nweight = -2.0", r"classes\[0\].weight: expected 0 or more, got -2"),
        ("[objective]\ntail_after = '4x'", "tail_after: expected a time such as 90s, 30m"),
    ],
)
def test_invalid_objectives_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as found:
        Objective.of(file)
    assert str(found.value).startswith(str(file))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected one of balanced, bill, .* ends in \.toml"):
        Objective.of("cheap")
    with pytest.raises(InputError, match="cannot read this objective"):
        Objective.of("absent.toml")


def test_objectives_in_python_are_checked_too() -> None:
    with pytest.raises(InputError, match=r"objective: objective.time: expected 0 or more, got -1"):
        Objective.of(Objective(time=-1.0))


def test_without_weights_the_energy_weight_of_the_cluster_counts() -> None:
    priced, unpriced = (DEFAULT.weights(0.3, has_prices=has) for has in (True, False))
    assert priced[[Term.TIME, Term.MONEY]].tolist() == [0.7, 0.3]
    assert unpriced[[Term.TIME, Term.ENERGY]].tolist() == [0.7, 0.3]
    assert priced.sum() == unpriced.sum() == 1.0
    own = Objective(time=1.0, money=3.0).weights(0.9, has_prices=True)
    assert own[[Term.TIME, Term.MONEY]].tolist() == [0.25, 0.75]
    assert np.array_equal(own, Objective(time=1.0, carbon=3.0).weights(0.9, has_prices=True))


@pytest.mark.parametrize(
    ("one", "matched"),
    [
        ({"max_gpus": 1}, [0, 1]),
        ({"min_gpus": 2}, [2, 3]),
        ({"max_predicted": 3500.0}, [0, 2, 3]),
        ({"min_predicted": 3500.0}, [1, 2]),
        ({"slack": True}, [1, 3]),
        ({"slack": False, "max_gpus": 1}, [0]),
        ({"preemptible": True}, [1, 3]),
        ({"vc": ("prod", "dev")}, [2, 3]),
    ],
)
def test_classes_match_all_their_conditions(one: dict[str, object], matched: list[int]) -> None:
    made = Objective(classes=(JobClass(weight=5.0, **one),))  # type: ignore[arg-type]
    assert np.flatnonzero(made.job_weights(jobs()) == 5.0).tolist() == matched
    assert (np.delete(made.job_weights(jobs()), matched) == -1.0).all()


def test_the_first_class_that_matches_counts() -> None:
    made = Objective(classes=(JobClass(weight=3.0, vc=("prod",)), JobClass(weight=0.5, min_gpus=2)))
    assert made.job_weights(jobs()).tolist() == [-1.0, -1.0, 3.0, 0.5]


def test_terms_and_offsets_of_jobs() -> None:
    made = Objective(classes=(JobClass(weight=3.0, vc=("prod",)),), tail_after=1000.0)  # type: ignore[arg-type]
    delay_s = np.array([50.0, 7000.0, 2000.0, 4300.0])
    terms, offsets = made.terms_by_job(jobs(), delay_s), made.offsets(jobs(), 5)
    assert terms[Term.TIME].tolist() == [50.0, 0.0, 6000.0, 700.0]
    assert terms[Term.URGENT].tolist() == [50.0, 0.0, 2000.0, 0.0]
    assert terms[Term.REST].tolist() == [50.0, 0.0, 0.0, 700.0]
    assert terms[Term.TAIL].tolist() == [0.0, 0.0, 3000.0, 0.0]
    assert terms[Term.LATE].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert offsets[[Term.TIME, Term.URGENT, Term.REST, Term.WAKE_UPS]].tolist() == [
        18700.0,
        3600.0,
        9700.0,
        5.0,
    ]
    assert offsets[Term.TAIL] == pytest.approx(1870.0)
    assert offsets[Term.LATE] == pytest.approx(0.04)


def test_cost_is_the_weighted_mean_of_ratios() -> None:
    made = Objective(time=1.0, money=1.0)
    other, offsets = np.ones((2, NUM_TERMS)), np.zeros((2, NUM_TERMS))
    offsets[:, Term.TIME] = 1.0
    mine = other.copy()
    mine[0, Term.TIME], mine[1, Term.MONEY] = 2.0, 0.5
    found = ratios(mine, other, offsets)
    weights = np.tile(made.weights(0.0, has_prices=True), (2, 1))
    assert cost(found, weights, made.limits, np.zeros(NUM_TERMS)).tolist() == [1.25, 0.75]
    assert ratios(np.zeros((1, NUM_TERMS)), np.zeros((1, NUM_TERMS)), offsets[:1])[0, Term.MONEY] == 1.0


def test_a_bound_applies_to_the_mean_and_not_to_each_run() -> None:
    made = Objective(money=1.0, bounds={"time": 1.02})
    weights = np.tile(made.weights(0.0, has_prices=True), (2, 1))
    found = np.ones((2, NUM_TERMS))
    found[:, Term.TIME] = (1.04, 1.0)
    prices = made.penalties(mean_ratios(found))
    assert not prices.any(), "the mean keeps the bound"
    found[:, Term.TIME] = (1.08, 1.0)
    prices = made.penalties(mean_ratios(found))
    assert prices[Term.TIME] == PENALTY
    logs = np.log(cost(found, weights, made.limits, prices))
    assert logs.mean() == pytest.approx(PENALTY * (np.log(1.08) / 2.0 - np.log(1.02)))


def test_training_prices_rise_as_a_ratio_gets_close_to_its_bound() -> None:
    made = Objective(money=1.0, bounds={"time": 1.02})
    at = np.ones(NUM_TERMS)
    prices = []
    for mean in (1.0, 1.014, 1.0175, 1.02, 1.1):
        at[Term.TIME] = mean
        prices.append(made.training_penalties(at)[Term.TIME])
    assert prices == pytest.approx([0.0, 0.0, PENALTY / 2.0, PENALTY, PENALTY])


def test_terms_in_use_have_the_names_of_users() -> None:
    assert [PRESETS["carbon"].name_of(one) for one in PRESETS["carbon"].shown] == ["time", "urgent", "carbon"]
    assert PRESETS["peak"].needs_signal == ("money", "peak")
    assert PRESETS["small-first"].needs_signal == ()
    assert list(TERMS) == [one.name.lower() for one in Term]
    assert DEFAULT.is_default
    assert not any(one.is_default for name, one in PRESETS.items() if name != "balanced")
