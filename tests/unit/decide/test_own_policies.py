"""`FILE.py:NAME`: user-defined rules and schedulers, several in a file, and errors in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

import rlsched as rs
from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Start
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.files import with_whole_paths
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Scheduler
from rlsched.errors import InputError

FILE = """
from rlsched.decide.actions import Start, Wait
from rlsched.decide.move import start_of
from rlsched.decide.order.keys import Order
from rlsched.decide.recording import Recording
from rlsched.decide.scheduler import Scheduler
from rlsched.compile.jit import kernel


@kernel
def last(s, p, o, now_s):
    waiting = s.derived.part.queue_len[p]
    slot = s.derived.queue[p][waiting - 1] if waiting > 0 else -1
    fits = slot >= 0 and s.job.gpus[slot] <= s.derived.part.free_gpus[p]
    return start_of(slot if fits else -1, -1)


class Last:
    next_move = last
    LOOKS = True


class Waits(Scheduler):
    def decide(self, state, partition, now_s, *, record=False):
        return Recording(state, partition, now_s, wanted=record).decision(Wait(), "rule", self.policy_id)


class Told(Waits):
    def __init__(self, policy, seed):
        self.told = (policy.settings.own, seed)


class Raises(Waits):
    def decide(self, state, partition, now_s, *, record=False):
        raise ZeroDivisionError("mine")


class RaisesAtFirst(Waits):
    def decide(self, state, partition, now_s, *, record=False):
        if now_s < 100.0:
            raise ZeroDivisionError("mine")
        return super().decide(state, partition, now_s, record=record)


class Sorted(Waits):
    order = Order.parse("area^0.25")


class Needs(Waits):
    def __init__(self, policy, seed, more):
        pass


nothing = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize("name", ["last", "Last"])
def test_rule_is_a_kernel_or_a_class_with_kernels(name: str, file: Path) -> None:
    policy = Policy.of(f"{file}:{name}")
    rule = load_scheduler(policy).rule
    assert policy.name == name
    assert rule is not None, "simulators run it compiled"
    assert rule.steps.looks == (name == "Last")
    assert policy.scheduler == ""


def test_class_derived_from_scheduler_is_a_policy(file: Path) -> None:
    plain = load_scheduler(Policy.of(f"{file}:Waits").changed(["order=predicted"]), seed=4)
    assert isinstance(plain, Scheduler)
    assert (plain.name, plain.rule, plain.order) == ("Waits*", None, Order.parse("predicted"))
    told = load_scheduler(Policy.of(f"{file}:Told").changed(["own=[1, 2]"]), seed=4)
    assert getattr(told, "told", None) == ((1.0, 2.0), 4)
    trace = rs.Trace.from_columns(name="one", submit_s=[0.0], duration_s=[5.0], num_gpus=[1.0])
    runs = rs.simulate(trace, rs.Cluster.uniform(1, 1), [Policy.of(f"{file}:Waits")])
    assert runs["Waits"].metrics.unfinished == 1


def test_rule_is_the_fallback_in_a_broker(file: Path) -> None:
    with pytest.raises(
        InputError, match="'Raises' failed in the trial run on a small cluster: ZeroDivisionError: mine"
    ):
        load_policy(Policy.of(f"{file}:Raises"), None, 1_000.0)
    scheduler, fallback = load_policy(Policy.of(f"{file}:RaisesAtFirst"), None, 1_000.0)
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == ("RaisesAtFirst", "submit-backfill")
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(scheduler.order))
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=5.0, spread=1.0)
    ((_, first),) = decide_all(state, scheduler, 1.0, record=True)
    assert (first.source, first.action) == ("guard", Start(seq=0, gpus=(0,)))
    assert "ZeroDivisionError" in first.guard


def test_order_without_a_rule_needs_a_fallback_or_is_refused(file: Path) -> None:
    assert load_scheduler(Policy.of(f"{file}:Sorted")).reference is None, "a simulator needs none"
    with pytest.raises(InputError, match="may fail: give a --fallback with queue order"):
        load_policy(Policy.of(f"{file}:Sorted"), None, 1_000.0)
    behind = Policy("fifo-backfill", order="area^0.25")
    assert load_policy(Policy.of(f"{file}:Sorted"), behind, 1_000.0)[1] == behind.name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (":Tols", r"there is no Tols in this file; did you mean Told\?"),
        (":nothing", r"found no kernel `next_move\(s, p, o, now_s\)`; .* Scheduler as .*mine\.py:NAME"),
        (":", "expected a name after the colon"),
        ("", "found no kernel `next_move"),
        (":Needs", r"this policy cannot be created: TypeError: .*'more'"),
        (":Scheduler", "this policy cannot be created: TypeError: .*abstract"),
    ],
)
def test_errors_are_one_line(name: str, said: str, file: Path) -> None:
    with pytest.raises(InputError, match=said) as found:
        load_scheduler(Policy.of(f"{file}{name}"))
    assert "\n" not in str(found.value)


def test_running_broker_gets_absolute_paths(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    told = with_whole_paths(Policy.of("mine.py:Waits"))
    assert (told.name, told.settings.rule) == ("Waits", f"{file}:Waits")
    Path("m.zip").touch()
    assert with_whole_paths(Policy.of("sb3:m.zip")).settings.checkpoint == str(file.parent / "m.zip")
    for text in ("ppo", "none.py:Waits", "easy"):
        assert with_whole_paths(Policy.of(text)) == Policy.of(text)


def test_unread_settings_are_refused(file: Path) -> None:
    with pytest.raises(InputError, match="reserve_after"):
        load_scheduler(Policy.of(f"{file}:Waits").changed(["reserve_after=1h"]))


def test_file_that_ends_the_program_is_refused(tmp_path: Path) -> None:
    """A script without a guard: the evaluation would end in silence, with exit code 0."""
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(InputError, match=r"script\.py: this rule cannot be loaded: SystemExit: 0"):
        load_scheduler(Policy.of(str(tmp_path / "script.py")))
