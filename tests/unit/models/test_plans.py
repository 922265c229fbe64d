"""Whole plans: the value of each, the chosen one, and their records; computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rlsched.cluster.placement import BY_RULE
from rlsched.cluster.spec import ClusterSpec, NodeGroup
from rlsched.cluster.state import ClusterState
from rlsched.decide import recording
from rlsched.decide.actions import Start, Wait
from rlsched.decide.compiled import for_state
from rlsched.decide.options import BETTER, BLOCKED, NO_GATE, PLAIN_START, StartOptions
from rlsched.decide.plans.best import start_of_best, waits_for_better
from rlsched.decide.plans.plan import ends_by_gpu, later_worth, type_worth
from rlsched.decide.plans.plan_text import in_words, outcome, span
from rlsched.decide.policies.policy import Policy
from rlsched.decide.policies.presets import PRESETS
from rlsched.decide.record import DecisionRecord, PlanSeen
from rlsched.decide.recording import plans_of, prices_of
from rlsched.decide.rule_scheduler import RuleScheduler
from rlsched.workload.synth import synthesize
from rlsched_envs.sim.engine import Engine, predict_trace
from rlsched_envs.sim.modelling import Models
from tests.support.sim.board import add, modelled, node, running

LIGHT, BUSY, HEAVY = "a2c-b64", "gpt2-b4", "resnet50-imagenet-b64"
TYPED = PLAIN_START._replace(chooses_type=True, max_jobs=4, min_speed=0.0)
COMPARED, ONE_BY_ONE = TYPED._replace(share=BETTER), TYPED._replace(share=BLOCKED)


def waiting(state: ClusterState, workload: str, gpus: int = 1, **more: float) -> int:
    """A job whose run time is for V100s."""
    seq = add(state, workload, gpus, **more)
    state.arrays.job.reference_kind[state.slot_of(seq)] = state.kind_names.index("V100")
    return seq


def partner(state: ClusterState, seq: int, o: StartOptions) -> int:
    """Number of the job whose GPUs a fitting job shares, -1: it starts on free ones."""
    find = for_state(start_of_best, state)
    slot = int(find(state.arrays, 0, state.slot_of(seq), o, 1.0)[2])
    return int(state.arrays.job.seq[slot]) if slot >= 0 else -1


def worth(state: ClusterState, seq: int, kind: str, o: StartOptions) -> float:
    find = for_state(type_worth, state)
    return float(find(state.arrays, 0, state.slot_of(seq), state.kind_names.index(kind), o))


def test_shared_fast_gpus_are_used_where_they_are_worth_more_than_free_slow_ones() -> None:
    state = modelled(node("p", 1, "P100"), node("a", 1, "A100"))
    state.arrays.job.reference_kind[:] = 0
    holder, seq = running(state, LIGHT, [1]), add(state, HEAVY)
    state.arrays.job.reference_kind[state.slot_of(seq)] = 0
    (free,) = (plan for plan in listed(state, seq, COMPARED) if plan.how == "free")
    (shared,) = (plan for plan in listed(state, seq, COMPARED) if plan.how == "share")
    assert free.worth == worth(state, seq, "P100", COMPARED)
    assert shared.worth == pytest.approx(shared.gain_frac * worth(state, seq, "A100", COMPARED))
    assert shared.worth > free.worth
    assert partner(state, seq, COMPARED) == holder
    assert partner(state, seq, ONE_BY_ONE) == -1, "free GPUs come first"
    dear = COMPARED._replace(type_price=4.0)
    assert partner(state, seq, dear) == -1, "fast GPUs cost too much"
    shut = COMPARED._replace(gate=NO_GATE._replace(is_shut=True, pair=2.0, more=2.0))
    assert partner(state, seq, shut) == -1, "its gain is below the threshold"


def test_on_one_type_free_gpus_are_worth_more_than_shared_ones() -> None:
    state = modelled(node("v", 2), node("a", 1, "A100"))
    running(state, LIGHT, [0])
    running(state, HEAVY, [2])
    assert partner(state, waiting(state, LIGHT), COMPARED._replace(type_price=4.0)) == -1


def test_later_start_is_worth_its_share_of_the_time() -> None:
    state = modelled(node("p", 1, "P100"), node("a", 1, "A100"))
    running(state, HEAVY, [1], predicted_s=600.0)
    patient = TYPED._replace(later=2.0)
    for predicted_s, waits in ((300.0, False), (100_000.0, True)):
        seq = waiting_on_p100(state, predicted_s)
        slow, fast = (worth(state, seq, kind, TYPED) for kind in ("P100", "A100"))
        run_s = predicted_s / fast  # on the type of its run time it is 1
        assert slow == 1.0
        expected = fast * run_s / (run_s + 2.0 * 599.0)
        find = for_state(later_worth, state)
        slot = state.slot_of(seq)
        ends_s = for_state(ends_by_gpu, state)(state.arrays, 0, 1.0, patient)
        assert ends_s.tolist() == [0.0, 599.0]
        found = find(state.arrays, 0, slot, patient, ends_s, slow)
        assert found == pytest.approx(expected if expected > slow else 0.0)
        assert (expected > slow) == waits
        wait = for_state(waits_for_better, state)
        assert wait(state.arrays, 0, slot, patient, 1.0, ends_s, BY_RULE) == waits
        assert for_state(ends_by_gpu, state)(state.arrays, 0, 1.0, TYPED).size == 0
        assert not wait(state.arrays, 0, slot, TYPED, 1.0, np.empty(0), BY_RULE)
        state.start(seq, [0], 1.0)
        state.release(seq, 1.0)


def waiting_on_p100(state: ClusterState, predicted_s: float) -> int:
    seq = add(state, HEAVY, predicted_s=predicted_s)
    state.arrays.job.reference_kind[state.slot_of(seq)] = state.kind_names.index("P100")
    return seq


# ---- records --------------------------------------------------------------------------


def listed(
    state: ClusterState, seq: int, o: StartOptions, action: Start | Wait | None = None
) -> list[PlanSeen]:
    return plans_of(state, 0, seq, o, 1.0, action)


def test_job_that_does_not_fit_has_no_room_and_fits_later() -> None:
    state = modelled(node("v", 2))
    holder = running(state, BUSY, [0, 1], predicted_s=50.0)
    seq = waiting(state, BUSY, 2)
    free, later = listed(state, seq, PLAIN_START)
    assert (free.how, free.verdict, free.chosen) == ("free", "no room", False)
    assert (later.how, later.wait_s, later.verdict) == ("later", 49.0, "")
    gate = ONE_BY_ONE._replace(gate=NO_GATE._replace(is_shut=True, pair=0.9, more=0.9))
    shared = listed(state, seq, gate)[1]
    assert (shared.how, shared.share_with, shared.verdict) == (
        "share",
        holder,
        "it would add less than is asked",
    )
    assert shared.gain_frac < 0.9 == shared.asked_frac
    action = Start(seq=seq, gpus=(0, 1), share_with=holder)
    taken = [plan for plan in listed(state, seq, ONE_BY_ONE, action) if plan.chosen]
    assert [(plan.how, plan.tenants) for plan in taken] == [("share", 2)]
    assert taken[0].speed_frac < 1.0 < taken[0].power_w


def test_plans_in_words() -> None:
    shared = PlanSeen(
        how="share", share_with=7, gpu_type="A100", tenants=2, speed_frac=0.8, gain_frac=0.65, asked_frac=0.3,
        run_s=7500.0, power_w=120.0, worth=0.9, sm_clock_frac=0.75,
    )  # fmt: skip
    assert in_words(shared, "job {}".format) == (
        "share the GPUs of job 7 (A100): 0.80 of its speed, the others lose 0.15, 0.65 gained for 0.30 "
        "asked, predicted to run 2 h 5 min at 0.75 of the highest SM clock, 120 W more"
    )
    assert (outcome(shared, True), outcome(shared, False)) == ("worth 0.90", "open")
    full = PlanSeen(how="free", verdict="no room")
    assert (in_words(full, str), outcome(full, True)) == ("free GPUs", "not open: no room")
    assert in_words(PlanSeen(how="later", wait_s=None), str).startswith(
        "later: the running jobs hold too few"
    )
    assert in_words(PlanSeen(how="later", wait_s=90.0), str) == "later: in about 1 min 30 s"
    assert in_words(PlanSeen(how="preempt", share_with=3), "job {}".format) == "job 3 is preempted"
    assert span(-1.0) == "0 s"


def mixed_engine(policy: Policy) -> Engine:
    trace, _ = synthesize("helios", jobs=300, load=1.0, gpus=32, seed=5)
    groups = [NodeGroup(count=2, gpus=8, gpu_type=kind, cpus=48) for kind in ("V100", "A100")]
    spec = ClusterSpec(name="mixed", nodes=tuple(groups))
    return Engine(
        trace, spec, order=policy.rule.order, predictions=predict_trace(trace, spec), models=Models()
    )


def test_chosen_plan_is_worth_most_of_the_open_ones() -> None:
    policy = Policy("tuned")
    records: list[DecisionRecord] = []
    mixed_engine(policy).run(RuleScheduler(policy), on_record=records.append)
    hows = []
    for record in records:
        open_plans = [plan for plan in record.plans if not plan.verdict and plan.how in ("free", "share")]
        if isinstance(record.action, Start):
            (taken,) = (plan for plan in record.plans if plan.chosen)
            assert taken.worth == max(plan.worth for plan in open_plans)
            assert taken.sm_clock_frac == record.action.sm_clock_frac
            assert taken.cpu_milli_each == record.action.cpu_milli_each
            hows.append((taken.how, any(plan.how == "free" for plan in open_plans)))
        elif record.action == Wait() and record.turn >= 0:
            assert not [plan for plan in record.plans if plan.chosen]
    assert {("free", True), ("share", False), ("share", True)} <= set(hows), "each kind of plan was best once"
    assert {record.prices["gpu_types"] for record in records} == {0.3}


def test_record_is_made_even_if_its_plans_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[PlanSeen]:
        raise ValueError("no plans today")

    state = modelled(node("v", 1))
    seq = waiting(state, LIGHT)
    rule = RuleScheduler(Policy("tuned"))
    made = rule.decide(state, 0, 1.0, record=True).record
    assert made is not None
    assert made.plans_failed == ""
    assert made.plans
    monkeypatch.setattr(recording, "plans_of", fail)
    decision = rule.decide(state, 0, 1.0, record=True)
    assert isinstance(decision.action, Start)
    assert decision.action.seq == seq
    assert decision.record is not None
    assert (decision.record.plans, decision.record.plans_failed) == ([], "ValueError: no plans today")


@pytest.mark.slow
def test_on_a_cluster_of_one_type_comparing_plans_changes_nothing() -> None:
    """Shared GPUs of the same type are never worth more than free ones: equal to the older tuned rule."""
    trace, spec = synthesize("helios", jobs=300, load=1.0, gpus=32, seed=5)
    blocked = {**PRESETS["tuned"].settings["share"], "when": "blocked"}
    ends = []
    for changes in ({}, {"share": blocked, "types": None}):
        policy = Policy("tuned").with_settings(**changes)
        engine = Engine(
            trace, spec, order=policy.rule.order, predictions=predict_trace(trace, spec), models=Models()
        )
        ends.append(engine.run_rule(policy.rule).end_s)
    np.testing.assert_array_equal(*ends)


def test_prices_equal_the_current_ones() -> None:
    state = modelled(node("v", 1))
    state.arrays.dials.dial.type_price[0], state.arrays.dials.dial.gpu_price[0] = 0.25, np.log(2.0)
    assert prices_of(state, 0, TYPED._replace(type_price=0.5)) == {
        "gpu_types": 0.75,
        "gpu_time": pytest.approx(2.0),
        "energy": 0.0,
    }
