"""The guard: a policy that fails, acts illegally or is late is replaced, and the record names the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Preempt, Start, Wait
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all, fitting_jobs
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.decide.scheduler import Abilities, Decision, Scheduler
from rlsched.energy.relative import PricesAsked
from rlsched.errors import AllocationError


class Clock:
    """Time that passes only under control of the test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Scripted(Scheduler):
    """A policy that takes the actions of a test."""

    name = policy_id = "scripted"
    order = Order(by="area")

    def __init__(self, act: Callable[[], Action]) -> None:
        self.act = act
        self.calls = 0

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        del state, partition, now_s, record
        self.calls += 1
        return Decision(action=self.act(), source="policy")


def busy(jobs: int = 3) -> ClusterState:
    """Two GPUs, each on its own node; jobs 0, 1, ... of one GPU wait, the last is the shortest."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 1), OrderedQueue(Order(by="area")))
    for k in range(jobs):
        state.add_job(num_gpus=1, submit_s=0.0, predicted_s=100.0 - k, spread=1.0)
    return state


def guarded(policy: Scheduler, **options: object) -> Guarded:
    return Guarded(policy, load_scheduler("qssf-backfill"), **options)  # type: ignore[arg-type]


def fail(error: Exception) -> Callable[[], Action]:
    def act() -> Action:
        raise error

    return act


def test_legal_decision_passes_through() -> None:
    state, clock = busy(), Clock()
    guard = guarded(Scripted(lambda: Start(seq=0, gpus=(1,))), clock=clock)
    assert guard.decide(state, 0, 0.0) == Decision(action=Start(seq=0, gpus=(1,)), source="policy")
    assert guard.interventions == {}
    assert (guard.name, guard.order, guard.oracle) == ("scripted", Order(by="area"), False)
    assert isinstance(guard, Scheduler)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("weights are not finite"),
        KeyError("x"),
        IndexError("row"),
        TypeError("x"),
        RuntimeError("torch"),
        AttributeError("x"),
        MemoryError(),
        AssertionError("x"),
    ],
)
def test_after_any_exception_the_fallback_decides(error: Exception) -> None:
    state = busy()
    guard = guarded(Scripted(fail(error)))
    decision = guard.decide(state, 0, 0.0, record=True)
    assert decision.action == Start(seq=2, gpus=(0,)), "the shortest, where the rule puts it"
    assert decision.source == "guard"
    assert decision.record is not None
    assert decision.record.source == "guard"
    assert decision.record.guard.startswith("failed: ")
    assert str(error) in decision.record.guard
    assert decision.record.policy_id == "qssf-backfill"
    assert guard.interventions == {"failed": 1}


def test_non_finite_output_is_a_separate_kind() -> None:
    guard = guarded(Scripted(fail(FloatingPointError("decision 7: the network's output is not finite"))))
    decision = guard.decide(busy(), 0, 0.0, record=True)
    assert decision.source == "guard"
    assert decision.guard == "non-finite: decision 7: the network's output is not finite"
    assert guard.interventions == {"non-finite": 1}
    assert guard.replaced_by_fallback() == "", "the next decision is the policy's again"


def test_keyboard_interrupt_passes_through() -> None:
    def stop() -> Action:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(Scripted(stop)).decide(busy(), 0, 0.0)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (Start(seq=99, gpus=(0,)), "no live job"),
        (Start(seq=0, gpus=(0, 1)), "different GPUs"),
        (Start(seq=0, gpus=(5,)), "no GPU 5"),
        (Start(seq=0, gpus=(0,), share_milli=500), "thousandths of each GPU"),
        (Start(seq=0, gpus=(0,), sm_clock_frac=0.5), "SM clock"),
        (Wait(until_s=0.0), "expected a wait with until_s after now"),
        (Preempt(seq=0), "job 0 is not running"),
        (Preempt(seq=99), "no live job"),
    ],
)
def test_illegal_actions_are_replaced(action: Action, why: str) -> None:
    state = busy()
    before = state.digest()
    guard = guarded(Scripted(lambda: action))
    decision = guard.decide(state, 0, 0.0, record=True)
    assert state.digest() == before
    assert decision.action == Start(seq=2, gpus=(0,))
    assert decision.record is not None
    assert decision.record.guard.startswith("illegal: ")
    assert why in decision.record.guard
    assert guard.interventions == {"illegal": 1}


def running(**facts: bool) -> ClusterState:
    """Two GPUs on their own nodes: job 0 runs since 0 s, jobs 1 and 2 wait, 2 is the shortest."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 1), OrderedQueue(Order(by="area")))
    for k in range(3):
        state.add_job(num_gpus=1, submit_s=0.0, predicted_s=100.0 - k, spread=1.0, **facts)  # type: ignore[arg-type]
    state.start(0, (0,), 0.0)
    return state


def test_preemption_is_checked_by_the_ledger() -> None:
    guard = guarded(preempting(lambda: Preempt(seq=0)))
    assert guard.abilities.preempts
    assert guard.decide(running(), 0, 5.0) == Decision(action=Preempt(seq=0), source="policy")
    for state, now_s, why in (
        (running(preemptible=False), 5.0, "job 0 must not be preempted"),
        (running(), 0.0, "job 0 started at this instant"),
    ):
        before = state.digest()
        decision = guard.decide(state, 0, now_s, record=True)
        assert state.digest() == before
        assert decision.action == Start(seq=2, gpus=(1,))
        assert decision.record is not None
        assert why in decision.record.guard
    assert guard.interventions == {"illegal": 2}


def preempting(act: Callable[[], Action]) -> Scripted:
    policy = Scripted(act)
    policy.abilities = Abilities(preempts=True)
    return policy


@pytest.mark.parametrize("fallback", ["qssf-backfill", "qssf", "reserve", "easy"])
def test_fallback_for_a_preemption_waits_where_no_job_fits(fallback: str) -> None:
    state = running()
    state.start(1, (1,), 1.0)
    rule = load_scheduler(fallback)
    policy = preempting(fail(ValueError("x")))
    policy.order = rule.order
    guard = Guarded(policy, rule)
    ((_, decision),) = decide_all(state, guard, 5.0, record=True)
    assert isinstance(decision.action, Wait)
    assert decision.source == "guard"


def test_fallback_preempts_only_where_the_policy_may() -> None:
    tiresias = load_scheduler("tiresias")
    policy = Scripted(lambda: Wait())
    policy.order = tiresias.order
    with pytest.raises(ValueError, match="fallback 'tiresias' preempts jobs, but policy 'scripted' does not"):
        Guarded(policy, tiresias)
    policy = preempting(lambda: Wait())
    policy.order = tiresias.order
    assert Guarded(policy, tiresias).abilities.preempts
    assert not guarded(Scripted(lambda: Wait())).abilities.preempts


def test_without_recording_there_is_no_record() -> None:
    decision = guarded(Scripted(fail(ValueError("x")))).decide(busy(), 0, 0.0)
    assert (decision.source, decision.record) == ("guard", None)


def test_late_policy_rests_and_gets_another_try() -> None:
    state, clock = busy(), Clock()
    slow = [True]

    def act() -> Action:
        clock.now_s += 0.2 if slow[0] else 0.05
        return Wait()

    policy = Scripted(act)
    guard = guarded(policy, budget_ms=100.0, penalty_decisions=3, clock=clock)
    late = guard.decide(state, 0, 0.0, record=True)
    assert late.source == "guard"
    assert late.action == Start(seq=2, gpus=(0,))
    assert late.record is not None
    assert late.record.guard == "late"
    slow[0] = False
    assert [guard.decide(state, 0, 0.0).source for _ in range(5)] == ["guard"] * 3 + ["policy"] * 2
    assert policy.calls == 3
    assert guard.interventions == {"late": 4}


def test_decision_just_in_time_is_not_late() -> None:
    clock = Clock()

    def act() -> Action:
        clock.now_s += 0.0625
        return Wait()

    guard = guarded(Scripted(act), budget_ms=62.5, clock=clock)
    assert guard.decide(busy(), 0, 0.0).source == "policy"


def test_reasons_are_counted_separately() -> None:
    state = busy()
    policy = Scripted(fail(ValueError("x")))
    guard = guarded(policy)
    for _ in range(3):
        guard.decide(state, 0, 0.0)
    policy.act = lambda: Start(seq=99, gpus=(0,))
    guard.decide(state, 0, 0.0)
    assert guard.interventions == {"failed": 3, "illegal": 1}


def test_loop_continues_with_a_policy_that_always_fails() -> None:
    state = busy()
    made = list(decide_all(state, guarded(Scripted(fail(RuntimeError("x")))), 0.0))
    assert [decision.action for _, decision in made] == [Start(seq=2, gpus=(0,)), Start(seq=1, gpus=(1,))]
    assert state.decisions == 2


def test_without_a_guard_the_loop_refuses() -> None:
    state = busy()
    before = state.digest()
    with pytest.raises(AllocationError):
        list(decide_all(state, Scripted(lambda: Start(seq=99, gpus=(0,))), 0.0))
    with pytest.raises(AllocationError, match="job 0 is not running"):
        list(decide_all(state, Scripted(lambda: Preempt(seq=0)), 0.0))
    assert state.digest() == before
    assert state.decisions == 0


def test_both_must_keep_the_same_queue() -> None:
    with pytest.raises(ValueError, match="fallback 'fifo' keeps the queue by submission time"):
        Guarded(Scripted(lambda: Wait()), load_scheduler("fifo"))


@pytest.mark.parametrize("fallback", ["qssf-backfill", "fifo-backfill"])
def test_record_of_the_fallback_shows_its_choice_after_a_wait_of_the_policy(fallback: str) -> None:
    """Four GPUs: 3 are taken, jobs of 3, 1 and 1 GPUs wait; a *wait* holds none of them back."""
    rule = load_scheduler(fallback)
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 4), OrderedQueue(rule.order))
    for gpus, predicted_s in ((3, 50.0), (3, 60.0), (1, 100.0), (1, 400.0)):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=predicted_s, spread=1.0)
    state.start(0, (0, 1, 2), 0.0)
    policy = Scripted(lambda: Wait())
    policy.order = rule.order
    ((_, waited),) = decide_all(state, Guarded(policy, rule), 0.0)
    assert waited.action == Wait()
    assert fitting_jobs(state, 0) == [2, 3]
    policy.act = fail(ValueError("x"))
    record = Guarded(policy, rule).decide(state, 0, 1.0, record=True).record
    assert record is not None
    assert record.action == Start(seq=2, gpus=(3,))
    assert (record.turn, [plan.how for plan in record.plans if plan.chosen]) == (2, ["free"])


def test_prices_that_only_the_fallback_reads_are_asked_for() -> None:
    plain = Guarded(preempting(Wait), load_scheduler("qssf-backfill"))
    assert plain.abilities == Abilities(preempts=True)
    fallback = load_scheduler(Policy("qssf-backfill", price={"window": True}))
    guard = Guarded(preempting(Wait), fallback)
    assert guard.abilities == Abilities(preempts=True, prices_asked=PricesAsked(ahead=True))
