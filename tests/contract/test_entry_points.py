"""Registered entry points are installed, and every scheduler loads (verbs: `test_repository`)."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.policies.policy import Policy, presets
from rlsched.decide.registry import load_scheduler, scheduler_names
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.errors import InputError, UnknownPolicyError

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = ("rlsched.commands", "rlsched.schedulers", "rlsched.histories")
SCHEDULERS = ("random",)
POLICIES = (
    *("fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill"),
    *("easy", "reserve", "tiresias", "srtf", "gittins", "pack", "lucid", "tuned", "ppo", "priced"),
    *("price-window", "price-percentile"),
    *SCHEDULERS,
)


def declared(group: str) -> dict[str, str]:
    """The entry points of a group in pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"][group]
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_installed_entry_points_equal_the_declared_ones(group: str) -> None:
    installed = {point.name: point.value for point in entry_points(group=group)}
    assert declared(group).items() <= installed.items(), "run `make install` again"


def test_policies_of_the_contract_are_installed() -> None:
    assert sorted(POLICIES) == sorted(presets())
    assert sorted((*SCHEDULERS, "sb3")) == sorted(declared("rlsched.schedulers")), "sb3 needs a model's file"
    assert set(SCHEDULERS) <= set(scheduler_names())


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        *((name, {}) for name in POLICIES),
        ("reserve", {"leave_free": {"longer_than": "4h", "share": 0.1}}),
        ("tiresias", {"preempt": {"threshold_gpu_s": 3250.0}}),
        ("pack", {"share": {"min_speed": 0.8}}),
        ("gittins", {"preempt": {"spread": 1.0}}),
        ("gittins", {"preempt": {"spread": 1.0, "trust": 0.5, "gpus_power": 0.0, "margin": 0.2}}),
    ],
)
def test_policy_is_a_scheduler_of_its_name(base: str, settings: dict[str, Any]) -> None:
    policy = Policy(base, **settings)
    scheduler = load_scheduler(policy, seed=3)
    assert isinstance(scheduler, Scheduler)
    assert scheduler.name == policy.name == (f"{base}*" if settings else base)
    assert scheduler.order == (Order(by="area") if policy.scheduler else policy.rule.order)
    assert scheduler.oracle == policy.oracle


@pytest.mark.parametrize("name", ["sjf*", "srtf*", "", "nosuch", "easy:size,1h", "ppo:", "rollout"])
def test_unknown_policy_is_named(name: str) -> None:
    with pytest.raises(UnknownPolicyError, match=r"unknown policy '.*expected one of .*fifo-backfill"):
        load_scheduler(name)


class Mine(Scheduler):
    """A user's scheduler."""

    name = policy_id = "mine"

    def __init__(self, policy: Policy, seed: int) -> None:
        self.told = policy, seed

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        del state, partition, now_s, record
        return Decision(action=Wait(), source="rule")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler `mine`, in addition to the installed ones."""

    class Point:
        name = "mine"

        def load(self) -> Any:
            return Mine

    known = [*entry_points(group="rlsched.schedulers"), Point()]
    monkeypatch.setattr("rlsched.decide.registry._points", lambda: known)


@pytest.mark.usefixtures("registered")
def test_plugin_scheduler_gets_its_policy() -> None:
    policy = Policy(rule="mine", predictions="revised")
    scheduler = load_scheduler(policy, seed=5)
    assert isinstance(scheduler, Mine)
    assert scheduler.told == (policy, 5)
    assert scheduler.order == Order()
    assert not scheduler.oracle


def test_missing_plugin_scheduler_is_named() -> None:
    with pytest.raises(InputError, match=r"expected one of .*random.*, or the path of a Python file, got"):
        load_scheduler(Policy(rule="mine"))
