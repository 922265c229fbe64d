"""A broker's policy, its guard and its fallback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlsched.broker.base.ledger_models import LedgerModels, workload_number
from rlsched.broker.server.broker_policy import load_policy
from rlsched.cluster.spec import ClusterSpec, NodeSpec
from rlsched.cluster.state import ClusterState
from rlsched.decide import registry
from rlsched.decide.actions import Start
from rlsched.decide.dials.strategy import NUM_COLUMNS, NUM_DIALS, Strategy
from rlsched.decide.guard import Guarded
from rlsched.decide.loop import decide_all
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.policies.policy import Policy
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.scheduler import Decision, Scheduler
from rlsched.errors import InputError
from tests.quick import quick


def load(policy: str | Policy, fallback: str | Policy | None = None) -> tuple[Scheduler, str]:
    return load_policy(Policy.of(policy), None if fallback is None else Policy.of(fallback), 100.0)


WEIGHTS = np.random.default_rng(2).normal(0.0, 0.1, (NUM_DIALS, NUM_COLUMNS + 1))
DIALLED = Policy("tuned", name="dialled", dials=Strategy.from_layers(WEIGHTS).text)
"""`tuned`, with dials that change."""


def test_fallback_of_a_rule_with_dials_is_the_rule_without_dials() -> None:
    dials = DIALLED.settings.dials
    changed = Policy("easy", name="dialled", reserve_after="2h", dials=dials)
    for policy, named in (
        (Policy("easy", name="dialled", dials=dials), "easy"),
        (Policy("ppo"), "priced"),
        (changed, "dialled without dials"),
    ):
        scheduler, fallback = load(policy)
        assert isinstance(scheduler, Guarded)
        assert (scheduler.name, fallback) == (policy.name, named)
        assert scheduler._fallback.strategy is None


def test_default_fallback_of_random_choices_has_their_queue_order() -> None:
    scheduler, fallback = load("random")
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == ("random", "qssf-backfill")


def test_configured_fallback_guards_the_policy() -> None:
    scheduler, fallback = load("qssf-backfill", Policy("qssf-backfill", name="behind"))
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback) == ("qssf-backfill", "behind")


EVERY_KIND = (
    *(Policy(name) for name in ("fifo", "easy", "tiresias", "gittins", "random")),
    DIALLED,
)


@pytest.mark.parametrize(
    "policy", quick(EVERY_KIND, lambda one: one.name == "gittins"), ids=lambda policy: policy.name
)
def test_guard_accepts_the_clocks_that_every_policy_chooses(policy: Policy) -> None:
    scheduler, _ = load_policy(policy, None, 60_000.0, has_models=True)
    state = ClusterState([NodeSpec(name="n0", gpus=2, gpu_type="V100")], OrderedQueue(scheduler.order))
    models = LedgerModels(state)
    models.weigh(1.0)
    models.node(0, [1530, 952])
    state.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0)
    seen = [decision.action for _, decision in decide_all(state, scheduler, 60.0, record=True)]
    (start,) = [action for action in seen if isinstance(action, Start)]
    assert start.sm_clock_frac in (1.0, *state.arrays.models.gpu.levels_frac[0].tolist())
    if policy != Policy("random"):
        assert start.sm_clock_frac == 952 / 1530, "if only energy counts"
    assert getattr(scheduler, "interventions", {}) == {}


def test_fallback_decides_after_a_timeout() -> None:
    scheduler, _ = load_policy(Policy("qssf-backfill"), Policy("qssf-backfill"), 1e-6)
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(scheduler.order))
    for gpus in (1, 2):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=1.0, spread=1.0)
    ((_, decision),) = decide_all(state, scheduler, 1.0, record=True)
    assert decision.source == "guard"
    assert decision.record is not None
    assert decision.record.guard == "late"


@pytest.mark.parametrize(
    "name",
    quick(
        ["fifo", "qssf-backfill", "easy", "reserve", "tiresias", "gittins"], lambda name: name == "gittins"
    ),
)
def test_a_rule_needs_no_fallback(name: str) -> None:
    scheduler, fallback = load(name)
    assert isinstance(scheduler, RuleScheduler)
    assert (scheduler.name, fallback) == (name, "")


OWN_RULE = """
from rlsched.decide.move import Move, start_of
from rlsched.compile.jit import kernel


@kernel
def next_move(s, p, o, now_s):
    waiting = s.derived.part.queue_len[p]
    return start_of(s.derived.queue[p][0] if waiting > 0 else -1, -1)
"""
"""Starts the first waiting job, whether or not it fits."""


def test_fallback_of_a_users_own_rule_starts_jobs_that_fit(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_RULE)
    scheduler, fallback = load(Policy(name="mine", rule=str(file), order="predicted"))
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback, scheduler.order) == (
        "mine",
        "predicted-backfill",
        Order.parse("predicted"),
    )
    state = ClusterState.from_spec(ClusterSpec.uniform(1, 2), OrderedQueue(scheduler.order))
    for gpus, predicted_s in ((2, 5.0), (1, 3.0)):
        state.add_job(num_gpus=gpus, submit_s=0.0, predicted_s=predicted_s, spread=1.0)
    (_, first), *later = decide_all(state, scheduler, 1.0, record=True)
    assert (first.source, first.action) == ("rule", Start(seq=1, gpus=(0,)))
    assert later == [], "the other job does not fit, and no policy is called"
    state.add_job(num_gpus=1, submit_s=1.0, predicted_s=9.0, spread=1.0)
    ((_, second),) = decide_all(state, scheduler, 2.0, record=True)
    assert (second.source, second.action) == ("guard", Start(seq=2, gpus=(1,)))


def test_preempting_policy_is_compiled_ahead_and_serves() -> None:
    scheduler, fallback = load("tiresias")
    assert (scheduler.name, fallback, scheduler.abilities.preempts) == ("tiresias", "", True)
    scheduler, fallback = load("tiresias", "fifo-backfill")
    assert isinstance(scheduler, Guarded)
    assert (scheduler.name, fallback, scheduler.abilities.preempts) == ("tiresias", "fifo-backfill", True)


def test_fallback_may_not_preempt_if_the_policy_does_not() -> None:
    with pytest.raises(InputError, match="--fallback 'tiresias' preempts jobs, --policy 'fifo' does not"):
        load("fifo", "tiresias")


def test_fallback_with_another_queue_order_is_refused() -> None:
    with pytest.raises(InputError) as error:
        load("fifo", "qssf-backfill")
    assert str(error.value) == (
        "--fallback 'qssf-backfill' keeps the queue by predicted run time x GPUs, --policy 'fifo' by "
        "submission time; choose a fallback of the same order"
    )


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown policy 'x'; expected one of .*qssf-backfill"):
        load("x")


@pytest.mark.parametrize("name", ["sjf", "srtf"])
def test_policies_that_need_true_run_times_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"--policy '{name}' needs the true run times, which a broker"):
        load(name)


def test_missing_package_of_a_policy_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "broken"

        def load(self) -> object:
            raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(registry, "_points", lambda: [Point()])
    with pytest.raises(InputError, match="--policy 'broken' cannot be loaded: No module named 'torch'"):
        load(Policy(name="broken", rule="broken"))


NEED_MODELS = (
    Policy("pack"),
    Policy("pack", share={"min_speed": 0.5}),
    Policy("lucid"),
    Policy("fifo", clock={"rule": "fixed", "at": 0.8}),
    Policy("qssf-backfill", cores=True),
)


@pytest.mark.parametrize("policy", NEED_MODELS, ids=lambda policy: policy.name)
def test_broker_without_share_has_no_models(policy: Policy) -> None:
    with pytest.raises(
        InputError, match=r"needs speed models, which a broker has only with --share; add --share"
    ):
        load(policy)
    with pytest.raises(InputError, match="--fallback"):
        load("qssf-backfill", policy)


@pytest.mark.parametrize(
    "policy",
    quick((*NEED_MODELS, Policy("tuned"), DIALLED), lambda one: one == Policy("pack")),
    ids=lambda policy: policy.name,
)
def test_with_share_policies_have_models_and_the_guard_accepts_co_tenants(policy: Policy) -> None:
    scheduler, _ = load_policy(policy, None, 60_000.0, shares=True)
    state = ClusterState([NodeSpec(name="n0", gpus=1, gpu_type="V100")], OrderedQueue(scheduler.order))
    models = LedgerModels(state)
    models.share(True)
    models.node(0, [], shares=True)
    light = workload_number("a2c-b64")
    for _ in range(2):
        state.add_job(num_gpus=1, submit_s=0.0, predicted_s=60.0, spread=1.0, workload=light)
    alone = state.add_job(
        num_gpus=1, submit_s=1.0, predicted_s=60.0, spread=1.0, workload=light, shares=False
    )
    seen = [decision.action for _, decision in decide_all(state, scheduler, 60.0, record=True)]
    starts = [action for action in seen if isinstance(action, Start)]
    shares = policy.settings.share is not None
    assert len(starts) == (2 if shares else 1)
    assert [action.share_with for action in starts[1:]] == ([starts[0].seq] if shares else [])
    assert alone not in state.running()
    assert getattr(scheduler, "interventions", {}) == {}


RULES_ONLINE = ("fifo", "qssf", "fifo-backfill", "qssf-backfill", "easy", "reserve", "random")


@pytest.mark.parametrize("name", [*quick(RULES_ONLINE, lambda _: False), "ppo"])
def test_no_policy_shares_gpus_or_sets_clocks_by_default(name: str) -> None:
    scheduler, _ = load_policy(Policy.of(name), None, 10_000.0, seed=3)
    state = ClusterState.from_spec(ClusterSpec.uniform(3, 4), OrderedQueue(scheduler.order))
    rng = np.random.default_rng(5)
    started = 0
    for now_s in range(1, 40):
        state.add_job(
            num_gpus=int(rng.choice([1, 1, 2, 4, 8])), submit_s=float(now_s), predicted_s=60.0, spread=1.0
        )
        for _, decision in decide_all(state, scheduler, float(now_s)):
            if isinstance(decision.action, Start):
                started += 1
                assert (decision.action.sm_clock_frac, decision.action.share_with) == (1.0, -1)
        for seq in state.running():
            if rng.random() < 0.3:
                state.release(seq, now_s + 0.5)
    assert started > 10
    assert (state.arrays.job.sm_clock_frac[state.arrays.job.seq >= 0] <= 1.0).all()
    assert ((state.arrays.gpu.tenant >= 0).sum(axis=1) <= 1).all()
    if isinstance(scheduler, Guarded):
        assert "illegal" not in scheduler.interventions


class Sharing(Scheduler):
    """A policy that always shares GPUs, or always lowers a job's clock."""

    name = policy_id = "sharing"
    order = Order(by="area")

    def __init__(self, **how: float) -> None:
        self._how = how

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """Start the first waiting job, shared or at a lower clock."""
        del now_s, record
        seq = state.waiting(partition)[0]
        return Decision(action=Start(seq, (0,), **self._how), source="policy")


@pytest.mark.parametrize("how", [{"sm_clock_frac": 0.75}, {"share_with": 0}, {"cpu_milli_each": 9_000}])
def test_guard_replaces_illegal_decisions(how: dict[str, float]) -> None:
    nodes = [NodeSpec(name="n0", gpus=2, cpus=8)]
    fallback = load("qssf-backfill")[0]
    state = ClusterState(nodes, OrderedQueue(fallback.order))
    guarded = Guarded(Sharing(**how), fallback, budget_ms=10_000.0)
    for _ in range(2):
        state.add_job(num_gpus=1, submit_s=0.0, predicted_s=1.0, spread=1.0)
    state.start(0, [0], 0.0)
    decisions = [decision for _, decision in decide_all(state, guarded, 1.0)]
    assert guarded.interventions == {"illegal": 1}
    assert [decision.source for decision in decisions] == ["guard"]
    assert state.running() == [0, 1]
    assert state.gpus_of(1) == [1]
