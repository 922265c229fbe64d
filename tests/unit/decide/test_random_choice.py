"""`random`: each waiting job that fits, and *wait*, is equally likely; draws are keyed."""

from __future__ import annotations

from collections import Counter

import pytest

from rlsched.cluster.spec import ClusterSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide.actions import Action, Start, Wait
from rlsched.decide.guard import check_action
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.registry import load_scheduler
from rlsched.errors import InputError
from rlsched_agents.heuristics.random_choice import WAIT_S, RandomChoice
from rlsched_envs.sim.engine import Engine
from tests.support.sim.play import trace_of

DRAWS = 4_000


def waiting(*gangs: int) -> ClusterState:
    """Two nodes of four GPUs, one with three taken; jobs of so many GPUs wait, from number 1 on."""
    state = ClusterState.from_spec(ClusterSpec.uniform(2, 4), OrderedQueue(Order(by="area")))
    for gpus in (3, *gangs):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=100.0, spread=1.0)
    state.start(0, (0, 1, 2), 0.0)
    return state


def drawn(state: ClusterState, seed: int, draws: int) -> list[Action]:
    """Its choices at successive decisions in the same state."""
    scheduler, found = RandomChoice(seed), list[Action]()
    for _ in range(draws):
        found.append(scheduler.decide(state, 0, 0.0).action)
        state.count_decision()
    return found


def test_jobs_that_fit_and_wait_are_equally_likely() -> None:
    state = waiting(1, 2, 8, 4, 1)  # the job of 8 GPUs does not fit
    actions = drawn(state, 3, DRAWS)
    counts = Counter(action.seq if isinstance(action, Start) else -1 for action in actions)
    assert set(counts) == {-1, 1, 2, 4, 5}
    for count in counts.values():  # five standard errors
        assert count == pytest.approx(DRAWS / 5, abs=5 * (DRAWS * 0.2 * 0.8) ** 0.5)
    for action in {*actions}:
        check_action(action, state, 0.0)


def test_same_seed_draws_the_same() -> None:
    one, again, other = (drawn(waiting(1, 2, 1, 4), seed, 200) for seed in (7, 7, 8))
    assert one == again
    assert one != other


def test_it_waits_where_no_job_fits() -> None:
    assert set(drawn(waiting(8), 1, 50)) == {Wait(until_s=WAIT_S)}


def test_policy_gives_the_seed() -> None:
    first, second, other = (load_scheduler("random", seed=seed) for seed in (1, 1, 2))
    assert (first.name, first.policy_id, first.order) == ("random", "random", Order(by="area"))
    assert first.abilities.stochastic
    runs = []
    for scheduler in (first, second, other):
        actions = list[Action]()
        state = waiting(*([1] * 12))
        for now_s in range(40):
            for _, decision in decide_all(state, scheduler, float(now_s), record=True):
                assert (decision.source, decision.record_failed) == ("rule", "")
                assert decision.record is not None
                assert decision.record.policy_id == "random"
                actions.append(decision.action)
            for seq in state.running():
                state.release(seq, now_s + 0.5)
        runs.append(actions)
    assert runs[0] == runs[1] != runs[2]
    assert sum(isinstance(action, Start) for action in runs[0]) == 12
    assert any(isinstance(action, Wait) for action in runs[0])


def test_wait_on_an_idle_cluster_ends_by_itself() -> None:
    trace, spec = trace_of([(0.0, 10.0, 1.0)]), ClusterSpec.uniform(1, 1)
    tables = [
        Engine(trace, spec, order=RandomChoice.order, oracle=True).run(RandomChoice(seed))
        for seed in range(20)
    ]
    waits = {float(table.start_s[0]) / WAIT_S for table in tables}
    assert {0.0, 1.0} <= waits, "at once, or after a wait"
    assert all(wait.is_integer() for wait in waits)


@pytest.mark.parametrize("change", ["order=predicted", "reserve_after=1h", "dials=default"])
def test_settings_that_it_does_not_read_are_refused(change: str) -> None:
    name = change.partition("=")[0]
    with pytest.raises(InputError, match=f"{name}: 'random' does not read this setting"):
        load_scheduler(Policy("random").changed([change]))
