"""What is registered is installed, and every scheduler loads (verbs: `test_repository`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_args

import pytest

from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Wait
from rlsched.decide.order.keys import Order
from rlsched.decide.scheduler import (
    Decision,
    Information,
    Scheduler,
    load_scheduler,
    revises_predictions,
    scheduler_names,
)
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


@dataclass(frozen=True)
class Frozen:
    """A scheduler as a user may write one: nothing of it can be changed."""

    name: str = "mine"
    order: Order = "submit"
    information: Information = "causal"

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        del state, partition, now_s, record
        return Decision(action=Wait(), source="rule")


class Slotted(Frozen):
    __slots__ = ()


class Silent:
    """Says nothing of what it is fed."""

    name, order, decide = "mine", "submit", Frozen.decide


class Loose:
    """Can be changed, and has something of its own that is called `rule`."""

    name, order, information, decide = "mine", "submit", "causal", Frozen.decide
    rule = "whoever comes first"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A scheduler `mine` beside those that are installed."""

    class Point:
        name = "mine"

        def load(self) -> Any:
            return lambda _argument, _seed: request.param()

    known = [*entry_points(group="rlsched.schedulers"), Point()]
    monkeypatch.setattr("rlsched.decide.scheduler._points", lambda: known)


@pytest.mark.parametrize("registered", [Frozen, Slotted, Silent], indirect=True)
@pytest.mark.usefixtures("registered")
def test_a_scheduler_that_takes_no_revise_says_so_in_one_line() -> None:
    assert load_scheduler("mine").name == "mine"
    with pytest.raises(
        UnknownSchedulerError, match=r"'mine\+revise': 'mine' takes no \+revise.*`revises`"
    ) as caught:
        load_scheduler("mine+revise")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("registered", [Loose], indirect=True)
@pytest.mark.usefixtures("registered")
def test_a_scheduler_of_others_may_have_its_predictions_revised() -> None:
    scheduler = load_scheduler("mine+revise")
    assert scheduler.name == "mine+revise"
    assert revises_predictions(scheduler)
    assert scheduler.rule == Loose.rule  # type: ignore[attr-defined]
    assert not revises_predictions(load_scheduler("mine"))
