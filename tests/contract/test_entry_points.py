"""What is registered is installed, and every scheduler loads (verbs: `test_repository`)."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_args

import pytest

from rlsched.decide.orders import Order
from rlsched.decide.scheduler import Information, Scheduler, load_scheduler, scheduler_names
from rlsched.errors import UnknownSchedulerError
from rlsched_agents.runtime.checkpoint import checkpoint_file

ROOT = Path(__file__).resolve().parent.parent.parent
GROUPS = ("rlsched.commands", "rlsched.schedulers", "rlsched.histories")
POLICIES = (
    *("fifo", "sjf", "qssf", "fifo-backfill", "sjf-backfill", "qssf-backfill"),
    *("easy", "sgf-age", "reserve", "tiresias", "srtf", "gittins", "pack", "lucid"),
    *("rollout", "random", "ppo"),
)


def declared(group: str) -> dict[str, str]:
    """The entry points of a group in pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = project["entry-points"][group]
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_installed_is_what_is_declared(group: str) -> None:
    installed = {point.name: point.value for point in entry_points(group=group)}
    assert declared(group).items() <= installed.items(), "run `make install` again"


def test_the_policies_of_the_contract_are_there() -> None:
    assert sorted(POLICIES) == sorted(declared("rlsched.schedulers"))
    assert set(POLICIES) <= set(scheduler_names())


@pytest.mark.parametrize(
    "name",
    [
        *(*POLICIES, "sgf-age:1.5d", "reserve:4h,0.1", "tiresias:3250", "ppo:untrained", "pack:0.8"),
        *("gittins:1", "gittins:1,0.5,0,0.2"),
    ],
)
def test_a_policy_is_a_scheduler_of_its_name(name: str) -> None:
    if name == "ppo" and not checkpoint_file("default").exists():
        assert callable(EntryPoint(name, declared("rlsched.schedulers")[name], "rlsched.schedulers").load())
        pytest.skip("no default policy in the tree")
    scheduler = load_scheduler(name, seed=3)
    assert isinstance(scheduler, Scheduler)
    assert scheduler.name == name
    assert scheduler.order in get_args(Order)
    assert scheduler.information in get_args(Information)


@pytest.mark.parametrize(
    "name", ["sjf*", "srtf*", "", "fifo:argument", "srtf:1", "easy:argument", "ppo:", "sgf-age:", "gittins:"]
)
def test_an_unknown_policy_is_named(name: str) -> None:
    with pytest.raises(
        UnknownSchedulerError, match=r"known: .*fifo-backfill|takes no argument|expected easy:ORDER"
    ):
        load_scheduler(name)
