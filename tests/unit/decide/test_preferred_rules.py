"""Rules with jobs that prefer GPU types: reservations, filters, preemption, worth of types, shared GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from rlsched.cluster.demand import Demand
from rlsched.cluster.placement import BY_RULE, NO_PREFERENCE
from rlsched.cluster.spec import ClusterSpec, NodeGroup, NodeSpec, Placement
from rlsched.cluster.state import ClusterState
from rlsched.compile.jit import specialise
from rlsched.decide.actions import Start
from rlsched.decide.compiled import for_state
from rlsched.decide.options import BETTER, BLOCKED, PLAIN_START, StartOptions
from rlsched.decide.order.keys import Order
from rlsched.decide.order.queue import OrderedQueue
from rlsched.decide.plans.best import best_partner, start_of_best, waits_for_better
from rlsched.decide.plans.plan import ends_by_gpu, later_worth, node_to_place
from rlsched.decide.policies.policy import Policy
from rlsched.decide.recording import plans_of
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.decide.rules.backfill import reservation
from rlsched.decide.scheduler import Decision
from rlsched.decide.start import start_action
from rlsched.workload.synth import synthesize
from rlsched.workload.trace import Trace
from rlsched_envs.sim.attempt_log import RunRules
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.modelling import Models
from tests.quick import quick
from tests.support.sim.board import add, modelled, node, running
from tests.support.sim.play import attempts, trace_of

Jobs = Sequence[tuple[float, float, float, str, str]]
"""Submission, duration, GPUs, accepted and preferred types."""
TYPES = ("H100", "A100", "T4")


def engine(jobs: Jobs, policy: Policy, *sizes: int, **more: Sequence[str]) -> Engine:
    """Nodes of these sizes: the first of H100s, the second of A100s, the third of T4s."""
    trace = trace_of(
        [job[:3] for job in jobs], gpu_type=[job[3] for job in jobs], prefer=[job[4] for job in jobs], **more
    )
    spec = ClusterSpec(
        name="c",
        nodes=tuple(NodeGroup(gpus=gpus, gpu_type=kind) for gpus, kind in zip(sizes, TYPES, strict=False)),
    )
    return Engine(trace, spec, order=policy.rule.order, oracle=True, rules=RunRules())


def runs(jobs: Jobs, policy: Policy, *sizes: int, **more: Sequence[str]) -> list[tuple[str, float]]:
    """Type and start of each job."""
    table = engine(jobs, policy, *sizes, **more).run_rule(policy.rule)
    first = [TYPES[table.gpu_node[gpus[0]]] for gpus in table.gpus]
    return list(zip(first, table.start_s.tolist(), strict=True))


def test_job_starts_on_preferred_gpus_if_any_are_free_and_never_waits_for_them() -> None:
    jobs = [(k, 100, 1, "", "H100") for k in range(3)]
    assert runs(jobs, Policy("fifo"), 2, 2) == [("H100", 0), ("H100", 1), ("A100", 2)]
    assert runs([(*job[:4], "") for job in jobs], Policy("fifo"), 3, 2) == [
        ("A100", 0),
        ("A100", 1),
        ("H100", 2),
    ]


class TestReservation:
    """Job b, which needs all H100s, has a reservation at 10; job c, which prefers H100s, comes later."""

    def jobs(self, run_s: float) -> Jobs:
        return [(0, 10, 1, "H100", ""), (1, 5, 3, "H100", ""), (2, run_s, 1, "", "H100")]

    def test_job_that_would_delay_it_starts_on_other_gpus(self) -> None:
        assert runs(self.jobs(50), Policy("easy"), 3, 1) == [("H100", 0), ("H100", 10), ("A100", 2)]

    def test_job_that_ends_before_it_starts_on_preferred_gpus(self) -> None:
        assert runs(self.jobs(5), Policy("easy"), 3, 1) == [("H100", 0), ("H100", 10), ("H100", 2)]

    def test_job_waits_if_it_would_delay_it_everywhere(self) -> None:
        busy = [(0, 100, 1, "A100", ""), *self.jobs(50)]
        assert runs(busy, Policy("easy"), 3, 1)[1:] == [("H100", 0), ("H100", 10), ("H100", 15)]

    def test_each_job_of_a_long_queue_is_judged(self) -> None:
        """Verdicts are kept by demand class: c, d and f have the same request, and one A100 is free."""
        jobs = [*self.jobs(50), (3, 50, 1, "", "H100"), (4, 50, 1, "", "A100"), (5, 4, 1, "", "H100")]
        found = runs(jobs, Policy("easy"), 3, 1)
        assert found[2:] == [("A100", 2), ("H100", 15), ("H100", 15), ("H100", 5)]


def test_filter_of_long_jobs_counts_the_nodes_where_the_job_starts() -> None:
    """With the node of 4 H100s as a whole, 2 GPUs would stay free; with the node of 2, 4 do, and 3 must."""
    policy = Policy("reserve", leave_free={"longer_than": "3s", "share": 0.3})
    jobs = [(0, 100, 4, "T4", ""), (5, 10, 1, "", "H100"), (20, 2, 1, "", "H100")]
    found = runs(jobs, policy, 4, 2, 4, exclusive=["", "true", "true"])
    assert found == [("T4", 0), ("A100", 5), ("H100", 20)]


def test_jobs_are_preempted_for_a_job_with_a_preference_as_for_others() -> None:
    long = [(0.0, 20_000.0, 2.0, "H100", ""), (0.0, 20_000.0, 2.0, "A100", "")]
    for prefer in ("", "H100", "A100"):
        policy = Policy("gittins")
        table = engine([*long, (600, 60, 2, "", prefer)], policy, 2, 2).run_rule(policy.rule)
        (began,) = [start_s for job, _, start_s, *_ in attempts(table) if job == "c"]
        assert began == 600


# ---- worth of types, with models ----------------------------------------------------------------

LIGHT, HEAVY = "a2c-b64", "resnet50-imagenet-b64"
TYPED = PLAIN_START._replace(chooses_type=True, max_jobs=4, min_speed=0.0)
COMPARED = TYPED._replace(share=BETTER)


def waiting(state: ClusterState, workload: str, *preferred: str, gpus: int = 1, **more: float) -> int:
    """A job whose run time is for P100s."""
    seq = add(state, workload, gpus, preferred_types=tuple(sorted(preferred)), **more)
    state.arrays.job.reference_kind[state.slot_of(seq)] = state.kind_names.index("P100")
    return seq


def chosen(state: ClusterState, seq: int, o: StartOptions, node: int = BY_RULE) -> int:
    return int(for_state(node_to_place, state)(state.arrays, 0, state.slot_of(seq), o, node))


def partner(state: ClusterState, seq: int, o: StartOptions) -> int:
    """Number of the job whose GPUs a fitting job shares, -1: it starts on free GPUs."""
    slot = int(for_state(start_of_best, state)(state.arrays, 0, state.slot_of(seq), o, 1.0)[2])
    return int(state.arrays.job.seq[slot]) if slot >= 0 else -1


def test_plans_on_preferred_types_come_before_plans_of_more_worth() -> None:
    state = modelled(node("p", 1, "P100"), node("v", 1), node("a", 1, "A100"))
    seq = waiting(state, HEAVY, "P100", "V100")
    assert chosen(state, waiting(state, HEAVY), TYPED) == 2
    assert chosen(state, seq, TYPED) == 1, "of the preferred types, the one of most worth"
    assert chosen(state, seq, TYPED, NO_PREFERENCE) == 2
    running(state, HEAVY, [0])
    running(state, HEAVY, [1])
    assert chosen(state, seq, TYPED) == 2, "no preferred GPU is free"


def test_gang_on_several_nodes_prefers_too() -> None:
    state = modelled(*(node(f"{kind}{k}", 1, kind) for kind in ("P100", "A100") for k in range(2)))
    seq = waiting(state, HEAVY, "P100", gpus=2)
    assert chosen(state, waiting(state, HEAVY, gpus=2), TYPED) == 2
    assert chosen(state, seq, TYPED) == 0
    assert start_action(state, 0, seq, start=TYPED).gpus == (0, 1)
    assert start_action(state, 0, seq, NO_PREFERENCE, start=TYPED).gpus == (2, 3)


def test_job_that_can_start_on_a_preferred_type_does_not_wait_for_another() -> None:
    state = modelled(node("p", 1, "P100"), node("v", 1), node("a", 1, "A100"))
    running(state, HEAVY, [1], predicted_s=600.0)
    running(state, HEAVY, [2], predicted_s=600.0)
    patient = TYPED._replace(later=2.0)
    ends_s = for_state(ends_by_gpu, state)(state.arrays, 0, 1.0, patient)

    def waits(*preferred: str, place: int = BY_RULE) -> bool:
        slot = state.slot_of(waiting(state, HEAVY, *preferred, predicted_s=100_000.0))
        assert for_state(later_worth, state)(state.arrays, 0, slot, patient, ends_s, 1.0) > 1.0
        return bool(for_state(waits_for_better, state)(state.arrays, 0, slot, patient, 1.0, ends_s, place))

    assert waits(), "the rule waits for an A100"
    assert not waits("P100")
    assert not waits("P100", "A100"), "it waits for no preferred type either"
    assert waits("V100"), "the rule waits as without a preference"
    assert waits("P100", place=NO_PREFERENCE)


def test_sharing_preferred_gpus_comes_before_other_free_gpus_if_plans_are_compared() -> None:
    state = modelled(node("p", 1, "P100"), node("v", 1), node("a", 1, "A100"))
    on_p100, on_a100 = running(state, LIGHT, [0]), running(state, LIGHT, [2])
    assert partner(state, waiting(state, LIGHT), COMPARED) == on_a100, "worth more than the free V100"
    assert partner(state, waiting(state, LIGHT, "P100"), COMPARED) == on_p100
    assert partner(state, waiting(state, LIGHT, "V100"), COMPARED) == -1
    assert partner(state, waiting(state, LIGHT, "P100"), TYPED._replace(share=BLOCKED)) == -1


@pytest.mark.parametrize("o", [COMPARED, PLAIN_START._replace(share=BLOCKED, max_jobs=4, min_speed=0.0)])
def test_job_that_shares_prefers_too(o: StartOptions) -> None:
    """Each type is shared by the jobs that prefer it; a preference that no GPU meets has no effect."""
    state = modelled(node("p", 1, "P100"), node("v", 1), node("a", 1, "A100"))
    holders = {kind: running(state, LIGHT, [k]) for k, kind in enumerate(("P100", "V100", "A100"))}

    def shared(*preferred: str) -> int:
        slot = state.slot_of(waiting(state, LIGHT, *preferred))
        return int(state.arrays.job.seq[for_state(best_partner, state)(state.arrays, 0, slot, o, 1.0)])

    assert {kind: shared(kind) for kind in holders} == holders
    assert shared("T4") == shared()


@pytest.mark.parametrize(
    "policy", [Policy("tuned"), Policy("easy", types={"price": 0.3, "later": 2.0})], ids=lambda one: one.name
)
def test_compiled_equals_one_decision_at_a_time_with_a_choice_of_types(policy: Policy) -> None:
    trace, _ = synthesize("helios", jobs=300, load=1.0, gpus=32, seed=5)
    prefer = np.random.default_rng(1).choice(["", "V100", "A100"], len(trace))
    groups = [NodeGroup(count=2, gpus=8, gpu_type=kind, cpus=48) for kind in ("V100", "A100")]
    spec = ClusterSpec(name="mixed", nodes=tuple(groups))
    nodes = spec.expand()

    def made(trace: Trace) -> Engine:
        return Engine(
            trace, spec, order=policy.rule.order, predictions=predict_trace(trace, spec), models=Models()
        )

    preferring = replace(trace, extra={**trace.extra, "prefer": prefer})
    compiled = made(preferring).run_rule(policy.rule)
    stepped = made(preferring).run(RuleScheduler(policy))
    np.testing.assert_array_equal(compiled.start_s, stepped.start_s)
    assert [list(gpus) for gpus in compiled.gpus] == [list(gpus) for gpus in stepped.gpus]
    met, by_chance = (
        sum(
            nodes[table.gpu_node[gpus[0]]].gpu_type == kind
            for gpus, kind in zip(table.gpus, prefer, strict=True)
        )
        for table in (compiled, made(trace).run_rule(policy.rule))
    )
    assert met > 1.2 * by_chance


# ---- recorded plans -----------------------------------------------------------------------------


def test_plans_name_preferred_gpus_and_the_others_that_the_job_could_have() -> None:
    state = ClusterState(
        [NodeSpec(name="a", gpus=1, gpu_type="A100"), NodeSpec(name="h", gpus=2, gpu_type="H100")],
        OrderedQueue(Order()),
    )
    asked = Demand(gpus=1, preferred_types=("H100",))
    seq = state.add_job(demand=asked, submit_s=0.0, predicted_s=9.0, spread=1.0)
    for place, taken in ((BY_RULE, "h"), (NO_PREFERENCE, "a")):
        action = start_action(state, 0, seq, place)
        plans = [one for one in plans_of(state, 0, seq, PLAIN_START, 1.0, action) if one.how == "free"]
        assert [(one.node, one.gpu_type, one.chosen) for one in plans] == [
            ("h", "H100", taken == "h"),
            ("a", "A100", taken == "a"),
        ]


def test_chosen_plan_of_a_job_with_a_choice_of_types_is_recorded() -> None:
    state = modelled(node("p", 1, "P100"), node("a", 1, "A100"))
    seq = waiting(state, HEAVY, "P100")
    action = start_action(state, 0, seq, start=TYPED)
    plans = [one for one in plans_of(state, 0, seq, TYPED, 1.0, action) if one.how == "free"]
    assert [(one.node, one.chosen) for one in plans] == [("a", False), ("p", True)]


# ---- random jobs --------------------------------------------------------------------------------

POLICIES = (
    *("fifo", "fifo-backfill", "easy"),
    Policy("easy", order="area", reserve_after="2s"),
    Policy("reserve", leave_free={"longer_than": "3s"}),
)
QUICK = (POLICIES[2], POLICIES[-1])
"""Policies that `make test` runs."""


def drawn(rng: np.random.Generator) -> tuple[Trace, ClusterSpec]:
    """Some 30 jobs of 1 to 6 GPUs in 20 seconds on up to 9 nodes of three types."""
    jobs = int(rng.integers(20, 40))
    kind = rng.choice(["", "", "T4", "V100"], jobs)
    prefer = rng.choice(["T4", "V100", "A100|T4", ""], jobs)
    fitting = np.array([not one or one in two for one, two in zip(kind, prefer, strict=True)])
    duration = rng.integers(1, 20, jobs).astype(float)
    trace = Trace.from_columns(
        name="random",
        submit_s=np.sort(rng.integers(0, 20, jobs)).astype(float),
        duration_s=duration,
        num_gpus=rng.choice([1, 1, 1, 2, 2, 3, 4, 6], jobs).astype(float),
        gpu_type=kind,
        predicted_s=duration,
        extra={"prefer": np.where(fitting, prefer, ""), "exclusive": rng.choice(["", "", "", "true"], jobs)},
    )
    groups = [
        NodeGroup(gpus=int(rng.choice([1, 2, 4])), gpu_type=str(rng.choice(["T4", "V100", "A100"])))
        for _ in range(int(rng.integers(4, 10)))
    ]
    rule = str(rng.choice(["consolidate", "best-fit", "worst-fit", "spread", "fgd"]))
    return trace, ClusterSpec(name="c", nodes=tuple(groups), placement=cast(Placement, rule))


class Watching(RuleScheduler):
    """A rule that checks at every decision that preferences keep no job back, and delay no reservation.

    Attributes:
        differ: Number of starts of a job on other GPUs than without preferences.
        sooner: Number of starts for which the rule without preferences starts a later job, or none.
        checked: Number of starts after which the reservation was compared with the reservation before.
    """

    differ = sooner = checked = 0
    before: tuple[float, int, float] = (-1.0, -1, np.inf)

    def decide(self, state: ClusterState, partition: int, now_s: float, *, record: bool = False) -> Decision:
        """The rule's decision."""
        if self.name.startswith("easy"):
            self._check_reservation(state, partition, now_s)
        decision = super().decide(state, partition, now_s, record=record)
        preferred, kept = state.arrays.demand.preferred, state.arrays.demand.preferred.copy()
        preferred[:] = -1
        without = super().decide(state, partition, now_s).action
        preferred[:] = kept
        queue, action = state.waiting(partition), decision.action
        if isinstance(without, Start):
            assert isinstance(action, Start), "a job without preferences would start"
            assert queue.index(action.seq) <= queue.index(without.seq)
        if isinstance(action, Start):
            same = isinstance(without, Start) and without.seq == action.seq
            self.sooner += not same
            self.differ += same and action != without
        return decision

    def _check_reservation(self, state: ClusterState, partition: int, now_s: float) -> None:
        """A start at this instant has not moved the reservation of the same job to a later time."""
        after_s = self.rule.options.reserve_after_s
        slot, at_s = specialise(reservation, MODELLED=False)(state.arrays, partition, now_s, after_s)
        seq = int(state.arrays.job.seq[slot]) if slot >= 0 else -1
        if self.before[:2] == (now_s, seq) and seq >= 0:
            assert at_s <= self.before[2]
            self.checked += 1
        self.before = now_s, seq, float(at_s)


@pytest.mark.parametrize("policy", quick(POLICIES, QUICK.__contains__), ids=str)
def test_preferences_keep_no_job_back_and_delay_no_reservation(policy: Policy | str) -> None:
    rng, one = np.random.default_rng(3), policy if isinstance(policy, Policy) else Policy(policy)
    counts = np.zeros(3, int)
    for _ in range(60):
        trace, spec = drawn(rng)
        rule = Watching(one)
        watched = Engine(trace, spec, order=one.rule.order, oracle=True).run(rule)
        compiled = Engine(trace, spec, order=one.rule.order, oracle=True).run_rule(one.rule)
        np.testing.assert_array_equal(watched.start_s, compiled.start_s)
        assert [list(gpus) for gpus in watched.gpus] == [list(gpus) for gpus in compiled.gpus]
        counts += (rule.differ, rule.sooner, rule.checked)
    assert counts[0] > 50
    assert counts[2] > 20 or not one.name.startswith("easy")
